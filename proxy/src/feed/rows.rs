//! The rows of the feed, which another crate makes.

use std::fmt;

use store::{CommitError, FeedItem, Snapshot, SnapshotError};
use thiserror::Error;

/// A source of row streams.
pub trait RowSource: fmt::Debug + Send + Sync {
    /// A stream of the rows that these query parameters ask for.
    ///
    /// # Errors
    /// A sentence if a parameter is unknown or has an invalid value.
    fn stream(&self, parameters: &[(String, String)]) -> Result<Box<dyn RowStream>, String>;
}

/// A stream of rows. Its methods may block their thread.
pub trait RowStream: Send {
    /// The content type of the stream.
    fn content_type(&self) -> &'static str;

    /// The rows of an item's attempts. Staleness is measured from `newest`, the newest policy
    /// version that is known.
    ///
    /// # Errors
    /// A sentence if the rows cannot be made.
    fn item(
        &mut self,
        snapshot: &mut Snapshot,
        item: &FeedItem,
        newest: Option<i64>,
    ) -> Result<ItemRows, String>;

    /// The last bytes of the stream.
    ///
    /// # Errors
    /// A sentence if they cannot be made.
    fn end(&mut self) -> Result<Vec<u8>, String>;
}

/// The rows of one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemRows {
    /// The next bytes of the stream.
    Rows(Vec<u8>),
    /// No rows: the item is dropped, for this reason.
    Dropped(&'static str),
}

/// The reason for which nothing is handed out.
#[derive(Debug, Error)]
pub(crate) enum FeedError {
    #[error(transparent)]
    Read(#[from] SnapshotError),
    #[error(transparent)]
    Write(#[from] CommitError),
    #[error("no rows could be made: {0}")]
    Rows(String),
    #[error("the feed serves at most {0} readers at a time")]
    TooManyReaders(usize),
}
