//! Signs that an engine answers its looks and not its calls: calls that wait for the head of their
//! reply, and calls that failed. Those of one attempt alone say nothing: its requests may be at
//! fault.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bounds::{FAILURE_LIFE, HEAD_WAIT_WINDOW, STALLED_ATTEMPTS};

/// The signs of one engine.
#[derive(Debug, Default)]
pub(super) struct CallSigns(Mutex<Signs>);

#[derive(Debug, Default)]
struct Signs {
    /// Calls that wait for the head of their reply: their attempts, and since when.
    waiting: HashMap<u64, (u64, Instant)>,
    next: u64,
    /// The time of the last head.
    head_at: Option<Instant>,
    /// Attempts whose calls failed since a reply was last whole, each with the last time. There are
    /// at most [`STALLED_ATTEMPTS`].
    failed: Vec<(u64, Instant)>,
}

impl CallSigns {
    /// The sign by which an engine gets no new threads at `now`, if there is one. Calls may wait
    /// for `patience`; for ever if there is none.
    pub(super) fn stalled_because(
        &self,
        patience: Option<Duration>,
        now: Instant,
    ) -> Option<&'static str> {
        let signs = self.lock();
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < FAILURE_LIFE;
        if signs.failed.iter().filter(|(_, at)| is_recent(at)).count() >= STALLED_ATTEMPTS {
            return Some("calls of several episodes failed");
        }

        let patience = patience.filter(|_| signs.waiting.len() >= STALLED_ATTEMPTS)?;
        let is_long = |since: Instant| now.saturating_duration_since(since) > patience;
        let waiting = signs.waiting.values().filter(|(_, since)| is_long(*since));
        let attempts: HashSet<u64> = waiting.map(|(attempt, _)| *attempt).collect();
        let is_silent = signs.head_at.is_none_or(is_long);
        (is_silent && attempts.len() >= STALLED_ATTEMPTS)
            .then_some("calls of several episodes get no answer")
    }

    /// Notes that a call of an attempt failed.
    pub(super) fn note_failure(&self, attempt: u64, now: Instant) {
        let mut signs = self.lock();
        signs.failed.retain(|(other, at)| {
            *other != attempt && now.saturating_duration_since(*at) < FAILURE_LIFE
        });
        signs.failed.truncate(STALLED_ATTEMPTS - 1);
        signs.failed.push((attempt, now));
    }

    /// Notes that a reply was whole.
    pub(super) fn note_whole(&self) {
        self.lock().failed.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Signs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wait of a call for the head of its reply. Dropping it ends the wait without one.
pub(super) struct HeadWait {
    signs: Arc<CallSigns>,
    number: u64,
    since: Instant,
}

impl HeadWait {
    /// Begins the wait of a call of an attempt at the engine of `signs`.
    pub(super) fn begin(signs: &Arc<CallSigns>, attempt: u64) -> Self {
        let since = Instant::now();
        let mut of_engine = signs.lock();
        let number = of_engine.next;
        of_engine.next += 1;
        of_engine.waiting.insert(number, (attempt, since));
        drop(of_engine);
        Self { signs: Arc::clone(signs), number, since }
    }

    /// Ends the wait with a head.
    pub(super) fn answered(self, longest: &LongestWait) {
        let now = Instant::now();
        self.signs.lock().head_at = Some(now);
        longest.note(now.saturating_duration_since(self.since), now);
    }
}

impl Drop for HeadWait {
    fn drop(&mut self) {
        self.signs.lock().waiting.remove(&self.number);
    }
}

/// The longest time for which a call of any engine waited for its head, of late.
#[derive(Debug)]
pub(super) struct LongestWait(Mutex<Window>);

#[derive(Debug)]
struct Window {
    begun_at: Instant,
    longest: Duration,
    /// The longest of the window before.
    before: Duration,
}

impl Default for LongestWait {
    fn default() -> Self {
        let (longest, before) = (Duration::ZERO, Duration::ZERO);
        Self(Mutex::new(Window { begun_at: Instant::now(), longest, before }))
    }
}

impl LongestWait {
    fn note(&self, wait: Duration, now: Instant) {
        let mut window = self.at(now);
        window.longest = window.longest.max(wait);
    }

    /// The longest wait in the last [`HEAD_WAIT_WINDOW`] and up to as long before.
    pub(super) fn get(&self, now: Instant) -> Duration {
        let window = self.at(now);
        window.longest.max(window.before)
    }

    fn at(&self, now: Instant) -> MutexGuard<'_, Window> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.saturating_duration_since(window.begun_at);
        if age >= HEAD_WAIT_WINDOW {
            let before = if age < 2 * HEAD_WAIT_WINDOW { window.longest } else { Duration::ZERO };
            *window = Window { begun_at: now, longest: Duration::ZERO, before };
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Signs of calls of these attempts that wait since `since`.
    fn waiting(attempts: &[u64], since: Instant) -> CallSigns {
        let signs = CallSigns::default();
        for (number, attempt) in (0..).zip(attempts) {
            signs.lock().waiting.insert(number, (*attempt, since));
        }
        signs
    }

    #[test]
    fn calls_of_several_attempts_that_wait_too_long_are_a_sign() {
        let begun = Instant::now();
        let late = begun + MINUTE * 2;
        let is_stalled =
            |signs: &CallSigns, now| signs.stalled_because(Some(MINUTE), now).is_some();
        assert!(is_stalled(&waiting(&[1, 2, 3], begun), late));
        assert!(!is_stalled(&waiting(&[1, 2, 3], begun), begun + MINUTE / 2), "not long enough");
        assert!(!is_stalled(&waiting(&[1, 1, 2, 2], begun), late), "two attempts");
        assert!(waiting(&[1, 2, 3], begun).stalled_because(None, late).is_none());
        let answered = waiting(&[1, 2, 3], begun);
        answered.lock().head_at = Some(late - MINUTE / 2);
        assert!(!is_stalled(&answered, late), "one got a head since");
    }

    #[test]
    fn failures_of_one_attempt_are_no_sign() {
        let (signs, now) = (CallSigns::default(), Instant::now());
        (0..9).for_each(|_| signs.note_failure(1, now));
        signs.note_failure(2, now);
        assert!(signs.stalled_because(None, now).is_none());
        signs.note_failure(3, now);
        assert!(signs.stalled_because(None, now).is_some());
        assert!(signs.stalled_because(None, now + FAILURE_LIFE).is_none(), "it is long ago");
        signs.note_whole();
        assert!(signs.stalled_because(None, now).is_none());
        (0..9).for_each(|attempt| signs.note_failure(attempt, now));
        assert_eq!(signs.lock().failed.len(), STALLED_ATTEMPTS);
    }

    #[test]
    fn the_longest_wait_is_forgotten_after_a_while() {
        let (longest, now) = (LongestWait::default(), Instant::now());
        longest.note(MINUTE, now);
        longest.note(MINUTE / 2, now);
        assert_eq!(longest.get(now + HEAD_WAIT_WINDOW), MINUTE);
        assert_eq!(longest.get(now + HEAD_WAIT_WINDOW * 3), Duration::ZERO);
    }
}
