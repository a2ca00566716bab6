//! Episodes that took a call and were not closed since, as far as this process knows.
//!
//! The transaction that writes a begun record decides whether an episode is closed. For an
//! episode in this set the call is forwarded while that is under way; for any other it is waited
//! for first, so that a call into an episode that was closed costs the upstream nothing.

use std::collections::HashSet;
use std::sync::Mutex;

use episode::EpisodeId;

/// Episodes that are remembered; beyond it all are forgotten and learned again.
const EPISODES_MAX: usize = 100_000;

/// An attempt at an episode.
pub(crate) type Key = (EpisodeId, u32);

/// The set.
#[derive(Debug, Default)]
pub(crate) struct Admitted(Mutex<HashSet<Key>>);

impl Admitted {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.lock().is_ok_and(|keys| keys.contains(key))
    }

    pub(crate) fn insert(&self, key: Key) {
        if let Ok(mut keys) = self.0.lock() {
            if keys.len() >= EPISODES_MAX {
                keys.clear();
            }
            keys.insert(key);
        }
    }

    pub(crate) fn remove(&self, key: &Key) {
        if let Ok(mut keys) = self.0.lock() {
            keys.remove(key);
        }
    }
}
