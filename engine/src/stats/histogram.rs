//! Histograms that one thread writes and others read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds of whole phases of a request; the bounds are vLLM's.
pub(crate) const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Seconds to the first token; the bounds are vLLM's.
pub(crate) const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds between two tokens; the bounds are vLLM's.
pub(crate) const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Tokens of a request; the bounds are vLLM's for a context of 200,000 tokens.
pub(crate) const REQUEST_TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];

/// Most bounds of a histogram.
const BOUNDS_MAX: usize = 24;

/// Counts of values by size.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper bounds of the counts, ascending.
    pub(crate) bounds: &'static [f64],
    /// Values up to each bound and above the one before, then those above all.
    counts: [AtomicU64; BOUNDS_MAX + 1],
    /// The sum of all values in millionths.
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Histogram {
        debug_assert!(bounds.len() <= BOUNDS_MAX);
        Histogram { bounds, counts: Default::default(), sum: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    pub(crate) fn observe_time(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    /// The number of values up to each bound, and that of all.
    pub(crate) fn cumulative(&self) -> Vec<u64> {
        let mut sum = 0;
        let counts = self.counts[..=self.bounds.len()].iter();
        counts
            .map(|count| {
                sum += count.load(Ordering::Relaxed);
                sum
            })
            .collect()
    }

    pub(crate) fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_their_bound() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 9.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cumulative(), [2, 3, 4]);
        assert!((histogram.sum() - 12.0).abs() < 1e-6);
    }
}
