//! The walk of an export.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use episode::{CallId, Kind, Micros};
use serde::Serialize;
use serde_json::{Value, json};
use store::{EpisodeRecord, Selection, Snapshot, SnapshotError};
use thiserror::Error;

use crate::advantage::{Advantage, EPSILON, STD_DDOF};
use crate::ahead::Ahead;
use crate::credit::Ledger;
use crate::encode::Encoding;
use crate::forks::{Fork, forks};
use crate::formats::Format;
use crate::groups::{GroupSummary, Groups};
use crate::merge::{Merged, merge};
use crate::models::Models;
use crate::notes::{Lefts, Notes, add_left};
use crate::plan::{Partition, Rules, Shard, plan};
use crate::retokenize::{Retokenizer, retokenize};
use crate::rows::{Beside, Row, rows};
use crate::scan::{Scanned, episodes, nodes, scored};
use crate::sink::{Said, Sink};
use crate::staleness::{VersionFilter, versions};
use crate::target::{Out, WriteError};
use crate::thread::{Forest, thread};
use crate::verdict::Verdicts;
use crate::weigh::{Shared, Shares, Wanted, weigh};

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

/// What an export wrote.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Rows of the files.
    pub rows: u64,
    /// Attempts at episodes with at least one trajectory.
    pub episodes: u64,
    /// Tokens over all trajectories, prompts included.
    pub tokens: u64,
    /// Tokens that the files train.
    pub trained_tokens: u64,
    /// One for each group selected, in the order of the rows; episodes without a group are last.
    pub groups: Vec<GroupSummary>,
    /// The files, manifest last.
    pub files: Vec<PathBuf>,
    /// What was kept, what was not, and why.
    pub notes: Notes,
    /// Attempts, rows and turns that the options or the format leave out.
    pub left_out: Lefts,
}

/// Why nothing was exported. No file is left behind.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The selection holds nothing that makes a row.
    #[error("nothing to export: {episodes} episodes and {} calls make no row", .notes.calls)]
    Empty {
        /// Attempts at episodes that were read.
        episodes: u64,
        /// Why their calls make no row.
        notes: Box<Notes>,
        /// Why their rows are none of the format.
        left_out: Lefts,
    },
    /// Ids that a server reported are not those of the tokenizer given.
    #[error("the tokenizer is not that of the model which call `{0}` went to")]
    OtherTokenizer(CallId),
    /// The store could not be read.
    #[error("cannot read the store")]
    Read(#[from] SnapshotError),
    /// The files could not be written.
    #[error("cannot write the export")]
    Write(#[from] WriteError),
}

/// Exports the selected episodes of a snapshot: scan, thread, merge, weigh, rows, files.
///
/// The forks of the episodes that have rows are a table beside.
///
/// Episodes are read a few ahead, within a bound of bytes, so memory is bounded by the largest one,
/// not by their number (for pairs: by the largest group). The same snapshot and options make the
/// same bytes.
///
/// # Errors
/// [`ExportError`] when there is no row, the store cannot be read, or the files cannot be written.
pub async fn export(snapshot: Snapshot, options: &Options) -> Result<Report, ExportError> {
    export_telling(snapshot, options, |_, _| {}).await
}

/// The same, and `tell` is told how many attempts are done, and of how many.
///
/// # Errors
/// As [`export`].
pub async fn export_telling(
    mut snapshot: Snapshot,
    options: &Options,
    mut tell: impl FnMut(usize, usize),
) -> Result<Report, ExportError> {
    let mut report = Report::default();
    let records = episodes(&mut snapshot, &options.selection).await?;
    if records.is_empty() {
        return Err(report.empty(0));
    }
    let attempts = scored(&mut snapshot, records, options.rewards.as_of).await?;
    let groups = Groups::new(options.rewards.advantage, &attempts);
    let mut sink = Sink::create(options).await?;
    let rules = options.rules(&mut snapshot, sink.held()).await?;
    let (planned, left) = plan(attempts, &rules, sink.numbers());
    add_left(&mut report.left_out, &left);
    let records = planned.iter().map(|next| next.record.clone()).collect();
    let mut ahead = Ahead::start(snapshot, records, options.rewards.as_of);
    for (done, next) in planned.iter().enumerate() {
        tell(done, planned.len());
        let (episode, judged) = ahead.next().await?;
        let (nodes, scanned) = nodes(&episode.calls);
        let (forest, threaded) = thread(nodes);
        let (mut merged, walked) = merge(&forest);
        let rendered = options.write_ids(&forest, &mut merged);
        let rendered = rendered.map_err(ExportError::OtherTokenizer)?;
        let (shares, weighed) = weigh(&merged, versions(&forest, &merged), &options.wanted());
        for notes in [&judged, &scanned, &threaded, &walked, &rendered, &weighed] {
            report.notes.add(notes);
        }
        report.add_episode(&episode, &forest, shares.paths.len());
        let found = told(&shares, || forks(&episode, &forest, &merged, None));
        report.judge(&Verdicts::new(&episode, &forest, &merged), &found);
        sink.attempt(&episode, found, &next.partition).await?;
        let beside = options.beside(&groups, &episode.record);
        for row in rows(&episode, &forest, &merged, &shares, beside) {
            report.add_row(&row);
            sink.row(row, next.place).await?;
        }
        sink.attempt_ended(next).await?;
    }
    tell(planned.len(), planned.len());
    report.groups = groups.summaries;
    report.finish(sink, options, planned.len() as u64).await
}

impl Options {
    /// Makes ids for paths without any, where a tokenizer is given. It must be the one that knows
    /// the ids that servers reported; a call whose ids it does not know is the error.
    fn write_ids(&self, forest: &Forest<'_>, merged: &mut Merged) -> Result<Notes, CallId> {
        let Some(by) = &self.retokenizer else { return Ok(Notes::default()) };
        match by.stranger(&forest.nodes) {
            Some(call) => Err(call),
            None => Ok(retokenize(forest, merged, by)),
        }
    }
}

/// Forks are told of episodes that have a row.
fn told(shares: &Shares<'_>, forks: impl FnOnce() -> Vec<Fork>) -> Vec<Fork> {
    if shares.paths.is_empty() { Vec::new() } else { forks() }
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

/// What an export says of itself in its manifest.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    notes: &'a Notes,
    groups: &'a [GroupSummary],
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
    async fn rules(
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
    fn kinds(&self) -> BTreeSet<Kind> {
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
    fn models(&self) -> &Models {
        self.models.as_ref().unwrap_or(self.format.models())
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            kinds: self.kinds(),
            models: self.models().clone(),
            shared: self.shared,
            versions: self.versions,
        }
    }

    fn beside<'a>(&self, groups: &'a Groups, record: &EpisodeRecord) -> Beside<'a> {
        let RewardOptions { advantage, group_stats, gamma, .. } = self.rewards;
        let (group, standing) = groups.standing(record);
        let group = group.filter(|_| group_stats || advantage != Advantage::None);
        let (at_version, answers) = (self.versions.at, self.format.reads_messages());
        Beside { group, advantage: standing, gamma, at_version, answers }
    }
}

impl Report {
    /// Ends the files and puts them in place. Nothing is put in place where there is no row, unless
    /// it is a shard, of which a reader expects a file.
    async fn finish(
        mut self,
        mut sink: Sink,
        options: &Options,
        read: u64,
    ) -> Result<Self, ExportError> {
        self.rows = sink.end(options.shard.is_some()).await?;
        let unsaid = sink.left_out();
        let lost: u64 = unsaid.values().map(|left| left.trained_tokens).sum();
        self.trained_tokens = self.trained_tokens.saturating_sub(lost);
        add_left(&mut self.left_out, &unsaid);
        add_left(&mut self.left_out, &self.notes.left_out);
        if self.rows == 0 && (options.new || options.shard.is_none()) {
            sink.give_up().await;
            return if options.new { Ok(self) } else { Err(self.empty(read)) };
        }
        let notes = serde_json::to_value(self.told()).unwrap_or_default();
        let left_out = self.left_out.clone();
        self.files = sink.publish(Said { notes, left_out }).await?;
        Ok(self)
    }

    fn empty(self, episodes: u64) -> ExportError {
        ExportError::Empty { episodes, notes: Box::new(self.notes), left_out: self.left_out }
    }

    fn told(&self) -> Told<'_> {
        Told { notes: &self.notes, groups: &self.groups }
    }

    fn judge(&mut self, verdicts: &Verdicts<'_>, forks: &[Fork]) {
        *self.notes.verdicts.entry(verdicts.of_episode().0).or_default() += 1;
        for fork in forks {
            *self.notes.forks.entry(fork.cause).or_default() += 1;
        }
    }

    fn add_row(&mut self, row: &Row) {
        self.tokens += row.tokens.input_ids.len() as u64;
        self.trained_tokens += row.tokens.trained() as u64;
        self.notes.sides_unread += row.sides.unread;
        for reason in &row.reasons {
            *self.notes.reasons.entry(*reason).or_default() += 1;
        }
    }

    fn add_episode(&mut self, episode: &Scanned, forest: &Forest<'_>, paths: usize) {
        self.notes.rewards_unplaced += Ledger::new(&episode.rewards).unplaced(forest);
        self.episodes += u64::from(paths > 0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use episode::Call;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::fixture::call;
    use crate::stored::stored;

    fn two_turns() -> Vec<Call> {
        vec![call(1, &[1, 2], &[&[3]]), call(2, &[1, 2, 3, 4], &[&[5, 6]])]
    }

    #[tokio::test]
    async fn a_store_is_exported_by_group_and_twice_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let store = stored(
            folder.path(),
            &[
                ("a", None, None, two_turns()),
                ("c", Some("g"), Some(1.0), two_turns()),
                ("b", Some("g"), Some(0.0), two_turns()),
            ],
        )
        .await;
        let out = folder.path().join("out");
        let options = Options { out: out.clone().into(), ..Options::default() };
        let report = store.export(&options).await.unwrap();
        assert_eq!((report.rows, report.episodes), (3, 3));
        assert_eq!((report.tokens, report.trained_tokens), (18, 9));
        assert_eq!(report.groups[0].group.as_deref(), Some("g"));
        assert_eq!((report.groups[0].reward_mean, report.groups[0].scored), (Some(0.5), 2));
        assert_eq!((report.groups[1].reward_mean, report.groups[1].scored), (None, 0));
        let bytes = fs::read(&report.files[0]).unwrap();
        let batches = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes.clone()));
        let batch = batches.unwrap().build().unwrap().next().unwrap().unwrap();
        let names = arrow::array::AsArray::as_string::<i32>(&batch["episode_id"]).iter();
        assert_eq!(names.flatten().collect::<Vec<_>>(), ["b", "c", "a"]);
        store.export(&options).await.unwrap();
        assert_eq!(fs::read(&report.files[0]).unwrap(), bytes);
        let held = ["a", "b", "c"].map(|name| (name.to_owned(), 0)).into();
        for path in [&out, &report.files[2]] {
            assert_eq!(crate::exported(path).unwrap(), held);
        }
        fs::write(&report.files[0], "cut").unwrap();
        let changed = crate::exported(&out);
        assert!(matches!(changed, Err(crate::ExportedError::Changed(_))));
    }

    #[tokio::test]
    async fn kinds_and_shared_tokens_are_chosen_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut forked = two_turns();
        forked.push(call(3, &[1, 2, 3, 9], &[&[5]]));
        let told = [("a", None, None, forked), ("b", None, None, two_turns())];
        let store = stored(folder.path(), &told).await;
        let out = folder.path().join("out");
        let forks = Options { out: out.into(), kinds: [Kind::Fork].into(), ..Options::default() };
        let report = store.export(&forks).await.unwrap();
        assert_eq!((report.rows, report.episodes, report.trained_tokens), (1, 1, 2));
        assert_eq!(report.notes.kinds, [("fork", 1)].into());
        assert_eq!(report.notes.verdicts, [("exact", 2)].into());
        assert_eq!(report.notes.not_asked_for, 2);
        let manifest = fs::read(&report.files[2]).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["options"]["kinds"], serde_json::json!(["fork"]));
        assert_eq!(manifest["options"]["shared"], "once");
        let all = Options { kinds: BTreeSet::new(), ..forks };
        assert_eq!(store.export(&all).await.unwrap().trained_tokens, 7);
        let keep = Options { shared: Shared::Keep, ..all };
        assert_eq!(store.export(&keep).await.unwrap().trained_tokens, 8);
        let none = Options { kinds: [Kind::Retry].into(), ..keep };
        assert!(matches!(store.export(&none).await, Err(ExportError::Empty { .. })));
    }

    #[tokio::test]
    async fn an_export_without_rows_is_an_error_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut lost = call(1, &[1], &[&[2]]);
        lost.ended = None;
        let store = stored(folder.path(), &[("a", None, None, vec![lost])]).await;
        let out = folder.path().join("out");
        let options = Options { out: out.clone().into(), ..Options::default() };
        let error = store.export(&options).await.unwrap_err();
        assert_eq!(error.to_string(), "nothing to export: 1 episodes and 1 calls make no row");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    }
}
