//! The report of an export, which its walk adds to.

use std::path::PathBuf;

use serde::Serialize;

use crate::forks::Fork;
use crate::graph::derive::Derived;
use crate::graph::scan::RecordedAttempt;
use crate::notes::{Notes, Omissions};
use crate::output::sink::ManifestNotes;
use crate::rewards::groups::GroupSummary;
use crate::rewards::latest::LatestRewards;
use crate::rows::row::Row;
use crate::rows::verdict::Verdicts;
use crate::scoring::join::ScoreCount;
use crate::weigh::TokenShares;

/// Counts of what an export wrote.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Number of rows of the files.
    pub rows: u64,
    /// Number of attempts at episodes with at least one trajectory.
    pub episodes: u64,
    /// Number of tokens over all trajectories, prompts included.
    pub tokens: u64,
    /// Number of tokens that the files train.
    pub trained_tokens: u64,
    /// Groups of which attempts were read, in the order of the rows; episodes without one are last.
    pub groups: Vec<GroupSummary>,
    /// Files, the manifest last.
    pub files: Vec<PathBuf>,
    /// Numbers of the shards beside this one that were cut from another list of groups: together
    /// they lack groups, or have some twice.
    pub shards_of_other_lists: Vec<u32>,
    /// Counts of what was kept and what was not, with the reasons.
    pub notes: Notes,
    /// Counts of what rows got of each set of scores.
    pub scores: Vec<ScoreCount>,
    /// Attempts, rows and turns that the options or the format leave out.
    pub left_out: Omissions,
}

/// Notes of an export in its manifest.
#[derive(Serialize)]
struct ManifestReport<'a> {
    #[serde(flatten)]
    notes: &'a Notes,
    groups: &'a [GroupSummary],
}

impl Report {
    pub(super) fn add_notes(&mut self, of_steps: [&Notes; 4]) {
        for notes in of_steps {
            self.notes.add(notes);
        }
    }

    pub(super) fn add_attempt(
        &mut self,
        attempt: &RecordedAttempt,
        derived: &Derived<'_>,
        shares: &TokenShares<'_>,
    ) {
        let rewards = LatestRewards::new(&attempt.rewards);
        self.notes.rewards_unplaced += rewards.unplaced(&derived.forest);
        self.episodes += u64::from(!shares.paths.is_empty());
    }

    pub(super) fn add_verdict(&mut self, verdicts: &Verdicts<'_>, forks: &[Fork]) {
        *self.notes.verdicts.entry(verdicts.of_episode().0).or_default() += 1;
        for fork in forks {
            *self.notes.forks.entry(fork.cause).or_default() += 1;
        }
    }

    pub(super) fn add_row(&mut self, row: &Row) {
        self.tokens += row.tokens.input_ids.len() as u64;
        self.trained_tokens += row.tokens.trained() as u64;
        self.notes.token_data_unread += row.token_data.unread;
        for reason in &row.reasons {
            *self.notes.reasons.entry(*reason).or_default() += 1;
        }
    }

    /// Returns the parts of the manifest that come from the report.
    pub(super) fn in_manifest(&self) -> ManifestNotes {
        let report = ManifestReport { notes: &self.notes, groups: &self.groups };
        let notes = serde_json::to_value(report).unwrap_or_default();
        ManifestNotes { notes, omissions: self.left_out.clone() }
    }
}
