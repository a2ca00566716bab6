//! Documents as replies.

use std::fmt::Display;

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::api::BadRequest;
use crate::body::{ReplyBody, full};

/// Time after which a request that was refused for the moment may be sent again, in seconds.
const RETRY_AFTER_S: u16 = 1;

/// A status with a JSON body.
#[derive(Debug)]
pub struct JsonReply {
    /// The status.
    pub status: StatusCode,
    /// The document.
    pub body: Value,
    /// The methods of a route that was called with another.
    pub allow: Option<String>,
}

impl JsonReply {
    /// The response.
    pub fn into_response(self) -> Response<ReplyBody> {
        let mut response = Response::new(full(Bytes::from(self.body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, RETRY_AFTER_S.into());
        }
        if let Some(methods) = self.allow.and_then(|methods| HeaderValue::try_from(methods).ok()) {
            headers.insert(ALLOW, methods);
        }
        response
    }
}

impl From<BadRequest> for JsonReply {
    fn from(reason: BadRequest) -> Self {
        bad_request(&reason)
    }
}

/// A 200 with `body`.
pub fn ok(body: Value) -> JsonReply {
    JsonReply { status: StatusCode::OK, body, allow: None }
}

/// A 200 that says that the request was carried out, and is on disk.
pub fn done() -> JsonReply {
    ok(json!({ "status": "ok" }))
}

/// A status with the reason for it.
pub fn error(status: StatusCode, message: &str) -> JsonReply {
    let body = json!({ "error": { "message": message, "code": status.as_u16() } });
    JsonReply { status, body, allow: None }
}

/// A 400 with the reason.
pub fn bad_request(reason: &dyn Display) -> JsonReply {
    error(StatusCode::BAD_REQUEST, &reason.to_string())
}
