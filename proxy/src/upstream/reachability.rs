//! The reachability of the upstream, as the last attempt to reach it has shown.

use std::fmt::Display;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The result of the last attempt to reach the upstream.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    /// True while there is a reason, for calls to see without waiting for each other.
    is_lost: AtomicBool,
    /// True once it has answered a request.
    has_answered: AtomicBool,
    /// The reason for which the last attempt failed; `None` if it did not.
    reason: Mutex<Option<&'static str>>,
}

impl Reachability {
    /// Notes that the upstream has answered. The first answer after a failure is logged.
    pub(super) fn note_answer(&self, upstream: &dyn Display) {
        self.has_answered.store(true, Relaxed);
        if self.is_lost.load(Relaxed) && self.set(None).is_some() {
            tracing::info!(%upstream, "the upstream answers again");
        }
    }

    /// Notes that the upstream could not be reached. The first failure after an answer is logged:
    /// a line for each call would say no more.
    pub(super) fn note_failure(&self, upstream: &dyn Display, reason: &'static str, cause: &str) {
        if self.set(Some(reason)).is_none() {
            tracing::warn!(
                %upstream,
                reason,
                cause,
                "the upstream cannot be reached; until it answers, calls that no other upstream \
                 takes get a 502"
            );
        } else {
            tracing::debug!(%upstream, cause, "the upstream still cannot be reached");
        }
    }

    /// True once the upstream has answered a request.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Relaxed)
    }

    /// The reason for which the last attempt failed; `None` if it did not.
    pub(crate) fn lost_because(&self) -> Option<&'static str> {
        *self.reason()
    }

    /// Sets the reason. Returns the one before.
    fn set(&self, reason: Option<&'static str>) -> Option<&'static str> {
        let mut held = self.reason();
        self.is_lost.store(reason.is_some(), Relaxed);
        std::mem::replace(&mut held, reason)
    }

    fn reason(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_decides() {
        let seen = Reachability::default();
        assert_eq!(seen.lost_because(), None);
        seen.note_failure(&"u", "connection refused", "os error 111");
        assert_eq!(seen.lost_because(), Some("connection refused"));
        seen.note_failure(&"u", "timed out", "deadline");
        assert_eq!(seen.lost_because(), Some("timed out"));
        assert!(!seen.has_answered());
        seen.note_answer(&"u");
        assert_eq!(seen.lost_because(), None);
        assert!(seen.has_answered());
    }
}
