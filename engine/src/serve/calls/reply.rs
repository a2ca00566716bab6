//! Replies of HTTP by content type.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::error::ApiError;
use super::json::to_json;
use super::sse::{EventStream, Events};

/// The body of a reply, in one piece or streamed.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;

/// A reply of HTTP.
pub(crate) type HttpReply = Response<ReplyBody>;

/// Replies 200 with a value as JSON.
pub(crate) fn json_reply<T: Serialize>(value: &T) -> HttpReply {
    raw_json_reply(StatusCode::OK, to_json(value))
}

/// Replies with text that is JSON already.
pub(crate) fn raw_json_reply(status: StatusCode, json: String) -> HttpReply {
    typed_reply(status, "application/json", json)
}

/// Replies 200 with plain text.
pub(crate) fn text_reply(text: String) -> HttpReply {
    typed_reply(StatusCode::OK, "text/plain; charset=utf-8", text)
}

/// Replies with a body of `content_type`.
pub(crate) fn typed_reply(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> HttpReply {
    let mut reply = empty_reply(status);
    *reply.body_mut() = Full::new(Bytes::from(body)).boxed_unsync();
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Replies without a body.
pub(crate) fn empty_reply(status: StatusCode) -> HttpReply {
    let mut reply = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *reply.status_mut() = status;
    reply
}

/// Replies with a stream of server-sent events.
pub(crate) fn event_reply<E: Events + Unpin + 'static>(stream: EventStream<E>) -> HttpReply {
    let mut reply = Response::new(stream.boxed_unsync());
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

/// Replies with an error in OpenAI's form.
pub(crate) fn error_reply(error: &ApiError) -> HttpReply {
    let mut reply = raw_json_reply(error.status(), error.body());
    if let Some(seconds) = error.retry_after() {
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(methods) = error.allow().and_then(|methods| HeaderValue::try_from(methods).ok()) {
        reply.headers_mut().insert(ALLOW, methods);
    }
    reply
}
