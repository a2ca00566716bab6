//! The health of a run: verdicts of thirty checks, from one pass over the attempts.
//!
//! Each attempt is read once and forgotten; the checks keep numbers, hashes and small sketches of
//! one group. So memory is bounded by the largest attempt, the largest group and the number of
//! tasks. A check that saw nothing, or too little, says so: it is not fine.
//!
//! [`seen`] reads an attempt for all checks, [`checks`] are they, [`verdict`] is what they say, and
//! [`thresholds`] is where they begin to speak.

mod checks;
mod grader_paths;
mod names;
mod seen;
mod shingles;
mod sums;
mod thresholds;
mod tool_results;
mod verdict;

use std::collections::HashMap;

use episode::Micros;
use serde::Serialize;
use store::{AttemptRecord, Selection, Snapshot, SnapshotError};

pub use self::thresholds::{Thresholds, ThresholdsError};
pub use self::verdict::{CheckVerdict, HealthExample, HealthWord};

use self::checks::rules::{ShareRule, one};
use self::checks::{HealthCheck, all};
use self::names::CHECKS;
use self::seen::SeenAttempt;
use self::verdict::Tally;
use crate::graph::derive::derive;
use crate::graph::scan::{RecordedAttempt, scan};
use crate::rewards::scored_attempt::{ScoredAttempt, with_places, with_rewards};

/// The attempts whose health is asked for, and the thresholds.
#[derive(Debug, Clone, Default)]
pub struct HealthOptions {
    /// The attempts.
    pub selection: Selection,
    /// Only attempts that began then or later.
    pub since: Option<Micros>,
    /// The thresholds of the checks.
    pub thresholds: Thresholds,
}

/// The verdicts on a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthReport {
    /// `finding` where any check has one; `fine` where none has and some had evidence.
    pub verdict: HealthWord,
    /// Number of attempts.
    pub attempts: u64,
    /// Number of selected attempts that were not read; 0 unless the reader has a bound.
    pub unread: u64,
    /// Number of calls that were read.
    pub calls: u64,
    /// Number of sampled tokens with an id.
    pub sampled_tokens: u64,
    /// One verdict a check: findings first, then those without evidence.
    pub checks: Vec<CheckVerdict>,
}

const UNREADABLE: ShareRule = ShareRule {
    check: "unreadable_attempts",
    units: "attempts",
    fault: "cannot be read back as they were recorded",
    share_max: 0.0,
    at_least: one,
    look: |_, _, _| {},
    all_is_none: false,
};

/// Reads the selected attempts once, and returns the verdicts of all checks. Tells `progress` how
/// many attempts are done, and of how many.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read. An attempt that does not decode is a finding.
pub async fn health(
    mut snapshot: Snapshot,
    options: &HealthOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<HealthReport, SnapshotError> {
    let mut records = snapshot.episodes(&options.selection).await?;
    records.retain(|record| options.since.is_none_or(|since| record.opened_at >= since));
    let are_all = options.selection == Selection::default() && options.since.is_none();
    let scored = with_rewards(&mut snapshot, records, None, are_all).await?;
    let attempts = with_places(&mut snapshot, scored, false, are_all).await?;

    let mut run = HealthRun::new(options.thresholds.clone());
    for (done, scored) in attempts.iter().enumerate() {
        progress(done, attempts.len());
        run.read(&mut snapshot, scored).await?;
    }
    progress(attempts.len(), attempts.len());
    Ok(run.finish())
}

/// Does the same beside a recorder, with its own thresholds: reads the attempts of these keys one
/// after the other while `goes_on` says so, and gives the memory of each back. Attempts that are
/// gone, that no time was left for, or that are larger than a reader's memory are `unread`.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read.
pub async fn health_of(
    snapshot: &mut Snapshot,
    keys: &[i64],
    mut goes_on: impl FnMut() -> bool,
) -> Result<HealthReport, SnapshotError> {
    let records = snapshot.attempts(keys).await?;
    let scored = with_rewards(snapshot, records, None, false).await?;
    let attempts = with_places(snapshot, scored, false, false).await?;

    let mut run = HealthRun::new(Thresholds::default());
    for scored in &attempts {
        if !goes_on() {
            break;
        }
        let read = run.read(snapshot, scored).await;
        snapshot.give_back();
        match read {
            Ok(()) | Err(SnapshotError::TooLarge { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let report = run.finish();
    let unread = keys.len() as u64 - report.attempts;
    Ok(HealthReport { unread, ..report })
}

/// A run whose attempts are being looked at.
struct HealthRun {
    thresholds: Thresholds,
    checks: Vec<Box<dyn HealthCheck>>,
    readable: Tally,
    calls: u64,
    sampled_tokens: u64,
}

impl HealthRun {
    fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, checks: all(), readable: Tally::default(), calls: 0, sampled_tokens: 0 }
    }

    /// Reads an attempt and looks at it. One that does not decode is a finding.
    async fn read(
        &mut self,
        snapshot: &mut Snapshot,
        scored: &ScoredAttempt,
    ) -> Result<(), SnapshotError> {
        match scan(snapshot, scored.record.clone(), None).await {
            Ok((attempt, _)) => self.see(&attempt, scored),
            Err(error @ (SnapshotError::Decode { .. } | SnapshotError::Word(..))) => {
                self.see_unreadable(&scored.record, &error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Looks at an attempt. Those of a group come one after the other.
    fn see(&mut self, attempt: &RecordedAttempt, scored: &ScoredAttempt) {
        let derived = derive(&attempt.calls);
        let mut seen = SeenAttempt::of(attempt, &derived, &self.thresholds);
        seen.reward = scored.reward;
        seen.set = scored.set();
        seen.is_infrastructure_failed = scored.is_infrastructure_failed;

        self.readable.add(false, || HealthExample::of_record(&attempt.record, ""));
        self.calls += attempt.calls.len() as u64;
        self.sampled_tokens += seen.sampled() as u64;
        for check in &mut self.checks {
            check.see(&seen, &self.thresholds);
        }
    }

    fn see_unreadable(&mut self, record: &AttemptRecord, error: &SnapshotError) {
        self.readable.add(true, || HealthExample::of_record(record, error.to_string()));
    }

    fn finish(mut self) -> HealthReport {
        let attempts = self.readable.looked_at;
        let mut verdicts = vec![UNREADABLE.verdict(self.readable, &self.thresholds)];
        for check in &mut self.checks {
            verdicts.extend(check.finish(&self.thresholds));
        }
        verdicts.retain(|verdict| !self.thresholds.off.contains(verdict.check));

        let places: HashMap<&str, usize> = CHECKS.iter().copied().zip(0..).collect();
        verdicts.sort_by_key(|verdict| (verdict.verdict, places.get(verdict.check).copied()));
        let has = |word| verdicts.iter().any(|verdict| verdict.verdict == word);
        let words = [HealthWord::Finding, HealthWord::Fine];
        let verdict = words.into_iter().find(|word| has(*word)).unwrap_or(HealthWord::NoEvidence);

        let (calls, sampled_tokens) = (self.calls, self.sampled_tokens);
        HealthReport { verdict, attempts, unread: 0, calls, sampled_tokens, checks: verdicts }
    }
}

#[cfg(test)]
mod tests;
