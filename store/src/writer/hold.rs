//! The records that wait, and the groups in which they are written.
//!
//! Starts of calls are kept back until their ends come, for a short time and while nobody waits for
//! them: a call whose start and end are written together is one row, written once. Where many
//! records come, each group waits a little for more of them.

use std::collections::HashSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use episode::CallId;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{sleep, sleep_until};

use crate::commit::Record;
use crate::error::CommitResult;

/// Longest time for which the start of a call is kept back while nobody waits for it.
const HOLD: Duration = Duration::from_millis(2);
/// Starts that are kept back; further ones are not.
const HELD_MAX: usize = 1024;
/// Records in one transaction, apart from the starts that they need. More would only add to the
/// wait of the first one.
const GROUP_RECORDS_MAX: usize = 256;
/// Of these, starts whose time is over, so that neither kind of record waits for the other.
const DUE_STARTS_MAX: usize = GROUP_RECORDS_MAX / 2;

/// Time for which further records are waited for where many come: one commit for more of them.
const GATHER: Duration = Duration::from_millis(2);
/// Size of the last group from which the writer waits for more records: more than one call, which
/// may be two records.
const BUSY_RECORDS: usize = 3;
/// Time for which it waits so after that group.
const BUSY_FOR: Duration = Duration::from_millis(10);

/// A record that waits, and the sender of its result.
#[derive(Debug)]
pub(crate) struct QueuedRecord {
    pub(crate) record: Record,
    pub(crate) result: oneshot::Sender<CommitResult>,
    /// The record's part of the queue's budget; returned when the record is on disk.
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// The start of a call that is kept back.
#[derive(Debug)]
struct HeldStart {
    call: CallId,
    queued: QueuedRecord,
    queued_at: Instant,
    /// Set once somebody waits for it.
    is_wanted: Arc<AtomicBool>,
}

/// The starts that are kept back, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct HeldStarts {
    /// `None` once the writer has stopped.
    starts: Mutex<Option<Vec<HeldStart>>>,
    changed: Notify,
}

/// Tells the writer that a caller waits for this start.
#[derive(Debug)]
pub(crate) struct StartSignal {
    is_wanted: Arc<AtomicBool>,
    held: Arc<HeldStarts>,
}

/// Records that came and are not written. Dropping it drops the starts that are kept back.
#[derive(Debug)]
pub(crate) struct PendingRecords {
    records: Vec<QueuedRecord>,
    held: Arc<HeldStarts>,
    /// The time at which the last group was taken out that was large enough, if any was.
    busy_at: Option<Instant>,
}

impl HeldStarts {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<HeldStart>>> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the start of a call back; gives it back where there is no room.
    #[expect(clippy::result_large_err, reason = "the record itself is given back, seldom")]
    pub(crate) fn keep(
        self: &Arc<Self>,
        call: CallId,
        queued: QueuedRecord,
    ) -> Result<StartSignal, QueuedRecord> {
        let is_wanted = Arc::<AtomicBool>::default();
        let signal = StartSignal { is_wanted: Arc::clone(&is_wanted), held: Arc::clone(self) };
        let is_first = match &mut *self.lock() {
            // Its sender is dropped, which tells whoever waits.
            None => return Ok(signal),
            Some(starts) if starts.len() >= HELD_MAX => return Err(queued),
            Some(starts) => {
                starts.push(HeldStart { call, queued, queued_at: Instant::now(), is_wanted });
                starts.len() == 1
            }
        };
        // The writer looks at the time of the first one; further ones need not wake it.
        if is_first {
            self.changed.notify_one();
        }
        Ok(signal)
    }

    /// The time until which the oldest one is kept back.
    fn due_at(&self) -> Option<Instant> {
        let oldest = self.lock().as_ref()?.first()?.queued_at;
        Some(oldest + HOLD)
    }
}

impl StartSignal {
    /// Lets the writer write the start at once.
    pub(crate) fn set_wanted(&self) {
        self.is_wanted.store(true, Ordering::Release);
        self.held.changed.notify_one();
    }
}

impl PendingRecords {
    /// The records of a writer that begins.
    pub(crate) fn new(held: Arc<HeldStarts>) -> Self {
        held.lock().get_or_insert_default();
        Self { records: Vec::new(), held, busy_at: None }
    }

    /// Waits for something to write. Returns false once all handles on the queue are dropped.
    pub(crate) async fn receive(&mut self, queue: &mut mpsc::Receiver<QueuedRecord>) -> bool {
        let due_at = self.held.due_at();
        let due = async {
            match due_at {
                Some(due_at) => sleep_until(due_at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            received = queue.recv_many(&mut self.records, GROUP_RECORDS_MAX) => received > 0,
            () = self.held.changed.notified() => true,
            () = due => true,
        }
    }

    /// Receives the records that wait, after a short time in which more may come if many do. A
    /// writer with a thread of its own blocks that: timers of the runtime are late by a millisecond
    /// and more while its workers are busy.
    pub(crate) async fn gather(
        &mut self,
        queue: &mut mpsc::Receiver<QueuedRecord>,
        has_own_thread: bool,
    ) {
        if self.busy_at.is_some_and(|at| at.elapsed() < BUSY_FOR) {
            match has_own_thread {
                true => thread::sleep(GATHER),
                false => sleep(GATHER).await,
            }
        }
        while self.records.len() < GROUP_RECORDS_MAX
            && let Ok(queued) = queue.try_recv()
        {
            self.records.push(queued);
        }
    }

    /// Takes out what is to be written now; `all` starts are due once the recorder stops. A record
    /// never leaves before a start that came before it and that it is about.
    pub(crate) fn take_group(&mut self, all: bool) -> Vec<QueuedRecord> {
        let now = Instant::now();
        let is_due = |start: &HeldStart| {
            all || start.is_wanted.load(Ordering::Acquire) || now >= start.queued_at + HOLD
        };
        let mut held = self.held.lock();
        let starts = held.get_or_insert_default();

        let due = starts.iter().filter(|start| is_due(start)).count().min(DUE_STARTS_MAX);
        let taken = self.records.len().min(GROUP_RECORDS_MAX - due);
        let records = self.records.drain(..taken);
        let needed = NeededStarts::of(records.as_slice());

        let mut room = due;
        let leaves = |start: &mut HeldStart| {
            if needed.contains(start.call) {
                return true;
            }
            let leaves = room > 0 && is_due(start);
            room -= usize::from(leaves);
            leaves
        };
        let starts = starts.extract_if(.., leaves).map(|start| start.queued);
        let group: Vec<_> = starts.chain(records).collect();
        if !group.is_empty() {
            self.busy_at = (group.len() >= BUSY_RECORDS).then_some(now);
        }
        group
    }
}

/// The kept starts that are written before some records, or with them.
#[derive(Debug)]
enum NeededStarts {
    /// The starts of these calls: all records are ends.
    Of(HashSet<CallId>),
    /// All of them: a record may be about any call.
    All,
}

impl NeededStarts {
    fn of(records: &[QueuedRecord]) -> Self {
        let ended = records.iter().map(|queued| match &queued.record {
            Record::CallEnd(end) => Some(end.call_id),
            _ => None,
        });
        ended.collect::<Option<_>>().map_or(Self::All, Self::Of)
    }

    fn contains(&self, call: CallId) -> bool {
        match self {
            Self::Of(calls) => calls.contains(&call),
            Self::All => true,
        }
    }
}

impl Drop for PendingRecords {
    fn drop(&mut self) {
        *self.held.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::site::on_both;
    use crate::tests::{begun, ended};

    /// Longer than any start is kept back, and shorter than a test may take.
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_start_is_written_when_wanted_when_due_or_with_its_end() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let calls = [1, 2, 3].map(|at| begun("a", at));
            let [waited, left, whole] = calls.each_ref().map(|call| call.call_id);
            let [first, second, third] = calls;
            store.begin(first).await.done().await.unwrap();

            let _left = store.begin(second).await;
            let is_there = async || {
                while store.snapshot().await.unwrap().call(left).await.unwrap().is_none() {
                    tokio::time::sleep(HOLD).await;
                }
            };
            tokio::time::timeout(LONG, is_there()).await.expect("it is written by itself");

            let start = store.begin(third).await;
            store.end(ended(whole)).await.done().await.unwrap();
            start.done().await.unwrap();
            let mut snapshot = store.snapshot().await.unwrap();
            let call = snapshot.call(whole).await.unwrap().unwrap();
            assert_eq!(call.ended, Some(ended(whole)));
            assert!(snapshot.call(waited).await.unwrap().unwrap().ended.is_none());
            drop(store);
            writer.finish().await;
        })
        .await;
    }

    #[tokio::test]
    async fn starts_kept_back_are_written_when_the_recorder_stops() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let call = begun("a", 1);
            let id = call.call_id;
            let start = store.begin(call).await;
            drop(store);
            writer.finish().await;
            start.done().await.unwrap();
            let mut snapshot = crate::Snapshot::open(&site.at).await.unwrap();
            assert!(snapshot.call(id).await.unwrap().is_some());
        })
        .await;
    }

    #[tokio::test]
    async fn a_group_waits_for_more_records_only_after_one_of_many() {
        let mut writer = TestWriter::new();
        let (_queue, mut records) = mpsc::channel(1);
        let mut waits_after = async |calls| {
            writer.run(Step::Begin(calls));
            writer.run(Step::End(calls, false));
            assert!(writer.take(false));
            tokio::select! {
                biased;
                () = writer.pending.gather(&mut records, false) => false,
                () = std::future::ready(()) => true,
            }
        };
        assert!(!waits_after(1).await);
        // Unless the thread stands still between the two for as long as it would have waited.
        let mut waited = false;
        for _ in 0..50 {
            waited = waited || waits_after(32).await;
        }
        assert!(waited);
        assert!(!waits_after(1).await);
    }

    /// An event for the writer, of many calls at once.
    #[derive(Debug, Clone)]
    enum Step {
        /// Calls begin.
        Begin(usize),
        /// The oldest or the newest calls end.
        End(usize, bool),
        /// The oldest calls are waited for.
        Want(usize),
        /// A record that may be about any call.
        Probe,
        /// The writer takes a group.
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1usize..400).prop_map(Step::Begin),
            (1usize..400, any::<bool>()).prop_map(|(calls, newest)| Step::End(calls, newest)),
            (1usize..400).prop_map(Step::Want),
            Just(Step::Probe),
            Just(Step::Take),
        ]
    }

    /// A writer's records, and what came to it and left it.
    struct TestWriter {
        held: Arc<HeldStarts>,
        pending: PendingRecords,
        budget: Arc<Semaphore>,
        signals: Vec<StartSignal>,
        running: Vec<CallId>,
        /// Starts that came before a probe that was not taken out yet.
        begun: usize,
        before_probes: Vec<usize>,
        left: HashSet<CallId>,
        ended: usize,
    }

    impl TestWriter {
        fn new() -> Self {
            let held = Arc::<HeldStarts>::default();
            Self {
                pending: PendingRecords::new(Arc::clone(&held)),
                held,
                budget: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
                signals: Vec::new(),
                running: Vec::new(),
                begun: 0,
                before_probes: Vec::new(),
                left: HashSet::new(),
                ended: 0,
            }
        }

        fn queued(&self, record: Record) -> QueuedRecord {
            let permit = Arc::clone(&self.budget).try_acquire_owned().unwrap();
            QueuedRecord { record, result: oneshot::channel().0, _permit: permit }
        }

        fn run(&mut self, step: Step) {
            match step {
                Step::Begin(calls) => (0..calls).for_each(|_| self.begin()),
                Step::End(calls, newest) => {
                    let calls = calls.min(self.running.len());
                    let first = if newest { self.running.len() - calls } else { 0 };
                    for call in self.running.drain(first..first + calls).collect::<Vec<_>>() {
                        let end = self.queued(Record::CallEnd(ended(call)));
                        self.pending.records.push(end);
                    }
                }
                Step::Want(calls) => {
                    let calls = calls.min(self.signals.len());
                    self.signals.drain(..calls).for_each(|signal| signal.set_wanted());
                }
                Step::Probe => {
                    let probe = self.queued(Record::Probe);
                    self.pending.records.push(probe);
                    self.before_probes.push(self.begun);
                }
                Step::Take => {
                    self.take(false);
                }
            }
        }

        fn begin(&mut self) {
            let start = begun("a", 1);
            let call = start.call_id;
            let queued = self.queued(Record::CallStart(start, None));
            match self.held.keep(call, queued) {
                Ok(signal) => self.signals.push(signal),
                Err(queued) => self.pending.records.push(queued),
            }
            self.running.push(call);
            self.begun += 1;
        }

        /// Takes a group out and checks its order. Returns false where there was none.
        fn take(&mut self, all: bool) -> bool {
            let group = self.pending.take_group(all);
            let is_empty = group.is_empty();
            for queued in group {
                match queued.record {
                    Record::CallStart(start, _) => assert!(self.left.insert(start.call_id)),
                    Record::CallEnd(end) => {
                        assert!(self.left.contains(&end.call_id), "an end before its start");
                        self.ended += 1;
                    }
                    _ => {
                        let before = self.before_probes.remove(0);
                        assert!(self.left.len() >= before, "a record before an earlier start");
                    }
                }
            }
            !is_empty
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_record_is_written_before_a_start_that_it_is_about(
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let mut writer = TestWriter::new();
            steps.into_iter().for_each(|step| writer.run(step));

            while writer.take(true) {}
            prop_assert_eq!(writer.left.len(), writer.begun);
            prop_assert_eq!(writer.ended, writer.begun - writer.running.len());
            prop_assert!(writer.before_probes.is_empty() && writer.pending.records.is_empty());
        }
    }
}
