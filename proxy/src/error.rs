//! The one place where an error becomes an HTTP response.

use bytes::Bytes;
use episode::{CallEnd, InvalidId, Outcome, Route};
use http::body::{BodyError, ReplyBody, full};
use http::memory::MemoryFull;
use http::path::target::Ambiguity;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Response, StatusCode};
use store::{CommitError, SnapshotError};
use thiserror::Error;
use wire::StatePlace;

use crate::bounds::ADMISSION_RETRY_AFTER_S;

/// The reason for which rolltape itself answers a call.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Body(BodyError),
    #[error("the request body is nested too deeply or has too many fields")]
    TooComplex,
    #[error("the request body must be JSON in UTF-8, without a byte order mark")]
    NotUtf8,
    #[error("too much memory is in use; try again in a second")]
    Overloaded,
    #[error(transparent)]
    InvalidId(#[from] InvalidId),
    #[error("the episode is named twice with different names: `{0}` and `{1}`")]
    TwoEpisodes(String, String),
    #[error("`{value}` is not a valid {name}; give {expected}")]
    InvalidTag { name: &'static str, value: String, expected: &'static str },
    #[error("the header `{0}` is sent twice with different values")]
    TwoValues(&'static str),
    #[error("{what}; {max} are the limit")]
    TooMuch { what: &'static str, max: usize },
    #[error("the API key is invalid or expired")]
    InvalidKey,
    #[error("this server takes only calls with an API key that its control listener made")]
    KeyRequired,
    #[error("an API key does not belong in a path; send it as `authorization: Bearer KEY`")]
    KeyInPath,
    #[error("the episode was closed")]
    Cancelled,
    /// Holds the body of the reply, in the form of the agent's wire.
    #[error("the request refers to server-side state that the upstream lacks")]
    NeedsServerState(String),
    /// Holds the body of the reply, in the form of the agent's wire.
    #[error("the request sets no maximum length for the reply")]
    NeedsLimit(String),
    #[error("the path of the request is ambiguous: {0}")]
    AmbiguousPath(#[from] Ambiguity),
    /// The endpoint is the method and the path.
    #[error(
        "`{endpoint}` is not on the list of paths that agents may use; {}`rolltape serve \
         --allow-path '{endpoint}'` adds it",
        hint.map(|hint| format!("{hint} ")).unwrap_or_default()
    )]
    ClosedPath { endpoint: String, hint: Option<&'static str> },
    #[error(
        "a web page of the origin `{0}` may not use this server; `rolltape serve --allow-origin \
         ORIGIN` lets it"
    )]
    ForeignOrigin(String),
    #[error(
        "`{0}` is not a name of this machine; `rolltape serve --allow-origin http://HOST:PORT` \
         lets requests to that host pass"
    )]
    ForeignHost(String),
    #[error("engine control is not available on the data listener; use the control listener")]
    EngineRoute,
    #[error(
        "this route samples tokens that rolltape cannot record; `rolltape serve \
         --allow-unrecorded-sampling` lets such calls pass"
    )]
    Unrecordable,
    #[error(
        "a reply in the background is sampled unrecorded; send the request without `background`, \
         or start `rolltape serve --allow-unrecorded-sampling`, which lets such calls pass"
    )]
    InBackground,
    #[error(
        "`{}` names what this attempt did not get in a reply here; send the whole conversation, \
         or start `rolltape serve --allow-foreign-state`, which lets such calls pass",
        .0.name()
    )]
    ForeignState(StatePlace),
    #[error("what the request names by its id cannot be looked up; try again in a second")]
    StateUnread,
    #[error(
        "too much memory is in use to read back what the call goes on from; try again in a second"
    )]
    NoRoomToRead,
    #[error(
        "what is recorded of this attempt is too long to be read back here ({0}); send the whole \
         conversation instead"
    )]
    TooLongToRead(String),
    #[error("sampling parameters are forced here, and the body is no JSON object that they fit in")]
    NotForced,
    #[error("WebSocket is not recorded on this route; use POST")]
    UpgradeOfSampling,
    #[error("rolltape relays no WebSockets: what passes on them cannot be recorded")]
    Upgrade,
    /// Holds what is told of it.
    #[error("{0}")]
    Replayed(String),
    /// Agents read the reason only; the detail has the address.
    #[error("the upstream could not be reached: {reason}")]
    Unreachable {
        reason: &'static str,
        detail: String,
        /// True if nothing of the request was sent.
        is_unsent: bool,
    },
    /// Holds the reason.
    #[error("no upstream takes the call: {0}; try again in a second")]
    NoEngine(&'static str),
    /// Holds the reason.
    #[error("no new episode may begin: {0}; try again in a few seconds")]
    NotAdmitted(&'static str),
    #[error("the upstream's reply broke off: {0}")]
    Broken(String),
    #[error("the upstream's reply is longer than {0} bytes")]
    ReplyTooLong(usize),
    #[error("the upstream's reply decodes to more than {0} bytes")]
    ReplyTooDense(u64),
    #[error("the call could not be answered; the log of rolltape says why")]
    Panicked,
    #[error("the call could not be recorded: {0}")]
    Unrecorded(#[from] CommitError),
}

impl From<BodyError> for CallError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::NoMemory => Self::Overloaded,
            error => Self::Body(error),
        }
    }
}

/// The reason for which a request of the control listener was not read or not answered.
#[derive(Debug, Clone, Error)]
#[error("{detail}")]
pub struct RequestError {
    status: StatusCode,
    detail: String,
}

impl RequestError {
    /// The status for whoever asked.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<CallError> for RequestError {
    fn from(error: CallError) -> Self {
        Self { status: error.status(), detail: error.detail() }
    }
}

impl From<MemoryFull> for CallError {
    fn from(_: MemoryFull) -> Self {
        Self::Overloaded
    }
}

impl CallError {
    /// The error of a call whose recorded past cannot be read back.
    pub(crate) fn unread(error: &SnapshotError) -> Self {
        match error {
            SnapshotError::RoomTaken => Self::NoRoomToRead,
            SnapshotError::TooLarge { .. } => Self::TooLongToRead(error.to_string()),
            _ => Self::StateUnread,
        }
    }

    /// The HTTP status, chosen so that an SDK retries or stops as it should.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::AmbiguousPath(_)
            | Self::NotForced
            | Self::TooComplex
            | Self::NotUtf8
            | Self::ForeignState(_)
            | Self::InvalidId(_)
            | Self::TwoEpisodes(..)
            | Self::InvalidTag { .. }
            | Self::TwoValues(_)
            | Self::TooMuch { .. }
            | Self::KeyInPath
            | Self::NeedsServerState(_)
            | Self::NeedsLimit(_) => StatusCode::BAD_REQUEST,

            Self::Body(error) => error.status(),
            Self::InvalidKey | Self::KeyRequired => StatusCode::UNAUTHORIZED,
            Self::EngineRoute
            | Self::Upgrade
            | Self::Unrecordable
            | Self::InBackground
            | Self::ClosedPath { .. }
            | Self::ForeignOrigin(_)
            | Self::ForeignHost(_) => StatusCode::FORBIDDEN,
            Self::UpgradeOfSampling => StatusCode::UPGRADE_REQUIRED,

            Self::Unreachable { .. }
            | Self::Broken(_)
            | Self::ReplyTooLong(_)
            | Self::ReplyTooDense(_) => StatusCode::BAD_GATEWAY,
            Self::Overloaded
            | Self::NoEngine(_)
            | Self::NotAdmitted(_)
            | Self::NoRoomToRead
            | Self::StateUnread => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooLongToRead(_) => StatusCode::INSUFFICIENT_STORAGE,
            Self::Cancelled | Self::Replayed(_) => StatusCode::CONFLICT,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unrecorded(error) => status_of_unrecorded(error),
        }
    }

    /// The error as the user reads it, in the store and for the operator. It names the
    /// upstream, which agents are not told.
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::Unreachable { detail, .. } => {
                format!("the upstream could not be reached at {detail}")
            }
            _ => self.to_string(),
        }
    }

    /// The same, with the knowledge that nothing of the request was sent.
    pub(crate) fn unsent(self) -> Self {
        match self {
            Self::Unreachable { reason, detail, .. } => {
                Self::Unreachable { reason, detail, is_unsent: true }
            }
            other => other,
        }
    }

    /// The `type` of the error in a reply's body.
    fn error_type(&self) -> &'static str {
        match self {
            Self::Unreachable { .. }
            | Self::NoEngine(_)
            | Self::Broken(_)
            | Self::ReplyTooLong(_)
            | Self::ReplyTooDense(_) => "upstream_error",
            Self::Overloaded | Self::NotAdmitted(_) | Self::NoRoomToRead => "overloaded_error",
            Self::Cancelled | Self::Unrecorded(CommitError::Closed(..)) => "episode_closed",
            Self::Unrecorded(CommitError::Spent(..)) => "budget_spent",
            Self::Unrecorded(CommitError::Full(_)) => "attempt_full",
            Self::Replayed(_) => "replay_differs",
            Self::Panicked | Self::StateUnread | Self::TooLongToRead(_) => "recorder_error",
            Self::Unrecorded(error) if status_of_unrecorded(error).is_server_error() => {
                "recorder_error"
            }
            _ => "invalid_request_error",
        }
    }

    /// A whole response, in the form of the agent's wire.
    pub(crate) fn response(&self, route: Route) -> Response<ReplyBody> {
        let status = self.status();
        let body = match self {
            Self::NeedsServerState(body) | Self::NeedsLimit(body) => body.clone(),
            Self::ForeignState(place) => wire::unknown_state_body(*place, &self.to_string()),
            _ => wire::error_body(route, status.as_u16(), self.error_type(), &self.to_string()),
        };

        let mut response = Response::new(full(Bytes::from(body)));
        *response.status_mut() = status;
        set_error_headers(response.headers_mut());
        if matches!(
            status,
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS | StatusCode::INSUFFICIENT_STORAGE
        ) {
            // SDKs retry these by default; a closed episode stays closed, and a budget spent.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if matches!(
            self,
            Self::Overloaded | Self::NoEngine(_) | Self::NoRoomToRead | Self::StateUnread
        ) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, Self::NotAdmitted(_)) {
            response.headers_mut().insert(RETRY_AFTER, ADMISSION_RETRY_AFTER_S.into());
        }
        response
    }

    /// The last event of a stream that was already under way.
    pub(crate) fn event(&self, route: Route) -> Bytes {
        let status = self.status().as_u16();
        Bytes::from(wire::error_event(route, status, self.error_type(), &self.to_string()))
    }

    /// Writes the error into the end of the call.
    pub(crate) fn mark(&self, end: &mut CallEnd) {
        end.status = Some(self.status().as_u16());
        end.outcome = match self {
            Self::ReplyTooLong(_) => Outcome::Capped,
            Self::NeedsServerState(_)
            | Self::NeedsLimit(_)
            | Self::NotForced
            | Self::Body(BodyError::TooLong(_) | BodyError::TooSlow(_))
            | Self::ForeignState(_)
            | Self::StateUnread
            | Self::NoRoomToRead
            | Self::TooLongToRead(_)
            | Self::Replayed(_)
            | Self::InBackground
            | Self::Unrecordable => Outcome::Refused,
            _ => Outcome::UpstreamFailed,
        };
        end.error = Some(self.detail());
    }
}

/// The status for a call that the store did not take.
fn status_of_unrecorded(error: &CommitError) -> StatusCode {
    match error {
        CommitError::Closed(..) | CommitError::Announced(..) => StatusCode::CONFLICT,
        CommitError::NeedsKey(_) | CommitError::Revoked => StatusCode::UNAUTHORIZED,
        CommitError::TooManyLabels(_) => StatusCode::BAD_REQUEST,
        CommitError::Spent(..) | CommitError::Full(_) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn set_error_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Distinguishes rolltape's own errors from those of the upstream.
    headers.insert("x-rolltape-error", HeaderValue::from_static("1"));
}
