//! The pace of the queue, from which a refused caller learns when to come back.
//!
//! Refused callers form a virtual line: as many calls as were refused before are expected to come
//! back first. Each call that leaves the queue makes room for one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

/// The longest wait that is announced; beyond it the measurement says little.
const LONGEST: Duration = Duration::from_secs(600);

/// The weight of the newest interval in the moving average.
const NEWEST: f64 = 0.2;

/// The measured pace of the queue.
#[derive(Debug)]
pub(crate) struct QueuePace(Mutex<PaceState>);

#[derive(Debug)]
struct PaceState {
    /// The moment at which the last call left, or at which the queue was last seen empty.
    since: Instant,
    /// The average seconds between two departures.
    interval: Option<f64>,
    /// Refused callers for whom no room was made since.
    refused: u32,
}

impl QueuePace {
    pub(crate) fn new(now: Instant) -> QueuePace {
        QueuePace(Mutex::new(PaceState { since: now, interval: None, refused: 0 }))
    }

    /// Notes that the queue is empty: the time until now says nothing about its pace.
    pub(crate) fn idle(&self, now: Instant) {
        let mut state = self.lock();
        state.since = now;
        state.refused = 0;
    }

    /// Notes that a call left the queue.
    pub(crate) fn left(&self, now: Instant) {
        let mut state = self.lock();
        let last = now.saturating_duration_since(state.since).as_secs_f64();
        state.interval = Some(state.interval.map_or(last, |mean| mean + NEWEST * (last - mean)));
        state.since = now;
        state.refused = state.refused.saturating_sub(1);
    }

    /// Counts a refusal. Returns the seconds after which there should be room, at least one.
    pub(crate) fn refuse(&self, now: Instant) -> u64 {
        let mut state = self.lock();
        state.refused = state.refused.saturating_add(1);
        // If the current interval is longer than the average already, it is the better estimate.
        let current = now.saturating_duration_since(state.since).as_secs_f64();
        let interval = state.interval.map_or(current, |mean| mean.max(current));
        let seconds = (interval * f64::from(state.refused)).ceil();
        seconds.clamp(1.0, LONGEST.as_secs_f64()) as u64
    }

    fn lock(&self) -> MutexGuard<'_, PaceState> {
        // A panic cannot leave a number half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's place in the queue; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pace: Arc<QueuePace>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl QueuePlace {
    pub(crate) fn new(pace: Arc<QueuePace>, permits: [OwnedSemaphorePermit; 2]) -> QueuePlace {
        QueuePlace { pace, _permits: permits }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.pace.left(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_with_the_calls_that_were_refused_before() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let pace = QueuePace::new(start);
        for departure in 1..=50 {
            pace.left(at(f64::from(departure) * 4.0));
        }
        assert_eq!([1, 2, 3].map(|_| pace.refuse(at(200.0))), [4, 8, 12]);
        pace.left(at(204.0));
        assert_eq!(pace.refuse(at(204.0)), 12);
        // A queue that stands still is not expected to move sooner than it has.
        assert_eq!(pace.refuse(at(264.0)), 240);
        pace.idle(at(1000.0));
        assert_eq!(pace.refuse(at(1000.0)), 4);
    }

    #[test]
    fn without_a_measurement_the_wait_so_far_counts() {
        let start = Instant::now();
        let pace = QueuePace::new(start);
        assert_eq!(pace.refuse(start), 1);
        assert_eq!(pace.refuse(start + Duration::from_secs(7)), 14);
        assert_eq!(pace.refuse(start + Duration::from_secs(3600)), 600);
    }
}
