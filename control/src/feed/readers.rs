//! The readers of the feed: finished attempts are handed out under leases, as rows that are made
//! while they are read.
//!
//! Nothing that waits is held in memory. A reader takes items, of which only the keys are kept, and
//! their rows are made piece by piece as it reads. Items that were not sent when the reader leaves,
//! or when its lease ends, are given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use exporter::{EncodeError, Feed, FeedOptions};
use http::clock::now;
use proxy::Recorder;
use store::{
    Backlog, CommitError, ConsumerCounts, FeedItem, FeedQuery, Lease, Snapshot, SnapshotError,
    Store,
};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bounds::FEED_READERS_MAX;
use crate::feed::asked::LastQueries;
use crate::feed::delivery::{Delivery, LeaseTerm, ReadyItems, RowStream};
use crate::feed::error::FeedError;
use crate::feed::parameters::FeedRequest;

/// Time between two looks for the writes of other processes and for leases that end.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// The state that the readers of a listener share.
#[derive(Debug)]
pub(crate) struct FeedReaders {
    /// Held while items are chosen and leased, so that no two readers take the same.
    turn: Mutex<()>,
    reader_permits: Semaphore,
    asked: LastQueries,
    /// Counts the items whose rows were made.
    items: Arc<AtomicUsize>,
}

/// The answer to a request.
pub(crate) enum FeedReply {
    /// Items, with the first piece of their rows.
    Items(Box<Delivery>, Bytes),
    /// Nothing became ready in time. The cursor is the position to continue from; the backlog says
    /// what waits.
    Nothing { cursor: i64, backlog: Backlog },
}

/// The result of one look for items.
enum FeedPoll {
    Nothing(RowStream),
    /// All ready items were dropped, up to this position.
    AllDropped(i64, RowStream),
    Items(Box<Delivery>, Bytes),
}

impl FeedReaders {
    /// No readers yet. `items` counts those whose rows are made.
    pub(crate) fn new(items: Arc<AtomicUsize>) -> Self {
        Self {
            turn: Mutex::default(),
            reader_permits: Semaphore::new(FEED_READERS_MAX),
            asked: LastQueries::default(),
            items,
        }
    }

    /// A stream of the rows that a reader asks for.
    pub(crate) fn rows(&self, options: FeedOptions) -> Result<RowStream, EncodeError> {
        Ok(RowStream::new(Feed::new(options)?, Arc::clone(&self.items)))
    }

    /// Takes the items that are ready, or waits for one.
    pub(crate) async fn hand_out(
        self: &Arc<Self>,
        recorder: &Recorder,
        mut request: FeedRequest,
        mut rows: RowStream,
    ) -> Result<FeedReply, FeedError> {
        let permit = self.reader_permits.try_acquire();
        let _permit = permit.map_err(|_| FeedError::TooManyReaders(FEED_READERS_MAX))?;
        let (mut changes, mut drain) = (recorder.changes(), recorder.drain());
        let deadline = Instant::now() + request.wait;
        self.asked.remember(&request.wanted);

        loop {
            // Marked as seen before the look, so that a change during it wakes the wait.
            changes.borrow_and_update();
            // A task of its own: if the reader leaves, leased items must still be given back.
            let poll = Arc::clone(self).poll(recorder.clone(), request.clone(), rows);
            let poll = tokio::spawn(poll);
            rows = match poll.await.map_err(|error| FeedError::Rows(error.to_string()))?? {
                FeedPoll::Items(delivery, piece) => return Ok(FeedReply::Items(delivery, piece)),
                FeedPoll::AllDropped(cursor, rows) => {
                    request.wanted.after = cursor;
                    rows
                }
                FeedPoll::Nothing(rows) => {
                    if Instant::now() >= deadline || drain.borrow_and_update().is_some() {
                        let wanted = at_present(recorder, &request.wanted);
                        let backlog = recorder.store().snapshot().await?.backlog(&wanted).await?;
                        return Ok(FeedReply::Nothing { cursor: wanted.after, backlog });
                    }
                    let next_poll = deadline.min(Instant::now() + POLL_EVERY);
                    tokio::select! {
                        _ = changes.changed() => {}
                        _ = drain.changed() => {}
                        () = tokio::time::sleep_until(next_poll) => {}
                    }
                    rows
                }
            };
        }
    }

    /// Counts of every consumer, by name, each as its last reader here asked. Of one that has not
    /// asked since this process began, every attempt is an item.
    pub(crate) async fn consumers(
        &self,
        recorder: &Recorder,
    ) -> Result<Vec<ConsumerCounts>, SnapshotError> {
        let present = at_present(recorder, &FeedQuery::default());
        let mut snapshot = recorder.store().snapshot().await?;
        let mut found = Vec::new();
        for consumer in snapshot.consumers().await? {
            let asked = self.asked.of(&consumer).unwrap_or_default();
            let asked = FeedQuery { now: present.now, open: present.open.clone(), ..asked };
            found.push(snapshot.consumer_counts(consumer, &asked).await?);
        }
        Ok(found)
    }

    /// Takes the items that are ready, if any, and makes their first rows.
    async fn poll(
        self: Arc<Self>,
        recorder: Recorder,
        request: FeedRequest,
        rows: RowStream,
    ) -> Result<FeedPoll, FeedError> {
        let Some((items, lease)) = self.take(&recorder, &request).await? else {
            return Ok(FeedPoll::Nothing(rows));
        };
        let cursor = items.back().map_or(request.wanted.after, |item| item.position);
        let ready = ReadyItems { items, lease, drop_late: request.drop_late, cursor };
        let mut delivery = Delivery::new(recorder, ready, rows);
        match delivery.next_piece().await? {
            Some(piece) => Ok(FeedPoll::Items(Box::new(delivery), piece)),
            None => Ok(FeedPoll::AllDropped(cursor, delivery.into_rows()?)),
        }
    }

    /// Takes items that are ready, under a lease if the reader has a name.
    async fn take(
        &self,
        recorder: &Recorder,
        request: &FeedRequest,
    ) -> Result<Option<(VecDeque<FeedItem>, Option<LeaseTerm>)>, FeedError> {
        let _turn = self.turn.lock().await;
        // Read before the snapshot: a call that ends in between is waited for once more.
        let wanted = at_present(recorder, &request.wanted);
        let items = finished_snapshot(recorder.store(), &wanted).await?.ready(&wanted).await?;
        if items.is_empty() {
            return Ok(None);
        }
        let Some(consumer) = wanted.consumer else { return Ok(Some((items.into(), None))) };

        let id = Uuid::new_v4().simple().to_string();
        let term = LeaseTerm { id: id.clone(), until: wanted.now + request.lease };
        let (until, at) = (term.until, wanted.now);
        match recorder.store().lease(Lease { id, consumer, items: items.clone(), until, at }).await
        {
            Ok(()) => Ok(Some((items.into(), Some(term)))),
            // Another process leased the items first.
            Err(CommitError::Taken) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A query at the present time, with the calls that are under way.
fn at_present(recorder: &Recorder, wanted: &FeedQuery) -> FeedQuery {
    FeedQuery { now: now(), open: recorder.unwritten_calls(), ..wanted.clone() }
}

/// A snapshot in which closed attempts have positions if their calls have ended or are given up.
async fn finished_snapshot(store: &Store, wanted: &FeedQuery) -> Result<Snapshot, FeedError> {
    let mut snapshot = store.snapshot().await?;
    let finished = snapshot.finished_since(&wanted.open, wanted.now).await?;
    if finished.is_empty() {
        return Ok(snapshot);
    }
    match store.finish(finished).await {
        Ok(()) => Ok(store.snapshot().await?),
        Err(error) => {
            // The attempts with positions can still be handed out.
            tracing::warn!(%error, "attempts whose calls have ended are not handed out yet");
            Ok(snapshot)
        }
    }
}
