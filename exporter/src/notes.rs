//! Counts of what an export kept and left out, and the reasons.

pub(crate) mod cause;
pub(crate) mod models;
pub(crate) mod reason;

use std::collections::BTreeMap;

use episode::TrajectoryKind;
use serde::Serialize;

use crate::notes::cause::Cause;
use crate::notes::models::count_model;
pub use crate::notes::reason::Reason;

/// Evidence that chose the parent of a call among equal candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParentEvidence {
    /// The agent's own names for itself and for the agent that started it.
    Agent,
    /// The messages that the call quotes, with the ids of tool calls.
    Messages,
    /// The model that answered.
    Model,
    /// The numbers of the choices, which are alike in all else. The lowest is taken.
    Choice,
    /// The time: one candidate ended last before the call began.
    Time,
}

/// Reason why the policy versions of a row do not pass the [`VersionFilter`](crate::VersionFilter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionMismatch {
    /// A version is below the minimum.
    BelowMinVersion,
    /// A version is above the maximum.
    AboveMaxVersion,
    /// The versions are too far apart.
    VersionSpan,
    /// The smallest version is too old.
    Stale,
    /// A version has no number from 0 to 2^31 - 1.
    VersionNotANumber,
    /// The server did not say which version sampled a token.
    VersionUnknown,
    /// The row trains no token.
    NothingTrained,
}

impl VersionMismatch {
    /// Returns the word in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BelowMinVersion => "below_min_version",
            Self::AboveMaxVersion => "above_max_version",
            Self::VersionSpan => "version_span",
            Self::Stale => "stale",
            Self::VersionNotANumber => "version_not_a_number",
            Self::VersionUnknown => "version_unknown",
            Self::NothingTrained => "nothing_trained",
        }
    }
}

/// Reason why a call is in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// It was sent to a route that does not sample.
    OtherRoute,
    /// It began and its end was never recorded, or it still runs.
    Lost,
    /// It ended without any choice to read.
    NoReply,
}

/// Reason why a trajectory makes no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowExclusion {
    /// Its kind was not asked for.
    Kind(TrajectoryKind),
    /// Its model was not asked for.
    Model,
    /// Its policy versions were not asked for.
    Version(VersionMismatch),
}

impl RowExclusion {
    /// Returns the word in reports.
    fn as_str(self) -> &'static str {
        match self {
            Self::Kind(TrajectoryKind::Main) => "rows_of_kind_main",
            Self::Kind(TrajectoryKind::Subagent) => "rows_of_kind_subagent",
            Self::Kind(TrajectoryKind::Compaction) => "rows_of_kind_compaction",
            Self::Kind(TrajectoryKind::Retry) => "rows_of_kind_retry",
            Self::Kind(TrajectoryKind::Sibling) => "rows_of_kind_sibling",
            Self::Kind(TrajectoryKind::Auxiliary) => "rows_of_kind_auxiliary",
            Self::Kind(TrajectoryKind::Fork) => "rows_of_kind_fork",

            Self::Model => "rows_of_other_models",

            Self::Version(VersionMismatch::BelowMinVersion) => "rows_below_min_version",
            Self::Version(VersionMismatch::AboveMaxVersion) => "rows_above_max_version",
            Self::Version(VersionMismatch::VersionSpan) => "rows_of_versions_too_far_apart",
            Self::Version(VersionMismatch::Stale) => "rows_too_stale",
            Self::Version(VersionMismatch::VersionNotANumber) => "rows_whose_version_is_no_number",
            Self::Version(VersionMismatch::VersionUnknown) => "rows_of_unknown_version",
            Self::Version(VersionMismatch::NothingTrained) => "rows_without_trained_tokens",
        }
    }
}

/// Count of what was left out for one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Omission {
    /// Number of rows, attempts, turns or pairs, as the reason says.
    pub count: u64,
    /// Number of tokens that `trajectories` trains and these files do not.
    pub trained_tokens: u64,
}

/// Counts of what was left out, by the word of the reason.
pub type Omissions = BTreeMap<&'static str, Omission>;

impl Omission {
    /// Adds the counts of `other`.
    pub(crate) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.trained_tokens += other.trained_tokens;
    }
}

/// Adds the counts of `more` to `omissions`.
pub(crate) fn add_omissions(omissions: &mut Omissions, more: &Omissions) {
    for (reason, omission) in more {
        omissions.entry(reason).or_default().add(*omission);
    }
}

/// Counts over an export. [`Notes::add`] sums those of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Notes {
    /// Calls read.
    pub calls: u64,
    /// Calls of which a choice is in a trajectory.
    pub kept: u64,
    /// Calls in no row, by reason.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Calls with several equal parents that nothing tells apart. They stand alone.
    pub ambiguous: u64,
    /// Calls with several equal parents, by the evidence that chose one.
    pub told: BTreeMap<ParentEvidence, u64>,
    /// Conversations: paths that continue no other.
    pub roots: u64,
    /// Paths that left another one.
    pub branches: u64,
    /// Rows by the word of their kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Rows by the name of their model.
    pub models: BTreeMap<String, u64>,
    /// Trajectories of models that were not asked for, by the name of the model.
    pub other_models: BTreeMap<String, u64>,
    /// Trajectories whose kind was not asked for.
    pub not_asked_for: u64,
    /// Trajectories that make no rows, with the tokens that they would have trained.
    #[serde(skip)]
    pub left_out: Omissions,
    /// Rows by the reasons they carry.
    pub reasons: BTreeMap<Reason, u64>,
    /// Trajectories whose policy versions were not asked for, by reason.
    pub not_of_versions: BTreeMap<VersionMismatch, u64>,
    /// Attempts at episodes by the verdict on all that is recorded of them.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Forks of the episodes that have rows, by their likely cause.
    pub forks: BTreeMap<Cause, u64>,
    /// Rewards that are not a finite number, read as null.
    pub rewards_not_finite: u64,
    /// Rewards that were given later than asked for.
    pub rewards_later: u64,
    /// Rewards of calls or tokens that no trajectory of their episode holds.
    pub rewards_unplaced: u64,
    /// Arrays beside the tokens that could not be read, over all rows.
    #[serde(rename = "sides_unread")]
    pub token_data_unread: u64,
    /// Conversations without ids that the model's template refused.
    pub not_rendered: u64,
}

impl Notes {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.kept += other.kept;
        self.ambiguous += other.ambiguous;
        self.roots += other.roots;
        self.branches += other.branches;
        self.not_asked_for += other.not_asked_for;
        self.rewards_not_finite += other.rewards_not_finite;
        self.rewards_later += other.rewards_later;
        self.rewards_unplaced += other.rewards_unplaced;
        self.token_data_unread += other.token_data_unread;
        self.not_rendered += other.not_rendered;

        // Counts by a key.
        add_counts(&mut self.dropped, &other.dropped);
        add_counts(&mut self.told, &other.told);
        add_counts(&mut self.kinds, &other.kinds);
        other.models.iter().for_each(|(name, count)| count_model(&mut self.models, name, *count));
        for (name, count) in &other.other_models {
            count_model(&mut self.other_models, name, *count);
        }
        add_counts(&mut self.reasons, &other.reasons);
        add_counts(&mut self.not_of_versions, &other.not_of_versions);
        add_counts(&mut self.verdicts, &other.verdicts);
        add_counts(&mut self.forks, &other.forks);
        // These also count tokens.
        add_omissions(&mut self.left_out, &other.left_out);
    }

    /// Counts a trajectory of `model` that makes no row and would have trained `trained_tokens`
    /// more.
    pub(crate) fn exclude(&mut self, reason: RowExclusion, model: &str, trained_tokens: u64) {
        match reason {
            RowExclusion::Kind(_) => self.not_asked_for += 1,
            RowExclusion::Model => count_model(&mut self.other_models, model, 1),
            RowExclusion::Version(mismatch) => {
                *self.not_of_versions.entry(mismatch).or_default() += 1;
            }
        }
        let omission = Omission { count: 1, trained_tokens };
        self.left_out.entry(reason.as_str()).or_default().add(omission);
    }

    /// Counts a call whose parent had equals, by the evidence that chose it.
    pub(crate) fn count_evidence(&mut self, evidence: Option<ParentEvidence>) {
        if let Some(evidence) = evidence {
            *self.told.entry(evidence).or_default() += 1;
        }
    }

    pub(crate) fn drop_call(&mut self, reason: DropReason) {
        *self.dropped.entry(reason).or_default() += 1;
    }
}

fn add_counts<K: Ord + Clone>(counts: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
    for (key, count) in more {
        *counts.entry(key.clone()).or_default() += count;
    }
}
