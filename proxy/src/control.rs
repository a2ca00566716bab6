//! The control listener: requests that an agent must not be able to make.
//!
//! `routes` lists the routes. A field or parameter that is unknown is refused by its name; requests
//! to the upstream's control routes are forwarded unread. If a token is set, every route but
//! `GET /health` requires it.

mod body;
mod engine;
mod episodes;
mod feed;
mod metrics;
mod openapi;
mod reply;
mod requests;
pub(crate) mod routes;
mod schema;
mod suggest;
mod versions;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::ServiceBuilder;

use crate::agent::accept::{self, Listener};
use crate::body::ReplyBody;
use crate::bounds::{CONTROL_BODY_BYTES_MAX, CONTROL_REQUESTS_MAX};
use crate::control::body::Query;
use crate::control::reply::{JsonReply, call_error, commit_error, done, error, ok};
use crate::control::routes::{ControlRoute, Handler, JsonHandler, Lookup};
use crate::proxy::Proxy;
use crate::record::attempts::AttemptKey;

/// Serves the control listener until `shutdown`.
pub async fn serve_control(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    // These tasks hold the store, so they must end with this function however it ends.
    let mut tasks = JoinSet::new();
    tasks.spawn(engine::record_versions(Arc::clone(&proxy)));
    tasks.spawn(versions::read_declared(Arc::clone(&proxy)));

    let service = ServiceBuilder::new().concurrency_limit(CONTROL_REQUESTS_MAX).service_fn({
        let proxy = Arc::clone(&proxy);
        move |request| answer(Arc::clone(&proxy), request)
    });
    let shutdown = async {
        shutdown.await;
        proxy.feed.stop();
    };
    let drain_wait = proxy.config().drain_wait;
    accept::serve(Listener { socket: listener, tls: None, drain_wait }, service, shutdown).await;
    tasks.shutdown().await;
}

async fn answer(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    Ok(respond(&proxy, request).await.unwrap_or_else(JsonReply::into_response))
}

async fn respond(
    proxy: &Proxy,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, JsonReply> {
    let (method, path) = (request.method(), request.uri().path());
    let lookup = routes::find(method, path);
    if !lookup.is_health() {
        check_token(proxy.config().control_token.as_deref(), request.headers())?;
    }
    let (route, parameter) = match lookup {
        Lookup::Found { route, parameter } => (route, parameter),
        Lookup::WrongMethod(allowed) => return Err(wrong_method(method, path, allowed)),
        Lookup::Unknown(similar) => return Err(unknown_path(path, similar.as_deref())),
    };

    // Only JSON routes read the body whole; the others forward or stream.
    match route.handler {
        Handler::Engine { changes_weights, .. } => {
            engine::forward(proxy, request, changes_weights).await
        }
        Handler::Models => engine::forward(proxy, request, false).await,
        Handler::Feed => feed::hand_out(proxy, request.uri().query()).await,
        Handler::Metrics => metrics::page(proxy).await,
        Handler::Json(handler) => {
            let (head, body) =
                accept::read_whole(request, CONTROL_BODY_BYTES_MAX).await.map_err(call_error)?;
            let query = head.uri.query();
            let request = JsonRequest { route, handler, parameter: &parameter, query, body: &body };
            request.answer(proxy).await.map(JsonReply::into_response)
        }
    }
}

/// Checks the token. The comparison takes the same time for any wrong token.
fn check_token(token: Option<&str>, headers: &HeaderMap) -> Result<(), JsonReply> {
    let Some(token) = token else { return Ok(()) };
    let given = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
        .unwrap_or_default();
    if Sha256::digest(given) == Sha256::digest(token.as_bytes()) {
        return Ok(());
    }
    let message = "the control listener requires its token: authorization: Bearer TOKEN";
    Err(error(StatusCode::UNAUTHORIZED, message))
}

fn wrong_method(method: &Method, path: &str, allowed: &'static str) -> JsonReply {
    let message = format!("`{path}` does not take {method}; use {allowed}");
    JsonReply { allow: Some(allowed), ..error(StatusCode::METHOD_NOT_ALLOWED, &message) }
}

fn unknown_path(path: &str, similar: Option<&str>) -> JsonReply {
    let hint = match similar {
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
            JsonHandler::Health => Ok(done()),
            JsonHandler::Ready => ready(proxy).await,
            JsonHandler::OpenApi => Ok(ok(openapi::document())),

            JsonHandler::AnnounceEpisode => episodes::announce(proxy, body).await,
            JsonHandler::ShowEpisode => episodes::show(proxy, self.attempt()?).await,
            JsonHandler::SignKey => episodes::sign_key(proxy, &self.attempt()?, body),
            JsonHandler::AddReward => episodes::add_reward(proxy, self.attempt()?, body).await,
            JsonHandler::CloseEpisode => episodes::close(proxy, self.attempt()?, body).await,

            JsonHandler::ListConsumers => feed::list_consumers(proxy).await,
            JsonHandler::AckLease => feed::ack(proxy, self.parameter, body).await,
            JsonHandler::NackLease => feed::nack(proxy, self.parameter, body).await,
            JsonHandler::RenewLease => feed::renew(proxy, self.parameter, body).await,

            JsonHandler::DeclareVersion => versions::declare(proxy, body).await,
            JsonHandler::ListVersions => versions::list(proxy).await,
        }
    }

    /// The attempt that the path and the query name.
    fn attempt(&self) -> Result<AttemptKey, JsonReply> {
        let query = Query::parse(self.query)?;
        query.check_known(self.route.query)?;
        episodes::attempt_key(self.parameter, query.get("attempt"))
    }
}

/// Reports whether a call could be recorded now, and the address of the upstream.
async fn ready(proxy: &Proxy) -> Result<JsonReply, JsonReply> {
    proxy.store().probe().await.map_err(commit_error)?;
    let upstream = proxy.config().upstream.to_string();
    Ok(ok(json!({ "status": "ok", "upstream": upstream })))
}
