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
    Backlog, CommitError, ConsumerCounts, FeedItem, FeedQuery, FeedUnit, GroupLimits, Lease,
    Snapshot, SnapshotError, Store,
};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bounds::{FEED_LIMIT_MAX, FEED_LOOKS_MAX, FEED_READERS_MAX};
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
                        let backlog = recorder.store().reading().await?.backlog(&wanted).await?;
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
        let mut snapshot = filled_snapshot(recorder.store()).await?;
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

    /// Takes items that are ready, under a lease if the reader has a name. Looks again if another
    /// process takes one of them first, and then farther: `None` means that nothing was ready.
    async fn take(
        &self,
        recorder: &Recorder,
        request: &FeedRequest,
    ) -> Result<Option<(VecDeque<FeedItem>, Option<LeaseTerm>)>, FeedError> {
        let _turn = self.turn.lock().await;
        for look in 0..FEED_LOOKS_MAX {
            // Read before the snapshot: a call that ends in between is waited for once more.
            let wanted = at_present(recorder, &request.wanted);
            let id = Uuid::new_v4();
            let ready = ready_items(recorder.store(), &farther(&wanted, look)).await?;
            let items = window(ready, wanted.limit as usize, id.as_u128());
            if items.is_empty() {
                return Ok(None);
            }
            let Some(consumer) = wanted.consumer else { return Ok(Some((items.into(), None))) };

            let id = id.simple().to_string();
            let term = LeaseTerm { id: id.clone(), until: wanted.now + request.lease };
            let (until, at) = (term.until, wanted.now);
            let lease = Lease { id, consumer, items: items.clone(), until, at };
            match recorder.store().lease(lease).await {
                Ok(()) => return Ok(Some((items.into(), Some(term)))),
                Err(CommitError::Taken) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(FeedError::Outrun(FEED_LOOKS_MAX))
    }
}

/// A query that finds more items after each look that was in vain. All readers of a consumer aim at
/// its first items.
fn farther(wanted: &FeedQuery, look: u32) -> FeedQuery {
    let more = wanted.limit.saturating_mul(look * look).min(FEED_LIMIT_MAX);
    FeedQuery { limit: wanted.limit + more, ..wanted.clone() }
}

/// So many items in a row, at a place that follows from a number.
fn window(mut items: Vec<FeedItem>, limit: usize, number: u128) -> Vec<FeedItem> {
    let places = items.len().saturating_sub(limit) as u128 + 1;
    let first = usize::try_from(number % places).unwrap_or(0);
    items.drain(..first);
    items.truncate(limit);
    items
}

/// A query at the present time, with the calls that are under way.
fn at_present(recorder: &Recorder, wanted: &FeedQuery) -> FeedQuery {
    FeedQuery { now: now(), open: recorder.unwritten_calls(), ..wanted.clone() }
}

/// The items that are ready, once closed attempts have positions if their calls have ended or are
/// given up, and the consumer knows all that were finished.
async fn ready_items(store: &Store, wanted: &FeedQuery) -> Result<Vec<FeedItem>, FeedError> {
    let mut snapshot = finished_snapshot(store, wanted).await?;
    let Some(consumer) = &wanted.consumer else { return Ok(snapshot.ready(wanted).await?) };

    let mut has_filled = false;
    loop {
        let is_behind = snapshot.is_behind(consumer).await?;
        if has_filled || !is_behind {
            // The first attempts may do. No group is cut short while there may be more of it.
            let known = if is_behind { patient(wanted) } else { wanted.clone() };
            let items = snapshot.ready(&known).await?;
            if !items.is_empty() || !is_behind {
                return Ok(items);
            }
        }
        // No reader waits for a connection while it holds one.
        drop(snapshot);
        store.fill_consumer(consumer).await?;
        snapshot = store.reading().await?;
        has_filled = true;
    }
}

/// The same query, for which no group is late.
fn patient(wanted: &FeedQuery) -> FeedQuery {
    let unit = match wanted.unit {
        FeedUnit::Group(limits) => FeedUnit::Group(GroupLimits { wait: None, ..limits }),
        FeedUnit::Episode => FeedUnit::Episode,
    };
    FeedQuery { unit, ..wanted.clone() }
}

/// A snapshot in which closed attempts have positions if their calls have ended or are given up.
async fn finished_snapshot(store: &Store, wanted: &FeedQuery) -> Result<Snapshot, FeedError> {
    let mut snapshot = store.reading().await?;
    let finished = snapshot.finished_since(&wanted.open, wanted.now).await?;
    if finished.is_empty() {
        return Ok(snapshot);
    }
    drop(snapshot);
    if let Err(error) = store.finish(finished).await {
        // The attempts with positions can still be handed out.
        tracing::warn!(%error, "attempts whose calls have ended are not handed out yet");
    }
    Ok(store.reading().await?)
}

/// A snapshot in which every consumer knows all attempts that were finished.
async fn filled_snapshot(store: &Store) -> Result<Snapshot, SnapshotError> {
    loop {
        let mut snapshot = store.reading().await?;
        let behind = snapshot.consumers_behind().await?;
        if behind.is_empty() {
            return Ok(snapshot);
        }
        drop(snapshot);
        for consumer in behind {
            if let Err(error) = store.fill_consumer(&consumer).await {
                // Those that are known can still be counted.
                tracing::warn!(%error, "not all finished attempts are counted");
                return store.reading().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_long_as_asked_and_may_be_anywhere() {
        let items: Vec<_> = (1..=5).map(|at| FeedItem::new(at, vec![at])).collect();
        let first =
            |limit, number| window(items.clone(), limit, number).first().map(|one| one.position);
        assert_eq!([first(2, 0), first(2, 3), first(2, 4)], [Some(1), Some(4), Some(1)]);
        assert_eq!(window(items.clone(), 2, 7).len(), 2);
        assert_eq!(window(items.clone(), 9, 7), items);
        assert!(window(Vec::new(), 2, 7).is_empty());
    }
}
