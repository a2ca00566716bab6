//! The watch over matchers: work that takes too long is stopped from outside. Time is counted in
//! looks, so that what the whole process waits for counts as one.
//!
//! One thread looks at the matchers that work. It sleeps while there are none for a while, so that
//! an engine without prescribed forms pays nothing, and one with them two locks a token.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::{CancellationHandle, Matcher};

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Looks without work after which the thread sleeps.
const IDLE_LOOKS: u32 = 100;

/// The matchers that work, of all engines of the process.
#[derive(Default)]
struct Watch {
    work: Mutex<Work>,
    begun: Condvar,
}

#[derive(Default)]
struct Work {
    under_way: Vec<WatchedMatcher>,
    next: u64,
    is_asleep: bool,
}

struct WatchedMatcher {
    number: u64,
    /// Falls by [`LOOK`] with each look.
    time_left: Duration,
    handle: CancellationHandle,
}

/// Has a matcher work for no longer than `wait`. After that it fails for good.
pub(super) fn within<T>(
    wait: Duration,
    matcher: &mut Matcher,
    work: impl FnOnce(&mut Matcher) -> T,
) -> T {
    let (Some(watch), Some(handle)) = (watch(), matcher.cancellation_handle()) else {
        return work(matcher);
    };
    let number = watch.begin(wait, handle);
    let result = work(matcher);
    watch.end(number);
    result
}

/// The watch, whose thread starts with its first use; none if it cannot start.
fn watch() -> Option<&'static Watch> {
    static WATCH: OnceLock<Option<&'static Watch>> = OnceLock::new();
    *WATCH.get_or_init(|| {
        let watch: &'static Watch = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("grammar watch".into());
        thread.spawn(|| watch.look()).is_ok().then_some(watch)
    })
}

impl WatchedMatcher {
    /// Counts a look, and stops the matcher if its time is over.
    fn count_look(&mut self) {
        match self.time_left.checked_sub(LOOK) {
            Some(left) => self.time_left = left,
            None => self.handle.cancel(),
        }
    }
}

impl Watch {
    fn begin(&self, time_left: Duration, handle: CancellationHandle) -> u64 {
        let mut work = self.lock();
        let number = work.next;
        work.next += 1;
        work.under_way.push(WatchedMatcher { number, time_left, handle });
        if work.is_asleep {
            self.begun.notify_one();
        }
        number
    }

    fn end(&self, number: u64) {
        self.lock().under_way.retain(|one| one.number != number);
    }

    /// Stops the matchers whose time is over, forever.
    fn look(&self) {
        let mut idle = 0;
        loop {
            std::thread::sleep(LOOK);
            let mut work = self.lock();
            work.under_way.iter_mut().for_each(WatchedMatcher::count_look);

            idle = if work.under_way.is_empty() { idle + 1 } else { 0 };
            if idle < IDLE_LOOKS {
                continue;
            }
            work.is_asleep = true;
            let woken = self.begun.wait_while(work, |work| work.under_way.is_empty());
            woken.unwrap_or_else(PoisonError::into_inner).is_asleep = false;
            idle = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        // Every change is one insertion or removal, so a panic leaves the list whole.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matcher_s_time_bounds_its_looks_however_long_they_take() {
        let handle = CancellationHandle::default();
        let mut watched = WatchedMatcher { number: 0, time_left: LOOK * 2, handle };
        std::thread::sleep(LOOK * 5);
        for is_stopped in [false, false, true] {
            watched.count_look();
            assert_eq!(watched.handle.is_cancelled(), is_stopped);
        }
    }
}
