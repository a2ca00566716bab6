//! How fast calls leave the queue, and so when one that was refused may come back.
//!
//! Callers that are refused stand in a line that nobody sees: as many calls as were refused before
//! them are expected to come back first. Each call that leaves the queue makes room for one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

/// The longest that a caller is told to wait; beyond that the measurement says little.
const LONGEST: Duration = Duration::from_secs(600);

/// The weight of the newest interval in the mean.
const NEWEST: f64 = 0.2;

/// The measurement.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// When the last call left, or when the queue was last found empty.
    since: Instant,
    /// The mean seconds between two that leave.
    interval: Option<f64>,
    /// Callers that were refused and for whom no room was made since.
    refused: u32,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Pace {
        Pace(Mutex::new(Inner { since: now, interval: None, refused: 0 }))
    }

    /// The queue was empty: what passed until now says nothing about it.
    pub(crate) fn idle(&self, now: Instant) {
        let mut inner = self.lock();
        inner.since = now;
        inner.refused = 0;
    }

    /// A call left the queue.
    pub(crate) fn left(&self, now: Instant) {
        let mut inner = self.lock();
        let last = now.saturating_duration_since(inner.since).as_secs_f64();
        inner.interval = Some(inner.interval.map_or(last, |mean| mean + NEWEST * (last - mean)));
        inner.since = now;
        inner.refused = inner.refused.saturating_sub(1);
    }

    /// Counts a refusal, and says after how many seconds there should be room: at least one.
    pub(crate) fn refuse(&self, now: Instant) -> u64 {
        let mut inner = self.lock();
        inner.refused = inner.refused.saturating_add(1);
        // A call that has been about to leave for longer than the mean says more than the mean.
        let open = now.saturating_duration_since(inner.since).as_secs_f64();
        let interval = inner.interval.map_or(open, |mean| mean.max(open));
        let seconds = (interval * f64::from(inner.refused)).ceil();
        seconds.clamp(1.0, LONGEST.as_secs_f64()) as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Numbers cannot be left half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's place in the queue; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pace: Arc<Pace>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Place {
    pub(crate) fn new(pace: Arc<Pace>, permits: [OwnedSemaphorePermit; 2]) -> Place {
        Place { pace, _permits: permits }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pace.left(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_what_was_measured_times_those_who_were_refused_before() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let pace = Pace::new(start);
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
        let pace = Pace::new(start);
        assert_eq!(pace.refuse(start), 1);
        assert_eq!(pace.refuse(start + Duration::from_secs(7)), 14);
        assert_eq!(pace.refuse(start + Duration::from_secs(3600)), 600);
    }
}
