//! Options of an export, and their form in a manifest.
//!
//! [`format`](mod@format) and [`encoding`] say what is written, [`destination`] says where, and
//! [`file_mode`] who may read it.

pub(crate) mod destination;
pub(crate) mod encoding;
pub(crate) mod file_mode;
pub(crate) mod format;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use episode::{Micros, TrajectoryKind};
use serde::Serialize;
use serde_json::{Value, json};
use store::{AttemptRecord, Scope, Selection};

use crate::input::exported::ExportedBefore;
use crate::input::plan::{Partition, SelectionRules, Shard, ShardRule};
use crate::options::destination::Destination;
use crate::options::encoding::Encoding;
use crate::options::file_mode::FileMode;
use crate::options::format::Format;
use crate::rewards::advantage::{Advantage, EPSILON, STD_DDOF};
use crate::rewards::groups::{GroupStanding, RewardGroups};
use crate::rows::builder::RowExtras;
use crate::rows::retokenize::Retokenizer;
use crate::weigh::model_filter::ModelFilter;
use crate::weigh::versions::VersionFilter;
use crate::weigh::{PathFilter, SharedTokens};

/// Time after the close of an attempt in which a call of it may still end, in microseconds. Clients
/// wait this long for a reply unless they are configured otherwise.
///
/// An attempt is exported only once, so one with a call under way waits for the call's end. A call
/// whose recorder crashed never ends, and delays its attempt no longer than this.
pub const SETTLE_US: Micros = 600_000_000;

/// Options of an export.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A file, a folder for `FORMAT.ENCODING`, a stream, or an object store.
    pub out: Destination,
    /// Format of the records.
    pub format: Format,
    /// Encoding of the records; none takes that of the file's name or the format.
    pub encoding: Option<Encoding>,
    /// Episodes that are exported.
    pub selection: Selection,
    /// Kinds of trajectories that are exported; empty takes those that the format is for.
    pub kinds: BTreeSet<TrajectoryKind>,
    /// Models that are exported; none takes those that the format is for.
    pub models: Option<ModelFilter>,
    /// Rule for sampled tokens that stand in several rows.
    pub shared: SharedTokens,
    /// Options of rewards.
    pub rewards: RewardOptions,
    /// Policy versions that are exported.
    pub versions: VersionFilter,
    /// Makes ids for conversations of which no server reported any.
    pub retokenizer: Option<Arc<Retokenizer>>,
    /// Folders of scores that rows get.
    pub scores: Vec<PathBuf>,
    /// Takes only episodes with at least this reward.
    pub min_reward: Option<f64>,
    /// Leaves out attempts that the infrastructure failed.
    pub no_infrastructure_failed: bool,
    /// Rewards above this one are good, where a format labels rows as good or bad.
    pub label_above: f64,
    /// Property that sorts rows into folders.
    pub partition: Option<Partition>,
    /// Part of the selection that this process exports.
    pub shard: Option<Shard>,
    /// True where the store holds only what this shard exports, as one of segments does.
    pub is_shard_already: bool,
    /// Takes only attempts that ended, or, while they are open, began at this time or later.
    pub since: Option<Micros>,
    /// Takes only attempts that were finished up to this position of the store. What they are does
    /// not change when more is recorded.
    pub until: Option<i64>,
    /// Adds the closed attempts that the export there does not hold yet.
    pub new: bool,
    /// The time, which decides what is settled where only new attempts are asked for: see
    /// [`SETTLE_US`].
    pub now: Micros,
    /// Replaces files that no export wrote. An export is always replaced by the next.
    pub overwrite: bool,
    /// Mode of the files.
    pub file_mode: FileMode,
}

/// Options of rewards.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RewardOptions {
    /// Leaves out rewards that were given later.
    pub as_of: Option<Micros>,
    /// Rule of advantages.
    pub advantage: Advantage,
    /// Shows the rewards of its group in every row.
    pub group_stats: bool,
    /// Factor by which a reward counts one turn earlier, 0 to 1. Returns are made where it is
    /// given.
    pub gamma: Option<f64>,
}

/// The options in a manifest. They describe what the files hold, so the place of the files is not
/// among them.
#[derive(Serialize)]
struct ManifestOptions<'a> {
    episode: Option<String>,
    group: Option<String>,
    task: Option<String>,
    kinds: Vec<&'static str>,
    shared: &'static str,
    rewards: ManifestRewardOptions,
    versions: VersionFilter,
    encoding: &'static str,
    /// Fingerprint of the tokenizer that made ids.
    tokenizer: Option<&'a str>,
    group_stats: bool,
}

/// Attempts that are compared.
const POPULATION: &str =
    "selected attempts of the group that have a reward, without infrastructure_failed ones";

/// The options of rewards in a manifest, with the constants of the formulas.
#[derive(Serialize)]
struct ManifestRewardOptions {
    as_of: Option<Micros>,
    gamma: Option<f64>,
    advantage: &'static str,
    /// Attempts that are compared in an advantage and counted in a group.
    population: &'static str,
    std_ddof: u32,
    epsilon: f64,
}

impl<'a> ManifestOptions<'a> {
    fn new(options: &'a Options, encoding: Encoding) -> Self {
        let Selection { episode, group, task } = &options.selection;
        let RewardOptions { as_of, advantage, group_stats, gamma } = options.rewards;
        Self {
            episode: episode.as_ref().map(ToString::to_string),
            group: group.as_ref().map(ToString::to_string),
            task: task.as_ref().map(ToString::to_string),
            kinds: options.kinds().iter().map(|kind| kind.as_str()).collect(),
            shared: options.shared.as_str(),

            rewards: ManifestRewardOptions {
                as_of,
                gamma,
                advantage: advantage.as_str(),
                population: POPULATION,
                std_ddof: STD_DDOF,
                epsilon: EPSILON,
            },
            // Stands beside `rewards` since manifests of the first version.
            group_stats,

            versions: options.versions,
            encoding: encoding.as_str(),
            tokenizer: options.retokenizer.as_ref().map(|by| by.fingerprint()),
        }
    }
}

impl Options {
    /// Returns the attempts that may be exported.
    pub(crate) fn scope(&self) -> Scope {
        Scope { selection: self.selection.clone(), until: self.until }
    }

    /// Returns the rules of the selection. `before` is what the export holds already, where only
    /// new attempts are asked for.
    pub(crate) fn rules(&self, before: Option<ExportedBefore>) -> SelectionRules {
        let Self { partition, shard, since, min_reward, no_infrastructure_failed, .. } = *self;
        let by_hash = self.new && !self.is_shard_already;
        SelectionRules {
            partition,
            shard,
            shard_rule: if by_hash { ShardRule::Hash } else { ShardRule::Selected },
            since,
            min_reward,
            no_infrastructure_failed,
            not_in: before,
            ..SelectionRules::default()
        }
    }

    /// Returns the shard, where its part is by weight.
    pub(crate) fn weighed_shard(&self) -> Option<Shard> {
        self.shard.filter(|_| !self.new && !self.is_shard_already)
    }

    /// Returns the kinds asked for, else those that the format is for.
    pub(crate) fn kinds(&self) -> BTreeSet<TrajectoryKind> {
        if self.kinds.is_empty() {
            return self.format.kinds().iter().copied().collect();
        }
        self.kinds.clone()
    }

    /// Returns the models asked for, else those that the format is for.
    pub(crate) fn models(&self) -> &ModelFilter {
        self.models.as_ref().unwrap_or(self.format.models())
    }

    /// Returns the options as a manifest shows them, with the names of scores. Options that only
    /// decide which episodes this run takes are not among them.
    pub(crate) fn in_manifest(&self, encoding: Encoding, scores: &[String]) -> Value {
        let mut options = json!(ManifestOptions::new(self, encoding));
        if let Some(least) = self.min_reward {
            options["min_reward"] = json!(least);
        }
        if !scores.is_empty() {
            options["scores"] = json!(scores);
        }
        if self.no_infrastructure_failed {
            options["no_infrastructure_failed"] = json!(true);
        }

        if *self.models() != ModelFilter::All {
            options["models"] = json!(self.models().words());
        }
        if self.format == Format::Kto {
            options["label_above"] = json!(self.label_above);
        }

        if let Some(partition) = self.partition {
            options["partition_by"] = json!(partition.to_string());
        }
        if let Some(Shard { index, count }) = self.shard {
            options["shard"] = json!(format!("{index}/{count}"));
            // Shards by hash, to which attempts can be added, are as they were before there were
            // others.
            if self.weighed_shard().is_some() {
                options["shard_by"] = json!("weight");
            }
        }
        options
    }

    pub(crate) fn path_filter(&self) -> PathFilter {
        PathFilter {
            kinds: self.kinds(),
            models: self.models().clone(),
            shared: self.shared,
            versions: self.versions,
        }
    }

    /// Returns the values of the rows of an attempt that are not recorded with it.
    pub(crate) fn row_extras<'a>(
        &self,
        groups: &'a RewardGroups,
        record: &AttemptRecord,
    ) -> RowExtras<'a> {
        self.rewards.row_extras(groups.standing(record), self.versions)
    }
}

impl RewardOptions {
    /// Returns the values of the rows of an attempt with this standing in its group.
    pub(crate) fn row_extras<'a>(
        &self,
        standing: GroupStanding<'a>,
        versions: VersionFilter,
    ) -> RowExtras<'a> {
        let shows_group = self.group_stats || self.advantage != Advantage::None;
        RowExtras {
            group: standing.group.filter(|_| shows_group),
            advantage: standing.advantage,
            gamma: self.gamma,
            at_version: versions.at,
        }
    }
}
