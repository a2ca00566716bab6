//! The walk of an export.

pub(crate) mod report;
mod select;

use episode::CallId;
use store::{AttemptRecord, Snapshot, SnapshotError};
use thiserror::Error;

use crate::export::report::Report;
use crate::export::select::select;
use crate::forks::builder::forks;
use crate::forks::token_texts::ForkTexts;
use crate::graph::derive::{Derived, derive};
use crate::input::plan::{PlannedAttempt, plan};
use crate::input::prefetch::Prefetch;
use crate::notes::{Notes, Omissions, add_omissions};
use crate::options::Options;
use crate::output::sink::ExportSink;
use crate::output::target::WriteError;
use crate::rewards::groups::RewardGroups;
use crate::rows::builder::rows;
use crate::rows::retokenize::retokenize;
use crate::rows::verdict::Verdicts;
use crate::scoring::folder::ScoreFolderError;
use crate::scoring::join::ScoreFolders;
use crate::weigh::weigh;

/// Reason why nothing was exported. No file is left behind.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The selection holds nothing that makes a row.
    #[error("nothing to export: {episodes} episodes and {} calls make no row", .notes.calls)]
    Empty {
        /// Number of attempts at episodes that were read.
        episodes: u64,
        /// Reasons why their calls make no row.
        notes: Box<Notes>,
        /// Reasons why the format takes none of their rows.
        left_out: Omissions,
    },
    /// Ids that a server reported are not those of the tokenizer given.
    #[error("the tokenizer is not that of the model which call `{0}` went to")]
    OtherTokenizer(CallId),
    /// The store could not be read.
    #[error("cannot read the store")]
    Read(#[from] SnapshotError),
    /// A folder of scores could not be used.
    #[error("cannot join scores")]
    Scores(#[from] ScoreFolderError),
    /// The files could not be written.
    #[error("cannot write the export")]
    Write(#[from] WriteError),
}

/// Exports the selected episodes of a snapshot: scan, thread, merge, weigh, rows, files.
///
/// The forks of the episodes that have rows go to a table beside the rows. Episodes are read some
/// ahead, within a bound of bytes, so memory is bounded by the largest episode and not by their
/// number (for pairs: by the largest group). The same snapshot and options make the same bytes.
///
/// # Errors
/// [`ExportError`] when there is no row, the store cannot be read, or the files cannot be written.
pub async fn export(snapshot: Snapshot, options: &Options) -> Result<Report, ExportError> {
    export_with_progress(snapshot, options, |_, _| {}).await
}

/// Exports as [`export`] does, and tells `progress` how many attempts are done, and of how many.
///
/// # Errors
/// As [`export`].
pub async fn export_with_progress(
    mut snapshot: Snapshot,
    options: &Options,
    mut progress: impl FnMut(usize, usize),
) -> Result<Report, ExportError> {
    let mut report = Report::default();
    let mut scores = ScoreFolders::open(&options.scores)?;
    let mut sink = ExportSink::create(options, &scores.names()).await?;
    let selected = select(&mut snapshot, options, &sink).await?;
    let groups = RewardGroups::new(options.rewards.advantage, &selected.attempts);

    let (planned, omissions) = plan(selected.attempts, &selected.rules, sink.numbering());
    add_omissions(&mut report.left_out, &omissions);
    selected.unread.add_to(&mut report.left_out);
    sink.expect(&planned, selected.looked_at, selected.list);

    let texts = options.retokenizer.as_ref().map(|by| ForkTexts::All(by.tokenizer()));
    let mut prefetch = Prefetch::start(snapshot, records(&planned), options.rewards.as_of);
    for (done, next) in planned.iter().enumerate() {
        progress(done, planned.len());
        let (attempt, scanned) = prefetch.next().await?;

        // What the attempt is: its calls as paths, and the paths that make rows.
        let mut derived = derive(&attempt.calls);
        let rendered = options.make_ids(&mut derived)?;
        let (shares, weighed) = weigh(&derived, &options.path_filter());
        report.add_notes([&scanned, &derived.notes, &rendered, &weighed]);

        let has_row = !shares.paths.is_empty();
        let left = if has_row { forks(&attempt, &derived, texts.as_ref()) } else { Vec::new() };
        report.add_attempt(&attempt, &derived, &shares);
        report.add_verdict(&Verdicts::new(&attempt, &derived), &left);

        // What is written of it.
        sink.start_attempt(&attempt, left, next).await?;
        for row in rows(&attempt, &derived, &shares, options.row_extras(&groups, &attempt.record)) {
            report.add_row(&row);
            sink.add_row(scores.join(row)?, next.numbers).await?;
        }
        sink.end_attempt(next).await?;
    }
    progress(planned.len(), planned.len());
    report.scores = scores.counts();
    report.finish(sink, groups, options, planned.len() as u64).await
}

fn records(planned: &[PlannedAttempt]) -> Vec<AttemptRecord> {
    planned.iter().map(|next| next.record.clone()).collect()
}

impl Options {
    /// Makes ids for paths without any, where a tokenizer is given. The ids that servers reported
    /// must be those of this tokenizer.
    fn make_ids(&self, derived: &mut Derived<'_>) -> Result<Notes, ExportError> {
        let Some(retokenizer) = &self.retokenizer else { return Ok(Notes::default()) };
        match retokenizer.foreign_call(derived.forest.nodes.iter()) {
            Some(call) => Err(ExportError::OtherTokenizer(call)),
            None => Ok(retokenize(derived, retokenizer)),
        }
    }
}

impl Report {
    /// Ends the files and publishes them. Without a row nothing is published, except for a shard,
    /// of which a reader expects a file.
    async fn finish(
        mut self,
        mut sink: ExportSink,
        groups: RewardGroups,
        options: &Options,
        read: u64,
    ) -> Result<Self, ExportError> {
        self.groups = groups.summaries;
        self.rows = sink.end(options.shard.is_some()).await?;

        let of_format = sink.omissions();
        let not_trained: u64 = of_format.values().map(|omission| omission.trained_tokens).sum();
        self.trained_tokens = self.trained_tokens.saturating_sub(not_trained);
        add_omissions(&mut self.left_out, &of_format);
        add_omissions(&mut self.left_out, &self.notes.left_out);

        if self.rows == 0 && (options.new || options.shard.is_none()) {
            sink.discard().await;
            // An addition of nothing is no error.
            return if options.new { Ok(self) } else { Err(self.empty(read)) };
        }

        let published = sink.publish(self.in_manifest()).await?;
        self.files = published.files;
        self.shards_of_other_lists = published.shards_of_other_lists;
        Ok(self)
    }

    fn empty(self, episodes: u64) -> ExportError {
        ExportError::Empty { episodes, notes: Box::new(self.notes), left_out: self.left_out }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use episode::{Call, TrajectoryKind};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::tests::fixture::call;
    use crate::tests::stored::stored;
    use crate::weigh::SharedTokens;

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
        let held = ["a/0", "b/0", "c/0"].map(|name| name.parse().unwrap()).into();
        for path in [&out, &report.files[2]] {
            let found = crate::exported_attempts(path, &mut store.snapshot().await).await;
            assert_eq!(found.unwrap(), held);
        }
        fs::write(&report.files[0], "cut").unwrap();
        let changed = crate::exported_attempts(&out, &mut store.snapshot().await).await;
        assert!(matches!(changed, Err(crate::ReadExportError::Changed(_))));
    }

    #[tokio::test]
    async fn kinds_and_shared_tokens_are_chosen_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut forked = two_turns();
        forked.push(call(3, &[1, 2, 3, 9], &[&[5]]));
        let told = [("a", None, None, forked), ("b", None, None, two_turns())];
        let store = stored(folder.path(), &told).await;
        let out = folder.path().join("out");
        let forks =
            Options { out: out.into(), kinds: [TrajectoryKind::Fork].into(), ..Options::default() };
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
        let keep = Options { shared: SharedTokens::Keep, ..all };
        assert_eq!(store.export(&keep).await.unwrap().trained_tokens, 8);
        let none = Options { kinds: [TrajectoryKind::Retry].into(), ..keep };
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
