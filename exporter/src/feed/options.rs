//! Options of a feed: which rows it gives, and in which encoding.

use std::collections::BTreeSet;

use episode::TrajectoryKind;

use crate::options::RewardOptions;
use crate::options::encoding::Encoding;
use crate::weigh::model_filter::ModelFilter;
use crate::weigh::versions::VersionFilter;

/// Verdicts, the best first.
pub(crate) const VERDICTS: [&str; 3] = ["exact", "usable", "unusable"];

/// Options of a feed.
#[derive(Debug, Clone)]
pub struct FeedOptions {
    /// [`Encoding::Jsonl`] or [`Encoding::Arrow`].
    pub encoding: Encoding,
    /// Kinds of trajectories; empty takes all.
    pub kinds: BTreeSet<TrajectoryKind>,
    /// Models whose tokens make rows.
    pub models: ModelFilter,
    /// Options of rewards.
    pub rewards: RewardOptions,
    /// Policy versions. Where staleness is bounded and `at` is none, it is counted from the newest
    /// version that is known when rows are made.
    pub versions: VersionFilter,
    /// The worst verdict on an episode that is taken; none takes any.
    pub verdict: Option<&'static str>,
    /// Takes only episodes with at least this reward.
    pub min_reward: Option<f64>,
    /// Leaves out the rows of attempts that the infrastructure failed.
    pub no_infrastructure_failed: bool,
    /// Drops groups whose rewards are all equal.
    pub no_signal: bool,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            encoding: Encoding::Jsonl,
            kinds: BTreeSet::new(),
            models: ModelFilter::All,
            rewards: RewardOptions::default(),
            versions: VersionFilter::default(),
            verdict: None,
            min_reward: None,
            no_infrastructure_failed: false,
            no_signal: false,
        }
    }
}
