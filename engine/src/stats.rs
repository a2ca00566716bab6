//! The counters and gauges of an engine.
//!
//! The engine thread writes them and other threads read them, each by itself: two numbers read one
//! after the other may be of different steps.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::schedule::request::FinishReason;

/// Gauges (`usize`) of the last step, and counters (`u64`) since the start.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Running sequences.
    pub(crate) running: AtomicUsize,
    /// Choices that wait, preempted ones included.
    pub(crate) waiting: AtomicUsize,
    /// Pages of keys and values that sequences hold, without those of the prefix cache alone.
    pub(crate) pages_used: AtomicUsize,
    pub(crate) pages_total: AtomicUsize,
    /// Tokens of prompts whose replies have begun.
    pub(crate) prompt_tokens: AtomicU64,
    /// Tokens that were sampled.
    pub(crate) generated_tokens: AtomicU64,
    /// Tokens that were looked up in the prefix cache.
    pub(crate) prefix_queries: AtomicU64,
    /// Tokens that were found in the prefix cache.
    pub(crate) prefix_hits: AtomicU64,
    /// Preemptions: a sequence lost its pages or its place, and was computed again later.
    pub(crate) preemptions: AtomicU64,
    /// Replies that ended at a stop token or text.
    pub(crate) stopped: AtomicU64,
    /// Replies that ended at their limit of tokens.
    pub(crate) cut: AtomicU64,
    /// Replies that were aborted, or whose caller was gone.
    pub(crate) aborted: AtomicU64,
    /// Replies that the engine failed to finish.
    pub(crate) failed: AtomicU64,
    pub(crate) updates: UpdateStats,
}

/// The outcomes of weight updates.
#[derive(Debug, Default)]
pub(crate) struct UpdateStats {
    /// Updates whose weights were exchanged.
    pub(crate) exchanged: AtomicU64,
    /// Updates with the weights that serve already, under another label.
    pub(crate) relabeled: AtomicU64,
    /// Updates that had been done before.
    pub(crate) repeated: AtomicU64,
    /// Calls whose weights were refused.
    pub(crate) refused: AtomicU64,
    /// Updates that the engine failed to do.
    pub(crate) failed: AtomicU64,
    /// Microseconds during which exchanges stopped generation.
    pub(crate) exchange_us: AtomicU64,
}

impl Stats {
    /// Counts a reply that ended.
    pub(crate) fn finished(&self, finish: &FinishReason) {
        let counter = match finish {
            FinishReason::Eos | FinishReason::StopId(_) | FinishReason::StopText { .. } => {
                &self.stopped
            }
            FinishReason::Length => &self.cut,
            FinishReason::Aborted => &self.aborted,
            FinishReason::Failed(_) => &self.failed,
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
