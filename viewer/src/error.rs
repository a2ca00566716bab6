//! The reasons for which a question has no answer.

use store::SnapshotError;
use thiserror::Error;

/// The reason for which a question has no answer.
#[derive(Debug, Error)]
pub enum ViewError {
    /// A parameter has no valid value.
    #[error("{0}")]
    Parameter(String),
    /// The recording has no such thing.
    #[error("{0}")]
    Missing(String),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] SnapshotError),
}

impl ViewError {
    /// No episode of this id, or no such attempt at it.
    pub(crate) fn no_episode(id: &str, attempt: Option<u32>) -> Self {
        match attempt {
            None => Self::Missing(format!("no episode `{id}`")),
            Some(attempt) => Self::Missing(format!("no episode `{id}` attempt {attempt}")),
        }
    }
}
