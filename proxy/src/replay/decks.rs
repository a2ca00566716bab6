//! The recordings that answer calls, by attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use episode::{AttemptId, Replay};

use super::deck::Deck;

pub use super::deck::ReplayState;

/// The decks of all attempts.
#[derive(Debug)]
pub(crate) struct Decks {
    /// The recording of attempts without one of their own.
    of_all: Option<Replay>,
    by_attempt: Mutex<HashMap<AttemptId, Arc<Deck>>>,
}

impl Decks {
    pub(crate) fn new(of_all: Option<Replay>) -> Self {
        Self { of_all, by_attempt: Mutex::default() }
    }

    /// Sets the recording that answers the calls of an attempt.
    pub(crate) fn set(&self, attempt: AttemptId, replay: Replay) {
        self.lock().insert(attempt, Arc::new(Deck::new(replay)));
    }

    /// The deck of an attempt, if a recording answers its calls.
    pub(crate) fn of(&self, attempt: &AttemptId) -> Option<Arc<Deck>> {
        let mut by_attempt = self.lock();
        if let Some(deck) = by_attempt.get(attempt) {
            return Some(Arc::clone(deck));
        }
        let deck = Arc::new(Deck::new(self.of_all.clone()?));
        by_attempt.insert(attempt.clone(), Arc::clone(&deck));
        Some(deck)
    }

    /// The progress of the replay of an attempt, if it is one.
    pub(crate) fn state(&self, attempt: &AttemptId) -> Option<ReplayState> {
        self.lock().get(attempt).map(|deck| deck.state())
    }

    /// Forgets an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptId) {
        self.lock().remove(attempt);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttemptId, Arc<Deck>>> {
        self.by_attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
