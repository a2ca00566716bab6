//! Which path leads where.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, SERVER};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use super::error::ApiError;
use super::fields::Fields;
use super::sse::{EventStream, Events, json};
use super::submit::State;
use super::{adapters, chat, completions, generate, metrics, models, rl, sglang, tokenize, wires};
use crate::control::Command;

/// Bytes of the largest request body.
const MAX_BODY: usize = 64 << 20;

/// Characters of the longest request id that a reply takes over.
const MAX_REQUEST_ID: usize = 128;

/// Paths that are only read.
const READS: [&str; 7] =
    ["/health", "/ping", "/version", "/load", "/kv_event_sources", "/metrics", "/v1/models"];

/// Paths that take a body.
const TAKES: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
    "/tokenize",
    "/detokenize",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
];

pub(super) type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;
pub(super) type Reply = Response<ReplyBody>;

/// Answers one request; a refusal is an answer too.
pub(super) async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Reply, Infallible> {
    let mut reply = route(state, request).await.unwrap_or_else(|error| refusal(&error));
    reply.headers_mut().insert(SERVER, HeaderValue::from_static("rolltape"));
    Ok(reply)
}

async fn route(state: Arc<State>, request: Request<Incoming>) -> Result<Reply, ApiError> {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    if let Some(reply) = look(&state, &path, &method) {
        return reply;
    }
    if let Some(route) = wires::route(&method, &path) {
        let (given, body) = (given(&request), body_of(request, MAX_BODY).await);
        return Ok(wires::answer(&state, route, (given, body)).await);
    }
    if rl::has(&path) {
        return rl::answer(&state, request).await;
    }
    if let Some(route) = sglang::route(&method, &path) {
        return sglang::answer(&state, route?, &body_of(request, MAX_BODY).await?).await;
    }
    let prefix = match (path.as_str(), method) {
        ("/v1/chat/completions", Method::POST) => "chatcmpl-",
        ("/v1/completions", Method::POST) => "cmpl-",
        ("/inference/v1/generate", Method::POST) => "generate-tokens-",
        ("/tokenize" | "/detokenize" | "/inference/v1/abort_requests", Method::POST) => "",
        ("/v1/load_lora_adapter" | "/v1/unload_lora_adapter", Method::POST) => "",
        (path, _) if READS.contains(&path) || TAKES.contains(&path) => {
            return Err(ApiError::no_route(StatusCode::METHOD_NOT_ALLOWED));
        }
        _ => return Err(ApiError::no_route(StatusCode::NOT_FOUND)),
    };
    let (id, fields) = read(request, prefix).await?;
    match path.as_str() {
        "/v1/chat/completions" => chat::answer(&state, id, &fields).await,
        "/v1/completions" => completions::answer(&state, id, &fields).await,
        "/inference/v1/generate" => generate::answer(&state, id, &fields).await,
        "/tokenize" => tokenize::tokenize(&state, &fields),
        "/detokenize" => tokenize::detokenize(&state, &fields),
        "/v1/load_lora_adapter" => adapters::load(&state, &fields).await,
        "/v1/unload_lora_adapter" => adapters::unload(&state, &fields),
        _ => {
            generate::abort(&state, &fields)?;
            // While generation is paused nobody would look.
            state.gate.tell(|done| Command::DropAbandoned { done }).await?;
            Ok(empty(StatusCode::OK))
        }
    }
}

/// Answers what has no body, if the path is of that kind.
fn look(state: &State, path: &str, method: &Method) -> Option<Result<Reply, ApiError>> {
    let reply = match (method, path) {
        (&Method::GET, "/health") | (&Method::GET | &Method::POST, "/ping") => Ok(health(state)),
        (&Method::GET, "/version") => Ok(version()),
        (&Method::GET, "/load") => Ok(load(state)),
        // No events of the cache are published.
        (&Method::GET, "/kv_event_sources") => Ok(json_reply(&serde_json::json!({}))),
        (&Method::GET, "/metrics") => Ok(metrics(state)),
        (&Method::GET, "/v1/models") => Ok(models::list(state)),
        (&Method::GET, path) => models::one(state, path.strip_prefix("/v1/models/")?),
        _ => return None,
    };
    Some(reply)
}

/// The id of the reply and the fields of the body. The id is the caller's, if it gave one.
async fn read(request: Request<Incoming>, prefix: &str) -> Result<(String, Fields), ApiError> {
    let given = given(&request);
    let fields = Fields::parse(&body_of(request, MAX_BODY).await?)?;
    under(fields, given, prefix)
}

/// The fields under the id of the reply: the header's, the field's, or a new one.
pub(super) fn under(
    fields: Fields,
    given: Option<String>,
    prefix: &str,
) -> Result<(String, Fields), ApiError> {
    let named = fields.text("request_id")?.filter(fits).map(str::to_owned);
    let id = given.or(named).unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let id = format!("{prefix}{id}");
    let fields = fields.under(id.clone());
    Ok((id, fields))
}

/// The id that the caller gave in a header.
fn given(request: &Request<Incoming>) -> Option<String> {
    let given = request.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    given.filter(fits).map(str::to_owned)
}

/// Whether an id can be the reply's.
fn fits(id: &&str) -> bool {
    !id.is_empty() && id.len() <= MAX_REQUEST_ID
}

/// The body, of at most so many bytes.
pub(super) async fn body_of(request: Request<Incoming>, most: usize) -> Result<Bytes, ApiError> {
    let body = Limited::new(request.into_body(), most).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => ApiError::too_large(most),
        None => ApiError::malformed("the body ended early"),
    })?;
    Ok(body.to_bytes())
}

/// A reply of JSON.
pub(super) fn json_reply<T: Serialize>(value: &T) -> Reply {
    body_reply(StatusCode::OK, json(value))
}

/// A reply of events.
pub(super) fn event_reply<E: Events + Unpin + 'static>(stream: EventStream<E>) -> Reply {
    let mut reply = Response::new(stream.boxed_unsync());
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

/// A reply of plain text.
pub(super) fn text_reply(text: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

pub(super) fn body_reply(status: StatusCode, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

pub(super) fn refusal(error: &ApiError) -> Reply {
    let mut reply = body_reply(error.status(), error.body());
    if let Some(seconds) = error.retry_after() {
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// A reply without a body.
pub(super) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *reply.status_mut() = status;
    reply
}

/// An engine that is paused or asleep is well; one that will never sample again is not.
fn health(state: &State) -> Reply {
    let standing = state.gate.board.read();
    if let Some(reason) = standing.refusal().filter(|_| standing.lost) {
        return refusal(&ApiError::unavailable(reason));
    }
    let open = state.gate.is_open();
    empty(if open { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}

/// Choices that run or wait. vLLM counts calls, and only with `--enable-server-load-tracking`.
fn load(state: &State) -> Reply {
    let counts = [&state.stats.running, &state.stats.waiting];
    let load: usize = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    json_reply(&serde_json::json!({ "server_load": load }))
}

fn metrics(state: &State) -> Reply {
    let mut reply = body_reply(StatusCode::OK, metrics::render(state));
    let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

fn version() -> Reply {
    #[derive(Serialize)]
    struct Version {
        version: &'static str,
    }
    json_reply(&Version { version: env!("CARGO_PKG_VERSION") })
}
