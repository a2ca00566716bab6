//! JSON replies of the control listener.

use std::fmt::Display;

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use proxy::ground::{ReplyBody, full};
use serde_json::{Value, json};

/// A status with a JSON body.
#[derive(Debug)]
pub(crate) struct JsonReply {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    /// The methods of a route that was called with another.
    pub(crate) allow: Option<String>,
}

impl JsonReply {
    pub(crate) fn into_response(self) -> Response<ReplyBody> {
        let mut response = Response::new(full(Bytes::from(self.body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(methods) = self.allow.and_then(|methods| HeaderValue::try_from(methods).ok()) {
            headers.insert(ALLOW, methods);
        }
        response
    }
}

/// A 200 with `body`.
pub(crate) fn ok(body: Value) -> JsonReply {
    JsonReply { status: StatusCode::OK, body, allow: None }
}

/// A 200 that says that the request was carried out, and is on disk.
pub(crate) fn done() -> JsonReply {
    ok(json!({ "status": "ok" }))
}

pub(crate) fn error(status: StatusCode, message: &str) -> JsonReply {
    let body = json!({ "error": { "message": message, "code": status.as_u16() } });
    JsonReply { status, body, allow: None }
}

/// A 400 with the reason.
pub(crate) fn bad_request(reason: &dyn Display) -> JsonReply {
    error(StatusCode::BAD_REQUEST, &reason.to_string())
}
