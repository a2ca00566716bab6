//! A delivery: items on their way to a reader of the feed. Rows are made piece by piece as the
//! reader reads, and items that were not sent are given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use episode::{Micros, version_number};
use exporter::{Feed, FeedOutcome};
use http::body::{BoxError, ChannelBody};
use http::clock::now;
use proxy::Recorder;
use store::{
    CommitError, Disposition, FeedItem, LeasePart, Location, ReadingRoom, Settlement, Snapshot,
    SnapshotError,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::bounds::FEED_STORE_WAIT;
use crate::feed::error::FeedError;

/// Size of a piece of rows, in bytes. A larger item makes a piece of its own.
const PIECE_BYTES: usize = 256 * 1024;
/// Pause before the store is opened again in the middle of a reply.
const STORE_RETRY_WAIT: Duration = Duration::from_millis(500);
/// Pieces that wait to be sent, beside the one that is being made.
const WAITING_PIECES: usize = 1;

/// The lease of a delivery.
#[derive(Debug, Clone)]
pub(crate) struct LeaseTerm {
    pub(crate) id: String,
    pub(crate) until: Micros,
}

/// A stream of rows, made by the exporter. Its methods block their thread.
pub(crate) struct RowStream {
    feed: Feed,
    /// Counts the items whose rows were made.
    items: Arc<AtomicUsize>,
}

impl RowStream {
    pub(crate) fn new(feed: Feed, items: Arc<AtomicUsize>) -> Self {
        Self { feed, items }
    }

    /// The rows of an item's attempts. Staleness is measured from `newest`, the newest policy
    /// version that is known.
    fn item(
        &mut self,
        snapshot: &mut Snapshot,
        item: &FeedItem,
        newest: Option<i64>,
    ) -> Result<FeedOutcome, FeedError> {
        self.items.fetch_add(1, Ordering::Relaxed);
        let made = Handle::current().block_on(self.feed.encode_item(snapshot, item, newest));
        made.map_err(|error| FeedError::Rows(error.to_string()))
    }
}

/// Items on their way to a reader.
pub(crate) struct Delivery {
    recorder: Recorder,
    lease: Option<LeaseTerm>,
    /// Items whose rows are not made yet.
    pending: VecDeque<FeedItem>,
    /// `None` while a piece is being made.
    rows: Option<RowStream>,
    drop_late: bool,
    /// Keys of the attempts whose rows were made and not sent yet.
    unsent: Vec<i64>,
    /// True once the reader has been sent rows: then it is better to wait than to break off.
    has_begun: bool,
    /// The last position of the items.
    pub(crate) cursor: i64,
}

/// The items for a reader.
pub(crate) struct ReadyItems {
    pub(crate) items: VecDeque<FeedItem>,
    /// `None` if the reader has no name.
    pub(crate) lease: Option<LeaseTerm>,
    /// True to drop a group that was not complete in time.
    pub(crate) drop_late: bool,
    /// The last position of the items.
    pub(crate) cursor: i64,
}

impl Delivery {
    /// A delivery of which no rows are made yet.
    pub(crate) fn new(recorder: Recorder, ready: ReadyItems, rows: RowStream) -> Self {
        let ReadyItems { items: pending, lease, drop_late, cursor } = ready;
        let (rows, unsent) = (Some(rows), Vec::new());
        let has_begun = false;
        Self { recorder, lease, pending, rows, drop_late, unsent, has_begun, cursor }
    }

    pub(crate) fn lease(&self) -> Option<&LeaseTerm> {
        self.lease.as_ref()
    }

    /// The rows of the next items. `None` if no items remain, or the lease has ended. The items are
    /// given back on drop unless they were sent.
    pub(crate) async fn next_piece(&mut self) -> Result<Option<Bytes>, FeedError> {
        loop {
            if self.lease.as_ref().is_some_and(|lease| now() >= lease.until) {
                self.give_back().await;
            }
            if self.pending.is_empty() {
                return Ok(None);
            }
            let piece = self.make_piece().await?;
            for (keys, reason) in piece.dropped {
                self.settle(keys, Disposition::Dropped(reason)).await?;
            }
            self.unsent = piece.keys;
            if !piece.bytes.is_empty() {
                return Ok(Some(piece.bytes.into()));
            }
        }
    }

    async fn make_piece(&mut self) -> Result<Piece, FeedError> {
        let rows = self.rows.take().ok_or_else(ended_early)?;
        let maker = PieceMaker {
            location: self.recorder.store().location().clone(),
            room: self.recorder.reading_room(),
            pending: std::mem::take(&mut self.pending),
            rows,
            drop_late: self.drop_late,
            newest: self.recorder.newest_version().as_deref().and_then(version_number),
            patience: if self.has_begun { FEED_STORE_WAIT } else { Duration::ZERO },
        };
        let job = spawn_blocking(move || {
            let mut maker = maker;
            let piece = maker.make();
            (piece, maker)
        });
        let (piece, maker) = job.await.map_err(|error| FeedError::Rows(error.to_string()))?;
        self.pending = maker.pending;
        self.rows = Some(maker.rows);
        piece
    }

    async fn settle(&mut self, keys: Vec<i64>, fate: Disposition) -> Result<(), FeedError> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let (lease, held) = (lease.id.clone(), LeasePart::Keys(keys));
        let settlement = Settlement { lease, part: held, disposition: fate, at: now() };
        match self.recorder.store().settle(settlement).await {
            // The lease has ended, and another reader has the items.
            Ok(()) | Err(CommitError::NoLease(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives back the items that were not sent.
    async fn give_back(&mut self) {
        let keys = self.take_undelivered();
        if keys.is_empty() || self.lease.is_none() {
            return;
        }
        if let Err(error) = self.settle(keys, Disposition::Unsent).await {
            tracing::warn!(%error, "items that were not sent stay leased until their lease ends");
        }
    }

    /// Takes the keys of the attempts that were not sent.
    fn take_undelivered(&mut self) -> Vec<i64> {
        let pending = self.pending.drain(..).flat_map(|item| item.keys);
        std::mem::take(&mut self.unsent).into_iter().chain(pending).collect()
    }

    /// The row stream, if nothing was sent on it.
    pub(crate) fn into_rows(mut self) -> Result<RowStream, FeedError> {
        self.rows.take().ok_or_else(ended_early)
    }

    /// Sends all items. `first` is their first piece.
    pub(crate) fn send(mut self, first: Bytes) -> ChannelBody {
        let (sender, receiver) = mpsc::channel(WAITING_PIECES);
        self.has_begun = true;
        tokio::spawn(self.send_all(first, sender));
        ChannelBody(receiver)
    }

    async fn send_all(mut self, first: Bytes, sender: mpsc::Sender<Result<Bytes, BoxError>>) {
        let mut next: Result<_, FeedError> = Ok(Some(first));
        loop {
            match next {
                Ok(Some(bytes)) => {
                    if sender.send(Ok(bytes)).await.is_err() {
                        // The reader has left.
                        return self.give_back().await;
                    }
                    self.unsent.clear();
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the feed broke off");
                    let _ = sender.send(Err(error.into())).await;
                    return self.give_back().await;
                }
            }
            next = self.next_piece().await;
        }

        // Some formats end with a marker, without which a reader takes the stream for cut off.
        let end = self
            .rows
            .as_mut()
            .map_or(Ok(Vec::new()), |rows| rows.feed.finish())
            .map(Bytes::from)
            .map_err(|error| BoxError::from(error.to_string()));
        if end.as_ref().is_ok_and(Bytes::is_empty) {
            return;
        }
        let _ = sender.send(end).await;
    }
}

fn ended_early() -> FeedError {
    FeedError::Rows("they ended early".to_owned())
}

/// Rows that are sent at a time.
#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    /// Keys of the attempts whose rows these are.
    keys: Vec<i64>,
    /// Keys of items and of attempts that have no rows, each with the reason.
    dropped: Vec<(Vec<i64>, &'static str)>,
}

/// The input of a piece. It blocks its thread.
struct PieceMaker {
    location: Location,
    room: Arc<dyn ReadingRoom>,
    pending: VecDeque<FeedItem>,
    rows: RowStream,
    drop_late: bool,
    /// The newest policy version that is known.
    newest: Option<i64>,
    /// Time to wait for a store that cannot be opened.
    patience: Duration,
}

impl PieceMaker {
    /// Opens the store. Others may have all the connections of readers, or the server none.
    async fn open(&self) -> Result<Snapshot, SnapshotError> {
        let deadline = Instant::now() + self.patience;
        loop {
            match Snapshot::open_here(&self.location).await {
                Err(error) if Instant::now() < deadline => {
                    tracing::debug!(%error, "the feed waits for the store");
                    sleep(STORE_RETRY_WAIT).await;
                }
                opened => return opened,
            }
        }
    }

    /// Takes items until their rows are a piece. An item that fails stays pending; the items before
    /// it are sent first.
    fn make(&mut self) -> Result<Piece, FeedError> {
        let mut snapshot = Handle::current().block_on(self.open())?.in_room(Arc::clone(&self.room));
        let mut piece = Piece::default();

        while piece.bytes.len() < PIECE_BYTES
            && let Some(item) = self.pending.front()
        {
            let rows = match item.late && self.drop_late {
                true => Ok(FeedOutcome::Dropped("group_late")),
                false => self.rows.item(&mut snapshot, item, self.newest),
            };
            let keys = item.keys.clone();
            match rows {
                Ok(FeedOutcome::Rows(bytes, silent)) => {
                    piece.bytes.extend(bytes);
                    let is_silent = |key: &i64| silent.iter().any(|(other, _)| other == key);
                    piece.keys.extend(keys.into_iter().filter(|key| !is_silent(key)));
                    piece.dropped.extend(silent.into_iter().map(|(key, why)| (vec![key], why)));
                }
                Ok(FeedOutcome::Dropped(reason)) => piece.dropped.push((keys, reason)),
                Err(error) if piece.keys.is_empty() && piece.dropped.is_empty() => {
                    return Err(error);
                }
                // The next piece meets the error again, with nothing before it.
                Err(_) => break,
            }
            self.pending.pop_front();
        }
        Ok(piece)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let keys = self.take_undelivered();
        let lease = self.lease.take().filter(|_| !keys.is_empty());
        if let (Some(lease), Ok(runtime)) = (lease, Handle::try_current()) {
            let (store, held, at) = (self.recorder.store().clone(), LeasePart::Keys(keys), now());
            let settlement =
                Settlement { lease: lease.id, part: held, disposition: Disposition::Unsent, at };
            runtime.spawn(async move { store.settle(settlement).await });
        }
    }
}
