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

/// Adds to each attempt the reward of its episode as of a time. Keeps number and order. `are_all`
/// says that they are all of the store, so that nothing needs to be looked for.
pub(crate) async fn with_rewards(
    snapshot: &mut Snapshot,
    records: Vec<AttemptRecord>,
    as_of: Option<Micros>,
    are_all: bool,
) -> Result<Vec<ScoredAttempt>, SnapshotError> {
    let keys: Vec<i64> = records.iter().map(|record| record.key).collect();
    let only = Some(keys.as_slice()).filter(|_| !are_all);
    let rewards = snapshot.episode_rewards(REWARD, as_of.unwrap_or(Micros::MAX), only).await?;
    let mut scored = Vec::with_capacity(records.len());
    for record in records {
        let reward = rewards.get(&record.key).copied().flatten();
        scored.push(scored_attempt(snapshot, record, reward).await?);
    }
    Ok(scored)
}

/// Adds to each attempt its place in its group, and sorts them as their rows will be: by group
/// (none last), set, episode, attempt. `are_all` is that of [`with_rewards`].
pub(crate) async fn with_places(
    snapshot: &mut Snapshot,
    mut attempts: Vec<ScoredAttempt>,
    failed_take_no_place: bool,
    are_all: bool,
) -> Result<Vec<ScoredAttempt>, SnapshotError> {
    let groups: BTreeSet<_> = attempts.iter().filter_map(|a| a.record.group.clone()).collect();
    let names: Vec<&str> = groups.iter().map(|group| group.as_str()).collect();
    let only = Some(names.as_slice()).filter(|_| !are_all);
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

#[cfg(test)]
mod tests {
    use episode::{AttemptId, Outcome};
    use store::{Durability, EpisodeFilter, Selection, Store};

    use super::*;
    use crate::tests::fixture::{call, reply};
    use crate::tests::stored::stored;

    const OUTCOMES: [Outcome; 5] = [
        Outcome::Complete,
        Outcome::ClientGone,
        Outcome::UpstreamFailed,
        Outcome::Capped,
        Outcome::Refused,
    ];

    #[tokio::test]
    async fn the_store_knows_what_the_infrastructure_failed() {
        let folder = tempfile::tempdir().unwrap();
        let statuses = [
            None,
            Some("completed"),
            Some("truncated"),
            Some("failed"),
            Some("infrastructure_failed"),
        ];
        let ends = OUTCOMES.map(Some).into_iter().chain([None]);
        let cases: Vec<_> = ends.flat_map(|end| statuses.map(|status| (end, status))).collect();
        let names: Vec<String> = (0..cases.len()).map(|at| format!("e{at}")).collect();
        let told = names.iter().zip(&cases).map(|(name, (end, _))| {
            let mut last = call(2, &[1, 2, 3], &[&[4]]);
            match end {
                Some(outcome) => reply(&mut last).outcome = *outcome,
                None => last.ended = None,
            }
            (name.as_str(), None, None, vec![call(1, &[1], &[&[2]]), last])
        });
        let at = stored(folder.path(), &told.collect::<Vec<_>>()).await;

        let (store, writer) = Store::open(&at.0, Durability::Process).await.unwrap();
        for (name, (_, status)) in names.iter().zip(&cases) {
            let attempt = AttemptId { episode: name.parse().unwrap(), attempt: 0 };
            store.close(attempt, 9, status.map(str::to_owned)).await.unwrap();
        }
        drop(store);
        writer.finish().await;
        let mut snapshot = at.snapshot().await;
        let records = snapshot.episodes(&Selection::default()).await.unwrap();
        let scored = with_rewards(&mut snapshot, records, None, true).await.unwrap();
        let of_store = snapshot.scores(&EpisodeFilter::default()).await.unwrap();
        assert_eq!(of_store.len(), scored.len());
        for score in of_store {
            let own = scored.iter().find(|own| own.record.key == score.episode_key).unwrap();
            let case = &cases[own.record.id.as_str()[1..].parse::<usize>().unwrap()];
            let found = score.is_infrastructure_failed;
            assert_eq!(found, own.is_infrastructure_failed, "{case:?}");
        }
        assert_eq!(scored.iter().filter(|own| own.is_infrastructure_failed).count(), 12);
    }
}
