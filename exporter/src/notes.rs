//! What an export kept, what it left out, and why.

pub(crate) mod reason;

use std::collections::BTreeMap;

use episode::Kind;
use serde::Serialize;

use crate::forks::cause::Cause;
pub use crate::notes::reason::Reason;

/// What told equal candidates apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The agent's own names for itself and for the agent that started it.
    Agent,
    /// The messages that the call quotes, ids of tool calls included.
    Messages,
    /// The model that answered.
    Model,
    /// Nothing but their numbers: choices of one call that are alike. The lowest is taken.
    Choice,
    /// One of them ended last before the call began.
    Time,
}

/// Why the versions of a row are not those that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
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

impl LeftOut {
    /// The word in manifests.
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

/// Why a call is in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// It was sent to a route that does not sample.
    OtherRoute,
    /// It began and its end was never recorded, or it still runs.
    Lost,
    /// It ended without any choice to read.
    NoReply,
}

/// Why a trajectory is no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its kind was not asked for.
    Kind(Kind),
    /// Its model was not asked for.
    Model,
    /// Its policy versions were not asked for.
    Version(LeftOut),
}

impl Why {
    /// The word in reports.
    fn as_str(self) -> &'static str {
        match self {
            Self::Kind(Kind::Main) => "rows_of_kind_main",
            Self::Kind(Kind::Subagent) => "rows_of_kind_subagent",
            Self::Kind(Kind::Compaction) => "rows_of_kind_compaction",
            Self::Kind(Kind::Retry) => "rows_of_kind_retry",
            Self::Kind(Kind::Sibling) => "rows_of_kind_sibling",
            Self::Kind(Kind::Auxiliary) => "rows_of_kind_auxiliary",
            Self::Kind(Kind::Fork) => "rows_of_kind_fork",
            Self::Model => "rows_of_other_models",
            Self::Version(LeftOut::BelowMinVersion) => "rows_below_min_version",
            Self::Version(LeftOut::AboveMaxVersion) => "rows_above_max_version",
            Self::Version(LeftOut::VersionSpan) => "rows_of_versions_too_far_apart",
            Self::Version(LeftOut::Stale) => "rows_too_stale",
            Self::Version(LeftOut::VersionNotANumber) => "rows_whose_version_is_no_number",
            Self::Version(LeftOut::VersionUnknown) => "rows_of_unknown_version",
            Self::Version(LeftOut::NothingTrained) => "rows_without_trained_tokens",
        }
    }
}

/// What was left out for one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// How often: rows, attempts, turns or pairs, as the reason says.
    pub count: u64,
    /// Tokens that `trajectories` trains and these files do not.
    pub trained_tokens: u64,
}

/// What was left out, by the reason.
pub type Lefts = BTreeMap<&'static str, Left>;

impl Left {
    /// Adds what `other` counts.
    pub(crate) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.trained_tokens += other.trained_tokens;
    }
}

/// Adds what was left out elsewhere.
pub(crate) fn add_left(left: &mut Lefts, more: &Lefts) {
    more.iter().for_each(|(why, more)| left.entry(why).or_default().add(*more));
}

/// Counts over an export; [`Notes::add`] sums those of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Notes {
    /// Calls read.
    pub calls: u64,
    /// Calls of which a choice is in a trajectory.
    pub kept: u64,
    /// Calls in no row, by reason.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Calls whose parent could not be told from its equals; they stand alone.
    pub ambiguous: u64,
    /// Calls whose parent had equals, by what told it from them.
    pub told: BTreeMap<Told, u64>,
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
    /// Trajectories that are no rows, by the reason, with what they would have trained.
    #[serde(skip)]
    pub left_out: Lefts,
    /// Rows by the reasons they carry.
    pub reasons: BTreeMap<Reason, u64>,
    /// Trajectories whose policy versions are not those asked for, by why.
    pub not_of_versions: BTreeMap<LeftOut, u64>,
    /// Attempts at episodes by the verdict on all that is recorded of them.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Forks of the episodes that have rows, by their likely cause.
    pub forks: BTreeMap<Cause, u64>,
    /// Rewards that are not a number, read as null.
    pub rewards_not_finite: u64,
    /// Rewards that were given later than asked for.
    pub rewards_later: u64,
    /// Rewards of calls or tokens that no trajectory of their episode holds.
    pub rewards_unplaced: u64,
    /// Arrays beside tokens that could not be read, over all rows.
    pub sides_unread: u64,
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
        self.rewards_not_finite += other.rewards_not_finite;
        self.rewards_later += other.rewards_later;
        self.rewards_unplaced += other.rewards_unplaced;
        self.sides_unread += other.sides_unread;
        self.not_rendered += other.not_rendered;
        other
            .not_of_versions
            .iter()
            .for_each(|(w, n)| *self.not_of_versions.entry(*w).or_default() += n);
        other.dropped.iter().for_each(|(why, n)| *self.dropped.entry(*why).or_default() += n);
        self.not_asked_for += other.not_asked_for;
        add_left(&mut self.left_out, &other.left_out);
        add_names(&mut self.models, &other.models);
        add_names(&mut self.other_models, &other.other_models);
        other.told.iter().for_each(|(by, n)| *self.told.entry(*by).or_default() += n);
        other.kinds.iter().for_each(|(kind, n)| *self.kinds.entry(*kind).or_default() += n);
        other.verdicts.iter().for_each(|(word, n)| *self.verdicts.entry(word).or_default() += n);
        other.forks.iter().for_each(|(cause, n)| *self.forks.entry(*cause).or_default() += n);
        other.reasons.iter().for_each(|(why, n)| *self.reasons.entry(*why).or_default() += n);
    }

    /// Counts a trajectory of `model` that is no row and would have trained `trained_tokens` more.
    pub(crate) fn refuse(&mut self, why: Why, model: &str, trained_tokens: u64) {
        match why {
            Why::Kind(_) => self.not_asked_for += 1,
            Why::Model => *self.other_models.entry(model.to_owned()).or_default() += 1,
            Why::Version(why) => *self.not_of_versions.entry(why).or_default() += 1,
        }
        let left = Left { count: 1, trained_tokens };
        self.left_out.entry(why.as_str()).or_default().add(left);
    }

    pub(crate) fn tell(&mut self, by: Option<Told>) {
        by.into_iter().for_each(|by| *self.told.entry(by).or_default() += 1);
    }

    pub(crate) fn drop_call(&mut self, why: Dropped) {
        *self.dropped.entry(why).or_default() += 1;
    }
}

fn add_names(counts: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    more.iter().for_each(|(name, n)| *counts.entry(name.clone()).or_default() += n);
}
