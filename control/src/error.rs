//! Errors of the recorder and its store as replies.

use hyper::StatusCode;
use proxy::RequestError;
use store::{CommitError, SnapshotError};

use crate::api::reply::{JsonReply, error};

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
        | CommitError::Unavailable(_)
        | CommitError::Database(_)
        | CommitError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

/// The reply if the store cannot be read.
pub(crate) fn snapshot_error(reason: SnapshotError) -> JsonReply {
    error(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string())
}

/// The reply to a request that cannot be read or forwarded.
pub(crate) fn request_error(reason: RequestError) -> JsonReply {
    error(reason.status(), &reason.to_string())
}
