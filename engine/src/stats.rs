//! What the engine counts of itself, for whoever wants to look.
//!
//! The engine thread writes and others read, each number by itself: two of them read one after the
//! other may be of different steps.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sequence::Finish;

/// Gauges (`usize`) of the last step, and counters (`u64`) since the start.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Sequences that run.
    pub(crate) running: AtomicUsize,
    /// Choices that wait, those that were preempted among them.
    pub(crate) waiting: AtomicUsize,
    /// Pages of keys and values that sequences hold; those that are only kept do not count.
    pub(crate) pages_used: AtomicUsize,
    pub(crate) pages_total: AtomicUsize,
    /// Tokens of prompts whose replies have begun.
    pub(crate) prompt_tokens: AtomicU64,
    /// Tokens that were sampled.
    pub(crate) generated_tokens: AtomicU64,
    /// Tokens that were looked up in the cache of prefixes.
    pub(crate) prefix_queries: AtomicU64,
    /// Tokens that were found there.
    pub(crate) prefix_hits: AtomicU64,
    /// Sequences that gave their pages or their place up and were computed again later.
    pub(crate) preemptions: AtomicU64,
    /// Replies that ended at a stop token or text.
    pub(crate) stopped: AtomicU64,
    /// Replies that ended at their limit of tokens.
    pub(crate) cut: AtomicU64,
    /// Replies that were told to end, or that nobody waited for any more.
    pub(crate) aborted: AtomicU64,
    /// Replies that the engine failed to finish.
    pub(crate) failed: AtomicU64,
    pub(crate) updates: UpdateStats,
}

/// What became of weights that were pushed.
#[derive(Debug, Default)]
pub(crate) struct UpdateStats {
    /// They serve.
    pub(crate) exchanged: AtomicU64,
    /// They were those that serve already, and got another label.
    pub(crate) relabeled: AtomicU64,
    /// They had come before, and nothing was done.
    pub(crate) repeated: AtomicU64,
    /// The caller was told why they, or a piece of them, cannot be taken.
    pub(crate) refused: AtomicU64,
    /// The engine could not take them.
    pub(crate) failed: AtomicU64,
    /// Microseconds during which generation stood still for exchanges.
    pub(crate) exchange_us: AtomicU64,
}

impl Stats {
    /// Counts a reply that ended.
    pub(crate) fn finished(&self, finish: &Finish) {
        let counter = match finish {
            Finish::Eos | Finish::StopId(_) | Finish::StopText { .. } => &self.stopped,
            Finish::Length => &self.cut,
            Finish::Aborted => &self.aborted,
            Finish::Failed(_) => &self.failed,
        };
        add(counter, 1);
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// Sets a gauge.
pub(crate) fn set(gauge: &AtomicUsize, value: usize) {
    gauge.store(value, Ordering::Relaxed);
}
