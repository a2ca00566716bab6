//! Numbers of a writer's records, by what became of them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{CommitError, CommitResult};

/// Records since the writer started, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// On disk.
    pub written: u64,
    /// Refused by a rule: a closed episode, a spent budget, an unknown key, a lease that has gone.
    pub refused: u64,
    /// Lost, because the store could not be written.
    pub failed: u64,
}

/// Counts the results that a writer sends.
#[derive(Debug, Default)]
pub(crate) struct RecordCounters {
    written: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl RecordCounters {
    /// Counts one result.
    pub(crate) fn add(&self, result: &CommitResult) {
        let counter = match result {
            Ok(()) => &self.written,
            Err(CommitError::Unavailable(_) | CommitError::Database(_) | CommitError::Stopped) => {
                &self.failed
            }
            Err(_) => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of this moment.
    pub(crate) fn read(&self) -> RecordCounts {
        RecordCounts {
            written: self.written.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}
