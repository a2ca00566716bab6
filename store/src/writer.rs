//! The one writer: a bounded queue, commits in groups, an answer for every record.

use std::sync::Arc;

use episode::{Begun, Ended, EpisodeId, Micros, Reward, Tag};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::commit::{CommitError, Record, Verdict};
use crate::desk::{Desk, Entry};
use crate::feed::{FeedRecord, Lease, Settlement};
use crate::location::Location;
use crate::open::{self, Durability, OpenError};
use crate::relaxed::Relaxed;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::versions::VersionRecord;

/// Records that may wait for the writer.
const QUEUE_RECORDS_MAX: usize = 1024;
/// Bytes that may wait for the writer, in KiB. Rows alone are no bound: bodies differ by 10^6.
const QUEUE_KIB_MAX: u32 = 256 * 1024;

/// A handle on the store's writer. Cheap to clone; the writer stops when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    at: Arc<Location>,
    queue: mpsc::Sender<Entry>,
    budget: Arc<Semaphore>,
    /// With `relaxed`, nothing that can be lost is waited for.
    relaxed: Option<Arc<Relaxed>>,
}

/// The writer itself.
#[derive(Debug)]
pub struct Writer(JoinHandle<()>);

/// Resolves when the record is on disk, or is known not to be; with [`Durability::Relaxed`], when
/// it is queued.
#[derive(Debug)]
pub struct Ack(Option<oneshot::Receiver<Verdict>>);

impl Store {
    /// Opens the store that is `at` a place, makes it if it is not there, and starts a writer.
    /// No other process can record into a file until its writer has finished; a database takes
    /// several.
    ///
    /// # Errors
    /// [`OpenError`] when it is not a store, is too new, is recorded to, or cannot be opened.
    pub async fn open(
        at: impl Into<Location>,
        durability: Durability,
    ) -> Result<(Self, Writer), OpenError> {
        let at = at.into();
        let opened = open::for_recording(&at, durability).await?;
        let (queue, records) = mpsc::channel(QUEUE_RECORDS_MAX);
        let budget = Arc::new(Semaphore::new(QUEUE_KIB_MAX as usize));
        let relaxed = Arc::new(Relaxed::default());
        let desk = Desk::new(durability, opened, Arc::clone(&relaxed));
        let writer = Writer(tokio::spawn(desk.write_all(records)));
        let relaxed = Some(relaxed).filter(|_| durability == Durability::Relaxed);
        Ok((Self { at: Arc::new(at), queue, budget, relaxed }, writer))
    }

    /// Queues the begun record of a call. Waits only for room in the queue.
    pub async fn begin(&self, begun: Begun) -> Ack {
        let Some(relaxed) = &self.relaxed else { return self.queue(Record::Begun(begun)).await };
        let key = begun.tag.key();
        if !relaxed.is_marked(&key) {
            return self.queue(Record::First(begun)).await;
        }
        self.queue_if_room(Record::Begun(begun)).unwrap_or_else(|| {
            relaxed.lost(key);
            Ack(None)
        })
    }

    /// Queues the end of a call. Waits only for room in the queue.
    pub async fn end(&self, ended: Ended) -> Ack {
        match self.relaxed {
            None => self.queue(Record::Ended(ended)).await,
            // An end that finds no room leaves a call without one, which is a visible hole.
            Some(_) => self.queue_if_room(Record::Ended(ended)).unwrap_or(Ack(None)),
        }
    }

    /// What is on disk now.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Snapshot::open(&*self.at).await
    }

    /// The secret that this store's API keys are signed with.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn signing_key(&self) -> Result<Vec<u8>, SnapshotError> {
        Ok(self.snapshot().await?.setting("key").await?.unwrap_or_default())
    }

    /// Makes an episode known before its first call, with its group, task and labels, and with
    /// the sampling parameters that its requests are to get, and how many attempts make its group
    /// (the first word stands).
    ///
    /// # Errors
    /// [`CommitError::Closed`] when it was closed before.
    pub async fn announce(
        &self,
        tag: Tag,
        at: Micros,
        force: Option<String>,
        group_size: Option<u32>,
    ) -> Result<(), CommitError> {
        self.queue(Record::Open { tag, at, force, group_size }).await.done().await
    }

    /// Closes an attempt at an episode: later calls are refused.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn close(
        &self,
        (episode, attempt): (EpisodeId, u32),
        at: Micros,
        status: Option<String>,
    ) -> Result<(), CommitError> {
        let key = (episode.clone(), attempt);
        if let Some(relaxed) = &self.relaxed {
            relaxed.unmarked(&key);
        }
        self.queue(Record::Close { episode, attempt, at, status }).await.done().await?;
        match self.relaxed {
            None => Ok(()),
            // All that was queued before the close is on disk now.
            Some(_) => self.queue(Record::Settle(key)).await.done().await,
        }
    }

    /// Appends a reward.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn reward(
        &self,
        (episode, attempt): (EpisodeId, u32),
        reward: Reward,
    ) -> Result<(), CommitError> {
        self.queue(Record::Reward { episode, attempt, reward }).await.done().await
    }

    /// Makes a consumer of the feed known, which begins behind a position; one that is known is
    /// left as it is.
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn begin_consumer(&self, consumer: &str, floor: i64) -> Result<(), CommitError> {
        let begin = FeedRecord::Begin(consumer.to_owned(), floor);
        self.queue(Record::Feed(begin)).await.done().await
    }

    /// Gives attempts their positions that have waited for their calls: see
    /// [`crate::Snapshot::finished_since`].
    ///
    /// # Errors
    /// [`CommitError`] when that cannot be written.
    pub async fn finish(&self, attempts: Vec<(i64, Micros)>) -> Result<(), CommitError> {
        self.queue(Record::Feed(FeedRecord::Finish(attempts))).await.done().await
    }

    /// Holds items for a reader.
    ///
    /// # Errors
    /// [`CommitError::Taken`] when another reader was handed one of them first; then none is held.
    pub async fn lease(&self, lease: Lease) -> Result<(), CommitError> {
        self.queue(Record::Feed(FeedRecord::Lease(lease))).await.done().await
    }

    /// Says what becomes of what a lease holds. May be said again.
    ///
    /// # Errors
    /// [`CommitError::NoLease`] when it holds nothing of that.
    pub async fn settle(&self, settlement: Settlement) -> Result<(), CommitError> {
        self.queue(Record::Feed(FeedRecord::Settle(settlement))).await.done().await
    }

    /// Notes a version of the weights.
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn version(&self, version: VersionRecord) -> Result<(), CommitError> {
        self.queue(Record::Version(version)).await.done().await
    }

    /// How many records wait to be written, and how many may.
    pub fn queued(&self) -> (usize, usize) {
        (QUEUE_RECORDS_MAX - self.queue.capacity(), QUEUE_RECORDS_MAX)
    }

    /// Where the store is.
    pub fn location(&self) -> &Location {
        &self.at
    }

    /// Whether a record could be written now: writes one that tells nothing.
    ///
    /// # Errors
    /// [`CommitError`] as a call would get it.
    pub async fn probe(&self) -> Result<(), CommitError> {
        self.queue(Record::Probe).await.done().await
    }

    async fn queue(&self, record: Record) -> Ack {
        let (answer, ack) = oneshot::channel();
        // Either step fails only when the writer has stopped, and then the answer's sender is
        // dropped here, which is what `Ack` reports.
        if let Ok(permit) = Arc::clone(&self.budget).acquire_many_owned(kib(&record)).await {
            let _ = self.queue.send(Entry { record, answer, _permit: permit }).await;
        }
        Ack(Some(ack))
    }

    /// Queues a record that nobody waits for; `None` where there is no room for it.
    fn queue_if_room(&self, record: Record) -> Option<Ack> {
        let (answer, ack) = oneshot::channel();
        let permit = Arc::clone(&self.budget).try_acquire_many_owned(kib(&record)).ok()?;
        match self.queue.try_send(Entry { record, answer, _permit: permit }) {
            Ok(()) => Some(Ack(None)),
            Err(TrySendError::Full(_)) => None,
            // The answer's sender is gone, which is what this one reports.
            Err(TrySendError::Closed(_)) => Some(Ack(Some(ack))),
        }
    }
}

impl Ack {
    /// Waits until the record is on disk.
    ///
    /// # Errors
    /// [`CommitError`] when it is not and will not be.
    pub async fn done(self) -> Result<(), CommitError> {
        match self.0 {
            None => Ok(()),
            Some(verdict) => verdict.await.unwrap_or(Err(CommitError::Stopped)),
        }
    }
}

impl Writer {
    /// Waits until every queued record is on disk. Returns once all handles are dropped.
    pub async fn finish(self) {
        if self.0.await.is_err() {
            tracing::error!("the writer of the store died");
        }
    }
}

/// What a record takes of the queue's budget.
fn kib(record: &Record) -> u32 {
    u32::try_from(record.bytes() / 1024).unwrap_or(u32::MAX).clamp(1, QUEUE_KIB_MAX)
}
