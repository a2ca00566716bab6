//! The only crate that knows SQL.
#![forbid(unsafe_code)]

mod snapshot;

pub use snapshot::{EpisodeRecord, Selection, Snapshot, SnapshotError};
