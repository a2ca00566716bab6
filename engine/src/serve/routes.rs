//! Which path leads where.

use std::convert::Infallible;
use std::sync::Arc;

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
use super::{chat, completions};

/// Bytes of the largest request body.
const MAX_BODY: usize = 64 << 20;

/// Characters of the longest request id that a reply takes over.
const MAX_REQUEST_ID: usize = 128;

pub(super) type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;
type Reply = Response<ReplyBody>;

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
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/health") => Ok(health(&state)),
        (&Method::GET, "/version") => Ok(version()),
        (&Method::GET, "/v1/models") => Ok(models(&state)),
        (&Method::POST, "/v1/chat/completions") => {
            let (id, fields) = read(request, "chatcmpl").await?;
            chat::answer(&state, id, &fields).await
        }
        (&Method::POST, "/v1/completions") => {
            let (id, fields) = read(request, "cmpl").await?;
            completions::answer(&state, id, &fields).await
        }
        (_, "/health" | "/version" | "/v1/models" | "/v1/chat/completions" | "/v1/completions") => {
            Err(ApiError::no_route(StatusCode::METHOD_NOT_ALLOWED))
        }
        _ => Err(ApiError::no_route(StatusCode::NOT_FOUND)),
    }
}

/// The id of the reply and the fields of the body.
async fn read(request: Request<Incoming>, prefix: &str) -> Result<(String, Fields), ApiError> {
    let given = request.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    let id = match given.filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID) {
        Some(id) => format!("{prefix}-{id}"),
        None => format!("{prefix}-{}", uuid::Uuid::new_v4().simple()),
    };
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => ApiError::too_large(MAX_BODY),
        None => ApiError::malformed("the body ended early"),
    })?;
    Ok((id, Fields::parse(&body.to_bytes())?))
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

fn body_reply(status: StatusCode, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

fn refusal(error: &ApiError) -> Reply {
    let mut reply = body_reply(error.status(), error.body());
    if let Some(seconds) = error.retry_after() {
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

fn health(state: &State) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()).boxed_unsync());
    if !state.gate.is_open() {
        *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    reply
}

fn version() -> Reply {
    #[derive(Serialize)]
    struct Version {
        version: &'static str,
    }
    json_reply(&Version { version: env!("CARGO_PKG_VERSION") })
}

fn models(state: &State) -> Reply {
    #[derive(Serialize)]
    struct List<'a> {
        object: &'static str,
        data: [Model<'a>; 1],
    }
    #[derive(Serialize)]
    struct Model<'a> {
        id: &'a str,
        object: &'static str,
        created: u64,
        owned_by: &'static str,
        root: &'a str,
        parent: Option<()>,
        max_model_len: usize,
    }
    let card = &state.card;
    let model = Model {
        id: &card.name,
        object: "model",
        created: card.created,
        owned_by: "rolltape",
        root: &card.root,
        parent: None,
        max_model_len: card.max_model_len,
    };
    json_reply(&List { object: "list", data: [model] })
}
