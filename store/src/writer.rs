//! The one writer: a bounded queue, commits in groups, a result for every record.
//!
//! `run` is its loop and `session` what it holds while it runs. `hold` keeps starts of calls back
//! until their ends come, for a short time. `loss` marks the episodes that may
//! lack calls, `counts` counts results, `prune` deletes episodes between two groups, and `edit`
//! writes single records beside a writer.

use std::sync::Arc;

use episode::{
    Annotation, AttemptId, CallEnd, CallId, CallStart, Comment, EpisodeId, Micros, Reward,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::commit::Record;
use crate::error::{CommitError, CommitResult, OpenError, SnapshotError};
use crate::feed::admission::{AdmissionCandidate, AdmissionRule};
use crate::feed::types::{FeedRecord, Lease, Settlement};
use crate::location::Location;
use crate::snapshot::Snapshot;
use crate::types::{Announcement, ApiKeyRecord, Durability, Limits};
use crate::versions::VersionRecord;
use crate::writer::counts::{RecordCounters, RecordCounts};
use crate::writer::hold::{HeldStarts, PendingRecords, QueuedRecord, StartSignal};
use crate::writer::loss::LossTracker;
use crate::writer::prune::{PIECES_MAX, PrunePiece};
use crate::writer::run::WriterLoop;
use crate::writer::session::WriterSession;

pub(crate) mod counts;
pub(crate) mod edit;
mod hold;
pub(crate) mod loss;
mod prune;
mod run;
pub(crate) mod session;

/// Records that may wait for the writer.
const QUEUE_RECORDS_MAX: usize = 1024;
/// Bytes that may wait for the writer, in KiB. A bound on records alone would not do: bodies differ
/// in size by a factor of 10^6.
const QUEUE_KIB_MAX: u32 = 256 * 1024;

/// Connections to a server for what the recorder itself reads.
const OWN_READERS_MAX: usize = 4;

/// The name of the thread that writes to a file.
const THREAD: &str = "rolltape-writer";

/// A handle on the store's writer. Cheap to clone; the writer stops when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    at: Arc<Location>,
    /// The same, with connections of its own for what the recorder itself reads.
    own: Arc<Location>,
    queue: mpsc::Sender<QueuedRecord>,
    budget: Arc<Semaphore>,
    /// Set with [`Durability::Relaxed`]: then records that may be lost are not waited for.
    losses: Option<Arc<LossTracker>>,
    counters: Arc<RecordCounters>,
    /// Starts of calls that are kept back until their ends come.
    held: Arc<HeldStarts>,
    /// Pieces that the writer of a file is to delete between its groups.
    pieces: mpsc::Sender<PrunePiece>,
}

/// The writer that a [`Store`] records with.
#[derive(Debug)]
pub struct Writer(oneshot::Receiver<()>);

/// The pending result of one record. It resolves when the record is on disk, or will never be; with
/// [`Durability::Relaxed`], when it is queued.
#[derive(Debug, Default)]
pub struct Ack {
    /// `None` where nothing is waited for.
    result: Option<oneshot::Receiver<CommitResult>>,
    /// The start of a call is kept back while nobody waits for it.
    start: Option<StartSignal>,
}

impl Store {
    /// Opens the store at a location, makes it if it is not there, and starts a writer. No other
    /// process can record into a file until its writer has finished; a database takes several.
    ///
    /// # Errors
    /// [`OpenError`] when it is not a store, is too new, is recorded to, or cannot be opened.
    pub async fn open(
        at: impl Into<Location>,
        durability: Durability,
    ) -> Result<(Self, Writer), OpenError> {
        let at = at.into();
        let (connection, session) = WriterSession::open(&at, durability).await?;
        let (queue, records) = mpsc::channel(QUEUE_RECORDS_MAX);
        let budget = Arc::new(Semaphore::new(QUEUE_KIB_MAX as usize));

        let tracker = Arc::new(LossTracker::default());
        let counters = Arc::new(RecordCounters::default());
        let held = Arc::new(HeldStarts::default());
        let pending = PendingRecords::new(Arc::clone(&held));
        let (losses, counts) = (Arc::clone(&tracker), Arc::clone(&counters));
        let writer_loop = WriterLoop::new(durability, connection, session, losses, counts);
        let (pieces, due_pieces) = mpsc::channel(PIECES_MAX);
        let writer = start(&at, writer_loop.run(records, pending, due_pieces))?;
        let losses = (durability == Durability::Relaxed).then_some(tracker);
        let own = Arc::new(at.clone().with_readers(OWN_READERS_MAX));
        let at = Arc::new(at);
        Ok((Self { at, own, queue, budget, losses, counters, held, pieces }, writer))
    }

    /// Queues the begun record of a call. Waits only for room in the queue.
    pub async fn begin(&self, begun: CallStart) -> Ack {
        self.begin_with_key(begun, None).await
    }

    /// Queues the begun record of a call that came with an API key of this id.
    pub async fn begin_with_key(&self, begun: CallStart, api_key: Option<String>) -> Ack {
        let Some(losses) = &self.losses else {
            return self.queue(Record::CallStart(begun, api_key)).await;
        };
        if api_key.is_some() || !losses.is_marked(&begun.tag) {
            return self.queue(Record::FirstCallStart(begun, api_key)).await;
        }
        let attempt = AttemptId::from(&begun.tag);
        self.queue_if_room(Record::CallStart(begun, api_key)).unwrap_or_else(|| {
            losses.add_lost(attempt);
            Ack::default()
        })
    }

    /// Queues the end of a call. Waits only for room in the queue.
    pub async fn end(&self, ended: CallEnd) -> Ack {
        match self.losses {
            None => self.queue(Record::CallEnd(ended)).await,
            // A call whose end finds no room stays without one, which is a visible hole.
            Some(_) => self.queue_if_room(Record::CallEnd(ended)).unwrap_or_default(),
        }
    }

    /// Opens a view of what is on disk now, for the recorder itself: no other reader keeps it
    /// waiting.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Snapshot::open(&*self.own).await
    }

    /// Opens a view of what is on disk now, for a reader beside the recorder. It may have to wait
    /// for others: see [`Location::with_readers`].
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn reading(&self) -> Result<Snapshot, SnapshotError> {
        Snapshot::open(&*self.at).await
    }

    /// The secret that an earlier version signed API keys with, if it is still here.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn old_signing_key(&self) -> Result<Option<Vec<u8>>, SnapshotError> {
        self.snapshot().await?.setting("key").await
    }

    /// Erases the secret of [`Self::old_signing_key`].
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn erase_signing_key(&self) -> Result<(), CommitError> {
        self.write(Record::EraseSigningKey).await
    }

    /// Sets the limits of attempts.
    ///
    /// # Errors
    /// [`CommitError`] when the writer has stopped.
    pub async fn set_limits(&self, limits: Limits) -> Result<(), CommitError> {
        self.write(Record::Limits(limits)).await?;
        self.forget_marks(LossTracker::forget_all_marks);
        Ok(())
    }

    /// Announces an episode, best before its first call. What calls said of its group, task and
    /// labels is replaced; what was announced before stays.
    ///
    /// # Errors
    /// [`CommitError::Closed`] when it was closed before; [`CommitError::Announced`] when another
    /// group, task or label was announced.
    pub async fn announce(&self, announcement: Announcement) -> Result<(), CommitError> {
        let episode = announcement.tag.episode.clone();
        if announcement.tag.group.is_some() {
            // Other episodes may lose their place in the group.
            self.forget_marks(LossTracker::forget_all_marks);
        }
        self.change_gate(&episode, Record::Open(Box::new(announcement))).await
    }

    /// Records an API key. From then on its episode takes only calls with a key.
    ///
    /// # Errors
    /// [`CommitError::Closed`] when the attempt was closed before.
    pub async fn add_key(&self, key: ApiKeyRecord) -> Result<(), CommitError> {
        let episode = key.attempt.episode.clone();
        self.change_gate(&episode, Record::AddKey(key)).await
    }

    /// Revokes a key of an attempt by its id, or all of them.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] and [`CommitError::UnknownKey`] when there is no such attempt or
    /// key.
    pub async fn revoke_keys(
        &self,
        attempt: AttemptId,
        key_id: Option<String>,
        at: Micros,
    ) -> Result<(), CommitError> {
        let episode = attempt.episode.clone();
        self.change_gate(&episode, Record::RevokeKeys { attempt, key_id, at }).await
    }

    /// Ends calls that are under way as `client_gone`, without a reply. Those that have ended stay.
    ///
    /// # Errors
    /// [`CommitError`] when that cannot be written.
    pub async fn cut(&self, calls: Vec<CallId>, at: Micros) -> Result<(), CommitError> {
        self.write(Record::Cut { calls, at }).await
    }

    /// Closes an attempt at an episode: later calls are refused.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn close(
        &self,
        attempt: AttemptId,
        at: Micros,
        status: Option<String>,
    ) -> Result<(), CommitError> {
        if let Some(losses) = &self.losses {
            losses.forget_mark(&attempt);
        }
        self.write(Record::Close { attempt: attempt.clone(), at, status }).await?;

        match self.losses {
            None => Ok(()),
            // Every call that was queued before the close is on disk now.
            Some(_) => self.write(Record::Unmark(attempt)).await,
        }
    }

    /// Notes that calls of an attempt may be missing, which the store that it was copied from says.
    ///
    /// # Errors
    /// [`CommitError`] when that cannot be written.
    pub async fn note_missing_calls(&self, attempt: AttemptId) -> Result<(), CommitError> {
        self.write(Record::MayLackCalls(attempt)).await
    }

    /// Appends a reward to an attempt.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn reward(&self, attempt: AttemptId, reward: Reward) -> Result<(), CommitError> {
        self.write(Record::Reward { attempt, reward }).await
    }

    /// Appends what a trainer says of sampled tokens, all of it or nothing.
    ///
    /// # Errors
    /// [`CommitError::UnknownCall`] when one of the calls is not there.
    pub async fn annotate(&self, annotations: Vec<Annotation>) -> Result<(), CommitError> {
        self.write(Record::Annotate(annotations)).await
    }

    /// Appends what people say of attempts, all of it or nothing.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when one of the attempts is not there, and
    /// [`CommitError::UnknownCall`] when it does not have the call.
    pub async fn comment(&self, comments: Vec<(AttemptId, Comment)>) -> Result<(), CommitError> {
        self.write(Record::Comment(comments)).await
    }

    /// Registers a consumer of the feed that starts after the position `floor`. One that exists is
    /// left as it is.
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn begin_consumer(&self, consumer: &str, floor: i64) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Begin(consumer.to_owned(), floor))).await
    }

    /// Makes a consumer know finished attempts that it does not know yet, some thousand at most:
    /// see [`Snapshot::is_behind`].
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn fill_consumer(&self, consumer: &str) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Fill(consumer.to_owned()))).await
    }

    /// Gives positions to closed attempts that waited for their calls, with the times at which they
    /// were finished: see [`Snapshot::finished_since`].
    ///
    /// # Errors
    /// [`CommitError`] when that cannot be written.
    pub async fn finish(&self, attempts: Vec<(i64, Micros)>) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Finish(attempts))).await
    }

    /// Leases items to a reader.
    ///
    /// # Errors
    /// [`CommitError::Taken`] when another reader leased one of them first; then none is leased.
    pub async fn lease(&self, lease: Lease) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Lease(lease))).await
    }

    /// Settles what a lease holds. May be repeated.
    ///
    /// # Errors
    /// [`CommitError::NoLease`] when the lease holds nothing of it.
    pub async fn settle(&self, settlement: Settlement) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Settle(settlement))).await
    }

    /// Sets the rule by which attempts may begin, or lifts it. Attempts that began before count.
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn set_admission(&self, rule: Option<AdmissionRule>) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Rule(rule))).await
    }

    /// Admits those attempts that the rule lets begin, in their order:
    /// [`Snapshot::admitted`] tells which. Without a rule none is noted.
    ///
    /// # Errors
    /// [`CommitError`] when that cannot be written.
    pub async fn admit(
        &self,
        candidates: Vec<AdmissionCandidate>,
        at: Micros,
    ) -> Result<(), CommitError> {
        self.write(Record::Feed(FeedRecord::Admit(candidates, at))).await
    }

    /// Records a version of the weights.
    ///
    /// # Errors
    /// [`CommitError`] when it cannot be written.
    pub async fn version(&self, version: VersionRecord) -> Result<(), CommitError> {
        self.write(Record::Version(version)).await
    }

    /// The number of records that wait to be written, and the most that may.
    pub fn queued(&self) -> (usize, usize) {
        (QUEUE_RECORDS_MAX - self.queue.capacity(), QUEUE_RECORDS_MAX)
    }

    /// The records that this writer got since it started, by what became of them.
    pub fn record_counts(&self) -> RecordCounts {
        self.counters.read()
    }

    /// The location of the store.
    pub fn location(&self) -> &Location {
        &self.at
    }

    /// Tests whether a record can be written now, by writing one without content.
    ///
    /// # Errors
    /// [`CommitError`] as a call would get it.
    pub async fn probe(&self) -> Result<(), CommitError> {
        self.write(Record::Probe).await
    }

    /// Writes what decides which calls of an episode may begin. Calls that come later wait until
    /// they are looked at.
    async fn change_gate(&self, episode: &EpisodeId, record: Record) -> CommitResult {
        self.forget_marks(|losses| losses.forget_marks(episode));
        let written = self.write(record).await;
        // Again: a call that was queued before may have set it meanwhile.
        self.forget_marks(|losses| losses.forget_marks(episode));
        written
    }

    fn forget_marks(&self, forget: impl FnOnce(&LossTracker)) {
        if let Some(losses) = &self.losses {
            forget(losses);
        }
    }

    /// Queues a record and waits until it is on disk.
    async fn write(&self, record: Record) -> CommitResult {
        self.queue(record).await.done().await
    }

    async fn queue(&self, record: Record) -> Ack {
        let (result, ack) = oneshot::channel();
        let ack = Ack { result: Some(ack), start: None };
        // Either step fails only when the writer has stopped. Then the result's sender is dropped
        // here, which `Ack` reports.
        let permit = Arc::clone(&self.budget).acquire_many_owned(kib(&record)).await;
        let Ok(permit) = permit else { return ack };
        let start = match &record {
            Record::CallStart(start, _) => Some(start.call_id),
            _ => None,
        };
        let mut queued = QueuedRecord { record, result, _permit: permit };
        if let Some(call) = start {
            match self.held.keep(call, queued) {
                Ok(start) => return Ack { start: Some(start), ..ack },
                Err(no_room) => queued = no_room,
            }
        }
        let _ = self.queue.send(queued).await;
        ack
    }

    /// Queues a record without waiting; `None` where there is no room for it.
    fn queue_if_room(&self, record: Record) -> Option<Ack> {
        let (result, ack) = oneshot::channel();
        let permit = Arc::clone(&self.budget).try_acquire_many_owned(kib(&record)).ok()?;
        match self.queue.try_send(QueuedRecord { record, result, _permit: permit }) {
            Ok(()) => Some(Ack::default()),
            Err(TrySendError::Full(_)) => None,
            // The result's sender is dropped, which this `Ack` reports.
            Err(TrySendError::Closed(_)) => Some(Ack { result: Some(ack), start: None }),
        }
    }
}

impl Ack {
    /// Waits until the record is on disk.
    ///
    /// # Errors
    /// [`CommitError`] when it is not and will not be.
    pub async fn done(self) -> Result<(), CommitError> {
        let Some(mut result) = self.result else { return Ok(()) };
        if let Some(start) = self.start {
            match result.try_recv() {
                Ok(written) => return written,
                Err(TryRecvError::Closed) => return Err(CommitError::Stopped),
                Err(TryRecvError::Empty) => start.set_wanted(),
            }
        }
        result.await.unwrap_or(Err(CommitError::Stopped))
    }
}

impl Writer {
    /// Waits until every queued record is on disk. Returns once all handles are dropped.
    pub async fn finish(self) {
        // The sender is dropped without a word where the writer panicked.
        if self.0.await.is_err() {
            tracing::error!("the writer of the store panicked");
        }
    }
}

/// Starts a writer. That of a file gets a thread of its own, because its statements block.
fn start(
    at: &Location,
    writer: impl Future<Output = ()> + Send + 'static,
) -> Result<Writer, OpenError> {
    let (done, finished) = oneshot::channel();
    let run = async move {
        writer.await;
        let _ = done.send(());
    };
    match at {
        Location::Server(_) => {
            tokio::spawn(run);
        }
        Location::File(_) => {
            let runtime = Handle::current();
            let thread = std::thread::Builder::new().name(THREAD.to_owned());
            thread
                .spawn(move || runtime.block_on(run))
                .map_err(|error| OpenError::Database(at.to_string(), sqlx::Error::Io(error)))?;
        }
    }
    Ok(Writer(finished))
}

/// The record's part of the queue's budget, in KiB.
fn kib(record: &Record) -> u32 {
    u32::try_from(record.bytes() / 1024).unwrap_or(u32::MAX).clamp(1, QUEUE_KIB_MAX)
}
