//! The data listener and the walk of a call.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use episode::{AttemptId, Route};
use http::body::ReplyBody;
use http::body::cancel;
use http::body::heartbeat::{self, Pulse};
use http::clock::now;
use http::headers::{self, AcceptedCodings};
use http::server::activity::CallPermit;
use http::server::caller::Caller;
use http::server::edge;
use http::server::endpoint::Endpoint;
use http::server::listen::{self, ClientRules, Listener};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio_rustls::TlsAcceptor;

use crate::accept;
use crate::accept::gate::Gate;
use crate::error::CallError;
use crate::fleet::threads::Thread;
use crate::proxy::Proxy;
use crate::record::open_call::{Arrival, OpenCall};
use crate::replay::answer::{self as replay, ReplayAnswer, ReplayRequest};
use crate::reply::late::late_reply;
use crate::reply::masked::masked;
use crate::reply::relay::{self, ReplyReceiver};
use crate::tag::{self, RequestTag};
use crate::upstream::exchange::AgentRequest;
use crate::upstream::plan::{PlanInput, cache_scope};
use crate::upstream::refusals::RequestClass;

/// Serves agents on `listener` until `shutdown`, then lets calls in flight end.
pub async fn serve_data(
    proxy: Arc<Proxy>,
    listener: impl Into<Endpoint>,
    shutdown: impl Future<Output = ()>,
) {
    let socket = listener.into();
    let gate = Arc::new(Gate::new(proxy.config(), socket.ip()));
    let listener = Listener {
        socket,
        tls: proxy.config().tls.clone().map(TlsAcceptor::from),
        bounds: proxy.config().data_bounds(),
        rules: ClientRules::default(),
    };
    let draining = Arc::clone(&proxy);
    let shutdown = async move {
        shutdown.await;
        draining.begin_drain()
    };
    let answer = move |request| {
        let (proxy, gate) = (Arc::clone(&proxy), Arc::clone(&gate));
        async move { answer(&proxy, &gate, request).await }
    };
    let panicked = || CallError::Panicked.response(Route::Other);
    listen::serve(listener, edge::service(answer, panicked), shutdown).await;
}

/// Answers one request with the upstream's reply, or with an error in the form of its wire.
async fn answer(
    proxy: &Arc<Proxy>,
    gate: &Gate,
    mut request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    // From here on the path has its normal form, and the name that it has below `/v1`.
    let normal = tag::path::normalize(request.uri_mut());
    tag::path::rename(request.uri_mut(), |path| proxy.fleet.name_of(path));
    let route = tag::route_of(request.method(), request.uri().path());
    let admitted =
        normal.and_then(|()| proxy.check_key(&request)).and_then(|()| gate.check(&request));
    if let Err(refused) = admitted {
        return Ok(refused.response(route));
    }

    let (handle, mut cancel_signal) = cancel::channel();
    request.extensions_mut().insert(handle);
    let pulse = proxy.config().heartbeat.map(Pulse::new);
    if let Some(pulse) = &pulse {
        request.extensions_mut().insert(pulse.clone());
    }
    let (proxy, operators_key) = (Arc::clone(proxy), proxy.mask.clone());
    let walk = async move {
        let reply = tokio::select! {
            // In a box, since a connection keeps the room of this future for as long as it lasts.
            reply = Box::pin(call(&proxy, request)) => reply?,
            // Dropping the call records its end.
            () = cancel_signal.cancelled() => return Err(CallError::Cancelled),
        };
        Ok(reply.map(|body| cancel_signal.guard(body)))
    };
    let reply = match pulse {
        Some(pulse) => {
            let late = move |reply, is_stream| late_reply(reply, is_stream, route);
            heartbeat::answer(Box::pin(walk), pulse, late).await
        }
        None => walk.await,
    };
    Ok(masked(reply.unwrap_or_else(|error| error.response(route)), &operators_key))
}

/// The walk of a call: accept, tag, begin, then place, plan and exchange, then relay. The recording
/// starts before the upstream receives the request.
async fn call(
    proxy: &Proxy,
    incoming: Request<Incoming>,
) -> Result<Response<ReplyBody>, CallError> {
    let arrived_at = now();
    let (mut head, body) = accept::read(incoming, proxy.config(), &proxy.memory).await?;
    let json = accept::json(&head, &body)?;
    let request = json.as_ref();
    let tagged = proxy.tag(&mut head, request, arrived_at)?;
    let started_at = proxy.admit(&tagged, arrived_at).await?;
    let permit = proxy.call_permit().await;
    let (route, path, attempt) = (tagged.route, tagged.path.clone(), AttemptId::from(&tagged.tag));
    let lineage = tagged.lineage.clone();
    let cache_scope = cache_scope(proxy.config(), &tagged.tag);

    let force = proxy.force_of(&attempt);
    let arrival = Arrival { head: &head, body: &body, request, force: &force, started_at };
    let call = begin(proxy, arrival, tagged, permit).await?;
    // A recording answers the calls of a replay.
    let asked = ReplayRequest { arrival, path: &path, is_retry: lineage.retry > 0 };
    let call = match replay::answer(proxy.replaying(), call, &attempt, asked).await? {
        ReplayAnswer::Given(reply) => return Ok(reply),
        ReplayAnswer::Live(call) => *call,
    };
    let (mut call, history) = or_fail(call, proxy.history(&attempt, route, request).await).await?;

    // The engine that has the thread's prefix gets the call, rewritten for its dialect.
    let history = history.as_ref().map(|history| &history.request);
    let thread = Thread::new(&attempt, &lineage, route, history.or(request));
    let cache_scope = cache_scope.as_ref();
    let input = PlanInput { route, path: &path, request, history, force: &force, cache_scope };
    let codings = AcceptedCodings::of(&head.headers);
    headers::prepare_request(&mut head.headers, route);
    let class = RequestClass::new(Some(&attempt), route, request);
    let outgoing = AgentRequest { head, path: &path, body, class };
    let (reply, rewrite) = match proxy.fleet.send(&mut call, &thread, input, outgoing).await {
        Ok(answered) => answered,
        Err(error) => return Err(call.fail(error).await),
    };

    // No byte of the reply leaves before the start record is on disk.
    relay::relay(reply, rewrite, call, ReplyReceiver::new(route, codings, proxy.config())).await
}

/// The call with what was found for it. It ends with the error, if there is one.
async fn or_fail<T>(
    call: OpenCall,
    found: Result<T, CallError>,
) -> Result<(OpenCall, T), CallError> {
    match found {
        Ok(found) => Ok((call, found)),
        Err(error) => Err(call.fail(error).await),
    }
}

/// Begins a call: its start record is queued. An attempt that this process does not know to be open
/// waits for it here, so that a call into a closed episode costs the upstream nothing.
async fn begin(
    proxy: &Proxy,
    arrival: Arrival<'_>,
    tagged: RequestTag,
    permit: CallPermit,
) -> Result<OpenCall, CallError> {
    let (path, attempt) = (tagged.path.clone(), AttemptId::from(&tagged.tag));
    let caller = arrival.head.extensions.get::<Caller>().copied().unwrap_or(Caller::Unknown);
    let mut call = OpenCall::begin(proxy.recording(), arrival, tagged, permit).await;
    call.admit(&proxy.open_attempts, &attempt).await?;
    if let Some(first) = proxy.open_attempts.note_caller(&attempt, caller) {
        tracing::warn!(
            %attempt, %first, %caller,
            "calls of one attempt come from two places; if these are two people, \
             --episode-prefix keeps their names apart (this is said once)"
        );
    }
    let named = proxy.check_named(&attempt, &path, arrival.request).await;
    Ok(or_fail(call, named).await?.0)
}
