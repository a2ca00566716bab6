//! Items on their way to a reader of the feed: rows made piece by piece as it reads, and given back
//! as far as they were not sent.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use episode::{Micros, version_number};
use hyper::body::{Body, Frame};
use store::{CommitError, Fate, Held, Item, Location, Settlement, Snapshot, Store};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::feed::{FeedFault, ItemRows, RowStream};
use crate::open_call::now;
use crate::tee::BoxError;
use crate::watch::Watch;

/// Bytes of rows that are made at a time; a larger item is made alone.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that wait to be sent, beside the one that is made.
const WAITING_PIECES: usize = 1;
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
    /// Of the attempts whose rows were made and not sent yet.
    unsent: Vec<i64>,
    /// The last position that was taken.
    pub(crate) cursor: i64,
}

/// What was taken for a reader.
pub(crate) struct Taken {
    pub(crate) items: VecDeque<Item>,
    pub(crate) lease: Option<LeaseTerm>,
    /// Whether a group that was not complete in time is dropped.
    pub(crate) drop_late: bool,
    /// The last position of it.
    pub(crate) cursor: i64,
}

impl HandOut {
    /// What was taken, with nothing of it made.
    pub(crate) fn new(
        (store, watch): (Store, Arc<Watch>),
        Taken { items, lease, drop_late, cursor }: Taken,
        rows: Box<dyn RowStream>,
    ) -> Self {
        let (left, rows, unsent) = (items, Some(rows), Vec::new());
        Self { store, watch, lease, left, rows, drop_late, unsent, cursor }
    }

    /// The lease, where there is one.
    pub(crate) fn lease(&self) -> Option<&LeaseTerm> {
        self.lease.as_ref()
    }

    /// What the stream is.
    pub(crate) fn content_type(&self) -> &'static str {
        self.rows.as_ref().map_or("application/octet-stream", |rows| rows.content_type())
    }

    /// The rows of the next items; none when nothing is left, or the lease has ended. Until they
    /// are sent they are given back when this is dropped.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, FeedFault> {
        loop {
            if self.lease.as_ref().is_some_and(|lease| now() >= lease.until) {
                self.give_back().await;
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            let made = self.make().await?;
            for (keys, why) in made.dropped {
                self.settle(keys, Fate::Dropped(why)).await?;
            }
            self.unsent = made.keys;
            if !made.bytes.is_empty() {
                return Ok(Some(made.bytes.into()));
            }
        }
    }

    /// Makes rows of the next items until they are a piece.
    async fn make(&mut self) -> Result<Batch, FeedFault> {
        let Some(rows) = self.rows.take() else {
            return Err(ended_early());
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
        match self
            .store
            .settle(Settlement { lease, part: held, disposition: fate, at: now() })
            .await
        {
            // It has ended, and another reader was handed the same.
            Ok(()) | Err(CommitError::NoLease(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives back what is left and what was not sent.
    async fn give_back(&mut self) {
        let keys = self.held();
        if keys.is_empty() || self.lease.is_none() {
            return;
        }
        if let Err(error) = self.settle(keys, Fate::Unsent).await {
            tracing::warn!(%error, "what was not sent stays leased until its lease ends");
        }
    }

    /// The attempts that were taken and not sent; they are not held any more.
    fn held(&mut self) -> Vec<i64> {
        let left = self.left.drain(..).flat_map(|item| item.keys);
        std::mem::take(&mut self.unsent).into_iter().chain(left).collect()
    }

    /// The stream, when nothing was sent on it.
    pub(crate) fn rows(mut self) -> Result<Box<dyn RowStream>, FeedFault> {
        self.rows.take().ok_or_else(ended_early)
    }

    /// Sends all that was taken, the first piece first.
    pub(crate) fn send(self, first: Bytes) -> Piped {
        let (to, from) = mpsc::channel(WAITING_PIECES);
        tokio::spawn(self.send_all(first, to));
        Piped(from)
    }

    async fn send_all(mut self, first: Bytes, to: mpsc::Sender<Result<Bytes, BoxError>>) {
        let mut next: Result<_, FeedFault> = Ok(Some(first));
        loop {
            match next {
                Ok(Some(bytes)) => {
                    if to.send(Ok(bytes)).await.is_err() {
                        // The reader has left.
                        return self.give_back().await;
                    }
                    self.unsent.clear();
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the feed broke off");
                    let _ = to.send(Err(error.into())).await;
                    return self.give_back().await;
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

fn ended_early() -> FeedFault {
    FeedFault::Rows("they ended early".to_owned())
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
                false => rows.item(&mut snapshot, item, newest),
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
        let keys = self.held();
        let lease = self.lease.take().filter(|_| !keys.is_empty());
        if let (Some(lease), Ok(runtime)) = (lease, Handle::try_current()) {
            let (store, held, at) = (self.store.clone(), Held::Keys(keys), now());
            let settlement =
                Settlement { lease: lease.id, part: held, disposition: Fate::Unsent, at };
            runtime.spawn(async move { store.settle(settlement).await });
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
