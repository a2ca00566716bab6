//! Options: what an export holds, and how a manifest shows that.

use std::collections::BTreeSet;
use std::sync::Arc;

use episode::{Kind, Micros};
use serde::Serialize;
use serde_json::{Value, json};
use store::{EpisodeRecord, Selection, Snapshot, SnapshotError};

use crate::formats::Format;
use crate::input::plan::{Partition, Rules, Shard};
use crate::output::encode::Encoding;
use crate::output::target::Out;
use crate::rewards::advantage::{Advantage, EPSILON, STD_DDOF};
use crate::rewards::groups::Groups;
use crate::rows::Beside;
use crate::rows::retokenize::Retokenizer;
use crate::weigh::models::Models;
use crate::weigh::staleness::VersionFilter;
use crate::weigh::{Shared, Wanted};

/// How long after its closing a call of an attempt may still end; as long as clients wait for a
/// reply unless they are told otherwise. What is exported once is not taken again, so an attempt
/// with a call under way waits for its end. A call whose recorder died has none and holds its
/// attempt back no longer than this.
pub const SETTLE_US: Micros = 600_000_000;

/// What to export, and where to.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A file, a folder for `FORMAT.ENCODING`, a stream, or an object store.
    pub out: Out,
    /// What the rows are.
    pub format: Format,
    /// How they are written; none takes what the name of the file or the format says.
    pub encoding: Option<Encoding>,
    /// Which episodes.
    pub selection: Selection,
    /// Which kinds of trajectories; none takes those that the format is for.
    pub kinds: BTreeSet<Kind>,
    /// Which models; none takes those that the format is for.
    pub models: Option<Models>,
    /// In which rows a sampled token is trained that stands in several.
    pub shared: Shared,
    /// What rewards are to say.
    pub rewards: RewardOptions,
    /// Which policy versions.
    pub versions: VersionFilter,
    /// Makes ids for what no server reported ids of.
    pub retokenizer: Option<Arc<Retokenizer>>,
    /// Only episodes with at least this reward.
    pub min_reward: Option<f64>,
    /// Rewards above this one are good, where a format tells good from bad.
    pub label_above: f64,
    /// What rows are put into folders by.
    pub partition: Option<Partition>,
    /// Which part of the selection this process exports.
    pub shard: Option<Shard>,
    /// Only attempts that ended, or, while they are open, began at this time or later.
    pub since: Option<Micros>,
    /// Add the closed attempts that the export there does not hold yet.
    pub new: bool,
    /// The time, which tells what is settled where only what is new is asked for: see
    /// [`SETTLE_US`].
    pub now: Micros,
    /// Whether to replace files that no export wrote. An export is always replaced by the next.
    pub overwrite: bool,
}

/// What rewards are to say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RewardOptions {
    /// Those given later do not count.
    pub as_of: Option<Micros>,
    /// Which advantages, if any.
    pub advantage: Advantage,
    /// Whether rows show the numbers of their group.
    pub group_stats: bool,
    /// What a reward is worth one turn earlier, 0 to 1; returns are made where it is given.
    pub gamma: Option<f64>,
}

/// The options as a manifest shows them. Where the files lie is not part of what they hold.
#[derive(Serialize)]
struct Asked<'a> {
    episode: Option<String>,
    group: Option<String>,
    task: Option<String>,
    kinds: Vec<&'static str>,
    shared: &'static str,
    rewards: AskedOfRewards,
    versions: VersionFilter,
    encoding: &'static str,
    /// Which one made ids, by what it is and not where it lies.
    tokenizer: Option<&'a str>,
    group_stats: bool,
}

/// What was asked of rewards, with what the numbers are made by.
#[derive(Serialize)]
struct AskedOfRewards {
    as_of: Option<Micros>,
    gamma: Option<f64>,
    advantage: &'static str,
    /// Who is compared in an advantage, and in the numbers of groups.
    population: &'static str,
    std_ddof: u32,
    epsilon: f64,
}

impl<'a> Asked<'a> {
    fn new(options: &'a Options, encoding: Encoding) -> Self {
        let Selection { episode, group, task } = &options.selection;
        Self {
            episode: episode.as_ref().map(ToString::to_string),
            group: group.as_ref().map(ToString::to_string),
            task: task.as_ref().map(ToString::to_string),
            kinds: options.kinds().iter().map(|kind| kind.as_str()).collect(),
            shared: options.shared.as_str(),
            rewards: AskedOfRewards {
                as_of: options.rewards.as_of,
                gamma: options.rewards.gamma,
                advantage: options.rewards.advantage.as_str(),
                population: "selected attempts of the group that have a reward",
                std_ddof: STD_DDOF,
                epsilon: EPSILON,
            },
            versions: options.versions,
            encoding: encoding.as_str(),
            tokenizer: options.retokenizer.as_ref().map(|by| by.fingerprint()),
            group_stats: options.rewards.group_stats,
        }
    }
}

impl Options {
    pub(crate) async fn rules(
        &self,
        snapshot: &mut Snapshot,
        held: Option<BTreeSet<String>>,
    ) -> Result<Rules, SnapshotError> {
        let Self { partition, shard, since, min_reward, .. } = *self;
        let unsettled = match held {
            Some(_) => snapshot.closed_with_open_calls(self.now - SETTLE_US).await?,
            None => BTreeSet::new(),
        };
        Ok(Rules { partition, shard, since, min_reward, not_in: held, unsettled })
    }

    /// The kinds asked for, else those that the format is for.
    pub(crate) fn kinds(&self) -> BTreeSet<Kind> {
        let asked = self.kinds.iter();
        let chosen = asked.chain(self.format.kinds().iter().filter(|_| self.kinds.is_empty()));
        chosen.copied().collect()
    }

    /// The options as a manifest shows them, less which of the episodes this run was to take.
    pub(crate) fn asked(&self, encoding: Encoding) -> Value {
        let mut asked = json!(Asked::new(self, encoding));
        if let Some(least) = self.min_reward {
            asked["min_reward"] = json!(least);
        }
        if *self.models() != Models::All {
            asked["models"] = json!(self.models().words());
        }
        if self.format == Format::Kto {
            asked["label_above"] = json!(self.label_above);
        }
        if let Some(partition) = self.partition {
            asked["partition_by"] = json!(partition.to_string());
        }
        if let Some(Shard { index, count }) = self.shard {
            asked["shard"] = json!(format!("{index}/{count}"));
        }
        asked
    }

    /// The models asked for, else those that the format is for.
    pub(crate) fn models(&self) -> &Models {
        self.models.as_ref().unwrap_or(self.format.models())
    }

    pub(crate) fn wanted(&self) -> Wanted {
        Wanted {
            kinds: self.kinds(),
            models: self.models().clone(),
            shared: self.shared,
            versions: self.versions,
        }
    }

    pub(crate) fn beside<'a>(&self, groups: &'a Groups, record: &EpisodeRecord) -> Beside<'a> {
        let RewardOptions { advantage, group_stats, gamma, .. } = self.rewards;
        let (group, standing) = groups.standing(record);
        let group = group.filter(|_| group_stats || advantage != Advantage::None);
        let (at_version, answers) = (self.versions.at, self.format.reads_messages());
        Beside { group, advantage: standing, gamma, at_version, answers }
    }
}
