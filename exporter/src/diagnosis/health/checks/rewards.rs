//! Rewards: missing ones, numbers that are none, and components that say nothing or everything.

use std::collections::BTreeMap;

use episode::{Reward, RewardScope};

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::checks::rules::{ShareRule, one};
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::sums::Moments;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{
    CheckVerdict, HealthExample, Tally, VerdictDraft, percent,
};
use crate::rewards::latest::REWARD;

/// Names of rewards that are kept apart; further ones are left out.
const NAMES_MAX: usize = 64;

/// The checks of single rewards.
pub(crate) const RULES: &[ShareRule] = &[
    ShareRule {
        check: "rewards_missing",
        units: "closed attempts",
        fault: "have no reward that is a number",
        share_max: 0.05,
        at_least: one,
        look: missing,
        all_is_none: true,
    },
    ShareRule {
        check: "rewards_not_finite",
        units: "rewards",
        fault: "are infinite or not a number",
        share_max: 0.0,
        at_least: one,
        look: not_finite,
        all_is_none: false,
    },
];

fn missing(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    // What the infrastructure failed is not to be scored.
    if seen.is_closed() && !seen.is_infrastructure_failed {
        let parts = seen
            .attempt
            .rewards
            .iter()
            .any(|reward| reward.name == REWARD && reward.value.is_some_and(f64::is_finite));
        let has_reward = seen.reward.is_some() || parts;
        tally.add(!has_reward, || HealthExample::of_record(seen.record(), ""));
    }
}

fn not_finite(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    for Reward { name, value, source, .. } in &seen.attempt.rewards {
        let Some(value) = value else { continue };
        tally.add(!value.is_finite(), || {
            HealthExample::of_record(seen.record(), format!("{name} of {source} is {value}"))
        });
    }
}

/// The checks of rewards by name: one that never changes, and one that outweighs the others.
#[derive(Debug, Default)]
pub(crate) struct ComponentCheck(BTreeMap<String, Moments>);

impl HealthCheck for ComponentCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, _: &Thresholds) {
        let of_episode = |reward: &&Reward| reward.scope == RewardScope::Episode;
        let latest: BTreeMap<&str, Option<f64>> = seen
            .attempt
            .rewards
            .iter()
            .filter(of_episode)
            .map(|reward| (reward.name.as_str(), reward.value))
            .collect();

        for (name, value) in latest {
            let Some(value) = value.filter(|value| value.is_finite()) else { continue };
            if self.0.len() < NAMES_MAX || self.0.contains_key(name) {
                self.0.entry(name.to_owned()).or_default().add(value);
            }
        }
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        self.0.retain(|_, moments| moments.count >= thresholds.rewards_min);
        vec![self.collapsed(thresholds), self.dominates(thresholds)]
    }
}

impl ComponentCheck {
    fn collapsed(&self, thresholds: &Thresholds) -> CheckVerdict {
        let least = thresholds.reward_std_min;
        let draft = VerdictDraft::new("reward_collapsed", "names of rewards", self.0.len() as u64)
            .with("reward_std_min", least)
            .with("rewards_min", thresholds.rewards_min as f64);
        if self.0.is_empty() {
            let needed = thresholds.rewards_min;
            return draft.no_evidence(format!("no name of a reward has {needed} values"));
        }

        let flat = self.0.iter().filter(|(_, moments)| moments.std() < least);
        let named: Vec<String> = flat
            .map(|(name, m)| format!("`{name}` is {} in all {} attempts", m.mean, m.count))
            .collect();
        let sentence = match named.is_empty() {
            true => format!("each of {} names of rewards varies", self.0.len()),
            false => named.join(", "),
        };
        draft.decided(!named.is_empty(), sentence, Vec::new())
    }

    fn dominates(&self, thresholds: &Thresholds) -> CheckVerdict {
        let components: Vec<_> = self.0.iter().filter(|(name, _)| *name != REWARD).collect();
        let most = thresholds.component_share_max;
        let count = components.len();
        let draft = VerdictDraft::new("component_dominates", "components", count as u64)
            .with("component_share_max", most)
            .with("rewards_min", thresholds.rewards_min as f64);
        if count < 2 {
            return draft.no_evidence(format!("{count} components beside `{REWARD}`, of 2 needed"));
        }

        let total: f64 = components.iter().map(|(_, moments)| moments.variance()).sum();
        let largest = components.iter().max_by(|a, b| a.1.variance().total_cmp(&b.1.variance()));
        let Some((name, moments)) = largest.filter(|_| total > 0.0) else {
            return draft.no_evidence("no component varies");
        };
        let share = moments.variance() / total;
        let sentence = format!(
            "`{name}` has {} of the variance of {count} components; at most {}",
            percent(share),
            percent(most)
        );
        draft.decided(share > most, sentence, Vec::new())
    }
}
