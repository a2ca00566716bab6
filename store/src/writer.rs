//! The one writer: a bounded queue, commits in groups, an answer for every record.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use episode::{Begun, Ended, EpisodeId, Micros, Reward, Tag};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::commit::{CommitError, Record, Verdict, commit};
use crate::open::{self, Durability, OpenError};
use crate::reels::Reels;
use crate::snapshot::{Snapshot, SnapshotError};

/// Records that may wait for the writer.
const QUEUE_RECORDS_MAX: usize = 1024;
/// Bytes that may wait for the writer, in KiB. Rows alone are no bound: bodies differ by 10^6.
const QUEUE_KIB_MAX: u32 = 256 * 1024;
/// Records in one transaction. More only adds to the wait of the first one.
const GROUP_RECORDS_MAX: usize = 32;

/// A handle on the store's writer. Cheap to clone; the writer stops when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    path: Arc<PathBuf>,
    queue: mpsc::Sender<Entry>,
    budget: Arc<Semaphore>,
}

/// The writer itself.
#[derive(Debug)]
pub struct Writer(JoinHandle<()>);

/// Resolves when the record is on disk, or is known not to be.
#[derive(Debug)]
pub struct Ack(oneshot::Receiver<Verdict>);

#[derive(Debug)]
struct Entry {
    record: Record,
    answer: oneshot::Sender<Verdict>,
    /// Given back when the record is on disk.
    _permit: OwnedSemaphorePermit,
}

impl Store {
    /// Opens the store at `path`, makes it if it is not there, and starts its writer.
    ///
    /// # Errors
    /// [`OpenError`] when the file is not a store, is too new, or cannot be opened.
    pub async fn open(path: &Path, durability: Durability) -> Result<(Self, Writer), OpenError> {
        let connection = open::for_writing(path, durability).await?;
        let (queue, records) = mpsc::channel(QUEUE_RECORDS_MAX);
        let budget = Arc::new(Semaphore::new(QUEUE_KIB_MAX as usize));
        let writer = Writer(tokio::spawn(write_all(connection, records)));
        Ok((Self { path: Arc::new(path.to_owned()), queue, budget }, writer))
    }

    /// Queues the begun record of a call. Waits only for room in the queue.
    pub async fn begin(&self, begun: Begun) -> Ack {
        self.queue(Record::Begun(begun)).await
    }

    /// Queues the end of a call. Waits only for room in the queue.
    pub async fn end(&self, ended: Ended) -> Ack {
        self.queue(Record::Ended(ended)).await
    }

    /// What is on disk now.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Snapshot::open(&self.path).await
    }

    /// The secret that this store's API keys are signed with.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn signing_key(&self) -> Result<Vec<u8>, SnapshotError> {
        Ok(self.snapshot().await?.setting("key").await?.unwrap_or_default())
    }

    /// Makes an episode known before its first call, with its group, task and labels, and with
    /// the sampling parameters that its requests are to get.
    ///
    /// # Errors
    /// [`CommitError::Closed`] when it was closed before.
    pub async fn announce(
        &self,
        tag: Tag,
        at: Micros,
        force: Option<String>,
    ) -> Result<(), CommitError> {
        self.queue(Record::Open { tag, at, force }).await.done().await
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
        self.queue(Record::Close { episode, attempt, at, status }).await.done().await
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

    async fn queue(&self, record: Record) -> Ack {
        let (answer, ack) = oneshot::channel();
        let kib = u32::try_from(record.bytes() / 1024).unwrap_or(u32::MAX).clamp(1, QUEUE_KIB_MAX);
        // Either step fails only when the writer has stopped, and then the answer's sender is
        // dropped here, which is what `Ack` reports.
        if let Ok(permit) = Arc::clone(&self.budget).acquire_many_owned(kib).await {
            let _ = self.queue.send(Entry { record, answer, _permit: permit }).await;
        }
        Ack(ack)
    }
}

impl Ack {
    /// Waits until the record is on disk.
    ///
    /// # Errors
    /// [`CommitError`] when it is not and will not be.
    pub async fn done(self) -> Result<(), CommitError> {
        self.0.await.unwrap_or(Err(CommitError::Stopped))
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

async fn write_all(mut connection: SqliteConnection, mut records: mpsc::Receiver<Entry>) {
    let mut group = Vec::with_capacity(GROUP_RECORDS_MAX);
    let mut reels = Reels::default();
    while records.recv_many(&mut group, GROUP_RECORDS_MAX).await > 0 {
        write_group(&mut connection, &mut reels, &mut group).await;
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "the store did not close cleanly");
    }
}

/// A group that fails is tried again record by record, so that one bad record costs only itself.
async fn write_group(connection: &mut SqliteConnection, reels: &mut Reels, group: &mut Vec<Entry>) {
    let records: Vec<&Record> = group.iter().map(|entry| &entry.record).collect();
    if let Ok(verdicts) = commit(connection, reels, &records).await {
        group.drain(..).zip(verdicts).for_each(|(entry, verdict)| answer(entry, verdict));
        return;
    }
    for entry in group.drain(..) {
        let verdict = match commit(connection, reels, &[&entry.record]).await {
            Ok(mut verdicts) => verdicts.pop().unwrap_or(Err(CommitError::Stopped)),
            Err(error) => {
                tracing::error!(%error, "a record could not be written");
                Err(CommitError::Database(error))
            }
        };
        answer(entry, verdict);
    }
}

fn answer(entry: Entry, verdict: Verdict) {
    // The caller may have left; the record is on disk all the same.
    let _ = entry.answer.send(verdict);
}
