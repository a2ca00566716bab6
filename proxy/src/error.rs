//! The one place where an error becomes an HTTP response.

use bytes::Bytes;
use episode::{CallEnd, InvalidId, Outcome, Route};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use store::CommitError;
use thiserror::Error;

use crate::body::{ReplyBody, full};

/// The reason for which rolltape itself answers a call.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    #[error("the request body could not be read: {0}")]
    Unreadable(String),
    #[error("the request body is longer than {0} bytes")]
    TooLong(u64),
    #[error(transparent)]
    InvalidId(#[from] InvalidId),
    #[error("the episode is named twice with different names: `{0}` and `{1}`")]
    TwoEpisodes(String, String),
    #[error("`{value}` is not a valid {name}; give {expected}")]
    InvalidTag { name: &'static str, value: String, expected: &'static str },
    #[error("the API key is invalid or expired")]
    InvalidKey,
    /// Holds the body of the reply, in the form of the agent's wire.
    #[error("the request refers to server-side state that the upstream lacks")]
    NeedsServerState(String),
    /// Holds the body of the reply, in the form of the agent's wire.
    #[error("the request sets no maximum length for the reply")]
    NeedsLimit(String),
    #[error("engine control is not available on the data listener; use the control listener")]
    EngineRoute,
    #[error(
        "this route samples tokens that rolltape cannot record; `rolltape serve \
         --allow-unrecorded-sampling` lets such calls pass"
    )]
    Unrecordable,
    #[error("WebSocket is not recorded on this route; use POST")]
    Upgrade,
    #[error("the upstream at {0} could not be reached: {1}")]
    Unreachable(String, String),
    #[error("the upstream's reply broke off: {0}")]
    Broken(String),
    #[error("the upstream's reply is longer than {0} bytes")]
    ReplyTooLong(usize),
    #[error("the call could not be recorded: {0}")]
    Unrecorded(#[from] CommitError),
}

impl CallError {
    /// The HTTP status, chosen so that an SDK retries or stops as it should.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Unreadable(_)
            | Self::InvalidId(_)
            | Self::TwoEpisodes(..)
            | Self::InvalidTag { .. }
            | Self::NeedsServerState(_)
            | Self::NeedsLimit(_) => StatusCode::BAD_REQUEST,

            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::InvalidKey => StatusCode::UNAUTHORIZED,
            Self::EngineRoute | Self::Unrecordable => StatusCode::FORBIDDEN,
            Self::Upgrade => StatusCode::UPGRADE_REQUIRED,

            Self::Unreachable(..) | Self::Broken(_) | Self::ReplyTooLong(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::Unrecorded(CommitError::Closed(..)) => StatusCode::CONFLICT,
            Self::Unrecorded(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The `type` of the error in a reply's body.
    fn error_type(&self) -> &'static str {
        match self {
            Self::Unreachable(..) | Self::Broken(_) | Self::ReplyTooLong(_) => "upstream_error",
            Self::Unrecorded(CommitError::Closed(..)) => "episode_closed",
            Self::Unrecorded(_) => "recorder_error",
            _ => "invalid_request_error",
        }
    }

    /// A whole response, in the form of the agent's wire.
    pub(crate) fn response(&self, route: Route) -> Response<ReplyBody> {
        let status = self.status();
        let body = match self {
            Self::NeedsServerState(body) | Self::NeedsLimit(body) => body.clone(),
            _ => wire::error_body(route, status.as_u16(), self.error_type(), &self.to_string()),
        };

        let mut response = Response::new(full(Bytes::from(body)));
        *response.status_mut() = status;
        set_error_headers(response.headers_mut());
        if matches!(self, Self::Unrecorded(CommitError::Closed(..))) {
            // SDKs retry a 409 by default; a closed episode stays closed.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }

    /// The last event of a stream that was already under way.
    pub(crate) fn event(&self, route: Route) -> Bytes {
        let status = self.status().as_u16();
        Bytes::from(wire::error_event(route, status, self.error_type(), &self.to_string()))
    }

    /// Writes the error into the end of the call, as the agent saw it.
    pub(crate) fn mark(&self, end: &mut CallEnd) {
        end.status = Some(self.status().as_u16());
        end.outcome = match self {
            Self::ReplyTooLong(_) => Outcome::Capped,
            Self::NeedsServerState(_)
            | Self::NeedsLimit(_)
            | Self::TooLong(_)
            | Self::Unrecordable => Outcome::Refused,
            _ => Outcome::UpstreamFailed,
        };
        end.error = Some(self.to_string());
    }
}

fn set_error_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Distinguishes rolltape's own errors from those of the upstream.
    headers.insert("x-rolltape-error", HeaderValue::from_static("1"));
}
