//! The recording that an attempt went on from: where its replayed calls are in it.

use std::collections::HashMap;

use episode::CallId;
use store::{AttemptRecord, Selection, Snapshot, SnapshotError};

use crate::graph::derive::derive;

/// Reads the recording that answered calls of an attempt, and returns the first trajectory there
/// that holds each call. Empty if no recording did, or if it is gone or cannot be read: a branch
/// loses no more than the name of its trunk.
///
/// Before the attempt itself: a reader that holds memory and waits for more may wait for itself.
pub(crate) async fn trunk(
    snapshot: &mut Snapshot,
    record: &AttemptRecord,
) -> Result<HashMap<CallId, String>, SnapshotError> {
    let Some(replay) = &record.replay else { return Ok(HashMap::new()) };
    let source = &replay.source;
    let selection = Selection { episode: Some(source.episode.clone()), ..Selection::default() };
    let records = snapshot.episodes(&selection).await?;
    let Some(found) = records.iter().find(|found| found.attempt == source.attempt) else {
        return Ok(HashMap::new());
    };

    let calls = match snapshot.calls(found).await {
        Ok(calls) => calls,
        Err(
            SnapshotError::Decode { .. } | SnapshotError::TooLarge { .. } | SnapshotError::Word(..),
        ) => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    };
    let derived = derive(&calls);
    let places = derived.forest.nodes.entries().map(|(id, node)| {
        let path = derived.paths.first_of(id);
        (node.call_id(), format!("{source}/{}", path.0))
    });
    // Of several choices of a call the first one names its place.
    let mut trunk = HashMap::new();
    for (call, place) in places {
        trunk.entry(call).or_insert(place);
    }
    drop(derived);
    drop(calls);
    snapshot.give_back();
    Ok(trunk)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use episode::{CallEnd, Replay, ReplayMode, Tag, TagSource};
    use store::{Announcement, Budget, Durability, Lending, Loan, ReadingRoom, Store};

    use super::*;
    use crate::graph::scan::scan;
    use crate::tests::fixture::call;

    /// Memory for one attempt at a time: a reader that has it gets none for a second one.
    #[derive(Debug, Default)]
    struct RoomForOne(Arc<AtomicUsize>);

    struct Lent(Arc<AtomicUsize>);

    impl Drop for Lent {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl ReadingRoom for RoomForOne {
        fn bytes_max(&self) -> u64 {
            u64::MAX
        }

        fn lend(&self, _: u64) -> Lending<'_> {
            let before = self.0.fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, 0, "it would wait for itself");
            let loan: Loan = Box::new(Lent(Arc::clone(&self.0)));
            Box::pin(async move { Ok(loan) })
        }
    }

    #[tokio::test]
    async fn the_calls_of_a_recording_are_found_by_their_ids() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rolltape.db");
        let (store, writer) = Store::open(&path, Durability::Process).await.unwrap();
        let tag = |name: &str| Tag {
            episode: name.parse().unwrap(),
            attempt: 0,
            group: None,
            task: None,
            labels: Vec::new(),
            source: TagSource::Control,
        };
        let replay = Replay {
            source: "a/0".parse().unwrap(),
            until: Some(1),
            mode: ReplayMode::Strict,
            ignore: Vec::new(),
            keeps_time: false,
        };
        let announcement = Announcement {
            tag: tag("b"),
            at: 1,
            force: None,
            continues: None,
            replay: Some(replay),
            group_size: None,
            budget: Budget::default(),
        };
        store.announce(announcement).await.unwrap();
        // Two conversations: the second call of `a` is on a path of its own.
        let (first, other) = (call(1, &[1], &[&[2]]), call(2, &[9], &[&[8]]));
        let again = call(3, &[9], &[&[8]]);
        for (name, call, replayed) in
            [("a", &first, None), ("a", &other, None), ("b", &again, Some(other.begun.call_id))]
        {
            let mut begun = call.begun.clone();
            begun.tag = Tag { source: TagSource::Header, ..tag(name) };
            store.begin(begun).await.done().await.unwrap();
            let ended = CallEnd { replayed, ..call.ended.clone().unwrap() };
            store.end(ended).await.done().await.unwrap();
        }
        drop(store);
        writer.finish().await;

        let mut snapshot = Snapshot::open(&path).await.unwrap();
        let records = snapshot.episodes(&Selection::default()).await.unwrap();
        for (record, found) in records.into_iter().zip([None, Some("a/0/1")]) {
            snapshot = snapshot.in_room(Arc::new(RoomForOne::default()));
            let trunk = trunk(&mut snapshot, &record).await.unwrap();
            let (attempt, _) = scan(&mut snapshot, record, None).await.unwrap();
            let replayed = attempt.calls.last().unwrap().ended.as_ref().unwrap().replayed;
            let place = replayed.and_then(|call| trunk.get(&call).map(String::as_str));
            assert_eq!(place, found);
        }
    }
}
