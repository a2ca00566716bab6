//! The reasons for which the feed hands nothing out.

use store::{CommitError, SnapshotError};
use thiserror::Error;

/// The reason for which nothing is handed out.
#[derive(Debug, Error)]
pub(crate) enum FeedError {
    #[error(transparent)]
    Read(#[from] SnapshotError),
    #[error(transparent)]
    Write(#[from] CommitError),
    #[error("no rows could be made: {0}")]
    Rows(String),
    #[error("other readers of the consumer took the items first, {0} times; ask again")]
    Outrun(u32),
    #[error("the feed serves at most {0} readers at a time")]
    TooManyReaders(usize),
}
