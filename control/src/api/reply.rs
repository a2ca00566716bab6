//! JSON replies of the control listener.

use std::fmt::Display;

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use store::{CommitError, SnapshotError};

use crate::body::{ReplyBody, full};
use crate::error::CallError;

/// A status with a JSON body.
#[derive(Debug)]
pub(super) struct JsonReply {
    pub(super) status: StatusCode,
    pub(super) body: Value,
    /// The methods of a route that was called with another.
    pub(super) allow: Option<String>,
}

impl JsonReply {
    pub(super) fn into_response(self) -> Response<ReplyBody> {
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
pub(super) fn ok(body: Value) -> JsonReply {
    JsonReply { status: StatusCode::OK, body, allow: None }
}

/// A 200 that says that the request was carried out, and is on disk.
pub(super) fn done() -> JsonReply {
    ok(json!({ "status": "ok" }))
}

pub(super) fn error(status: StatusCode, message: &str) -> JsonReply {
    let body = json!({ "error": { "message": message, "code": status.as_u16() } });
    JsonReply { status, body, allow: None }
}

/// A 400 with the reason.
pub(super) fn bad_request(reason: &dyn Display) -> JsonReply {
    error(StatusCode::BAD_REQUEST, &reason.to_string())
}

/// The reply to a request that the store refuses.
pub(super) fn commit_error(reason: CommitError) -> JsonReply {
    let status = match reason {
        CommitError::Unknown(..) | CommitError::UnknownCall(..) | CommitError::UnknownKey(_) => {
            StatusCode::NOT_FOUND
        }
        CommitError::Closed(..)
        | CommitError::Announced(..)
        | CommitError::Taken
        | CommitError::NoLease(_) => StatusCode::CONFLICT,
        CommitError::TooManyLabels(_) => StatusCode::BAD_REQUEST,
        CommitError::NotBegun(_)
        | CommitError::NeedsKey(_)
        | CommitError::Revoked
        | CommitError::Spent(..)
        | CommitError::Unavailable(_)
        | CommitError::Database(_)
        | CommitError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

/// The reply if the store cannot be read.
pub(super) fn snapshot_error(reason: SnapshotError) -> JsonReply {
    error(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string())
}

/// The reply to a request that cannot be read or forwarded.
pub(super) fn call_error(reason: CallError) -> JsonReply {
    error(reason.status(), &reason.detail())
}
