//! The calls of a proxy: their number, those without an end on disk, and the versions that answer
//! them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use episode::{AttemptId, CallEnd, CallId, ContinueReason, VersionSpan, VersionStamps};
use store::{Location, SnapshotError, Store};
use tokio::sync::oneshot;

use crate::record::versions::WeightVersions;

/// A call whose end this process has yet to write. It is dropped when the end is written or cannot
/// be written.
#[derive(Debug)]
pub(crate) struct UnwrittenEnd {
    tracker: Arc<CallTracker>,
    call: CallId,
}

impl UnwrittenEnd {
    /// Notes that the call has ended, and only its record is to be written.
    pub(crate) fn set_ended(&self) {
        if let Some(call) = lock(&self.tracker.unwritten).get_mut(&self.call) {
            call.is_running = false;
        }
    }
}

/// A call without an end on disk.
#[derive(Debug)]
struct UnwrittenCall {
    attempt: AttemptId,
    /// False once the call has ended.
    is_running: bool,
    /// Ends the call.
    cancel: Option<oneshot::Sender<()>>,
}

impl Drop for UnwrittenEnd {
    fn drop(&mut self) {
        lock(&self.tracker.unwritten).remove(&self.call);
    }
}

/// Numbers of calls since the process started.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// Calls that have begun.
    pub begun: u64,
    /// Calls that have not ended.
    pub in_flight: i64,
    /// Ended calls, by the word of their outcome.
    pub ended: BTreeMap<&'static str, u64>,
    /// Heartbeats that were sent in their replies.
    pub heartbeats: u64,
    /// Calls whose prompt was to be sent as ids, by the reason for which it was not, or not whole;
    /// `exact` if it was.
    pub continued: BTreeMap<&'static str, u64>,
}

/// The tracker of a proxy's calls.
#[derive(Debug, Default)]
pub(crate) struct CallTracker {
    begun: AtomicU64,
    in_flight: AtomicI64,
    ended: Mutex<BTreeMap<&'static str, u64>>,
    heartbeats: AtomicU64,
    continued: Mutex<BTreeMap<&'static str, u64>>,
    /// Calls whose ends are not on disk yet.
    unwritten: Mutex<HashMap<CallId, UnwrittenCall>>,
    /// Time of the last read of the versions that other processes declared.
    versions_read_at: tokio::sync::Mutex<Option<Instant>>,
    pub(crate) versions: WeightVersions,
}

impl CallTracker {
    /// Counts the start of a call.
    pub(crate) fn count_start(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Registers a call of `attempt` whose end this process will write. `cancel` ends it.
    pub(crate) fn expect_end(
        self: &Arc<Self>,
        call: CallId,
        attempt: AttemptId,
        cancel: Option<oneshot::Sender<()>>,
    ) -> UnwrittenEnd {
        lock(&self.unwritten).insert(call, UnwrittenCall { attempt, is_running: true, cancel });
        UnwrittenEnd { tracker: Arc::clone(self), call }
    }

    /// Ends the calls of an attempt; returns those that were running.
    pub(crate) fn cancel(&self, attempt: &AttemptId) -> Vec<CallId> {
        let mut unwritten = lock(&self.unwritten);
        let of_attempt = unwritten.iter_mut().filter(|(_, call)| call.attempt == *attempt);
        of_attempt
            .filter(|(_, call)| call.is_running)
            .map(|(id, call)| {
                // A call that is already ending no longer listens.
                let _ = call.cancel.take().map(|cancel| cancel.send(()));
                *id
            })
            .collect()
    }

    /// Those of `calls` that are still running.
    pub(crate) fn still_running(&self, calls: &[CallId]) -> Vec<CallId> {
        let unwritten = lock(&self.unwritten);
        let runs = |call: &&CallId| unwritten.get(*call).is_some_and(|call| call.is_running);
        calls.iter().filter(runs).copied().collect()
    }

    /// The calls whose ends this process has yet to write.
    pub(crate) fn unwritten_calls(&self) -> Vec<CallId> {
        lock(&self.unwritten).keys().copied().collect()
    }

    /// Counts a call that has ended, stamps it, and notes the versions that it reports.
    pub(crate) fn count_end(&self, end: &mut CallEnd, start_stamp: Option<String>) {
        *lock(&self.ended).entry(end.outcome.as_str()).or_default() += 1;
        self.heartbeats.fetch_add(end.heartbeats.into(), Ordering::Relaxed);
        if let Some(continued) = end.continued {
            let word = continued.reason.map_or("exact", ContinueReason::as_str);
            *lock(&self.continued).entry(word).or_default() += 1;
        }
        if end.replayed.is_some() {
            // What was sampled then says nothing of the weights now.
            return;
        }
        let labels = version_spans(end).map(|span| span.version.as_str());
        self.versions.observe(labels, end.ended_at);
        end.stamps = VersionStamps { start: start_stamp, end: self.versions.declared() };
    }

    /// Counts a call that is no longer in flight, however it ended.
    pub(crate) fn count_exit(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Fills the versions of a call that reports none from its stamps. Another process may have
    /// declared a version meanwhile, so the store is read first if several share it.
    pub(crate) async fn fill_versions(&self, store: &Store, end: &mut CallEnd) {
        if version_spans(end).next().is_some() || end.stamps.constant().is_none() {
            return;
        }
        match self.read_declared(store).await {
            Ok(true) => end.stamps.end = self.versions.declared(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "whether the weights changed during a call is not known");
                end.stamps.end = None;
            }
        }
        fill_spans(end);
    }

    /// Reads the versions that other processes declared, if several may record into the store;
    /// returns whether they may. Concurrent callers share one read.
    pub(crate) async fn read_declared(&self, store: &Store) -> Result<bool, SnapshotError> {
        if matches!(store.location(), Location::File(_)) {
            return Ok(false);
        }
        let called_at = Instant::now();
        let mut read_at = self.versions_read_at.lock().await;
        if read_at.is_none_or(|read_at| read_at < called_at) {
            let started_at = Instant::now();
            let versions = store.snapshot().await?.current_versions().await?;
            self.versions.merge(versions);
            *read_at = Some(started_at);
        }
        Ok(true)
    }

    pub(crate) fn counts(&self) -> CallCounts {
        CallCounts {
            begun: self.begun.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            ended: lock(&self.ended).clone(),
            heartbeats: self.heartbeats.load(Ordering::Relaxed),
            continued: lock(&self.continued).clone(),
        }
    }
}

/// Fills the versions of a call that reports none from its stamps, which are those of its engine.
pub(crate) fn fill_from_stamps(end: &mut CallEnd) {
    if version_spans(end).next().is_none() {
        fill_spans(end);
    }
}

/// Adds one span over all tokens of each choice, if the stamped version did not change.
fn fill_spans(end: &mut CallEnd) {
    let Some(label) = end.stamps.constant().map(str::to_owned) else { return };
    for choice in &mut end.choices {
        let tokens = choice.token_ids.as_ref().map_or(0, |ids| ids.len() as u32);
        let span = VersionSpan { version: label.clone(), start: 0, end: tokens };
        choice.versions.extend((tokens > 0).then_some(span));
    }
}

fn version_spans(end: &CallEnd) -> impl Iterator<Item = &VersionSpan> {
    end.choices.iter().flat_map(|choice| &choice.versions)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use episode::{Choice, Outcome};
    use uuid::Uuid;

    use super::*;

    fn ended(versions: Vec<VersionSpan>) -> CallEnd {
        let choice = Choice { token_ids: Some(vec![1, 2, 3]), versions, ..Choice::default() };
        CallEnd {
            status: Some(200),
            choices: vec![choice, Choice::default()],
            logprob_kind: "raw".to_owned(),
            ..CallEnd::without_reply(CallId(Uuid::nil()), 1, Outcome::Complete)
        }
    }

    fn span(version: &str, end: u32) -> VersionSpan {
        VersionSpan { version: version.to_owned(), start: 0, end }
    }

    #[test]
    fn stamps_fill_spans_for_what_the_upstream_does_not_say() {
        let tracker = CallTracker::default();
        tracker.count_start();
        assert_eq!(tracker.versions.declared(), None);
        tracker.versions.declare("5".to_owned(), 1);
        tracker.count_start();
        let start = tracker.versions.declared();
        let mut silent = ended(Vec::new());
        tracker.count_end(&mut silent, start.clone());
        fill_spans(&mut silent);
        assert_eq!(silent.choices[0].versions, [span("5", 3)]);
        assert_eq!(silent.choices[1].versions, []);
        let mut told = ended(vec![span("9", 3)]);
        tracker.count_end(&mut told, start.clone());
        assert_eq!(
            (&told.choices[0].versions, told.stamps.constant()),
            (&vec![span("9", 3)], Some("5"))
        );
        tracker.versions.declare("6".to_owned(), 2);
        let mut changed = ended(Vec::new());
        tracker.count_end(&mut changed, start);
        fill_spans(&mut changed);
        assert!(changed.choices[0].versions.is_empty());
        assert_eq!(changed.stamps.changed(), Some(("5", "6")));
        tracker.count_exit();
        let CallCounts { begun, in_flight, ended, .. } = tracker.counts();
        assert_eq!((begun, in_flight, ended), (2, 1, [("complete", 3)].into()));
    }

    #[test]
    fn what_is_given_again_says_nothing_of_the_weights_now() {
        let tracker = CallTracker::default();
        tracker.versions.declare("5".to_owned(), 1);
        let stamps = VersionStamps { start: Some("2".into()), end: Some("2".into()) };
        let mut given = CallEnd { stamps: stamps.clone(), ..ended(vec![span("9", 3)]) };
        given.replayed = Some(given.call_id);
        tracker.count_end(&mut given, Some("5".to_owned()));
        assert_eq!((given.stamps, tracker.versions.declared().as_deref()), (stamps, Some("5")));
        assert_eq!(tracker.versions.newest().as_deref(), Some("5"), "9 is not observed");
    }

    #[test]
    fn a_call_is_open_until_its_end_is_written() {
        let tracker = Arc::new(CallTracker::default());
        let [first, second] = [1, 2].map(|n| CallId(Uuid::from_u128(n)));
        let attempt = |episode: &str| AttemptId { episode: episode.parse().unwrap(), attempt: 0 };
        let (cancel, cut_one) = oneshot::channel();
        let one = tracker.expect_end(first, attempt("a"), Some(cancel));
        let two = tracker.expect_end(second, attempt("b"), None);
        assert_eq!(tracker.cancel(&attempt("a")), [first]);
        assert!(cut_one.blocking_recv().is_ok(), "it is told to end");
        two.set_ended();
        assert!(tracker.cancel(&attempt("b")).is_empty(), "it has ended by itself");
        assert_eq!(tracker.still_running(&[first, second]), [first]);
        // That it is gone is not that its end is on disk.
        tracker.count_exit();
        assert_eq!(tracker.unwritten_calls().len(), 2);
        drop(one);
        assert_eq!(tracker.unwritten_calls(), [second]);
        drop(two);
        assert!(tracker.unwritten_calls().is_empty());
    }
}
