//! Whether the upstream takes connections, as the calls that went to it have shown.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::bounds::UPSTREAM_FAILURES_MAX;

/// The result of the last attempts to connect.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    /// Attempts that failed since one succeeded.
    failures: AtomicU32,
    is_lost: AtomicBool,
}

impl Reachability {
    /// Notes an attempt to connect to `upstream`. Each change is logged once.
    pub(super) fn note(&self, is_connected: bool, upstream: &dyn std::fmt::Display) {
        if is_connected {
            self.failures.store(0, Relaxed);
            if self.is_lost.load(Relaxed) && self.is_lost.swap(false, Relaxed) {
                tracing::info!(%upstream, "the upstream takes connections again");
            }
            return;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if failures >= UPSTREAM_FAILURES_MAX && !self.is_lost.swap(true, Relaxed) {
            tracing::warn!(%upstream, "the upstream takes no connections");
        }
    }

    /// True if the last attempts all failed.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_is_no_loss_and_one_success_ends_it() {
        let seen = Reachability::default();
        for _ in 1..UPSTREAM_FAILURES_MAX {
            seen.note(false, &"u");
            assert!(!seen.is_lost());
        }
        seen.note(false, &"u");
        assert!(seen.is_lost());
        seen.note(true, &"u");
        assert!(!seen.is_lost());
        seen.note(false, &"u");
        assert!(!seen.is_lost());
    }
}
