//! The feed: finished attempts to trainers, under leases, as rows that are made while they are
//! read.
//!
//! Nothing that waits is held here: a reader takes items, whose names alone are kept, and their rows
//! are made piece by piece as it reads. What was not sent when it leaves, or when its lease ends, is
//! given back.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use episode::{Micros, version_number};
use hyper::body::{Body, Frame};
use store::{
    CommitError, Fate, Held, Item, Lease, Location, Settlement, Snapshot, SnapshotError, Store,
    Wanted,
};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::open_call::now;
use crate::tee::BoxError;
use crate::watch::Watch;

/// Bytes of rows that are made at a time; a larger item is made alone.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that wait to be sent, beside the one that is made.
const WAITING_PIECES: usize = 1;
/// Readers that may be served at once.
const READERS_MAX: usize = 128;
/// How often what other processes write, and leases that end, are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Makes streams of rows.
pub trait RowSource: fmt::Debug + Send + Sync {
    /// A stream of the rows that these parameters of a query ask for.
    ///
    /// # Errors
    /// A sentence when a parameter is not known or not one of its values.
    fn stream(&self, parameters: &[(String, String)]) -> Result<Box<dyn RowStream>, String>;
}

/// A stream of rows. It may keep its thread busy.
pub trait RowStream: Send {
    /// What the stream is.
    fn content_type(&self) -> &'static str;

    /// The rows of the attempts under these keys of the store, seen from the newest policy version
    /// that is known.
    ///
    /// # Errors
    /// A sentence when they cannot be made.
    fn item(
        &mut self,
        snapshot: &mut Snapshot,
        keys: &[i64],
        newest: Option<i64>,
    ) -> Result<ItemRows, String>;

    /// The last bytes of the stream.
    ///
    /// # Errors
    /// A sentence when there are none.
    fn end(&mut self) -> Result<Vec<u8>, String>;
}

/// What became of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemRows {
    /// Its rows, as the next bytes of the stream.
    Rows(Vec<u8>),
    /// It is dropped, for this reason.
    Dropped(&'static str),
}

/// Why nothing is handed out.
#[derive(Debug, Error)]
pub(crate) enum FeedFault {
    #[error(transparent)]
    Read(#[from] SnapshotError),
    #[error(transparent)]
    Write(#[from] CommitError),
    #[error("no rows could be made: {0}")]
    Rows(String),
    #[error("more than {READERS_MAX} readers of the feed at a time")]
    Crowded,
}

/// What the readers of a proxy share.
#[derive(Debug)]
pub(crate) struct Feed {
    /// One looks and takes at a time, so that no two take the same.
    turn: Mutex<()>,
    places: Semaphore,
    /// Counts what may have made something ready.
    changes: watch::Sender<u64>,
    stopping: watch::Sender<bool>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            turn: Mutex::default(),
            places: Semaphore::new(READERS_MAX),
            changes: watch::Sender::new(0),
            stopping: watch::Sender::new(false),
        }
    }
}

/// What a reader asks for.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) wanted: Wanted,
    pub(crate) wait: Duration,
    /// How long it holds what it is handed, in microseconds.
    pub(crate) lease: Micros,
    /// Whether a group that was not complete in time is dropped.
    pub(crate) drop_late: bool,
}

/// A lease, as its reader knows it.
#[derive(Debug, Clone)]
pub(crate) struct LeaseTerm {
    pub(crate) id: String,
    pub(crate) until: Micros,
}

/// Items that were taken for a reader, on their way.
pub(crate) struct HandOut {
    store: Store,
    watch: Arc<Watch>,
    lease: Option<LeaseTerm>,
    left: VecDeque<Item>,
    /// None while a piece is made.
    rows: Option<Box<dyn RowStream>>,
    drop_late: bool,
    /// The last position that was taken.
    pub(crate) cursor: i64,
}

/// Rows on their way, and the keys of the attempts that they are of.
pub(crate) struct Piece {
    bytes: Bytes,
    keys: Vec<i64>,
}

impl Feed {
    /// Something may be ready that was not.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Readers that wait are sent away.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Takes what is ready, or waits for it; none when the time is over, with the cursor to go on
    /// from.
    pub(crate) async fn hand_out(
        &self,
        (store, watch): (&Store, &Arc<Watch>),
        mut order: Order,
        mut rows: Box<dyn RowStream>,
    ) -> Result<Result<(HandOut, Piece), i64>, FeedFault> {
        let _place = self.places.try_acquire().map_err(|_| FeedFault::Crowded)?;
        let (mut changes, mut stopping) = (self.changes.subscribe(), self.stopping.subscribe());
        let deadline = tokio::time::Instant::now() + order.wait;
        loop {
            changes.borrow_and_update();
            if let Some((items, lease)) = self.take(store, &order).await? {
                let (drop_late, cursor) = (order.drop_late, order.wanted.after);
                let cursor = items.back().map_or(cursor, |item| item.position);
                let mut out = HandOut {
                    store: store.clone(),
                    watch: Arc::clone(watch),
                    lease,
                    left: items,
                    rows: Some(rows),
                    drop_late,
                    cursor,
                };
                if let Some(piece) = out.piece().await? {
                    return Ok(Ok((out, piece)));
                }
                // All of it was dropped.
                order.wanted.after = out.cursor;
                rows = out.rows.take().ok_or_else(|| FeedFault::Rows("they ended".into()))?;
                continue;
            }
            let again = deadline.min(tokio::time::Instant::now() + LOOK_AGAIN);
            if tokio::time::Instant::now() >= deadline || *stopping.borrow_and_update() {
                return Ok(Err(order.wanted.after));
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = stopping.changed() => {}
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    /// Takes items that are ready, under a lease where the reader has a name.
    async fn take(
        &self,
        store: &Store,
        order: &Order,
    ) -> Result<Option<(VecDeque<Item>, Option<LeaseTerm>)>, FeedFault> {
        let _turn = self.turn.lock().await;
        let wanted = Wanted { now: now(), ..order.wanted.clone() };
        let items = store.snapshot().await?.ready(&wanted).await?;
        if items.is_empty() {
            return Ok(None);
        }
        let Some(consumer) = wanted.consumer else { return Ok(Some((items.into(), None))) };
        let term =
            LeaseTerm { id: Uuid::new_v4().simple().to_string(), until: wanted.now + order.lease };
        let (id, until, at) = (term.id.clone(), term.until, wanted.now);
        let lease = Lease { id, consumer, items: items.clone(), until, at };
        match store.lease(lease).await {
            Ok(()) => Ok(Some((items.into(), Some(term)))),
            // Another process was faster.
            Err(CommitError::Taken) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl HandOut {
    /// The lease, where there is one.
    pub(crate) fn lease(&self) -> Option<&LeaseTerm> {
        self.lease.as_ref()
    }

    /// What the stream is.
    pub(crate) fn content_type(&self) -> &'static str {
        self.rows.as_ref().map_or("application/octet-stream", |rows| rows.content_type())
    }

    /// The rows of the next items; none when nothing is left, or the lease has ended.
    async fn piece(&mut self) -> Result<Option<Piece>, FeedFault> {
        loop {
            if self.lease.as_ref().is_some_and(|lease| now() >= lease.until) {
                self.give_back(Vec::new()).await;
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            let made = self.make().await?;
            for (keys, why) in made.dropped {
                self.settle(keys, Fate::Dropped(why)).await?;
            }
            if !made.bytes.is_empty() {
                return Ok(Some(Piece { bytes: made.bytes.into(), keys: made.keys }));
            }
        }
    }

    /// Makes rows of the next items until they are a piece.
    async fn make(&mut self) -> Result<Batch, FeedFault> {
        let Some(rows) = self.rows.take() else {
            return Err(FeedFault::Rows("they ended early".into()));
        };
        let (at, drop_late) = (self.store.location().clone(), self.drop_late);
        let left = std::mem::take(&mut self.left);
        let newest = self.watch.versions.newest().as_deref().and_then(version_number);
        let job = spawn_blocking(move || Batch::make(&at, left, rows, (drop_late, newest)));
        let (made, left, rows) = job.await.map_err(|error| FeedFault::Rows(error.to_string()))?;
        (self.left, self.rows) = (left, Some(rows));
        made
    }

    async fn settle(&mut self, keys: Vec<i64>, fate: Fate) -> Result<(), FeedFault> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let (lease, held) = (lease.id.clone(), Held::Keys(keys));
        match self.store.settle(Settlement { lease, held, fate, at: now() }).await {
            // It has ended, and another reader was handed the same.
            Ok(()) | Err(CommitError::NoLease(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives back what is left and what was not sent.
    async fn give_back(&mut self, mut keys: Vec<i64>) {
        keys.extend(self.left.drain(..).flat_map(|item| item.keys));
        if keys.is_empty() || self.lease.is_none() {
            return;
        }
        if let Err(error) = self.settle(keys, Fate::Unsent).await {
            tracing::warn!(%error, "what was not sent stays leased until its lease ends");
        }
    }

    /// Sends all that was taken, the first piece first.
    pub(crate) fn send(self, first: Piece) -> Piped {
        let (to, from) = mpsc::channel(WAITING_PIECES);
        tokio::spawn(self.send_all(first, to));
        Piped(from)
    }

    async fn send_all(mut self, first: Piece, to: mpsc::Sender<Result<Bytes, BoxError>>) {
        let mut next: Result<_, FeedFault> = Ok(Some(first));
        loop {
            match next {
                Ok(Some(Piece { bytes, keys })) => {
                    if to.send(Ok(bytes)).await.is_err() {
                        // The reader has left.
                        return self.give_back(keys).await;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the feed broke off");
                    let _ = to.send(Err(error.into())).await;
                    return self.give_back(Vec::new()).await;
                }
            }
            next = self.piece().await;
        }
        let end = self.rows.as_mut().map_or(Ok(Vec::new()), |rows| rows.end());
        let end = end.map(Bytes::from).map_err(BoxError::from);
        if end.as_ref().is_ok_and(Bytes::is_empty) {
            return;
        }
        let _ = to.send(end).await;
    }
}

/// Rows that were made in one go.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Of the attempts whose rows these are.
    keys: Vec<i64>,
    dropped: Vec<(Vec<i64>, &'static str)>,
}

type Left = (Result<Batch, FeedFault>, VecDeque<Item>, Box<dyn RowStream>);

impl Batch {
    /// Takes items until their rows are a piece. What fails stays where it is, behind what was
    /// made before it.
    fn make(
        at: &Location,
        mut left: VecDeque<Item>,
        mut rows: Box<dyn RowStream>,
        (drop_late, newest): (bool, Option<i64>),
    ) -> Left {
        let runtime = Handle::current();
        let mut snapshot = match runtime.block_on(Snapshot::open_here(at)) {
            Ok(snapshot) => snapshot,
            Err(error) => return (Err(error.into()), left, rows),
        };
        let mut made = Self::default();
        while made.bytes.len() < PIECE_BYTES
            && let Some(item) = left.front()
        {
            let found = match item.late && drop_late {
                true => Ok(ItemRows::Dropped("group_late")),
                false => rows.item(&mut snapshot, &item.keys, newest),
            };
            let keys = item.keys.clone();
            match found {
                Ok(ItemRows::Rows(bytes)) => {
                    made.bytes.extend(bytes);
                    made.keys.extend(keys);
                }
                Ok(ItemRows::Dropped(why)) => made.dropped.push((keys, why)),
                Err(why) if made.keys.is_empty() && made.dropped.is_empty() => {
                    return (Err(FeedFault::Rows(why)), left, rows);
                }
                Err(_) => break,
            }
            left.pop_front();
        }
        (Ok(made), left, rows)
    }
}

impl Drop for HandOut {
    fn drop(&mut self) {
        let keys: Vec<i64> = self.left.drain(..).flat_map(|item| item.keys).collect();
        if let Some(lease) = self.lease.take().filter(|_| !keys.is_empty()) {
            let (store, held, at) = (self.store.clone(), Held::Keys(keys), now());
            let settlement = Settlement { lease: lease.id, held, fate: Fate::Unsent, at };
            tokio::spawn(async move { store.settle(settlement).await });
        }
    }
}

/// A body that comes through a queue.
pub(crate) struct Piped(mpsc::Receiver<Result<Bytes, BoxError>>);

impl Body for Piped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|next| next.map(|bytes| bytes.map(Frame::data)))
    }
}
