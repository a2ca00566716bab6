//! Segments: immutable files that hold finished attempts, in a folder with a catalog.
//!
//! A segment is a store of its own. Sealing copies attempts to one, enters it in the catalog, and
//! only then takes the calls of these attempts out of the store. What is said of the attempts,
//! their rewards among it, stays: it may still change. Rewards that came after an attempt was
//! sealed are in files beside the segments, for readers without the store. An attempt is removed by
//! another segment in place of the one that holds it.
//!
//! The folder and its entries are in `snapshot/catalog.rs`.
//!
//! - `plan`: the attempts of the next segments; `seal`: the steps from a store to a segment.
//! - `late`: what came late. `files`: the files that a store knows.
//! - `remove`: segments without attempts that were in them; `forget`: what a store does for that.
//! - `keep`: files that leave the folder, since a bucket has them.
//! - `gather`: a store that knows the attempts of segments, made of nothing but these.

use std::io;
use std::path::PathBuf;

use episode::Micros;
use thiserror::Error;

use crate::error::{OpenError, SnapshotError};
use crate::maintenance::backup::BackupError;
use crate::snapshot::catalog::CatalogError;

mod files;
pub(crate) mod forget;
pub(crate) mod gather;
mod keep;
mod late;
mod lock;
mod plan;
pub(crate) mod remove;
pub(crate) mod seal;

/// Rules of sealing.
#[derive(Debug, Clone)]
pub struct SealOptions {
    /// The folder of the segments.
    pub folder: PathBuf,
    /// Only attempts that were finished before this time.
    pub finished_before: Micros,
    /// A segment ends with the group that brings it to this length, in bytes.
    pub segment_bytes: u64,
    /// A segment that would be shorter than this is left for later, unless an attempt of it was
    /// finished before `short_before`.
    pub segment_bytes_min: u64,
    /// See `segment_bytes_min`.
    pub short_before: Micros,
    /// The longest that a finished attempt waits for others of its group, in microseconds.
    pub group_wait: Micros,
    /// The present time.
    pub now: Micros,
}

/// The reasons for which attempts were not sealed, or segments not read. What was sealed before
/// stays so; an attempt is in the store or in a segment of the catalog at each moment.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another process seals attempts of the store.
    #[error("the store at `{0}` is being sealed by another process")]
    InUse(String),
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] SnapshotError),
    /// The segment could not be made.
    #[error("cannot make a segment")]
    Copy(#[from] BackupError),
    /// A database refused.
    #[error("cannot seal attempts")]
    Database(#[from] sqlx::Error),
    /// A file or an entry of the folder is of no use.
    #[error(transparent)]
    Folder(#[from] CatalogError),
    /// Two stores recorded an attempt of one name.
    #[error("episode `{0}` attempt {1} is in segments of two stores")]
    TwoStores(String, i64),
}

impl SegmentError {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let io = CatalogError::io(path);
        |source| Self::Folder(io(source))
    }

    fn entry(path: impl Into<PathBuf>, why: String) -> Self {
        Self::Folder(CatalogError::Entry { path: path.into(), why })
    }

    /// True where a file is not there, which another process may just have replaced.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Open(OpenError::Missing(_))
            | Self::Read(SnapshotError::Open(OpenError::Missing(_))) => true,
            Self::Folder(CatalogError::Io { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}

/// Stands between two steps, where tests let a process die.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "in tests it fails")]
fn between_steps() -> Result<(), SegmentError> {
    Ok(())
}

#[cfg(test)]
use tests::between_steps;

#[cfg(test)]
mod tests;
