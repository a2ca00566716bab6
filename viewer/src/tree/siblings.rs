//! The attempts that go on from the same turn of the same recording as another.

use std::collections::BTreeMap;

use episode::{Micros, Replay};
use serde::{Deserialize, Serialize};
use store::{AttemptRecord, Selection, Snapshot, SnapshotError};

use crate::bounds::SIBLINGS_MAX;
use crate::episodes::state_of;

/// The name of the reward of an attempt as a whole.
const REWARD: &str = "reward";

/// Another attempt that goes on from the same turn of the same recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct SiblingView {
    pub episode_id: String,
    pub attempt: u32,
    pub state: String,
    pub reward: Option<f64>,
}

/// Reads the other attempts of the episode and of the group that go on from the same turn of the
/// same recording, by their names. There are none beside an attempt that no recording answers.
pub(crate) async fn siblings(
    snapshot: &mut Snapshot,
    record: &AttemptRecord,
) -> Result<Vec<SiblingView>, SnapshotError> {
    let Some(replay) = &record.replay else { return Ok(Vec::new()) };
    let episode = Selection { episode: Some(record.id.clone()), ..Selection::default() };
    let group = record.group.as_ref();
    let group = group.map(|id| Selection { group: Some(id.clone()), ..Selection::default() });
    let is_sibling = |other: &AttemptRecord| {
        let same = |other: &Replay| (&other.source, other.until) == (&replay.source, replay.until);
        other.key != record.key && other.replay.as_ref().is_some_and(same)
    };

    let mut found = BTreeMap::new();
    for selection in std::iter::once(episode).chain(group) {
        let others = snapshot.episodes(&selection).await?.into_iter().filter(is_sibling);
        found.extend(others.map(|other| ((other.id.to_string(), other.attempt), other)));
    }
    let kept: Vec<_> = found.into_iter().take(SIBLINGS_MAX).collect();
    if kept.is_empty() {
        return Ok(Vec::new());
    }

    let keys: Vec<i64> = kept.iter().map(|(_, other)| other.key).collect();
    let rewards = snapshot.episode_rewards(REWARD, Micros::MAX, Some(&keys)).await?;
    let views = kept.into_iter().map(|((episode_id, attempt), other)| SiblingView {
        episode_id,
        attempt,
        reward: rewards.get(&other.key).copied().flatten(),
        state: state_of(&other),
    });
    Ok(views.collect())
}
