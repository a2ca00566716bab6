//! Attempts with the rewards of their episodes, which groups compare.

use episode::{Micros, RewardScope};
use store::{AttemptRecord, Snapshot, SnapshotError};

use crate::rewards::infrastructure::{LastCall, failed_by_infrastructure, failed_by_status};
use crate::rewards::latest::{LatestRewards, REWARD};

/// An attempt with the reward of its episode.
#[derive(Debug, Clone)]
pub(crate) struct ScoredAttempt {
    pub(crate) record: AttemptRecord,
    /// The reward; none where there is none, or where it is not finite.
    pub(crate) reward: Option<f64>,
    /// True where the infrastructure failed the attempt.
    pub(crate) is_infrastructure_failed: bool,
}

/// Adds to each attempt the reward of its episode as of a time. Keeps number and order.
pub(crate) async fn with_rewards(
    snapshot: &mut Snapshot,
    records: Vec<AttemptRecord>,
    as_of: Option<Micros>,
) -> Result<Vec<ScoredAttempt>, SnapshotError> {
    let rewards = snapshot.episode_rewards(REWARD, as_of.unwrap_or(Micros::MAX)).await?;
    let mut scored = Vec::with_capacity(records.len());
    for record in records {
        let reward = rewards.get(&record.key).copied().flatten();
        scored.push(scored_attempt(snapshot, record, reward).await?);
    }
    Ok(scored)
}

/// Reads attempts by the store's keys, each with the reward of its episode. Attempts that are gone
/// from the store are left out.
pub(crate) async fn scored_by_key(
    snapshot: &mut Snapshot,
    keys: &[i64],
) -> Result<Vec<ScoredAttempt>, SnapshotError> {
    let mut scored = Vec::with_capacity(keys.len());
    for record in snapshot.attempts(keys).await? {
        let rewards = snapshot.rewards(&record).await?;
        let reward = LatestRewards::new(&rewards).value(RewardScope::Episode);
        scored.push(scored_attempt(snapshot, record, reward).await?);
    }
    Ok(scored)
}

/// Adds to an attempt and its reward how it ended.
async fn scored_attempt(
    snapshot: &mut Snapshot,
    record: AttemptRecord,
    reward: Option<f64>,
) -> Result<ScoredAttempt, SnapshotError> {
    let is_infrastructure_failed = match failed_by_status(&record) {
        Some(failed) => failed,
        None => failed_by_infrastructure(&record, last_call(snapshot, &record).await?),
    };
    let reward = reward.filter(|value| value.is_finite());
    Ok(ScoredAttempt { record, reward, is_infrastructure_failed })
}

async fn last_call(
    snapshot: &mut Snapshot,
    record: &AttemptRecord,
) -> Result<LastCall, SnapshotError> {
    Ok(match snapshot.last_outcome(record).await? {
        None => LastCall::None,
        Some(None) => LastCall::Lost,
        Some(Some(outcome)) => LastCall::Ended(outcome),
    })
}
