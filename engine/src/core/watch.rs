//! The time since which a step runs, by which other threads see that the device hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The clock of the step that runs.
#[derive(Debug)]
pub(crate) struct StepWatch {
    created: Instant,
    /// Milliseconds from then to the begin of the step, plus one; zero between steps.
    begun: AtomicU64,
    /// The longest time of a step; none where a step may take any time, as on the CPU.
    limit: Option<Duration>,
}

impl StepWatch {
    pub(super) fn new(limit: Option<Duration>) -> StepWatch {
        StepWatch { created: Instant::now(), begun: AtomicU64::new(0), limit }
    }

    /// Notes that a step begins.
    pub(super) fn begin(&self) {
        self.begun.store(self.now() + 1, Ordering::Relaxed);
    }

    /// Notes that it has ended.
    pub(super) fn end(&self) {
        self.begun.store(0, Ordering::Relaxed);
    }

    /// The longest time of a step.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Returns true if a step runs for longer than it may.
    pub(crate) fn is_over(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        let Some(limit) = self.limit.filter(|_| begun > 0) else { return false };
        Duration::from_millis((self.now() + 1).saturating_sub(begun)) > limit
    }

    /// Milliseconds since the watch was made.
    fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_over_its_time_until_it_ends() {
        let watch = StepWatch::new(Some(Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!watch.is_over(), "no step runs");
        watch.begin();
        std::thread::sleep(Duration::from_millis(5));
        assert!(watch.is_over());
        watch.end();
        assert!(!watch.is_over());

        let unbounded = StepWatch::new(None);
        unbounded.begin();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!unbounded.is_over());
    }
}
