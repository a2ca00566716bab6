//! Attempts that took a call and were not closed since, as far as this process knows.
//!
//! The transaction that writes a start record decides whether an attempt takes a call. A call with
//! the same key and words as an earlier one of this set is forwarded while that transaction runs.
//! Any other waits for it first, so that a call that is refused costs the upstream nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use episode::{AttemptId, EpisodeId};
use http::server::caller::Caller;

use crate::bounds::ATTEMPTS_MAX;

/// The attempts that are known to be open.
#[derive(Debug, Default)]
pub(crate) struct OpenAttempts(Mutex<AttemptSets>);

#[derive(Debug, Default)]
struct AttemptSets {
    open: HashMap<EpisodeId, HashMap<u32, OpenAttempt>>,
    /// Number of attempts in `open`.
    len: usize,
    /// Attempts whose calls are counted. Each call waits.
    counted: HashSet<AttemptId>,
    counts_all: bool,
    /// True once it was told that two callers share an attempt.
    has_told_callers: bool,
}

#[derive(Debug)]
struct OpenAttempt {
    /// The hash of the key and the words with which it took its last call.
    words: u64,
    /// Whoever made its first call.
    caller: Option<Caller>,
}

impl OpenAttempts {
    pub(crate) fn contains(&self, id: &AttemptId, words: u64) -> bool {
        let known = |sets: &AttemptSets| {
            sets.open.get(&id.episode)?.get(&id.attempt).map(|attempt| attempt.words)
        };
        self.0.lock().is_ok_and(|sets| known(&sets) == Some(words))
    }

    /// Notes who makes a call of an open attempt. Returns the one who made its first call, if that
    /// was another one and no such pair was returned before: two people may have chosen one name.
    pub(crate) fn note_caller(&self, id: &AttemptId, caller: Caller) -> Option<Caller> {
        let mut sets = self.0.lock().ok()?;
        if sets.has_told_callers {
            return None;
        }
        let attempt = sets.open.get_mut(&id.episode)?.get_mut(&id.attempt)?;
        let first = *attempt.caller.get_or_insert(caller);
        let is_other = !first.is_at_the_place_of(caller);
        sets.has_told_callers = is_other;
        is_other.then_some(first)
    }

    pub(crate) fn insert(&self, attempt: AttemptId, words: u64) {
        let Ok(mut sets) = self.0.lock() else { return };
        if sets.counts_all || sets.counted.contains(&attempt) {
            return;
        }
        if sets.len >= ATTEMPTS_MAX {
            sets.open.clear();
            sets.len = 0;
        }
        let AttemptId { episode, attempt } = attempt;
        let attempts = sets.open.entry(episode).or_default();
        let caller = attempts.get(&attempt).and_then(|attempt| attempt.caller);
        let is_new = attempts.insert(attempt, OpenAttempt { words, caller }).is_none();
        sets.len += usize::from(is_new);
    }

    /// Lets every call of an attempt wait, because it has a budget.
    pub(crate) fn count(&self, attempt: AttemptId) {
        let Ok(mut sets) = self.0.lock() else { return };
        sets.remove(&attempt);
        match sets.counted.len() < ATTEMPTS_MAX {
            true => drop(sets.counted.insert(attempt)),
            false => sets.counts_all = true,
        }
    }

    /// Lets every call wait, because all attempts have a budget.
    pub(crate) fn count_all(&self) {
        if let Ok(mut sets) = self.0.lock() {
            sets.counts_all = true;
        }
    }

    /// Forgets the attempts of an episode, whose next calls wait.
    pub(crate) fn forget(&self, episode: &EpisodeId) {
        if let Ok(mut sets) = self.0.lock() {
            let forgotten = sets.open.remove(episode).map_or(0, |attempts| attempts.len());
            sets.len -= forgotten;
        }
    }

    /// Drops an attempt that takes no more calls.
    pub(crate) fn remove(&self, attempt: &AttemptId) {
        if let Ok(mut sets) = self.0.lock() {
            sets.remove(attempt);
            sets.counted.remove(attempt);
        }
    }
}

impl AttemptSets {
    fn remove(&mut self, AttemptId { episode, attempt }: &AttemptId) {
        let Some(attempts) = self.open.get_mut(episode) else { return };
        self.len -= usize::from(attempts.remove(attempt).is_some());
        if attempts.is_empty() {
            self.open.remove(episode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_other_words_waits_again() {
        let attempts = OpenAttempts::default();
        let named = |episode: &str, attempt: u32| -> AttemptId {
            format!("{episode}/{attempt}").parse().unwrap()
        };
        for n in 0..3 {
            attempts.insert(named("a", n), 1);
        }
        attempts.insert(named("b", 0), 1);
        assert!(attempts.contains(&named("a", 2), 1));
        assert!(!attempts.contains(&named("a", 2), 2) && !attempts.contains(&named("a", 3), 1));
        attempts.remove(&named("a", 2));
        assert!(!attempts.contains(&named("a", 2), 1));
        attempts.forget(&named("a", 0).episode);
        assert!(!attempts.contains(&named("a", 1), 1) && attempts.contains(&named("b", 0), 1));
        assert_eq!(attempts.0.lock().unwrap().len, 1);
    }

    #[test]
    fn a_second_caller_of_an_attempt_is_told_of_once() {
        let attempts = OpenAttempts::default();
        let [one, other]: [AttemptId; 2] = ["a/0", "b/0"].map(|name| name.parse().unwrap());
        let caller = |address: &str| Caller::Address(address.parse().unwrap());
        assert_eq!(attempts.note_caller(&one, caller("10.0.0.1")), None, "it is not open");
        for attempt in [&one, &other] {
            attempts.insert(attempt.clone(), 1);
        }
        assert_eq!(attempts.note_caller(&one, caller("127.0.0.1")), None);
        assert_eq!(attempts.note_caller(&one, caller("::1")), None, "the same machine");
        assert_eq!(attempts.note_caller(&other, caller("10.0.0.1")), None);
        attempts.insert(other.clone(), 2);
        let found = attempts.note_caller(&other, caller("10.0.0.2"));
        assert_eq!(found, Some(caller("10.0.0.1")), "other words are of the same attempt");
        assert_eq!(attempts.note_caller(&one, caller("10.0.0.3")), None, "once");
    }

    #[test]
    fn every_call_of_a_counted_attempt_waits() {
        let attempts = OpenAttempts::default();
        let attempt: AttemptId = "a/0".parse().unwrap();
        attempts.insert(attempt.clone(), 1);
        attempts.count(attempt.clone());
        attempts.insert(attempt.clone(), 1);
        assert!(!attempts.contains(&attempt, 1));
        attempts.remove(&attempt);
        attempts.insert(attempt.clone(), 1);
        assert!(attempts.contains(&attempt, 1));
    }
}
