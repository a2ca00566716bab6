//! Segments: immutable files that hold finished attempts, in a folder with a catalog.
//!
//! A segment is a store of its own. Sealing copies attempts to one, enters it in the catalog, and
//! only then takes the calls of these attempts out of the store. What is said of the attempts,
//! their rewards among it, stays: it may still change. Rewards that came after an attempt was
//! sealed are in files beside the segments, for readers without the store.
//!
//! - `catalog`: the folder and its entries.
//! - `plan`: the attempts of the next segments; `seal`: the steps from a store to a segment.
//! - `late`: rewards that came late.
//! - `gather`: a store that knows the attempts of segments, made of nothing but these.

use std::io;
use std::path::PathBuf;

use episode::Micros;
use thiserror::Error;

use crate::error::{OpenError, SnapshotError};
use crate::maintenance::backup::BackupError;

pub(crate) mod catalog;
pub(crate) mod gather;
mod late;
mod plan;
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
    /// A file or a folder could not be read or written.
    #[error("cannot use `{path}`")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// An entry of the catalog is not one that this version knows.
    #[error("`{path}` is no entry of a catalog: {why}")]
    Entry {
        /// The entry.
        path: PathBuf,
        /// The defect.
        why: String,
    },
    /// A file is not what the catalog says.
    #[error("`{0}` is not the file that was sealed: its hash differs")]
    Changed(PathBuf),
    /// Two stores recorded an attempt of one name.
    #[error("episode `{0}` attempt {1} is in segments of two stores")]
    TwoStores(String, i64),
}

impl SegmentError {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

#[cfg(test)]
mod tests;
