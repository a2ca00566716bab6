//! Groups: the attempts whose rewards are compared, known before the first row is written.

use std::collections::BTreeMap;

use serde::Serialize;
use store::EpisodeRecord;

use crate::graph::scan::Scored;
use crate::rewards::advantage::{Advantage, advantages, mean, std};

/// The rewards of one group. Attempts of it that the selection leaves out are not in it; those
/// that make no row are.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GroupSummary {
    /// The group; none for episodes without one.
    pub group: Option<String>,
    /// Attempts at episodes.
    pub episodes: u64,
    /// Those of them that have a reward: the population.
    pub scored: u64,
    /// Mean over those; none when there is none.
    pub reward_mean: Option<f64>,
    /// Their standard deviation, that of a sample; none when there are fewer than two.
    pub reward_std: Option<f64>,
    /// Smallest reward.
    pub reward_min: Option<f64>,
    /// Largest reward. A group whose rewards are all alike carries no gradient.
    pub reward_max: Option<f64>,
}

impl GroupSummary {
    /// Whether several attempts have a reward and it is the same, so that no advantage differs
    /// from 0.
    pub fn is_flat(&self) -> bool {
        self.group.is_some() && self.scored > 1 && self.reward_min == self.reward_max
    }
}

/// All groups of an export.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// In the order of the rows; episodes without a group are last.
    pub(crate) summaries: Vec<GroupSummary>,
    /// By the key of the attempt: its group, and its advantage in it.
    standings: BTreeMap<i64, (usize, Option<f64>)>,
}

impl Groups {
    /// Of attempts sorted by group, each with its reward.
    pub(crate) fn new(rule: Advantage, attempts: &[Scored]) -> Self {
        let mut groups = Self::default();
        for members in attempts.chunk_by(|a, b| a.0.group == b.0.group) {
            let rewards: Vec<Option<f64>> = members.iter().map(|member| member.1).collect();
            let group = members[0].0.group.as_ref().map(ToString::to_string);
            // Episodes without a group are not compared.
            let rule = if group.is_some() { rule } else { Advantage::None };
            let index = groups.summaries.len();
            for ((record, _), advantage) in members.iter().zip(advantages(rule, &rewards)) {
                groups.standings.insert(record.key, (index, advantage));
            }
            groups.summaries.push(summary(group, &rewards));
        }
        groups
    }

    /// The group of an attempt, and the attempt's advantage in it.
    pub(crate) fn standing(&self, record: &EpisodeRecord) -> (Option<&GroupSummary>, Option<f64>) {
        let (group, advantage) = self.standings.get(&record.key).copied().unzip();
        let group = group.and_then(|index| self.summaries.get(index));
        (group.filter(|group| group.group.is_some()), advantage.flatten())
    }
}

fn summary(group: Option<String>, rewards: &[Option<f64>]) -> GroupSummary {
    let known: Vec<f64> = rewards.iter().copied().flatten().collect();
    GroupSummary {
        group,
        episodes: rewards.len() as u64,
        scored: known.len() as u64,
        reward_mean: mean(&known),
        reward_std: std(&known),
        reward_min: known.iter().copied().reduce(f64::min),
        reward_max: known.iter().copied().reduce(f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::episode;

    fn attempt(key: i64, group: Option<&str>, reward: Option<f64>) -> Scored {
        let group = group.map(|group| group.parse().unwrap());
        (EpisodeRecord { key, group, ..episode(Vec::new()).record }, reward)
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
        let groups = Groups::new(Advantage::DrGrpo, &attempts);
        let standing = |at: usize| groups.standing(&attempts[at].0);
        let advantages: Vec<_> = (0..6).map(|at| standing(at).1).collect();
        assert_eq!(advantages, [Some(0.5), None, Some(-0.5), None, None, None]);
        let group = standing(1).0.unwrap();
        assert_eq!((group.episodes, group.scored), (3, 2));
        assert_eq!((group.reward_mean, group.reward_std), (Some(0.5), Some(0.5_f64.sqrt())));
        assert_eq!((group.reward_min, group.reward_max), (Some(0.0), Some(1.0)));
        assert_eq!(standing(3).0.unwrap().reward_std, None);
        assert_eq!(standing(4), (None, None));
        assert_eq!(groups.summaries.len(), 3);
    }
}
