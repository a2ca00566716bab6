//! The admission of attempts: the first call of one waits until it may begin.
//!
//! Calls that wait stand in a queue. One of them polls the store for all, in order of arrival:
//! after each change of the feed, after each arrival, and at intervals, because other processes
//! share the store.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use episode::{AttemptId, Route, Tag};
use http::clock::now;
use store::{AdmissionCandidate, AdmissionCounts, AdmissionRule, Selection, SnapshotError, Store};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::bounds::{ADMISSION_LOOK_EVERY, ADMISSION_PAUSE, ADMISSION_WAITING_MAX, ATTEMPTS_MAX};
use crate::error::CallError;

/// The rule of a proxy, and the calls that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    rule: Mutex<Option<AdmissionRule>>,
    /// Attempts that are known to have begun.
    begun: Mutex<HashSet<AttemptId>>,
    /// Calls that wait, in the order in which they came.
    queue: Mutex<BTreeMap<u64, Waiter>>,
    next_number: AtomicU64,
    arrived: Notify,
    /// True once the proxy drains: calls that wait are refused.
    is_stopping: AtomicBool,
    /// Held by the call that looks for all.
    turn: tokio::sync::Mutex<()>,
    counters: AdmissionCounters,
}

/// Counts of first calls, since the process began.
#[derive(Debug, Default)]
struct AdmissionCounters {
    admitted: AtomicU64,
    refused: AtomicU64,
}

/// A call that waits.
#[derive(Debug)]
struct Waiter {
    candidate: AdmissionCandidate,
    until: Instant,
    /// True once it may begin, false if it has waited long enough.
    decision: oneshot::Sender<bool>,
}

/// The numbers of first calls, and of what is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionStatus {
    /// The rule.
    pub rule: AdmissionRule,
    /// The attempts that it counts.
    pub counts: AdmissionCounts,
    /// First calls that wait.
    pub waiting: usize,
    /// First calls that waited and were let in, since the process began.
    pub admitted: u64,
    /// First calls that were refused, since the process began.
    pub refused: u64,
}

/// The place of a call in the queue, which it leaves when this is dropped.
struct QueuePlace<'a> {
    admission: &'a Admission,
    number: u64,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        lock(&self.admission.queue).remove(&self.number);
    }
}

impl Admission {
    /// The admission by a rule, if there is one.
    pub(crate) fn new(rule: Option<AdmissionRule>) -> Self {
        Self { rule: Mutex::new(rule), ..Self::default() }
    }

    /// Replaces the rule. Calls that wait are looked at again.
    pub(crate) fn set_rule(&self, rule: Option<AdmissionRule>) {
        let mut current = lock(&self.rule);
        if *current == rule {
            return;
        }
        *current = rule;
        drop(current);
        lock(&self.begun).clear();
        self.arrived.notify_waiters();
    }

    /// Refuses the calls that wait, and those that would.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.arrived.notify_waiters();
    }

    /// Forgets an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptId) {
        lock(&self.begun).remove(attempt);
    }

    /// The rule and its numbers; `None` without a rule.
    pub(crate) async fn status(
        &self,
        store: &Store,
    ) -> Result<Option<AdmissionStatus>, SnapshotError> {
        let Some(rule) = self.rule() else { return Ok(None) };
        let counts = store.snapshot().await?.admission_counts(&rule, now()).await?;
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Some(AdmissionStatus {
            rule,
            counts,
            waiting: lock(&self.queue).len(),
            admitted: number(&self.counters.admitted),
            refused: number(&self.counters.refused),
        }))
    }

    /// Lets a call pass if its attempt has begun or may begin; waits for that within the bound of
    /// the rule. Returns true if it was held back for that.
    ///
    /// # Errors
    /// [`CallError::NotAdmitted`] if the attempt may not begin in time.
    pub(crate) async fn pass(
        &self,
        store: &Store,
        changes: watch::Receiver<u64>,
        route: Route,
        tag: &Tag,
    ) -> Result<bool, CallError> {
        let Some(rule) = self.rule().filter(|_| route.generates()) else { return Ok(false) };
        let attempt = AttemptId::from(tag);
        if lock(&self.begun).contains(&attempt) {
            return Ok(false);
        }

        let unreadable = |error: SnapshotError| {
            tracing::warn!(%error, "whether an attempt may begin cannot be read");
            self.refused("the store cannot be read")
        };
        let candidate = candidate(store, &rule, tag).await.map_err(unreadable)?;
        let is_held = candidate.is_some();
        if let Some(candidate) = candidate {
            let longest = Duration::from_micros(rule.wait.unsigned_abs());
            self.wait(store, changes, candidate, longest).await?;
            self.counters.admitted.fetch_add(1, Ordering::Relaxed);
        }
        self.remember(attempt);
        Ok(is_held)
    }

    fn remember(&self, attempt: AttemptId) {
        let mut begun = lock(&self.begun);
        if begun.len() >= ATTEMPTS_MAX {
            // The store knows them.
            begun.clear();
        }
        begun.insert(attempt);
    }

    fn rule(&self) -> Option<AdmissionRule> {
        lock(&self.rule).clone()
    }

    fn refused(&self, reason: &'static str) -> CallError {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        CallError::NotAdmitted(reason)
    }

    async fn wait(
        &self,
        store: &Store,
        changes: watch::Receiver<u64>,
        candidate: AdmissionCandidate,
        longest: Duration,
    ) -> Result<(), CallError> {
        let (decision, mut decided) = oneshot::channel();
        let waiter = Waiter { candidate, until: Instant::now() + longest, decision };
        let _place = self.enqueue(waiter)?;
        let may_begin = tokio::select! {
            may_begin = &mut decided => may_begin.unwrap_or(false),
            // Nobody looks, so this call does, for all.
            _turn = self.turn.lock() => self.look_until(store, changes, &mut decided).await,
        };
        match may_begin {
            true => Ok(()),
            false => Err(self.refused("as many as may be under way wait to be trained on")),
        }
    }

    fn enqueue(&self, waiter: Waiter) -> Result<QueuePlace<'_>, CallError> {
        let mut queue = lock(&self.queue);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        if queue.len() >= ADMISSION_WAITING_MAX {
            return Err(self.refused("too many wait already"));
        }
        queue.insert(number, waiter);
        drop(queue);
        self.arrived.notify_waiters();
        Ok(QueuePlace { admission: self, number })
    }

    /// Looks for all calls that wait until this one's own is decided.
    async fn look_until(
        &self,
        store: &Store,
        mut changes: watch::Receiver<u64>,
        decided: &mut oneshot::Receiver<bool>,
    ) -> bool {
        loop {
            // Marked as seen before the look, so that a change during it is not missed.
            changes.borrow_and_update();
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if let Err(error) = self.look(store).await {
                tracing::warn!(error, "whether attempts may begin is not known");
            }
            if let Ok(may_begin) = decided.try_recv() {
                return may_begin;
            }

            // Calls that come close together are looked at together.
            tokio::time::sleep(ADMISSION_PAUSE).await;
            let next_look = self.next_look();
            tokio::select! {
                _ = changes.changed() => {}
                () = arrived => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
    }

    fn next_look(&self) -> Instant {
        let latest = Instant::now() + ADMISSION_LOOK_EVERY;
        lock(&self.queue).values().map(|waiter| waiter.until).fold(latest, Instant::min)
    }

    /// Admits what may begin, and tells those that have waited long enough.
    async fn look(&self, store: &Store) -> Result<(), String> {
        // One that comes during the look is not decided by it.
        let first_unseen = {
            let _queue = lock(&self.queue);
            self.next_number.load(Ordering::Relaxed)
        };
        let admitted = match self.rule() {
            None => None,
            Some(_) => Some(self.admit(store, first_unseen).await),
        };

        let mut queue = lock(&self.queue);
        let is_in = |waiter: &Waiter| match &admitted {
            None => true,
            Some(Ok(admitted)) => admitted.contains(&waiter.candidate.attempt),
            Some(Err(_)) => false,
        };
        let (at, is_last) = (Instant::now(), self.is_stopping.load(Ordering::Relaxed));
        let is_over = |waiter: &Waiter| is_last || waiter.until <= at;
        let decided =
            queue.extract_if(..first_unseen, |_, waiter| is_in(waiter) || is_over(waiter));
        for (_, waiter) in decided {
            let may_begin = is_in(&waiter);
            // One that left meanwhile is not told.
            let _ = waiter.decision.send(may_begin);
        }
        admitted.transpose().map(drop)
    }

    async fn admit(&self, store: &Store, first_unseen: u64) -> Result<HashSet<AttemptId>, String> {
        let waiting: Vec<AdmissionCandidate> = lock(&self.queue)
            .range(..first_unseen)
            .map(|(_, waiter)| waiter.candidate.clone())
            .collect();
        store.admit(waiting, now()).await.map_err(|error| error.to_string())?;
        let admitted = async { store.snapshot().await?.admitted().await };
        admitted.await.map_err(|error: SnapshotError| error.to_string())
    }
}

/// The attempt of a call, if it is one that a rule holds back. A closed one is left to the gate.
async fn candidate(
    store: &Store,
    rule: &AdmissionRule,
    tag: &Tag,
) -> Result<Option<AdmissionCandidate>, SnapshotError> {
    let selection = Selection { episode: Some(tag.episode.clone()), ..Selection::default() };
    let known = store.snapshot().await?.episodes(&selection).await?;
    let known = known.into_iter().find(|known| known.attempt == tag.attempt);
    let (is_closed, group) = match known {
        Some(known) => (known.closed_at.is_some(), known.group),
        None => (false, None),
    };
    let group = group.or_else(|| tag.group.clone());
    let is_held = !is_closed && (group.is_some() || !rule.whole_groups);
    Ok(is_held.then(|| AdmissionCandidate { attempt: AttemptId::from(tag), group }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
