//! Threads of episodes, and the engine that each is on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use episode::{AttemptId, CallKind, Lineage, Route};
use hyper::header::HeaderValue;
use wire::Request;

use super::pick::hash;
use crate::bounds::{THREAD_LIFE, THREADS_MAX};

/// The thread of a call: its attempt at an episode, the agent in it, and the beginning of its
/// conversation. Forks have that in common, so they start where their parent was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thread {
    attempt: u64,
    /// The hash of all; `None` if the call does not show its conversation.
    whole: Option<u64>,
    /// True if the call may leave a prefix behind.
    samples: bool,
}

impl Thread {
    /// The thread of a call. `request` has the whole conversation, if that is known.
    pub(crate) fn new(
        attempt: &AttemptId,
        lineage: &Lineage,
        route: Route,
        request: Option<&Request>,
    ) -> Self {
        let number = attempt.attempt.to_le_bytes();
        let named = [attempt.episode.as_str().as_bytes(), &number];
        // The main thread has a name in some agents only, and forks of it have others.
        let is_apart = lineage.kind == CallKind::Subagent;
        let agent = lineage.agent.as_deref().filter(|_| is_apart).unwrap_or_default();
        let is_continued =
            request.is_some_and(|request| wire::previous_response(route, request.body()).is_some());
        let root =
            request.filter(|_| !is_continued).and_then(|request| wire::thread_root(route, request));
        let whole = root.map(|mut root| {
            root.splice(0..0, [named[0], named[1], agent.as_bytes()]);
            hash(&root)
        });
        Self { attempt: hash(&named), whole, samples: route.generates() }
    }

    /// The key of the thread; that of its attempt if it does not show its conversation.
    pub(super) fn key(&self) -> u64 {
        self.whole.unwrap_or(self.attempt)
    }

    /// The number of the attempt.
    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }

    /// True if the call shows its conversation.
    pub(super) fn is_shown(&self) -> bool {
        self.whole.is_some()
    }

    /// True if the call may leave a prefix behind.
    pub(super) fn samples(&self) -> bool {
        self.samples
    }

    /// The key as a header, for a router behind.
    pub(super) fn header(&self) -> HeaderValue {
        let text = format!("{:016x}", self.key());
        HeaderValue::from_str(&text).expect("hexadecimal digits are a header value")
    }
}

/// The engines of threads, by the number of the engine.
#[derive(Debug, Default)]
pub(super) struct Threads(Mutex<ThreadMap>);

#[derive(Debug, Default)]
struct ThreadMap {
    attempts: HashMap<u64, AttemptThreads>,
    /// Threads on each engine.
    counts: HashMap<u64, usize>,
    len: usize,
}

/// The threads of one attempt.
#[derive(Debug, Default)]
struct AttemptThreads {
    by_key: HashMap<u64, ThreadSlot>,
    /// The engine that got the last call.
    last: Option<u64>,
}

#[derive(Debug)]
struct ThreadSlot {
    engine: u64,
    used_at: Instant,
}

impl Threads {
    /// The engine that has the prefix of a thread; for a call that does not show its conversation
    /// that of the last call of its attempt.
    pub(super) fn home(&self, thread: &Thread) -> Option<u64> {
        let map = self.lock();
        let of_attempt = map.attempts.get(&thread.attempt)?;
        match thread.is_shown() {
            true => of_attempt.by_key.get(&thread.key()).map(|slot| slot.engine),
            false => of_attempt.last,
        }
    }

    /// Notes that a thread is on an engine.
    pub(super) fn put(&self, thread: &Thread, engine: u64) {
        let mut map = self.lock();
        if map.len >= THREADS_MAX {
            // The hash finds most of them again.
            *map = ThreadMap::default();
        }
        let of_attempt = map.attempts.entry(thread.attempt).or_default();
        of_attempt.last = Some(engine);
        if !thread.is_shown() {
            return;
        }
        let slot = ThreadSlot { engine, used_at: Instant::now() };
        let before = of_attempt.by_key.insert(thread.key(), slot);
        match before {
            Some(before) => map.uncount(before.engine, 1),
            None => map.len += 1,
        }
        *map.counts.entry(engine).or_default() += 1;
    }

    /// Threads on each engine.
    pub(super) fn counts(&self) -> HashMap<u64, usize> {
        self.lock().counts.clone()
    }

    /// Forgets the threads of an attempt that takes no more calls.
    pub(super) fn forget(&self, AttemptId { episode, attempt }: &AttemptId) {
        let attempt = hash(&[episode.as_str().as_bytes(), &attempt.to_le_bytes()]);
        let mut map = self.lock();
        let Some(forgotten) = map.attempts.remove(&attempt) else { return };
        map.len -= forgotten.by_key.len();
        forgotten.by_key.values().for_each(|slot| map.uncount(slot.engine, 1));
    }

    /// Forgets threads that had no call for [`THREAD_LIFE`].
    pub(super) fn forget_old(&self) {
        let mut map = self.lock();
        let mut forgotten = Vec::new();
        map.attempts.retain(|_, of_attempt| {
            of_attempt.by_key.retain(|_, slot| {
                let is_kept = slot.used_at.elapsed() < THREAD_LIFE;
                if !is_kept {
                    forgotten.push(slot.engine);
                }
                is_kept
            });
            !of_attempt.by_key.is_empty()
        });
        map.len -= forgotten.len();
        forgotten.into_iter().for_each(|engine| map.uncount(engine, 1));
    }

    fn lock(&self) -> MutexGuard<'_, ThreadMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadMap {
    fn uncount(&mut self, engine: u64, threads: usize) {
        if let Some(count) = self.counts.get_mut(&engine) {
            *count = count.saturating_sub(threads);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn thread(episode: &str, lineage: &Lineage, body: &str) -> Thread {
        let request = Request::read(&Bytes::from(body.to_owned())).unwrap();
        let attempt = AttemptId { episode: episode.parse().unwrap(), attempt: 0 };
        Thread::new(&attempt, lineage, Route::Chat, Some(&request))
    }

    const SAID: &str = r#"{"messages":[{"role":"user","content":"a"}]}"#;

    #[test]
    fn subagents_are_threads_of_their_own() {
        let main = thread("e", &Lineage::default(), SAID);
        let sub = |agent: &str| Lineage {
            agent: Some(agent.to_owned()),
            kind: CallKind::Subagent,
            ..Lineage::default()
        };
        let (one, other) = (thread("e", &sub("x"), SAID), thread("e", &sub("y"), SAID));
        assert!(main != one && one != other);
        assert_ne!(main.key(), thread("f", &Lineage::default(), SAID).key());
        let named = Lineage { agent: Some("fork-2".to_owned()), ..Lineage::default() };
        assert_eq!(main, thread("e", &named, SAID), "a fork is where its parent is");
    }

    #[test]
    fn threads_are_counted_where_they_are() {
        let (threads, main) = (Threads::default(), thread("e", &Lineage::default(), SAID));
        threads.put(&main, 1);
        threads.put(&main, 2);
        assert_eq!(
            (threads.home(&main), threads.counts()[&1], threads.counts()[&2]),
            (Some(2), 0, 1)
        );
        let hidden = Thread { attempt: main.attempt, whole: None, samples: true };
        assert_eq!(threads.home(&hidden), Some(2));
        threads.forget(&"e/0".parse().unwrap());
        assert_eq!((threads.home(&main), threads.counts()[&2]), (None, 0));
    }
}
