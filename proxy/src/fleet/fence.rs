//! The weights that an engine must have before it gets calls.
//!
//! Each acknowledged push of weights has a number. An engine that did not acknowledge the newest
//! one, or that came back after a crash, is behind the fence until it does, or until it says that
//! it serves the label of the newest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The newest weights.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    is_off: bool,
    /// The number of the newest push that an engine acknowledged; 0 before the first.
    push: AtomicU64,
    label: Mutex<Option<String>>,
}

impl Fence {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_off: !is_on, ..Self::default() }
    }

    /// The number of the newest push.
    pub(crate) fn push(&self) -> u64 {
        self.push.load(Ordering::SeqCst)
    }

    /// The label of the newest push, if it is known.
    pub(crate) fn label(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Notes a push that engines acknowledged. They must know of it already.
    pub(crate) fn raise(&self, push: u64, label: Option<String>) {
        *self.lock() = label;
        self.push.store(push, Ordering::SeqCst);
    }

    /// True if an engine that acknowledged `acked` last gets no calls.
    pub(crate) fn holds(&self, acked: u64) -> bool {
        !self.is_off && acked < self.push()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.label.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_missed_the_newest_push_is_held() {
        let fence = Fence::new(true);
        assert!(!fence.holds(0), "nothing was pushed");
        fence.raise(1, Some("7".to_owned()));
        assert!(fence.holds(0) && !fence.holds(1));
        let off = Fence::new(false);
        off.raise(1, None);
        assert!(!off.holds(0));
    }
}
