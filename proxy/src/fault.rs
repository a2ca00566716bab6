//! The one place where an error becomes an HTTP response.

use bytes::Bytes;
use episode::{Ended, InvalidId, Outcome, Route};
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use store::CommitError;
use thiserror::Error;

use crate::tee::ReplyBody;

/// Why rolltape itself answers a call.
#[derive(Debug, Error)]
pub(crate) enum Fault {
    #[error("the request body could not be read: {0}")]
    Unreadable(String),
    #[error("the request body is longer than {0} bytes")]
    TooLong(u64),
    #[error(transparent)]
    BadId(#[from] InvalidId),
    #[error("the episode is named twice and differently: `{0}` and `{1}`")]
    TwoEpisodes(String, String),
    #[error("`{1}` is not a value for {0}; give {2}")]
    BadTag(&'static str, String, &'static str),
    #[error("the API key is not one of this store's, or it has ended")]
    BadKey,
    #[error("the request leans on state that the upstream does not hold")]
    LeansOnState(String),
    #[error("the request does not say how long the reply may be")]
    LacksLimit(String),
    #[error(
        "agents do not rule the inference server; its control routes are on the control listener"
    )]
    Engine,
    #[error(
        "this route samples tokens that nothing records; `rolltape serve \
         --allow-unrecorded-sampling` lets such calls pass"
    )]
    Unheard,
    #[error("WebSocket is not recorded here; use POST")]
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

impl Fault {
    /// The status that makes an SDK retry or stop as it should.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Unreadable(_)
            | Self::BadId(_)
            | Self::TwoEpisodes(..)
            | Self::BadTag(..)
            | Self::LeansOnState(_)
            | Self::LacksLimit(_) => StatusCode::BAD_REQUEST,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BadKey => StatusCode::UNAUTHORIZED,
            Self::Engine | Self::Unheard => StatusCode::FORBIDDEN,
            Self::Upgrade => StatusCode::UPGRADE_REQUIRED,
            Self::Unreachable(..) | Self::Broken(_) | Self::ReplyTooLong(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::Unrecorded(CommitError::Closed(..)) => StatusCode::CONFLICT,
            Self::Unrecorded(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(..) | Self::Broken(_) | Self::ReplyTooLong(_) => "upstream_error",
            Self::Unrecorded(CommitError::Closed(..)) => "episode_closed",
            Self::Unrecorded(_) => "recorder_error",
            _ => "invalid_request_error",
        }
    }

    /// The error as a whole response in the form of the agent's wire.
    pub(crate) fn response(&self, route: Route) -> Response<ReplyBody> {
        let status = self.status();
        let body = match self {
            Self::LeansOnState(body) | Self::LacksLimit(body) => body.clone(),
            _ => wire::error_body(route, status.as_u16(), self.kind(), &self.to_string()),
        };
        let mut response = Response::new(whole(Bytes::from(body)));
        *response.status_mut() = status;
        json_headers(response.headers_mut());
        if matches!(self, Self::Unrecorded(CommitError::Closed(..))) {
            // SDKs try a 409 again; this one will not change its mind.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }

    /// The error as the last event of a stream that was already under way.
    pub(crate) fn event(&self, route: Route) -> Bytes {
        let status = self.status().as_u16();
        Bytes::from(wire::error_event(route, status, self.kind(), &self.to_string()))
    }

    /// The end of a call that this error ended, as the agent saw it.
    pub(crate) fn mark(&self, ended: &mut Ended) {
        ended.status = Some(self.status().as_u16());
        ended.outcome = match self {
            Self::ReplyTooLong(_) => Outcome::Capped,
            Self::LeansOnState(_) | Self::LacksLimit(_) | Self::TooLong(_) | Self::Unheard => {
                Outcome::Refused
            }
            _ => Outcome::UpstreamFailed,
        };
        ended.error = Some(self.to_string());
    }
}

fn json_headers(headers: &mut HeaderMap) {
    let json = HeaderValue::from_static("application/json");
    headers.insert(CONTENT_TYPE, json);
    // Tells rolltape's own errors from those of the upstream.
    headers.insert("x-rolltape-error", HeaderValue::from_static("1"));
}

/// A body that is there already.
pub(crate) fn whole(bytes: Bytes) -> ReplyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
