//! Attempts with the rewards of their episodes, which groups compare.

use std::collections::BTreeSet;

use episode::{Micros, RewardScope};
use store::{AttemptRecord, GroupPlace, Snapshot, SnapshotError};

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
    /// Its place in its group; none where nobody said the size of the group.
    pub(crate) place: Option<GroupPlace>,
}

impl ScoredAttempt {
    /// Returns the number of its set among those of its group's name.
    pub(crate) fn set(&self) -> i64 {
        self.place.map_or(0, |place| place.set)
    }
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

/// Adds to each attempt its place in its group, and sorts them as their rows will be: by group (none
/// last), set, episode, attempt.
pub(crate) async fn with_places(
    snapshot: &mut Snapshot,
    mut attempts: Vec<ScoredAttempt>,
    failed_take_no_place: bool,
) -> Result<Vec<ScoredAttempt>, SnapshotError> {
    let groups: BTreeSet<_> = attempts.iter().filter_map(|a| a.record.group.clone()).collect();
    let only = groups.first().filter(|_| groups.len() == 1);
    if !groups.is_empty() {
        let places = snapshot.group_places(only, failed_take_no_place).await?;
        for attempt in &mut attempts {
            attempt.place = places.get(&attempt.record.key).copied();
        }
    }
    attempts.sort_by(|a, b| {
        let key = |a: &ScoredAttempt| (a.record.group.is_none(), a.record.group.clone(), a.set());
        let run = |a: &ScoredAttempt| (a.record.id.clone(), a.record.attempt);
        key(a).cmp(&key(b)).then_with(|| run(a).cmp(&run(b)))
    });
    Ok(attempts)
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
    Ok(ScoredAttempt { record, reward, is_infrastructure_failed, place: None })
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
