//! Errors of the recorder and its store as replies.

use http::api::auth::{NotLetIn, Refusal};
use http::api::reply::{JsonReply, error};
use http::body::BodyError;
use hyper::StatusCode;
use proxy::RequestError;
use store::{CommitError, SnapshotError};

/// The reply to a request that the store refuses.
pub(crate) fn commit_error(reason: CommitError) -> JsonReply {
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
        | CommitError::Full(_)
        | CommitError::Sealed(_)
        | CommitError::Unavailable(_)
        | CommitError::Database(_)
        | CommitError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

/// The reply if the store cannot be read.
pub(crate) fn snapshot_error(reason: SnapshotError) -> JsonReply {
    let status = match reason {
        SnapshotError::TooLarge { .. } => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

/// The answer if a question made its reader panic.
pub(crate) fn broken(why: &tokio::task::JoinError) -> JsonReply {
    tracing::error!(%why, "a question about the recording could not be answered");
    error(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made; see the log")
}

/// The reply to a request that cannot be read or forwarded.
pub(crate) fn request_error(reason: RequestError) -> JsonReply {
    error(reason.status(), &reason.to_string())
}

/// The reply to a request whose body cannot be read.
pub(crate) fn body_error(reason: BodyError) -> JsonReply {
    error(reason.status(), &reason.to_string())
}

/// The reply to a request that is not let in.
pub(crate) fn not_let_in(reason: NotLetIn) -> JsonReply {
    match reason {
        NotLetIn::Refused(refusal) => refused(refusal),
        NotLetIn::TooManyWrongTokens => {
            error(StatusCode::TOO_MANY_REQUESTS, "too many requests with a wrong token")
        }
    }
}

/// The reply to a request that a check of the gate refuses.
pub(crate) fn refused(refusal: Refusal) -> JsonReply {
    match refusal {
        Refusal::Host => error(
            StatusCode::FORBIDDEN,
            "the control listener is not addressed by this name; use its address, or name it \
             with `rolltape serve --control-host NAME`",
        ),
        Refusal::Origin => error(
            StatusCode::FORBIDDEN,
            "the control listener takes no requests of web pages of another origin",
        ),
        Refusal::NoToken | Refusal::WrongToken => {
            let given = if refusal == Refusal::NoToken { "gives none" } else { "gives another" };
            let message = format!(
                "the control listener requires its token, and this request {given}: \
                 authorization: Bearer TOKEN; `rolltape serve` says at its start which file holds \
                 it, STORE-token beside its store by default"
            );
            error(StatusCode::UNAUTHORIZED, &message)
        }
    }
}
