//! The control listener: requests that an agent must not be able to make.
//!
//! `routes` lists the routes. A field or parameter that is unknown is refused by its name; requests
//! to the upstream's control routes are forwarded unread. A gate checks who asks, on every route
//! but `GET /health`.

mod admission;
mod desk;
mod engine;
mod episodes;
mod error;
mod fan_out;
mod feed;
mod fleet;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod keys;
mod metrics;
mod openapi;
mod requests;
pub(crate) mod routes;
mod versions;

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use episode::AttemptId;
use http::api::auth::{Gate, Tokens};
use http::api::query::Query;
use http::api::reply::{JsonReply, done, error, ok};
use http::api::route::{Lookup, similar_path};
use http::body::ReplyBody;
use http::body::read::read_whole;
use http::server::edge;
use http::server::endpoint::Endpoint;
use http::server::listen::{self, Listener};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounds::{CONTROL_BODY_BYTES_MAX, CONTROL_DRAIN_WAIT, CONTROL_REQUESTS_MAX};
use crate::config::Config;
use crate::control::desk::Desk;
use crate::control::error::{body_error, commit_error, not_let_in, refused};
use crate::control::routes::{ControlRoute, Handler, JsonHandler, ROUTES};
use crate::proxy::Proxy;

/// Serves the control listener until `shutdown`.
pub async fn serve_control(
    proxy: Arc<Proxy>,
    listener: impl Into<Endpoint>,
    shutdown: impl Future<Output = ()>,
) {
    // These tasks hold the store, so they must end with this function however it ends.
    let mut tasks = JoinSet::new();
    tasks.spawn(engine::record_versions(Arc::clone(&proxy)));
    tasks.spawn(versions::read_declared(Arc::clone(&proxy)));

    // Without an address no name but loopback's is taken.
    let socket = listener.into();
    let local = socket.ip().unwrap_or(Ipv4Addr::LOCALHOST.into());
    let control = Arc::new(Control {
        gate: gate(proxy.config(), local),
        desk: Desk::new(proxy.config().reader.clone()),
        requests: Semaphore::new(CONTROL_REQUESTS_MAX),
        proxy: Arc::clone(&proxy),
    });
    let (draining, stopping) = (Arc::clone(&proxy), Arc::clone(&control));
    let shutdown = async move {
        shutdown.await;
        stopping.desk.stop();
        // The calls may have used up the time of the drain.
        draining.begin_drain().max(Instant::now() + CONTROL_DRAIN_WAIT)
    };
    let bounds = proxy.config().control_bounds();
    let listener = Listener { socket, tls: None, bounds };
    let answer = move |request| answer(Arc::clone(&control), request);
    listen::serve(listener, edge::service(answer, panicked), shutdown).await;
    tasks.shutdown().await;
}

/// Serves what people read of a recording, and nothing else, until `shutdown`. `config` says who is
/// let in, and has the reader.
pub async fn serve_reading(
    config: Config,
    listener: impl Into<Endpoint>,
    shutdown: impl Future<Output = ()>,
) {
    let socket = listener.into();
    let local = socket.ip().unwrap_or(Ipv4Addr::LOCALHOST.into());
    let rooms = Arc::new((gate(&config, local), Desk::new(config.reader.clone())));
    let stopping = Arc::clone(&rooms);
    let shutdown = async move {
        shutdown.await;
        stopping.1.stop();
        Instant::now() + CONTROL_DRAIN_WAIT
    };
    let listener = Listener { socket, tls: None, bounds: config.control_bounds() };
    let answer = move |request: Request<Incoming>| {
        let rooms = Arc::clone(&rooms);
        async move {
            let (gate, desk) = &*rooms;
            let reply = respond_to_reader(gate, desk, &request.into_parts().0).await;
            Ok(reply.unwrap_or_else(JsonReply::into_response))
        }
    };
    listen::serve(listener, edge::service(answer, panicked), shutdown).await;
}

/// The reply to a request whose answer panicked.
fn panicked() -> Response<ReplyBody> {
    let message = "the request could not be answered; the log of rolltape says why";
    error(StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
}

/// The gate of a listener at `local`.
fn gate(config: &Config, local: IpAddr) -> Gate {
    let tokens = Tokens::new(config.control_token.as_deref());
    Gate::new("control", local, config.control_hosts.clone(), tokens)
}

async fn respond_to_reader(
    gate: &Gate,
    desk: &Desk,
    head: &Parts,
) -> Result<Response<ReplyBody>, JsonReply> {
    if let Some(file) = page_file(desk, gate, head)? {
        return Ok(file);
    }
    let (route, parameter) = let_in(gate, head).await?;
    let query = head.uri.query();
    match route.handler {
        Handler::Health => Ok(done().into_response()),
        Handler::Read(view) => desk.read(route, view, &parameter, query).await,
        Handler::Changes => desk.changes(route, query).await,
        _ => {
            let message = "this listener only reads a recording; `rolltape serve` has the rest";
            Err(error(StatusCode::NOT_FOUND, message))
        }
    }
}

/// A control listener.
struct Control {
    proxy: Arc<Proxy>,
    gate: Gate,
    desk: Desk,
    /// Bounds the requests that are served at once. Those that the gate refuses take no permit, nor
    /// do bodies of JSON that are still being read. A request to the upstream's control routes has
    /// one while its body passes.
    requests: Semaphore,
}

async fn answer(
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    Ok(respond(&control, request).await.unwrap_or_else(JsonReply::into_response))
}

async fn respond(
    control: &Control,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, JsonReply> {
    let (head, body) = request.into_parts();
    if let Some(file) = page_file(&control.desk, &control.gate, &head)? {
        return Ok(file);
    }
    let (route, parameter) = let_in(&control.gate, &head).await?;

    // A body of JSON is read before the permit is taken: a slow one holds up nobody.
    let proxy = &*control.proxy;
    let request = Request::from_parts(head, body);
    match route.handler {
        Handler::Health => Ok(done().into_response()),
        Handler::Engine { changes_weights, .. } => {
            let _permit = control.requests.acquire().await;
            match proxy.fleet.is_many() {
                true => fan_out::to_all(proxy, route.path, request, changes_weights).await,
                false => engine::forward(proxy, request, changes_weights).await,
            }
        }
        Handler::Models => {
            let _permit = control.requests.acquire().await;
            engine::forward(proxy, request, false).await
        }
        Handler::Read(view) => {
            control.desk.read(route, view, &parameter, request.uri().query()).await
        }
        Handler::Changes => control.desk.changes(route, request.uri().query()).await,
        Handler::Feed => {
            let (head, body) = read_json(proxy, request).await?;
            let _permit = control.requests.acquire().await;
            feed::hand_out(proxy, head.uri.query(), &body).await
        }
        Handler::Metrics => {
            let _permit = control.requests.acquire().await;
            metrics::page(proxy, &control.gate).await
        }
        Handler::Json(handler) => {
            let (head, body) = read_json(proxy, request).await?;
            let _permit = control.requests.acquire().await;
            let query = head.uri.query();
            let request = JsonRequest { route, handler, parameter: &parameter, query, body: &body };
            request.answer(proxy).await.map(JsonReply::into_response)
        }
    }
}

/// A file of the page, if the request asks for one. Files have no secret, and a browser sends no
/// token when it opens a page.
fn page_file(
    desk: &Desk,
    gate: &Gate,
    head: &Parts,
) -> Result<Option<Response<ReplyBody>>, JsonReply> {
    if head.method != Method::GET {
        return Ok(None);
    }
    let Some(file) = desk.page_file(head.uri.path()) else { return Ok(None) };
    gate.check_name(head).map_err(refused)?;
    Ok(Some(file))
}

/// Finds the route of a request and checks who asks.
async fn let_in(gate: &Gate, head: &Parts) -> Result<(&'static ControlRoute, String), JsonReply> {
    let (method, path) = (&head.method, head.uri.path());
    let lookup = routes::lookup(method, path);
    let is_health =
        matches!(&lookup, Lookup::Found { route, .. } if route.handler == Handler::Health);
    // Health checks of a load balancer carry no token.
    if !is_health {
        gate.check(head).await.map_err(not_let_in)?;
    }
    match lookup {
        Lookup::Found { route, parameter } => Ok((route, parameter)),
        Lookup::WrongMethod(allowed) => Err(wrong_method(method, path, allowed.join(", "))),
        Lookup::Unknown => Err(unknown_path(path)),
    }
}

/// Reads a request whole. A body must say that it is JSON: a web page cannot send such a one to
/// another origin without asking first.
async fn read_json(proxy: &Proxy, request: Request<Incoming>) -> Result<(Parts, Bytes), JsonReply> {
    let wait = proxy.config().body_wait;
    let read = read_whole(request, CONTROL_BODY_BYTES_MAX, wait).await;
    let (head, body) = read.map_err(body_error)?;
    if body.is_empty() || is_json(&head.headers) {
        return Ok((head, body));
    }
    let message = "this route takes JSON; send content-type: application/json";
    Err(error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// True if a content type is given, and only that of JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter().peekable();
    types.peek().is_some()
        && types.all(|value| {
            let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
            essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
        })
}

fn wrong_method(method: &Method, path: &str, allowed: String) -> JsonReply {
    let message = format!("`{path}` does not take {method}; use {allowed}");
    JsonReply { allow: Some(allowed), ..error(StatusCode::METHOD_NOT_ALLOWED, &message) }
}

fn unknown_path(path: &str) -> JsonReply {
    let hint = match similar_path(&ROUTES, path) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => "see docs/control.md".to_owned(),
    };
    let message = format!("the control listener has no route `{path}`; {hint}");
    error(StatusCode::NOT_FOUND, &message)
}

/// A request to a route that takes and returns JSON.
struct JsonRequest<'a> {
    route: &'static ControlRoute,
    handler: JsonHandler,
    /// The value of the path's parameter; empty if it has none.
    parameter: &'a str,
    query: Option<&'a str>,
    body: &'a [u8],
}

impl JsonRequest<'_> {
    async fn answer(&self, proxy: &Proxy) -> Result<JsonReply, JsonReply> {
        let body = self.body;
        match self.handler {
            JsonHandler::Ready => ready(proxy).await,
            JsonHandler::OpenApi => Ok(ok(openapi::document())),

            JsonHandler::AnnounceEpisode => episodes::announce(proxy, body).await,
            JsonHandler::ShowEpisode => episodes::show(proxy, self.attempt()?).await,
            JsonHandler::SignKey => keys::sign(proxy, self.attempt()?, body).await,
            JsonHandler::RevokeKeys => keys::revoke(proxy, self.attempt()?, body).await,
            JsonHandler::RotateSecrets => keys::rotate(proxy, body),
            JsonHandler::AddReward => episodes::add_reward(proxy, self.attempt()?, body).await,
            JsonHandler::CloseEpisode => episodes::close(proxy, self.attempt()?, body).await,

            JsonHandler::ListConsumers => feed::list_consumers(proxy).await,
            JsonHandler::AckLease => feed::ack(proxy, self.parameter, body).await,
            JsonHandler::NackLease => feed::nack(proxy, self.parameter, body).await,
            JsonHandler::RenewLease => feed::renew(proxy, self.parameter, body).await,

            JsonHandler::SetAdmission => admission::set(proxy, body).await,
            JsonHandler::ShowAdmission => admission::show(proxy).await,
            JsonHandler::LiftAdmission => admission::lift(proxy).await,

            JsonHandler::DeclareVersion => versions::declare(proxy, body).await,
            JsonHandler::ListVersions => versions::list(proxy).await,

            JsonHandler::ListUpstreams => Ok(fleet::list(proxy)),
            JsonHandler::AddUpstream => fleet::add(proxy, body).await,
            JsonHandler::DrainUpstream => fleet::drain(proxy, self.parameter),
            JsonHandler::RemoveUpstream => fleet::remove(proxy, self.parameter).await,
        }
    }

    /// The attempt that the path and the query name.
    fn attempt(&self) -> Result<AttemptId, JsonReply> {
        let query = Query::parse(self.query)?;
        query.check_known(&self.route.query_names())?;
        episodes::attempt_key(self.parameter, query.get("attempt"))
    }
}

/// Reports whether a call could be forwarded and recorded now, and the address of the upstream.
async fn ready(proxy: &Proxy) -> Result<JsonReply, JsonReply> {
    let unavailable = |reason: &str| error(StatusCode::SERVICE_UNAVAILABLE, reason);
    if proxy.is_draining() {
        return Err(unavailable(
            "rolltape is draining: it takes no more calls and is about to stop",
        ));
    }
    proxy.store().probe().await.map_err(commit_error)?;
    if proxy.fleet.is_many() {
        return fleet::ready(proxy);
    }
    let only = proxy.fleet.any();
    let upstream = only.spec.upstream.to_string();
    if let Err(reason) = only.server.client.try_reach().await {
        let message = format!("the upstream at {upstream} could not be reached: {reason}");
        return Err(unavailable(&message));
    }
    Ok(ok(json!({ "status": "ok", "upstream": upstream })))
}
