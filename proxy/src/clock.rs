//! The time, for records, leases and keys.
//!
//! The system's clock can be set: it jumps, backwards too. The time here begins as the system's and
//! then runs with a clock that cannot be set. It is drawn to the system's time by at most a tenth
//! of the time that passes. So it never runs backwards, no duration is negative, and no lease or
//! key ends more than a tenth too early or too late, however the system's clock is set meanwhile.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use episode::Micros;

use crate::bounds::{CLOCK_CHECK_US, CLOCK_DRAW_PART, CLOCK_JUMP_US};

static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock {
    started: Instant::now(),
    anchor: Mutex::new(Anchor { at: 0, time: system_time(), gap: 0 }),
});

/// The current time.
pub fn now() -> Micros {
    CLOCK.now()
}

/// The system's time. A clock before 1970 counts as 0.
fn system_time() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

struct Clock {
    started: Instant,
    anchor: Mutex<Anchor>,
}

impl Clock {
    fn now(&self) -> Micros {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let steady = self.started.elapsed().as_micros();
        let steady = Micros::try_from(steady).unwrap_or(Micros::MAX);
        if steady - anchor.at >= CLOCK_CHECK_US {
            let moved = anchor.moved(steady, system_time());
            if moved.gap.abs() > CLOCK_JUMP_US && anchor.gap.abs() <= CLOCK_JUMP_US {
                let jump_s = moved.gap / 1_000_000;
                tracing::warn!(jump_s, "the system's clock was set; records follow it slowly");
            }
            *anchor = moved;
        }
        anchor.time_at(steady)
    }
}

/// A moment at which the time was compared with the system's.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    /// The moment, by the clock that cannot be set.
    at: Micros,
    /// The time at that moment.
    time: Micros,
    /// The system's time less ours.
    gap: Micros,
}

impl Anchor {
    /// The time at a later moment.
    fn time_at(&self, steady: Micros) -> Micros {
        let passed = (steady - self.at).max(0);
        let most = passed / CLOCK_DRAW_PART;
        self.time + passed + self.gap.clamp(-most, most)
    }

    /// The anchor of a later moment, at which the system's time is `system`.
    fn moved(&self, steady: Micros, system: Micros) -> Self {
        let time = self.time_at(steady);
        Self { at: steady, time, gap: system.saturating_sub(time) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;
    const HOUR: Micros = 3600 * SECOND;

    /// The times of `hours`, a second apart, while the system's clock is `jump` off.
    fn times(hours: i64, jump: Micros) -> Vec<Micros> {
        let mut anchor = Anchor { at: 0, time: 100 * HOUR, gap: 0 };
        let mut times = Vec::new();
        for second in 1..=hours * 3600 {
            let steady = second * SECOND;
            anchor = anchor.moved(steady, 100 * HOUR + steady + jump);
            times.push(anchor.time_at(steady + SECOND / 2));
        }
        times
    }

    #[test]
    fn time_never_runs_backwards_and_never_jumps() {
        for jump in [-5 * HOUR, -SECOND, 0, SECOND, 5 * HOUR] {
            for pair in times(3, jump).windows(2) {
                let passed = pair[1] - pair[0];
                assert!((9 * SECOND / 10..=11 * SECOND / 10).contains(&passed), "{jump}: {passed}");
            }
        }
    }

    #[test]
    fn a_lease_of_an_hour_lasts_an_hour_when_the_clock_is_set() {
        for jump in [-5 * HOUR, 5 * HOUR] {
            let passed = times(1, jump).last().unwrap() - 100 * HOUR;
            assert!((passed - HOUR).abs() <= HOUR / 10 + SECOND, "{jump}: {passed}");
        }
    }

    #[test]
    fn time_comes_to_be_the_system_s() {
        for jump in [-HOUR, HOUR] {
            let steady = 12 * HOUR + SECOND / 2;
            assert_eq!(*times(12, jump).last().unwrap(), 100 * HOUR + steady + jump);
        }
    }

    #[test]
    fn the_time_begins_as_the_system_s() {
        let (before, time, after) = (system_time(), now(), system_time());
        assert!(before - SECOND <= time && time <= after + SECOND, "{before} {time} {after}");
    }
}
