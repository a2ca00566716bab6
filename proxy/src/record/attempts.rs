//! Attempts that took a call and were not closed since, as far as this process knows.
//!
//! The transaction that writes a start record decides whether an attempt is closed. A call into an
//! attempt of this set is forwarded while that transaction runs. Any other waits for it first, so
//! that a call into a closed episode costs the upstream nothing.

use crate::bounds::ATTEMPTS_MAX;
use std::collections::HashSet;
use std::sync::Mutex;

use episode::EpisodeId;

/// An attempt at an episode.
pub(crate) type AttemptKey = (EpisodeId, u32);

/// The set of attempts that are known to be open.
#[derive(Debug, Default)]
pub(crate) struct OpenAttempts(Mutex<HashSet<AttemptKey>>);

impl OpenAttempts {
    pub(crate) fn contains(&self, attempt: &AttemptKey) -> bool {
        self.0.lock().is_ok_and(|attempts| attempts.contains(attempt))
    }

    pub(crate) fn insert(&self, attempt: AttemptKey) {
        if let Ok(mut attempts) = self.0.lock() {
            if attempts.len() >= ATTEMPTS_MAX {
                attempts.clear();
            }
            attempts.insert(attempt);
        }
    }

    pub(crate) fn remove(&self, attempt: &AttemptKey) {
        if let Ok(mut attempts) = self.0.lock() {
            attempts.remove(attempt);
        }
    }
}
