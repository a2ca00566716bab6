//! The control listener: what an agent must not be able to say.
//!
//! - `GET /health`: 200 while the process lives.
//! - `POST /episodes/{id}/rewards`: append `{"value": 1.0 | null, "name"?, "source"?, "call_id"?}`.
//! - `POST /episodes/{id}/close`: refuse later calls; `{"status"?}`.
//!
//! Both take `?attempt=N`.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use episode::{EpisodeId, Reward, RewardScope};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use store::CommitError;
use tokio::net::TcpListener;
use tower::ServiceBuilder;

use crate::accept::{self, serve};
use crate::fault::whole;
use crate::open_call::now;
use crate::serve::Proxy;
use crate::tee::ReplyBody;

const REQUEST_BYTES_MAX: usize = 1 << 20;
const REQUESTS_MAX: usize = 256;

type Answer = (StatusCode, Value);

/// Serves the control listener until `shutdown`.
pub async fn serve_control(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let service = ServiceBuilder::new().concurrency_limit(REQUESTS_MAX).service_fn(
        move |request: Request<Incoming>| {
            let proxy = Arc::clone(&proxy);
            async move {
                let (status, body) = answer(&proxy, request).await.unwrap_or_else(|error| error);
                Ok::<_, Infallible>(response(status, &body))
            }
        },
    );
    serve(listener, service, shutdown).await;
}

fn response(status: StatusCode, body: &Value) -> Response<ReplyBody> {
    let mut response = Response::new(whole(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn answer(proxy: &Proxy, request: Request<Incoming>) -> Result<Answer, Answer> {
    let (head, body) = accept::read(request, REQUEST_BYTES_MAX)
        .await
        .map_err(|fault| error(fault.status(), &fault.to_string()))?;
    let segments: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    match (&head.method, segments.as_slice()) {
        (&Method::GET, ["health" | "ready"]) => Ok((StatusCode::OK, json!({ "status": "ok" }))),
        (&Method::POST, ["episodes", id, action @ ("rewards" | "close")]) => {
            let episode: EpisodeId = id.parse().map_err(|e| bad(&e))?;
            let which = (episode, attempt(head.uri.query())?);
            let fields = fields(&body)?;
            let done = match *action {
                "close" => {
                    let status = text(&fields, "status")?;
                    proxy.store().close(which, now(), status).await
                }
                _ => proxy.store().reward(which, reward(&fields)?).await,
            };
            done.map(|()| (StatusCode::OK, json!({ "status": "ok" }))).map_err(refused)
        }
        _ => Err(error(StatusCode::NOT_FOUND, "no such page; see docs/operations.md")),
    }
}

fn fields(body: &[u8]) -> Result<Value, Answer> {
    if body.trim_ascii().is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| error(StatusCode::BAD_REQUEST, "the body is not a JSON object"))
}

fn attempt(query: Option<&str>) -> Result<u32, Answer> {
    let pairs = query.unwrap_or("").split('&').filter_map(|pair| pair.split_once('='));
    match pairs.into_iter().find(|(name, _)| *name == "attempt") {
        None => Ok(0),
        Some((_, number)) => number.parse().map_err(|e| bad(&e)),
    }
}

fn reward(fields: &Value) -> Result<Reward, Answer> {
    let value = match fields.get("value") {
        Some(Value::Null) => None,
        Some(Value::Number(number)) => number.as_f64(),
        _ => return Err(error(StatusCode::BAD_REQUEST, "`value` is not a number or null")),
    };
    let scope = match text(fields, "call_id")? {
        None => RewardScope::Episode,
        Some(call) => RewardScope::Call(call.parse().map_err(|e| bad(&e))?),
    };
    Ok(Reward {
        scope,
        name: text(fields, "name")?.unwrap_or_else(|| "reward".to_owned()),
        value,
        source: text(fields, "source")?.unwrap_or_else(|| "api".to_owned()),
        at: now(),
    })
}

fn text(fields: &Value, name: &str) -> Result<Option<String>, Answer> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(error(StatusCode::BAD_REQUEST, &format!("`{name}` is not a string"))),
    }
}

fn bad(reason: &dyn std::fmt::Display) -> Answer {
    error(StatusCode::BAD_REQUEST, &reason.to_string())
}

fn refused(reason: CommitError) -> Answer {
    let status = match reason {
        CommitError::Unknown(..) => StatusCode::NOT_FOUND,
        CommitError::Closed(..) => StatusCode::CONFLICT,
        CommitError::Database(_) | CommitError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

fn error(status: StatusCode, message: &str) -> Answer {
    (status, json!({ "error": { "message": message, "code": status.as_u16() } }))
}
