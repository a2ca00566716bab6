//! Starts of calls that are kept back until their ends come, for a short time and while nobody
//! waits for them: a call whose start and end are written together is one row, written once.

use std::collections::HashSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use episode::CallId;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep_until;

use crate::commit::Record;
use crate::error::CommitResult;

/// Longest time for which the start of a call is kept back while nobody waits for it.
const HOLD: Duration = Duration::from_millis(2);
/// Starts that are kept back; further ones are not.
const HELD_MAX: usize = 1024;
/// Records in one transaction, of which half may be starts that were kept back. More would only add
/// to the wait of the first one.
const GROUP_RECORDS_MAX: usize = 256;

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

/// Whoever waits for a start tells the writer so.
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
        Self { records: Vec::new(), held }
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

    /// Receives the records that wait, without waiting for any.
    pub(crate) fn receive_waiting(&mut self, queue: &mut mpsc::Receiver<QueuedRecord>) {
        while self.records.len() < GROUP_RECORDS_MAX
            && let Ok(queued) = queue.try_recv()
        {
            self.records.push(queued);
        }
    }

    /// Takes out what is to be written now. Starts come first. Those are left that may be kept
    /// back, unless `all` are to be written, or a record came that is about more than one call.
    pub(crate) fn take_group(&mut self, all: bool) -> Vec<QueuedRecord> {
        let is_end = |queued: &QueuedRecord| matches!(queued.record, Record::CallEnd(_));
        let takes_all = all || !self.records.iter().all(is_end);
        let ended: HashSet<CallId> = self.records.iter().filter_map(ended_call).collect();

        let (now, mut group) = (Instant::now(), Vec::new());
        if let Some(starts) = &mut *self.held.lock() {
            let due = starts.extract_if(.., |start| {
                takes_all
                    || ended.contains(&start.call)
                    || start.is_wanted.load(Ordering::Acquire)
                    || now >= start.queued_at + HOLD
            });
            group.extend(due.take(GROUP_RECORDS_MAX / 2).map(|start| start.queued));
        }
        let room = (GROUP_RECORDS_MAX - group.len()).min(self.records.len());
        group.extend(self.records.drain(..room));
        group
    }
}

impl Drop for PendingRecords {
    fn drop(&mut self) {
        *self.held.lock() = None;
    }
}

fn ended_call(queued: &QueuedRecord) -> Option<CallId> {
    match &queued.record {
        Record::CallEnd(end) => Some(end.call_id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::on_both;
    use crate::tests::{begun, ended};

    /// Longer than any start is kept back, and shorter than a test may take.
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_start_is_written_when_it_is_waited_for_when_its_time_is_over_and_with_its_end() {
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
    async fn starts_that_are_kept_back_are_written_when_the_recorder_stops() {
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
}
