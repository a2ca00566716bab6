//! The counters and gauges of an engine.
//!
//! The engine thread writes them and other threads read them, each by itself: two numbers read one
//! after the other may be of different steps.

mod histogram;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) use histogram::Histogram;
use histogram::{FIRST_TOKEN_SECONDS, REQUEST_SECONDS, REQUEST_TOKENS, TOKEN_SECONDS};

/// Gauges (`usize`) of the last step, and counters (`u64`) since the start.
#[derive(Debug, Default)]
pub(crate) struct EngineStats {
    /// Running sequences.
    pub(crate) running: AtomicUsize,
    /// Choices that wait, preempted ones included.
    pub(crate) waiting: AtomicUsize,
    /// Pages of keys and values that sequences hold, without those of the prefix cache alone.
    pub(crate) pages_used: AtomicUsize,
    pub(crate) pages_total: AtomicUsize,
    /// Places for pages in the host's memory that are in use, and all.
    pub(crate) host_used: AtomicUsize,
    pub(crate) host_total: AtomicUsize,
    /// Tokens of prompts whose replies have begun.
    pub(crate) prompt_tokens: AtomicU64,
    /// Tokens that were sampled.
    pub(crate) generated_tokens: AtomicU64,
    /// Tokens that were looked up in the prefix cache.
    pub(crate) prefix_queries: AtomicU64,
    /// Tokens that were found in the prefix cache.
    pub(crate) prefix_hits: AtomicU64,
    /// Tokens that were found in the host's memory, which the prefix cache's hits include.
    pub(crate) host_hits: AtomicU64,
    /// Tokens whose keys and values were copied to the host's memory.
    pub(crate) host_saved: AtomicU64,
    /// Preemptions: a sequence lost its pages or its place, and was computed again later.
    pub(crate) preemptions: AtomicU64,
    /// Steps of a sequence in which tokens were guessed.
    pub(crate) drafts: AtomicU64,
    /// Tokens that were guessed.
    pub(crate) draft_tokens: AtomicU64,
    /// Guessed tokens that were right.
    pub(crate) accepted_tokens: AtomicU64,
    /// Replies that ended at a stop token or text.
    pub(crate) stopped: AtomicU64,
    /// Replies that ended at their limit of tokens.
    pub(crate) cut: AtomicU64,
    /// Replies that were aborted, or whose caller was gone.
    pub(crate) aborted: AtomicU64,
    /// Replies that the engine failed to finish.
    pub(crate) failed: AtomicU64,
    pub(crate) updates: UpdateStats,
    pub(crate) requests: RequestStats,
}

/// The times and lengths of requests. A choice of a call counts as one, as in vLLM.
#[derive(Debug)]
pub(crate) struct RequestStats {
    /// Seconds in the queue.
    pub(crate) queue: Histogram,
    /// Seconds from the arrival to the first token.
    pub(crate) first_token: Histogram,
    /// Seconds from one token to the next.
    pub(crate) between_tokens: Histogram,
    /// Seconds from the start to the first token.
    pub(crate) prefill: Histogram,
    /// Seconds from the first token to the last.
    pub(crate) decode: Histogram,
    /// Seconds from the arrival to the end.
    pub(crate) whole: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generated_tokens: Histogram,
}

impl Default for RequestStats {
    fn default() -> RequestStats {
        RequestStats {
            queue: Histogram::new(REQUEST_SECONDS),
            first_token: Histogram::new(FIRST_TOKEN_SECONDS),
            between_tokens: Histogram::new(TOKEN_SECONDS),
            prefill: Histogram::new(REQUEST_SECONDS),
            decode: Histogram::new(REQUEST_SECONDS),
            whole: Histogram::new(REQUEST_SECONDS),
            prompt_tokens: Histogram::new(REQUEST_TOKENS),
            generated_tokens: Histogram::new(REQUEST_TOKENS),
        }
    }
}

/// The times of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    arrived: Instant,
    started: Instant,
    /// The first token and the last one so far.
    tokens: Option<(Instant, Instant)>,
}

impl RequestTimes {
    /// The times of a request that starts now.
    pub(crate) fn starting(arrived: Instant) -> RequestTimes {
        RequestTimes { arrived, started: Instant::now(), tokens: None }
    }

    /// Notes a token.
    pub(crate) fn on_token(&mut self, stats: &RequestStats) {
        let now = Instant::now();
        let first = match self.tokens {
            Some((first, last)) => {
                stats.between_tokens.observe_time(now - last);
                first
            }
            None => {
                stats.first_token.observe_time(now - self.arrived);
                now
            }
        };
        self.tokens = Some((first, now));
    }

    /// Counts a request that ended, with the tokens of its prompt and its reply.
    pub(crate) fn on_end(&self, stats: &RequestStats, prompt: usize, generated: usize) {
        let (first, last) = self.tokens.unwrap_or((self.started, self.started));
        let phases: [(&Histogram, Duration); 4] = [
            (&stats.queue, self.started - self.arrived),
            (&stats.prefill, first - self.started),
            (&stats.decode, last - first),
            (&stats.whole, self.arrived.elapsed()),
        ];
        for (histogram, time) in phases {
            histogram.observe_time(time);
        }
        stats.prompt_tokens.observe(prompt as f64);
        stats.generated_tokens.observe(generated as f64);
    }
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

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// Sets a gauge.
pub(crate) fn set(gauge: &AtomicUsize, value: usize) {
    gauge.store(value, Ordering::Relaxed);
}
