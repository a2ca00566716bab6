//! The data listener and the walk of a call.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::agent::accept::{self, Listener};
use crate::agent::upgrade;
use crate::body::ReplyBody;
use crate::clock::now;
use crate::error::CallError;
use crate::headers::{self, AcceptedCodings};
use crate::proxy::Proxy;
use crate::record::open_call::{Arrival, CallPermit, OpenCall, PlanInput};
use crate::reply::tee::{self, ReplyReceiver};
use crate::tag;
use crate::upstream::forward::{AgentRequest, RequestClass};

/// Serves agents on `listener` until `shutdown`, then lets calls in flight end.
pub async fn serve_data(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let listener = Listener {
        socket: listener,
        tls: proxy.config().tls.clone().map(TlsAcceptor::from),
        drain_wait: proxy.config().drain_wait,
    };
    let service = tower::service_fn(move |request| answer(Arc::clone(&proxy), request));
    accept::serve(listener, service, shutdown).await;
}

/// Answers one request with the upstream's reply, or with an error in the form of its wire.
async fn answer(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (method, path) = (request.method(), request.uri().path());
    let route = tag::route_of(method, path);
    // The semaphore is never closed.
    let permit = Arc::clone(&proxy.call_permits).acquire_owned().await.ok();

    let reply = if tag::is_engine_route(path) {
        Err(CallError::EngineRoute)
    } else if !proxy.config().allow_unrecorded_sampling && tag::is_unrecordable(method, path) {
        Err(CallError::Unrecordable)
    } else if upgrade::is_requested(&request) {
        upgrade::relay(&proxy, request).await
    } else {
        call(&proxy, request, permit).await
    };
    Ok(reply.unwrap_or_else(|error| error.response(route)))
}

/// The walk of a call: accept, tag, rewrite, forward, tee. The recording starts before the upstream
/// receives the request.
async fn call(
    proxy: &Proxy,
    incoming: Request<Incoming>,
    permit: CallPermit,
) -> Result<Response<ReplyBody>, CallError> {
    let started_at = now();
    let (mut head, body) = accept::read(incoming, proxy.config().request_limits()).await?;
    let json = wire::Request::read(&body.decoded);
    let request = json.as_ref();
    let tagged = tag::tag(&proxy.tags, &mut head, request, started_at)?;
    let (route, path, attempt) = (tagged.route, tagged.path.clone(), tagged.tag.key());

    // The start record is queued. An attempt that this process does not know to be open waits for
    // it here, so that a call into a closed episode costs the upstream nothing.
    let force = proxy.force_of(&attempt);
    let arrival = Arrival { head: &head, body: &body, request, force: &force, started_at };
    let mut call = OpenCall::begin(proxy, arrival, tagged, permit).await;
    let history = proxy.tags.responses.history(proxy.store(), &attempt, route, request).await;
    call.admit(&proxy.open_attempts, attempt).await?;

    let dialect = match proxy.forward.dialect(&head.headers).await {
        Ok(dialect) => dialect,
        Err(error) => return Err(call.fail(error).await),
    };
    let input = PlanInput { route, path: &path, request, history: history.as_ref(), force: &force };
    let plan = call.plan(proxy, dialect, input, &head.headers).await;

    let codings = AcceptedCodings::of(&head.headers);
    headers::prepare_request(&mut head.headers, route);
    let class = RequestClass::of(route, request);
    let outgoing = AgentRequest { head, path: &path, body, class };
    let (reply, rewrite) = match proxy.forward.exchange(outgoing, &plan).await {
        Ok(exchange) => exchange,
        Err(error) => return Err(call.fail(error).await),
    };
    call.recording().expect_reply(plan.collector(&rewrite, proxy.config()), &rewrite);

    // No byte of the reply leaves before the start record is on disk.
    call.wait_for_start().await?;
    let bytes_max = proxy.config().reply_bytes_max;
    tee::relay(reply, rewrite, call, ReplyReceiver { route, codings, bytes_max }).await
}
