//! The recording that an attempt went on from: where its replayed calls are in it.

use std::collections::HashMap;

use episode::CallId;
use store::{AttemptRecord, Selection, Snapshot, SnapshotError};

use crate::graph::derive::derive;

/// Reads the recording that answered calls of an attempt, and returns the first trajectory there
/// that holds each call. Empty if no recording did, or if it is gone.
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

    let calls = snapshot.calls(found).await?;
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
    Ok(trunk)
}
