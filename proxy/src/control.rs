//! The control listener: what an agent must not be able to say.
//!
//! - `GET /health`: 200 while the process lives. `GET /ready`: whether a call could be recorded,
//!   and where the upstream is.
//! - `POST /episodes`: make one known before its first call: `{"episode_id", "attempt"?,
//!   "group_id"?, "group_size"?, "task_id"?, "labels"?: {}, "force_sampling"?}`.
//! - `POST /episodes/{id}/key`: an API key that names it: `{"ttl_s"?}`.
//! - `GET /episodes/{id}`: what was recorded of it, counted.
//! - `POST /episodes/{id}/rewards`: append `{"value": 1.0 | null, "name"?, "source"?}`, and what it
//!   is about: `{"scope"?, "call_id"?, "choice"?, "start"?, "end"?}`.
//! - `POST /episodes/{id}/close`: refuse later calls; `{"status"?}`.
//! - `GET /feed`, `GET /feed/consumers`, `POST /feed/leases/{id}/ack` (`nack`, `renew`): what
//!   is finished, to trainers.
//! - `POST /version`, `GET /versions`: which weights there are.
//! - `GET /metrics`: numbers for monitoring.
//! - The upstream's own control routes, passed on.
//!
//! All of an episode but the first take `?attempt=N`. With a token, all but `/health` need it.
//! A field or parameter that nobody reads is refused by name; what is passed on is not looked at.

pub(crate) mod answers;
pub(crate) mod engine;
mod episodes;
mod feed;
mod metrics;
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

use crate::accept::{self, serve};
use crate::control::answers::{Answer, done, error, faulty, refused, response};
use crate::control::episodes::which;
use crate::proxy::Proxy;
use crate::tee::ReplyBody;

const REQUEST_BYTES_MAX: usize = 1 << 20;
const REQUESTS_MAX: usize = 256;

/// Serves the control listener until `shutdown`.
pub async fn serve_control(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let drain_wait = proxy.config().drain_wait;
    // They hold a handle on the store, and end with this one however it ends.
    let mut aside = JoinSet::new();
    aside.spawn(engine::note_versions(Arc::clone(&proxy)));
    aside.spawn(versions::learn(Arc::clone(&proxy)));
    let service = ServiceBuilder::new().concurrency_limit(REQUESTS_MAX).service_fn({
        let proxy = Arc::clone(&proxy);
        move |request| answered(Arc::clone(&proxy), request)
    });
    let shutdown = async {
        shutdown.await;
        proxy.feed.stop();
    };
    serve((listener, None), service, shutdown, drain_wait).await;
    aside.shutdown().await;
}

async fn answered(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    Ok(route(&proxy, request).await.unwrap_or_else(response))
}

/// Those whose bodies are not read or written whole come first.
async fn route(proxy: &Proxy, request: Request<Incoming>) -> Result<Response<ReplyBody>, Answer> {
    let path = request.uri().path();
    if path != "/health" {
        admit(proxy.config().control_token.as_deref(), request.headers())?;
    }
    if engine::is_forwarded(request.method(), path) {
        return engine::forward(proxy, request).await;
    }
    match (request.method(), path) {
        (&Method::GET, "/feed") => feed::hand_out(proxy, request.uri().query()).await,
        (&Method::GET, "/metrics") => metrics::page(proxy).await,
        _ => answer(proxy, request).await.map(response),
    }
}

/// Whether whoever asks knows the token. It takes as long for a wrong one as for a right one.
fn admit(token: Option<&str>, headers: &HeaderMap) -> Result<(), Answer> {
    let Some(token) = token else { return Ok(()) };
    let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    if Sha256::digest(given) == Sha256::digest(token.as_bytes()) {
        return Ok(());
    }
    let why = "the control listener asks for its token: authorization: Bearer TOKEN";
    Err(error(StatusCode::UNAUTHORIZED, why))
}

async fn answer(proxy: &Proxy, request: Request<Incoming>) -> Result<Answer, Answer> {
    let (head, body) = accept::read_whole(request, REQUEST_BYTES_MAX).await.map_err(faulty)?;
    let query = head.uri.query();
    let segments: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    match (&head.method, segments.as_slice()) {
        (&Method::GET, ["health"]) => Ok(done()),
        (&Method::GET, ["ready"]) => {
            proxy.store().probe().await.map_err(refused)?;
            let upstream = proxy.config().upstream.to_string();
            Ok((StatusCode::OK, json!({ "status": "ok", "upstream": upstream })))
        }
        (&Method::POST, ["episodes"]) => episodes::announce(proxy, &body).await,
        (&Method::POST, ["episodes", id, "key"]) => {
            episodes::mint(proxy, &which(id, query)?, &body)
        }
        (&Method::GET, ["episodes", id]) => episodes::summary(proxy, which(id, query)?).await,
        (&Method::POST, ["episodes", id, "close"]) => {
            episodes::close(proxy, which(id, query)?, &body).await
        }
        (&Method::POST, ["episodes", id, "rewards"]) => {
            episodes::give(proxy, which(id, query)?, &body).await
        }
        (&Method::POST, ["feed", "leases", lease, word]) => {
            feed::settle(proxy, (lease, word), &body).await
        }
        (&Method::GET, ["feed", "consumers"]) => feed::consumers(proxy).await,
        (&Method::POST, ["version"]) => versions::tell(proxy, &body).await,
        (&Method::GET, ["versions"]) => versions::list(proxy).await,
        _ => Err(error(StatusCode::NOT_FOUND, "no such page; see docs/operations.md")),
    }
}
