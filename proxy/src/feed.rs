//! The feed: finished attempts to trainers, under leases, as rows that are made while they are
//! read.
//!
//! Nothing that waits is held here: a reader takes items, of which the keys alone are kept, and
//! their rows are made piece by piece as it reads. What was not sent when it leaves, or when its
//! lease ends, is given back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use episode::Micros;
use store::{CommitError, Item, Lease, Snapshot, SnapshotError, Store, Wanted};
use thiserror::Error;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::hand_out::{HandOut, LeaseTerm, Taken};
use crate::open_call::now;
use crate::watch::Watch;

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

    /// The rows of an item's attempts, seen from the newest policy version that is known.
    ///
    /// # Errors
    /// A sentence when they cannot be made.
    fn item(
        &mut self,
        snapshot: &mut Snapshot,
        item: &Item,
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

/// What came of looking once.
enum Attempt {
    /// Nothing is ready.
    Nothing(Box<dyn RowStream>),
    /// All that was ready was dropped, up to this position.
    Dropped(i64, Box<dyn RowStream>),
    Rows(Box<HandOut>, Bytes),
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
        self: &Arc<Self>,
        (store, watch): (&Store, &Arc<Watch>),
        mut order: Order,
        mut rows: Box<dyn RowStream>,
    ) -> Result<Result<(HandOut, Bytes), i64>, FeedFault> {
        let _place = self.places.try_acquire().map_err(|_| FeedFault::Crowded)?;
        let (mut changes, mut stopping) = (self.changes.subscribe(), self.stopping.subscribe());
        let deadline = Instant::now() + order.wait;
        loop {
            changes.borrow_and_update();
            // A reader that leaves ends this future, but not what was begun: it is given back.
            let of = (store.clone(), Arc::clone(watch));
            let attempt = Arc::clone(self).attempt(of, order.clone(), rows);
            let attempt = tokio::spawn(attempt).await;
            rows = match attempt.map_err(|error| FeedFault::Rows(error.to_string()))?? {
                Attempt::Rows(out, piece) => return Ok(Ok((*out, piece))),
                Attempt::Dropped(cursor, rows) => {
                    order.wanted.after = cursor;
                    rows
                }
                Attempt::Nothing(rows) => {
                    if Instant::now() >= deadline || *stopping.borrow_and_update() {
                        return Ok(Err(order.wanted.after));
                    }
                    let again = deadline.min(Instant::now() + LOOK_AGAIN);
                    tokio::select! {
                        _ = changes.changed() => {}
                        _ = stopping.changed() => {}
                        () = tokio::time::sleep_until(again) => {}
                    }
                    rows
                }
            };
        }
    }

    /// Takes what is ready, if anything is, and makes its first rows.
    async fn attempt(
        self: Arc<Self>,
        (store, watch): (Store, Arc<Watch>),
        order: Order,
        rows: Box<dyn RowStream>,
    ) -> Result<Attempt, FeedFault> {
        let Some((items, lease)) = self.take((&store, &watch), &order).await? else {
            return Ok(Attempt::Nothing(rows));
        };
        let cursor = items.back().map_or(order.wanted.after, |item| item.position);
        let taken = Taken { items, lease, drop_late: order.drop_late, cursor };
        let mut out = HandOut::new((store, watch), taken, rows);
        match out.piece().await? {
            Some(piece) => Ok(Attempt::Rows(Box::new(out), piece)),
            None => Ok(Attempt::Dropped(cursor, out.rows()?)),
        }
    }

    /// Takes items that are ready, under a lease where the reader has a name.
    async fn take(
        &self,
        (store, watch): (&Store, &Watch),
        order: &Order,
    ) -> Result<Option<(VecDeque<Item>, Option<LeaseTerm>)>, FeedFault> {
        let _turn = self.turn.lock().await;
        // Before the snapshot: a call that ends meanwhile is waited for once more.
        let wanted = Wanted { now: now(), open: watch.opened(), ..order.wanted.clone() };
        let items = looked(store, &wanted).await?.ready(&wanted).await?;
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

/// The store as it is once attempts have their positions whose calls have ended, or are given up.
async fn looked(store: &Store, wanted: &Wanted) -> Result<Snapshot, FeedFault> {
    let mut snapshot = store.snapshot().await?;
    let finished = snapshot.finished_since(&wanted.open, wanted.now).await?;
    if finished.is_empty() {
        return Ok(snapshot);
    }
    match store.finish(finished).await {
        Ok(()) => Ok(store.snapshot().await?),
        Err(error) => {
            // A reader by cursor needs nothing written; these come later.
            tracing::warn!(%error, "attempts whose calls have ended are not handed out yet");
            Ok(snapshot)
        }
    }
}
