//! Checks that count: how many of some things are faulty, and whether that share is too large.

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, Tally, VerdictDraft, percent};

/// A check that counts.
#[derive(Clone, Copy)]
pub(crate) struct ShareRule {
    pub(crate) check: &'static str,
    /// Kind of the things that are counted, in the plural.
    pub(crate) units: &'static str,
    /// The fault, as a predicate of several things.
    pub(crate) fault: &'static str,
    /// The largest share that is fine, unless the thresholds name another.
    pub(crate) share_max: f64,
    /// The number of things without which a share says nothing.
    pub(crate) at_least: fn(&Thresholds) -> u64,
    /// Looks at an attempt.
    pub(crate) look: fn(&SeenAttempt<'_>, &Thresholds, &mut Tally),
    /// True where faults of all things tell of a recording of another kind, and of no fault.
    pub(crate) all_is_none: bool,
}

/// One thing is evidence.
pub(crate) fn one(_: &Thresholds) -> u64 {
    1
}

impl ShareRule {
    /// Returns the verdict on what was counted.
    pub(crate) fn verdict(&self, tally: Tally, thresholds: &Thresholds) -> CheckVerdict {
        let Self { check, units, fault, .. } = *self;
        let share_max = thresholds.share_max(check, self.share_max);
        let at_least = (self.at_least)(thresholds);
        let Tally { looked_at, faulty, .. } = tally;
        let mut draft = VerdictDraft::new(check, units, looked_at).with("share_max", share_max);
        if at_least > 1 {
            draft = draft.with("at_least", at_least as f64);
        }

        if looked_at == 0 {
            return draft.no_evidence(format!("no {units}"));
        }
        if self.all_is_none && faulty == looked_at {
            return draft.no_evidence(format!("all {looked_at} {units} {fault}"));
        }
        if looked_at < at_least {
            return draft.no_evidence(format!("only {looked_at} {units}, of {at_least} needed"));
        }
        let (share, most) = (percent(tally.share()), percent(share_max));
        let sentence = format!("{faulty} of {looked_at} {units} {fault}: {share}, at most {most}");
        draft.decided(tally.share() > share_max, sentence, tally.examples)
    }
}

/// A rule and what it has counted.
pub(crate) struct ShareCheck {
    rule: ShareRule,
    tally: Tally,
}

impl ShareCheck {
    pub(crate) fn new(rule: ShareRule) -> Self {
        Self { rule, tally: Tally::default() }
    }
}

impl HealthCheck for ShareCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, thresholds: &Thresholds) {
        (self.rule.look)(seen, thresholds, &mut self.tally);
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        vec![self.rule.verdict(std::mem::take(&mut self.tally), thresholds)]
    }
}
