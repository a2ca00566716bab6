//! The groups whose rewards are compared, known before the first row is written.

use std::collections::BTreeMap;

use serde::Serialize;
use store::AttemptRecord;

use crate::rewards::advantage::{Advantage, advantages, mean, std};
use crate::rewards::scored_attempt::ScoredAttempt;

/// The rewards of one group. It counts the selected attempts only, with those that make no row.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GroupSummary {
    /// The group; none for episodes without one.
    pub group: Option<String>,
    /// Number of its set, from 0: the name of a group of an announced size may be used again.
    #[serde(skip_serializing_if = "is_first")]
    pub set: i64,
    /// Number of attempts at episodes.
    pub episodes: u64,
    /// Number of those that have a reward and were not failed by the infrastructure: the
    /// population.
    pub scored: u64,
    /// Number of attempts that the infrastructure failed. They are not in the population, whatever
    /// reward they were given.
    pub infrastructure_failed: u64,
    /// Mean reward; none where none has one.
    pub reward_mean: Option<f64>,
    /// Standard deviation of a sample; none for fewer than two rewards.
    pub reward_std: Option<f64>,
    /// Smallest reward.
    pub reward_min: Option<f64>,
    /// Largest reward. A group whose rewards are all alike carries no gradient.
    pub reward_max: Option<f64>,
}

impl GroupSummary {
    /// Returns true where several attempts have the same reward, so that every advantage is 0.
    pub fn is_flat(&self) -> bool {
        self.group.is_some() && self.scored > 1 && self.reward_min == self.reward_max
    }
}

/// All groups of an export.
#[derive(Debug, Default)]
pub(crate) struct RewardGroups {
    /// Groups in the order of the rows; episodes without a group are last.
    pub(crate) summaries: Vec<GroupSummary>,
    /// Attempts by the store's key.
    members: BTreeMap<i64, GroupMember>,
}

/// One attempt of a group.
#[derive(Debug, Clone, Copy)]
struct GroupMember {
    /// Index in `summaries`.
    group: usize,
    advantage: Option<f64>,
}

/// The group of an attempt, and the attempt's advantage in it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct GroupStanding<'a> {
    pub(crate) group: Option<&'a GroupSummary>,
    pub(crate) advantage: Option<f64>,
}

impl RewardGroups {
    /// Compares attempts, which are sorted by group and set.
    pub(crate) fn new(rule: Advantage, attempts: &[ScoredAttempt]) -> Self {
        let mut groups = Self::default();
        for attempts in
            attempts.chunk_by(|a, b| a.record.group == b.record.group && a.set() == b.set())
        {
            let reward = |a: &ScoredAttempt| a.reward.filter(|_| !a.is_infrastructure_failed);
            let rewards: Vec<Option<f64>> = attempts.iter().map(reward).collect();
            let name = attempts[0].record.group.as_ref().map(ToString::to_string);
            // Episodes without a group are not compared.
            let rule = if name.is_some() { rule } else { Advantage::None };
            let group = groups.summaries.len();
            for (attempt, advantage) in attempts.iter().zip(advantages(rule, &rewards)) {
                groups.members.insert(attempt.record.key, GroupMember { group, advantage });
            }
            let failed = attempts.iter().filter(|a| a.is_infrastructure_failed).count() as u64;
            let summary = summary(name, &rewards);
            let set = attempts[0].set();
            groups.summaries.push(GroupSummary { infrastructure_failed: failed, set, ..summary });
        }
        groups
    }

    pub(crate) fn standing(&self, record: &AttemptRecord) -> GroupStanding<'_> {
        let Some(member) = self.members.get(&record.key) else { return GroupStanding::default() };
        let group = self.summaries.get(member.group).filter(|group| group.group.is_some());
        GroupStanding { group, advantage: member.advantage }
    }
}

fn is_first(set: &i64) -> bool {
    *set == 0
}

fn summary(group: Option<String>, rewards: &[Option<f64>]) -> GroupSummary {
    let known: Vec<f64> = rewards.iter().copied().flatten().collect();
    GroupSummary {
        group,
        set: 0,
        episodes: rewards.len() as u64,
        scored: known.len() as u64,
        infrastructure_failed: 0,
        reward_mean: mean(&known),
        reward_std: std(&known),
        reward_min: known.iter().copied().reduce(f64::min),
        reward_max: known.iter().copied().reduce(f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::episode;

    fn attempt(key: i64, group: Option<&str>, reward: Option<f64>) -> ScoredAttempt {
        let group = group.map(|group| group.parse().unwrap());
        let record = AttemptRecord { key, group, ..episode(Vec::new()).record };
        ScoredAttempt { record, reward, is_infrastructure_failed: false, place: None }
    }

    #[test]
    fn attempts_are_compared_within_their_group_only() {
        let attempts = [
            attempt(1, Some("g"), Some(1.0)),
            attempt(2, Some("g"), None),
            attempt(3, Some("g"), Some(0.0)),
            attempt(4, Some("h"), Some(5.0)),
            attempt(5, None, Some(1.0)),
            attempt(6, None, Some(0.0)),
        ];
        let groups = RewardGroups::new(Advantage::DrGrpo, &attempts);
        let standing = |at: usize| groups.standing(&attempts[at].record);
        let advantages: Vec<_> = (0..6).map(|at| standing(at).advantage).collect();
        assert_eq!(advantages, [Some(0.5), None, Some(-0.5), None, None, None]);
        let group = standing(1).group.unwrap();
        assert_eq!((group.episodes, group.scored), (3, 2));
        assert_eq!((group.reward_mean, group.reward_std), (Some(0.5), Some(0.5_f64.sqrt())));
        assert_eq!((group.reward_min, group.reward_max), (Some(0.0), Some(1.0)));
        assert_eq!(standing(3).group.unwrap().reward_std, None);
        assert_eq!(standing(4), GroupStanding::default());
        assert_eq!(groups.summaries.len(), 3);
    }

    #[test]
    fn a_failure_of_the_infrastructure_is_compared_with_nothing() {
        let failed =
            ScoredAttempt { is_infrastructure_failed: true, ..attempt(3, Some("g"), Some(0.0)) };
        let attempts = [attempt(1, Some("g"), Some(1.0)), attempt(2, Some("g"), Some(0.5)), failed];
        let groups = RewardGroups::new(Advantage::DrGrpo, &attempts);
        let advantages = attempts.each_ref().map(|a| groups.standing(&a.record).advantage);
        assert_eq!(advantages, [Some(0.25), Some(-0.25), None]);
        let group = groups.standing(&attempts[2].record).group.unwrap();
        assert_eq!((group.episodes, group.scored, group.infrastructure_failed), (3, 2, 1));
        assert_eq!((group.reward_mean, group.reward_min), (Some(0.75), Some(0.5)));
    }
}
