//! The ids of kept state that attempts got in replies, and the calls whose replies were looked at.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use episode::{AttemptId, CallId};

use crate::bounds::OWN_IDS_MAX;

/// Ids with their attempts, as hashes. Their key is random, so nobody can find another id with the
/// same hash. The oldest are forgotten first.
#[derive(Debug, Default)]
pub(super) struct OwnIds {
    known: HashSet<u64>,
    oldest: VecDeque<u64>,
    key: RandomState,
}

impl OwnIds {
    /// Notes that `attempt` got `id`.
    pub(super) fn add(&mut self, attempt: &AttemptId, id: &str) {
        self.add_hash(self.key.hash_one((attempt, id)));
    }

    /// True if `attempt` got `id`.
    pub(super) fn contains(&self, attempt: &AttemptId, id: &str) -> bool {
        self.known.contains(&self.key.hash_one((attempt, id)))
    }

    /// Notes that the reply of a call was looked at.
    pub(super) fn add_call(&mut self, call: CallId) {
        self.add_hash(self.key.hash_one(call));
    }

    /// True if the reply of a call was looked at.
    pub(super) fn has_call(&self, call: CallId) -> bool {
        self.known.contains(&self.key.hash_one(call))
    }

    fn add_hash(&mut self, hash: u64) {
        if self.known.insert(hash) {
            self.oldest.push_back(hash);
        }
        while self.oldest.len() > OWN_IDS_MAX {
            let Some(oldest) = self.oldest.pop_front() else { return };
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_attempts_alone_and_the_oldest_go_first() {
        let of = |attempt| AttemptId { episode: "e".parse().unwrap(), attempt };
        let mut ids = OwnIds::default();
        ids.add(&of(0), "resp_1");
        ids.add(&of(0), "resp_1");
        assert!(ids.contains(&of(0), "resp_1") && ids.oldest.len() == 1);
        assert!(!ids.contains(&of(1), "resp_1") && !ids.contains(&of(0), "resp_2"));
        for number in 0..OWN_IDS_MAX {
            ids.add(&of(1), &number.to_string());
        }
        assert!(!ids.contains(&of(0), "resp_1") && ids.contains(&of(1), "0"));
        assert_eq!((ids.known.len(), ids.oldest.len()), (OWN_IDS_MAX, OWN_IDS_MAX));
    }
}
