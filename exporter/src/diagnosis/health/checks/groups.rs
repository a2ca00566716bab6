//! Groups whose rewards are all equal: every advantage is zero.

use episode::GroupId;

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::checks::rules::ShareRule;
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, HealthExample, Tally};

const SIGNAL: ShareRule = ShareRule {
    check: "groups_without_signal",
    units: "groups with two scored attempts",
    fault: "have equal rewards, so that every advantage is zero",
    share_max: 0.5,
    at_least: |thresholds| thresholds.tasks_min,
    look: |_, _, _| {},
    all_is_none: false,
};

/// The check. It keeps the numbers of one group.
#[derive(Debug, Default)]
pub(crate) struct SignalCheck {
    group: Option<(GroupId, i64)>,
    rewards: Option<GroupRewards>,
    tally: Tally,
}

#[derive(Debug)]
struct GroupRewards {
    scored: u64,
    lowest: f64,
    highest: f64,
    first: HealthExample,
}

impl SignalCheck {
    fn end_group(&mut self) {
        let Some(rewards) = self.rewards.take().filter(|rewards| rewards.scored > 1) else {
            return;
        };
        self.tally.add(rewards.lowest == rewards.highest, || {
            let note =
                format!("{}: {} times {}", rewards.first.note, rewards.scored, rewards.lowest);
            HealthExample { note, ..rewards.first.clone() }
        });
    }
}

impl HealthCheck for SignalCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, _: &Thresholds) {
        let record = seen.record();
        let group = record.group.clone().map(|group| (group, seen.set));
        if self.group != group {
            self.end_group();
            self.group = group;
        }
        let (Some((name, _)), Some(reward)) = (&self.group, seen.reward) else { return };
        if seen.is_infrastructure_failed {
            return;
        }

        let rewards = self.rewards.get_or_insert_with(|| GroupRewards {
            scored: 0,
            lowest: reward,
            highest: reward,
            first: HealthExample::of_record(record, format!("group {name}")),
        });
        rewards.scored += 1;
        rewards.lowest = rewards.lowest.min(reward);
        rewards.highest = rewards.highest.max(reward);
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        self.end_group();
        vec![SIGNAL.verdict(std::mem::take(&mut self.tally), thresholds)]
    }
}
