//! The prompts of open attempts whose experts are recorded.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use episode::AttemptId;
use wire::{KnownPrompts, LearnedPrompt};

use crate::bounds::EXPERT_ATTEMPTS_MAX;

/// The known prompts of each attempt. They are lost on restart; then experts are asked for
/// once more.
#[derive(Debug, Default)]
pub(crate) struct ExpertPrompts(Mutex<HashMap<AttemptId, KnownPrompts>>);

impl ExpertPrompts {
    /// The prompts of an attempt.
    pub(crate) fn of(&self, attempt: &AttemptId) -> KnownPrompts {
        self.lock().get(attempt).cloned().unwrap_or_default()
    }

    /// Notes what the reply to a recorded call told.
    pub(crate) fn learn(&self, attempt: AttemptId, learned: LearnedPrompt) {
        let mut all = self.lock();
        if all.len() >= EXPERT_ATTEMPTS_MAX && !all.contains_key(&attempt) {
            all.clear();
        }
        all.entry(attempt).or_default().learn(learned);
    }

    /// Forgets an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptId) {
        self.lock().remove(attempt);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttemptId, KnownPrompts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
