//! Rewards that follow the length of what was sampled.

use episode::GroupId;

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::sums::PairSums;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, VerdictDraft};

const CHECK: &str = "reward_follows_length";
const UNITS: &str = "scored attempts with token ids";

/// The check. Groups are compared within themselves: long tasks may be hard ones.
#[derive(Debug, Default)]
pub(crate) struct LengthCheck {
    group: Option<(GroupId, i64)>,
    of_group: PairSums,
    all: PairSums,
}

impl LengthCheck {
    fn end_group(&mut self) {
        // An attempt alone differs from nothing.
        if self.of_group.count > 1 {
            self.all.join_centered(&self.of_group);
        }
        self.of_group = PairSums::default();
    }
}

impl HealthCheck for LengthCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, _: &Thresholds) {
        let group = seen.record().group.clone().map(|group| (group, seen.set));
        if self.group != group {
            self.end_group();
            self.group = group;
        }
        let sampled = seen.sampled();
        if let Some(reward) = seen.reward.filter(|_| sampled > 0 && !seen.is_infrastructure_failed)
        {
            self.of_group.add(sampled as f64, reward);
        }
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        self.end_group();
        let count = self.all.count;
        let most = thresholds.length_correlation_max;
        let draft = VerdictDraft::new(CHECK, UNITS, count)
            .with("length_correlation_max", most)
            .with("rewards_min", thresholds.rewards_min as f64)
            .with("sigmas", thresholds.sigmas);
        if count < thresholds.rewards_min {
            let needed = thresholds.rewards_min;
            return vec![draft.no_evidence(format!("{count} {UNITS}, of {needed} needed"))];
        }
        let Some(correlation) = self.all.correlation() else {
            return vec![draft.no_evidence("rewards or lengths do not differ within groups")];
        };

        let beyond_chance = correlation.abs() * (count as f64).sqrt() >= thresholds.sigmas;
        let sentence = format!(
            "reward and sampled tokens have a correlation of {correlation:.2} within groups, over \
             {count} attempts; at most {most}"
        );
        vec![draft.decided(correlation.abs() > most && beyond_chance, sentence, Vec::new())]
    }
}
