//! Rollouts of a group that are the same, or nearly.

use std::hash::{DefaultHasher, Hash, Hasher};

use episode::GroupId;

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::checks::rules::{ShareRule, one};
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::shingles::Sketch;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, HealthExample, Tally, percent};

/// Attempts of a group that later ones are compared with.
const COMPARED_MAX: usize = 256;

const DUPLICATES: ShareRule = ShareRule {
    check: "duplicate_rollouts",
    units: "attempts of `tokens_min` tokens behind another of their group",
    fault: "sampled the same ids as one before",
    share_max: 0.05,
    at_least: one,
    look: |_, _, _| {},
    all_is_none: false,
};

const NEAR_DUPLICATES: ShareRule = ShareRule {
    check: "near_duplicates",
    fault: "have most runs of ids in common with one before",
    share_max: 0.1,
    ..DUPLICATES
};

/// The check of both. It keeps the sketches of one group.
#[derive(Debug, Default)]
pub(crate) struct RolloutCheck {
    group: Option<(GroupId, i64)>,
    before: Vec<SeenRollout>,
    same: Tally,
    similar: Tally,
}

#[derive(Debug)]
struct SeenRollout {
    name: String,
    hash: u64,
    sketch: Sketch,
}

impl SeenRollout {
    /// Sketches what an attempt sampled; none where it is too short to be compared.
    fn of(seen: &SeenAttempt<'_>, tokens_min: usize) -> Option<Self> {
        let lists = || seen.main_replies().map(|reply| reply.node.sampled);
        if lists().map(<[u32]>::len).sum::<usize>() < tokens_min {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        lists().for_each(|ids| ids.hash(&mut hasher));
        let record = seen.record();
        let name = format!("{}/{}", record.id, record.attempt);
        Some(Self { name, hash: hasher.finish(), sketch: Sketch::of(lists()) })
    }
}

impl HealthCheck for RolloutCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, thresholds: &Thresholds) {
        let Some(group) = seen.record().group.clone() else { return };
        let group = Some((group, seen.set));
        if self.group != group {
            self.group = group;
            self.before.clear();
        }
        let Some(rollout) = SeenRollout::of(seen, thresholds.tokens_min) else { return };

        if !self.before.is_empty() {
            let same = self.before.iter().find(|before| before.hash == rollout.hash);
            let overlaps = self.before.iter().map(|b| (b, b.sketch.overlap(&rollout.sketch)));
            let nearest = overlaps.max_by(|a, b| a.1.total_cmp(&b.1));
            let near = nearest.filter(|near| same.is_none() && near.1 >= thresholds.overlap);

            self.same.add(same.is_some(), || {
                let note = same.map(|same| format!("as {}", same.name));
                HealthExample::of_record(seen.record(), note.unwrap_or_default())
            });
            self.similar.add(near.is_some(), || {
                let note = near.map(|(near, share)| format!("{} as {}", percent(share), near.name));
                HealthExample::of_record(seen.record(), note.unwrap_or_default())
            });
        }
        if self.before.len() < COMPARED_MAX {
            self.before.push(rollout);
        }
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        vec![
            DUPLICATES.verdict(std::mem::take(&mut self.same), thresholds),
            NEAR_DUPLICATES.verdict(std::mem::take(&mut self.similar), thresholds),
        ]
    }
}
