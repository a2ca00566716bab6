//! The attempts that go on from a recording: those beside an attempt, and those behind it.

use episode::{AttemptId, Micros};
use serde::{Deserialize, Serialize};
use store::{AttemptRecord, Snapshot, SnapshotError};

use crate::bounds::SIBLINGS_MAX;
use crate::episodes::state_of;

/// The name of the reward of an attempt as a whole.
const REWARD: &str = "reward";

/// An attempt that goes on from a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct SiblingView {
    pub episode_id: String,
    pub attempt: u32,
    #[serde(default)]
    pub until: Option<u32>,
    pub state: String,
    pub reward: Option<f64>,
}

/// Reads the other attempts that go on from the same turn of the same recording, by their names.
/// There are none beside an attempt that no recording answers.
pub(crate) async fn siblings(
    snapshot: &mut Snapshot,
    record: &AttemptRecord,
) -> Result<Vec<SiblingView>, SnapshotError> {
    let Some(replay) = &record.replay else { return Ok(Vec::new()) };
    let mut others = snapshot.replays_of(&replay.source).await?;
    others.retain(|other| {
        let until = other.replay.as_ref().map(|replay| replay.until);
        other.key != record.key && until == Some(replay.until)
    });
    views(snapshot, others).await
}

/// Reads the attempts whose calls this one answers, by their names.
pub(crate) async fn replays(
    snapshot: &mut Snapshot,
    record: &AttemptRecord,
) -> Result<Vec<SiblingView>, SnapshotError> {
    let source = AttemptId { episode: record.id.clone(), attempt: record.attempt };
    let others = snapshot.replays_of(&source).await?;
    views(snapshot, others).await
}

async fn views(
    snapshot: &mut Snapshot,
    mut of: Vec<AttemptRecord>,
) -> Result<Vec<SiblingView>, SnapshotError> {
    of.sort_by(|one, other| (&one.id, one.attempt).cmp(&(&other.id, other.attempt)));
    of.truncate(SIBLINGS_MAX);
    if of.is_empty() {
        return Ok(Vec::new());
    }

    let keys: Vec<i64> = of.iter().map(|record| record.key).collect();
    let rewards = snapshot.episode_rewards(REWARD, Micros::MAX, Some(&keys)).await?;
    let views = of.into_iter().map(|record| SiblingView {
        episode_id: record.id.to_string(),
        attempt: record.attempt,
        until: record.replay.as_ref().and_then(|replay| replay.until),
        reward: rewards.get(&record.key).copied().flatten(),
        state: state_of(&record),
    });
    Ok(views.collect())
}
