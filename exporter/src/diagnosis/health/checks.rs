//! The checks. Each sees every attempt once, keeps numbers only, and ends with a verdict.

mod drift;
mod engines;
mod groups;
mod lengths;
mod recorded;
mod replies;
mod rewards;
mod rollouts;
pub(crate) mod rules;
mod tasks;
mod tools;

use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::CheckVerdict;

/// A check, or some that need the same numbers. Attempts come in the order of their groups.
pub(crate) trait HealthCheck: Send {
    /// Looks at an attempt.
    fn see(&mut self, seen: &SeenAttempt<'_>, thresholds: &Thresholds);

    /// Ends with one verdict a check.
    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict>;
}

/// Returns all checks, which have seen nothing.
pub(crate) fn all() -> Vec<Box<dyn HealthCheck>> {
    let rules = [recorded::RULES, replies::RULES, rewards::RULES, tools::RULES].concat();
    let mut checks: Vec<Box<dyn HealthCheck>> = Vec::new();
    for rule in rules {
        checks.push(Box::new(rules::ShareCheck::new(rule)));
    }

    checks.push(Box::<rollouts::RolloutCheck>::default());
    checks.push(Box::<tasks::TaskCheck>::default());
    checks.push(Box::<groups::SignalCheck>::default());
    checks.push(Box::<rewards::ComponentCheck>::default());
    checks.push(Box::<lengths::LengthCheck>::default());
    checks.push(Box::<drift::DriftCheck>::default());
    checks.push(Box::<engines::EngineCheck>::default());
    checks
}
