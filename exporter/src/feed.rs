//! The feed: rows of a few attempts at a time, for a trainer that asks while agents run.
//!
//! Rows are made by the steps of an export, from scan to rows. The store decides which item is
//! handed to whom.

pub(crate) mod options;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use episode::INFRASTRUCTURE_FAILED;
use store::{AttemptRecord, FeedItem, Snapshot, SnapshotError};
use thiserror::Error;

use crate::feed::options::{FeedOptions, VERDICTS};
use crate::graph::derive::{Derived, derive};
use crate::graph::scan::{RecordedAttempt, scan};
use crate::graph::trunk::trunk;
use crate::notes::{Notes, VersionMismatch};
use crate::options::format::Format;
use crate::output::encode::{EncodeError, Encoder};
use crate::rewards::groups::{GroupSummary, RewardGroups};
use crate::rewards::scored_attempt::{ScoredAttempt, scored_by_key};
use crate::rows::builder::rows;
use crate::rows::columns;
use crate::rows::row::Row;
use crate::rows::schema::{feed_schema, schema};
use crate::rows::verdict::Verdicts;
use crate::weigh::versions::VersionFilter;
use crate::weigh::{PathFilter, SharedTokens, TokenShares, weigh};

/// The reason of an attempt of which nothing recorded makes a row.
const NO_ROWS: &str = "no_rows";
/// The reason of an item that cannot be read or encoded.
const UNREADABLE: &str = "unreadable";

/// Result of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedOutcome {
    /// Its rows, as the next bytes of the stream, and its attempts that have none: the store's key
    /// of each, and why. Their rewards are in what the others are compared with.
    Rows(Vec<u8>, Vec<(i64, &'static str)>),
    /// The reason why it has none that were asked for.
    Dropped(&'static str),
}

/// The store's key of an attempt without a row, and why it has none.
type SilentAttempt = (i64, &'static str);

/// An item whose attempts are encoded.
struct ItemPlace<'a> {
    /// Those of the feed, at the version that staleness is counted from.
    options: FeedOptions,
    groups: &'a RewardGroups,
    position: i64,
}

/// Bytes of the rows that are encoded at a time.
const BATCH_BYTES: usize = 4 << 20;
/// The part of its memory that a reader may use for the rows of one item: one in so many.
const ITEM_MEMORY_PART: u64 = 4;

/// Reason why there are no rows.
#[derive(Debug, Error)]
pub enum FeedError {
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] SnapshotError),
}

/// A stream of rows.
pub struct Feed {
    options: FeedOptions,
    row_schema: SchemaRef,
    /// Schema of rows with their item.
    feed_schema: SchemaRef,
    encoder: Encoder,
}

impl Feed {
    /// Makes a stream without rows.
    ///
    /// # Errors
    /// [`EncodeError`] when it cannot begin.
    pub fn new(options: FeedOptions) -> Result<Self, EncodeError> {
        let feed_schema = feed_schema();
        let encoder = Encoder::new(options.encoding, Format::Trajectories, &feed_schema, &[])?;
        Ok(Self { options, row_schema: schema(), feed_schema, encoder })
    }

    /// Encodes the rows of an item's attempts, which are compared with each other and with their
    /// peers. `newest` is the newest policy version that is known.
    ///
    /// An item without a row is dropped, and so is one with an attempt that the filters refuse, or
    /// with an attempt or a peer that is gone from the store.
    ///
    /// # Errors
    /// [`FeedError`] when the store cannot be read.
    pub async fn encode_item(
        &mut self,
        snapshot: &mut Snapshot,
        item: &FeedItem,
        newest: Option<i64>,
    ) -> Result<FeedOutcome, FeedError> {
        let compared = [item.keys.as_slice(), &item.peers].concat();
        let scored = scored_by_key(snapshot, &compared).await?;
        if scored.len() < item.size.max(compared.len()) {
            return Ok(FeedOutcome::Dropped("gone"));
        }

        let members: Vec<_> =
            scored.iter().filter(|attempt| item.keys.contains(&attempt.record.key)).collect();
        let groups = RewardGroups::new(self.options.rewards.advantage, &scored);
        if let Some(reason) = self.options.refusal(&members, &groups) {
            return Ok(FeedOutcome::Dropped(reason));
        }

        let options = self.options.at_version(newest);
        let place = ItemPlace { options, groups: &groups, position: item.position };
        let start = self.encoder.pending().len();
        let mut silent: Vec<SilentAttempt> = Vec::new();
        for member in &members {
            let made = self.encode_attempt(snapshot, member, &place).await;
            snapshot.give_back();
            match made? {
                Ok(()) => {}
                Err(NO_ROWS) => silent.push((member.record.key, "member_no_rows")),
                Err(INFRASTRUCTURE_FAILED) => {
                    silent.push((member.record.key, "member_infrastructure_failed"));
                }
                Err(reason) => {
                    self.encoder.pending().truncate(start);
                    return Ok(FeedOutcome::Dropped(reason));
                }
            }
        }

        if silent.len() == members.len() {
            let has_taken = members.iter().any(|member| self.options.takes(member));
            let reason = if has_taken { NO_ROWS } else { INFRASTRUCTURE_FAILED };
            return Ok(FeedOutcome::Dropped(reason));
        }
        Ok(FeedOutcome::Rows(self.encoder.take(), silent))
    }

    /// Encodes the rows of one attempt as the next bytes of the stream; or says why it has none.
    async fn encode_attempt(
        &mut self,
        snapshot: &mut Snapshot,
        member: &ScoredAttempt,
        item: &ItemPlace<'_>,
    ) -> Result<Result<(), &'static str>, FeedError> {
        let options = &item.options;
        if !options.takes(member) {
            return Ok(Err(INFRASTRUCTURE_FAILED));
        }
        let Some(attempt) = read(snapshot, member.record.clone()).await? else {
            return Ok(Err(UNREADABLE));
        };
        let bytes_max = snapshot.bytes_max() / ITEM_MEMORY_PART;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);

        let derived = derive(&attempt.calls);
        Ok(options.shares(&attempt, &derived).and_then(|shares| {
            let standing = item.groups.standing(&attempt.record);
            let extras = options.rewards.row_extras(standing, options.versions);
            let rows = rows(&attempt, &derived, &shares, extras);
            self.encode(rows, item.position, bytes_max)
        }))
    }

    /// Encodes rows as the next bytes of the stream, of which no more than `bytes_max` may wait.
    /// Rows that cannot be encoded never can be, so they are refused.
    fn encode(
        &mut self,
        rows: impl Iterator<Item = Row>,
        item: i64,
        bytes_max: usize,
    ) -> Result<(), &'static str> {
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next_if(|_| bytes < BATCH_BYTES) {
                bytes += row.bytes();
                batch.push(row);
            }

            let made = self.batch(&batch, item).map_err(EncodeError::from);
            if let Err(error) = made.and_then(|batch| self.encoder.write(&batch, bytes)) {
                tracing::error!(%error, "rows cannot be encoded");
                return Err(UNREADABLE);
            }
            if self.encoder.pending().len() > bytes_max {
                tracing::error!(item, bytes_max, "the rows of an item take too much memory");
                return Err(UNREADABLE);
            }
        }
        Ok(())
    }

    /// Makes a batch of rows, each with the item that it belongs to.
    fn batch(&self, rows: &[Row], item: i64) -> Result<RecordBatch, ArrowError> {
        let mut columns = columns::batch(&self.row_schema, rows)?.columns().to_vec();
        let items: ArrayRef = Arc::new(Int64Array::from_value(item, rows.len()));
        columns.push(items);
        RecordBatch::try_new(Arc::clone(&self.feed_schema), columns)
    }

    /// Ends the stream and returns its last bytes.
    ///
    /// # Errors
    /// [`EncodeError`] when it cannot be ended.
    pub fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        self.encoder.finish()
    }
}

/// Reads one attempt; none where what is stored of it cannot be decoded.
async fn read(
    snapshot: &mut Snapshot,
    record: AttemptRecord,
) -> Result<Option<RecordedAttempt>, FeedError> {
    let trunk = trunk(snapshot, &record).await?;
    match scan(snapshot, record, None).await {
        Ok((attempt, _)) => Ok(Some(RecordedAttempt { trunk, ..attempt })),
        Err(
            error @ (SnapshotError::Decode { .. }
            | SnapshotError::TooLarge { .. }
            | SnapshotError::Word(..)),
        ) => {
            tracing::error!(%error, "an episode cannot be handed out");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

impl FeedOptions {
    /// Sets the version that staleness is counted from, where none is given.
    fn at_version(&self, newest: Option<i64>) -> Self {
        let mut options = self.clone();
        if options.versions.at.is_none() && options.versions.staleness_max.is_some() {
            options.versions.at = Some(newest.unwrap_or(0));
        }
        options
    }

    /// Returns the reason for which none of `members` is handed out, where their rewards show one.
    fn refusal(&self, members: &[&ScoredAttempt], groups: &RewardGroups) -> Option<&'static str> {
        let is_below = |member: &&ScoredAttempt| {
            let least = self.min_reward.filter(|_| self.takes(member));
            least.is_some_and(|least| member.reward.is_none_or(|reward| reward < least))
        };
        if members.iter().any(is_below) {
            return Some("below_min_reward");
        }
        let is_silent = groups.summaries.iter().all(GroupSummary::is_without_signal);
        (self.no_signal && is_silent).then_some("no_signal")
    }

    /// Returns false for an attempt whose rows are left out. Its group goes on without it.
    fn takes(&self, attempt: &ScoredAttempt) -> bool {
        !self.no_infrastructure_failed || !attempt.is_infrastructure_failed
    }

    /// Chooses the paths of an attempt that make rows, or returns the reason why there are none.
    fn shares<'d>(
        &self,
        attempt: &RecordedAttempt,
        derived: &'d Derived<'_>,
    ) -> Result<TokenShares<'d>, &'static str> {
        if derived.paths.is_empty() {
            return Err(NO_ROWS);
        }
        let (verdict, _) = Verdicts::new(attempt, derived).of_episode();
        if self.verdict.is_some_and(|worst| rank(verdict) > rank(worst)) {
            return Err("verdict");
        }

        let mut filter = PathFilter {
            kinds: self.kinds.clone(),
            models: self.models.clone(),
            shared: SharedTokens::Once,
            versions: self.versions,
        };
        let (mut shares, mut notes) = weigh(derived, &filter);
        let nothing_trained = VersionMismatch::NothingTrained.as_str();
        if shares.paths.is_empty() && exclusion(&notes) == nothing_trained {
            // An episode that trains nothing has no wrong version, and its group needs its reward.
            filter.versions = VersionFilter::default();
            (shares, notes) = weigh(derived, &filter);
        }
        if shares.paths.is_empty() {
            return Err(exclusion(&notes));
        }
        Ok(shares)
    }
}

/// Returns the place of a verdict, the best first.
fn rank(verdict: &str) -> Option<usize> {
    VERDICTS.iter().position(|other| *other == verdict)
}

/// Returns the reason why an episode with paths has no row. That it trains nothing is the last one.
fn exclusion(notes: &Notes) -> &'static str {
    let other = if notes.other_models.is_empty() { "kind" } else { "model" };
    notes.not_of_versions.keys().next().map_or(other, |mismatch| mismatch.as_str())
}

#[cfg(test)]
mod tests {
    use episode::TrajectoryKind;
    use serde_json::Value;
    use store::Selection;

    use super::*;
    use crate::options::destination::{Destination, OutputStream};
    use crate::options::encoding::Encoding;
    use crate::options::{Options, RewardOptions};
    use crate::rewards::advantage::Advantage;
    use crate::tests::fixture::{call, reply};
    use crate::tests::stored::{Stored, stored};

    fn options() -> FeedOptions {
        FeedOptions::default()
    }

    async fn made(store: &Stored, options: FeedOptions, names: &[&str]) -> FeedOutcome {
        let mut snapshot = store.snapshot().await;
        let all = snapshot.episodes(&Selection::default()).await.unwrap();
        let keys = all.iter().filter(|e| names.contains(&e.id.as_str())).map(|e| e.key);
        let item = FeedItem::new(1, keys.collect());
        Feed::new(options).unwrap().encode_item(&mut snapshot, &item, Some(8)).await.unwrap()
    }

    fn lines(made: &FeedOutcome) -> Vec<Value> {
        let FeedOutcome::Rows(bytes, _) = made else { panic!("{made:?}") };
        let text = std::str::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Two of a group, of versions 7 and 3, and one alone.
    async fn three(folder: &std::path::Path) -> Stored {
        let mut old = call(1, &[1, 2], &[&[3]]);
        reply(&mut old).choices[0].versions[0].version = "step_3".to_owned();
        let turns = || vec![call(1, &[1, 2], &[&[3]]), call(2, &[1, 2, 3, 4], &[&[5, 6]])];
        stored(
            folder,
            &[
                ("a", Some("g"), Some(1.0), turns()),
                ("b", Some("g"), Some(0.0), vec![old]),
                ("c", None, None, turns()),
            ],
        )
        .await
    }

    #[tokio::test]
    async fn rows_are_those_of_an_export() {
        let folder = tempfile::tempdir().unwrap();
        let store = three(folder.path()).await;
        let path = folder.path().join("rows.jsonl");
        let out = Destination::Stream(OutputStream::new(std::fs::File::create(&path).unwrap()));
        let rewards = RewardOptions { advantage: Advantage::DrGrpo, ..RewardOptions::default() };
        let encoding = Some(Encoding::Jsonl);
        let group = Selection { group: Some("g".parse().unwrap()), ..Selection::default() };
        let exported = Options { out, encoding, rewards, selection: group, ..Options::default() };
        store.export(&exported).await.unwrap();
        let exported = std::fs::read(&path).unwrap();
        let fed = made(&store, FeedOptions { rewards, ..options() }, &["a", "b"]).await;
        let FeedOutcome::Rows(bytes, _) = &fed else { panic!("{fed:?}") };
        let plain = String::from_utf8(bytes.clone()).unwrap().replace(",\"feed_item\":1}", "}");
        assert_eq!(plain.as_bytes(), exported);
        assert_eq!(
            lines(&fed).iter().map(|row| row["feed_item"].clone()).collect::<Vec<_>>(),
            [1, 1]
        );
        assert_eq!(lines(&fed)[0]["advantage"], 0.5);
        assert_eq!(lines(&fed)[1]["versions"], serde_json::json!([-1, -1, 3]));
    }

    #[tokio::test]
    async fn arrays_beside_the_tokens_are_handed_out_in_every_encoding() {
        let folder = tempfile::tempdir().unwrap();
        let mut routed = call(1, &[1, 2], &[&[3]]);
        let json = "[[[4, 5]], [[6, 7]]]".to_owned();
        let side = episode::TokenColumn { name: "routed_experts".to_owned(), json };
        reply(&mut routed).choices[0].token_columns.push(side);
        let store = stored(folder.path(), &[("a", None, None, vec![routed])]).await;
        let row = lines(&made(&store, options(), &["a"]).await).remove(0);
        assert_eq!(row["routed_experts"], serde_json::json!([[4, 5], [6, 7], [0, 0]]));
        let arrow = FeedOptions { encoding: Encoding::Arrow, ..options() };
        assert!(matches!(made(&store, arrow, &["a"]).await, FeedOutcome::Rows(..)));
    }

    #[tokio::test]
    async fn a_part_of_a_group_is_compared_with_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let turn = || vec![call(1, &[1, 2], &[&[3]])];
        let told = [("a", 1.0), ("b", 0.0), ("c", 2.0), ("d", 3.0)];
        let told = told.map(|(name, reward)| (name, Some("g"), Some(reward), turn()));
        let store = stored(folder.path(), &told).await;
        let rewards = RewardOptions {
            advantage: Advantage::Grpo,
            group_stats: true,
            ..RewardOptions::default()
        };
        let fed = async |item: FeedItem| {
            let mut feed = Feed::new(FeedOptions { rewards, ..options() }).unwrap();
            let made = feed.encode_item(&mut store.snapshot().await, &item, None).await.unwrap();
            lines(&made)
        };
        let whole = fed(FeedItem::new(4, vec![1, 2, 3, 4])).await;
        let rest = FeedItem { peers: vec![1, 2], size: 4, ..FeedItem::new(4, vec![3, 4]) };
        assert_eq!(fed(rest).await, whole[2..]);
        let last = FeedItem { peers: vec![1, 2, 4], size: 4, ..FeedItem::new(4, vec![3]) };
        assert_eq!(fed(last).await, whole[2..3]);
        assert!((whole[2]["advantage"].as_f64().unwrap() - 0.387).abs() < 0.001, "{whole:?}");
        assert_eq!(whole[2]["group_size"], 4);
    }

    #[tokio::test]
    async fn what_is_not_asked_for_drops_the_whole_item_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let store = three(folder.path()).await;
        let of = |versions| FeedOptions { versions, ..options() };
        let none = VersionFilter::default();
        let stale = VersionFilter { at: Some(8), staleness_max: Some(4), ..none };
        let newest = VersionFilter { at: None, ..stale };
        let cases = [
            (of(stale), "stale"),
            (of(newest), "stale"),
            (of(VersionFilter { max: Some(6), ..none }), "above_max_version"),
            (FeedOptions { models: "judge".parse().unwrap(), ..options() }, "model"),
            (FeedOptions { kinds: [TrajectoryKind::Fork].into(), ..options() }, "kind"),
            (FeedOptions { min_reward: Some(0.5), ..options() }, "below_min_reward"),
        ];
        for (options, why) in cases {
            assert_eq!(made(&store, options, &["a", "b"]).await, FeedOutcome::Dropped(why));
        }
        let fresh = made(&store, of(stale), &["a"]).await;
        assert_eq!(lines(&fresh)[0]["staleness"], 1);
        let worst = |verdict| FeedOptions { verdict: Some(verdict), ..options() };
        assert_eq!(lines(&made(&store, worst("exact"), &["a", "b"]).await).len(), 2);
        let mut snapshot = store.snapshot().await;
        for item in [
            FeedItem::new(1, vec![1, 99]),
            FeedItem { peers: vec![99], ..FeedItem::new(1, vec![1]) },
            FeedItem { size: 2, ..FeedItem::new(1, vec![1]) },
        ] {
            let gone = Feed::new(options()).unwrap().encode_item(&mut snapshot, &item, None).await;
            assert_eq!(gone.unwrap(), FeedOutcome::Dropped("gone"), "{item:?}");
        }
    }

    #[tokio::test]
    async fn an_episode_that_trains_nothing_is_of_no_wrong_version() {
        let folder = tempfile::tempdir().unwrap();
        let mut crashed = call(1, &[1, 2], &[&[3]]);
        reply(&mut crashed).outcome = episode::Outcome::ClientGone;
        let mut old = call(1, &[8], &[&[9]]);
        reply(&mut old).choices[0].versions[0].version = "3".to_owned();
        let fine = || vec![call(1, &[1, 2], &[&[3]])];
        let told = [
            ("a", Some("g"), Some(1.0), fine()),
            ("b", Some("g"), Some(0.0), vec![crashed.clone()]),
            ("c", Some("g"), Some(0.0), vec![old, crashed]),
        ];
        let store = stored(folder.path(), &told).await;
        let fresh = VersionFilter { staleness_max: Some(1), ..VersionFilter::default() };
        let fresh = FeedOptions { versions: fresh, ..options() };
        let both = lines(&made(&store, fresh.clone(), &["a", "b"]).await);
        let masks: Vec<_> = both.iter().map(|row| row["loss_mask"].clone()).collect();
        assert_eq!(masks, [serde_json::json!([0, 0, 1]), serde_json::json!([0, 0, 0])]);
        assert_eq!((&both[0]["staleness"], &both[1]["staleness"]), (&1.into(), &Value::Null));
        // It makes up for no row that is left out.
        assert_eq!(made(&store, fresh, &["a", "c"]).await, FeedOutcome::Dropped("stale"));
    }

    #[tokio::test]
    async fn a_group_goes_on_without_what_the_infrastructure_failed() {
        let folder = tempfile::tempdir().unwrap();
        let fine = || vec![call(1, &[1, 2], &[&[3]])];
        let mut cut = call(2, &[1, 2, 3, 4], &[&[5]]);
        reply(&mut cut).outcome = episode::Outcome::UpstreamFailed;
        let failed = vec![call(1, &[1, 2], &[&[3]]), cut];
        let told = [
            ("a", Some("g"), Some(1.0), fine()),
            ("b", Some("g"), Some(0.5), fine()),
            // The zero of a scorer that found no answer.
            ("c", Some("g"), Some(0.0), failed),
        ];
        let store = stored(folder.path(), &told).await;
        let rewards = RewardOptions { advantage: Advantage::DrGrpo, ..RewardOptions::default() };
        let all = FeedOptions { rewards, ..options() };
        let rows = lines(&made(&store, all.clone(), &["a", "b", "c"]).await);
        let column = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
        assert_eq!(column("advantage"), [0.25.into(), (-0.25).into(), Value::Null]);
        assert_eq!(column("status"), ["completed", "completed", "infrastructure_failed"]);
        assert_eq!(column("reward")[2], 0.0, "what was given stays");

        let without = FeedOptions { no_infrastructure_failed: true, ..all };
        let rows = lines(&made(&store, without.clone(), &["a", "b", "c"]).await);
        assert_eq!(rows.iter().map(|row| &row["episode_id"]).collect::<Vec<_>>(), ["a", "b"]);
        let alone = made(&store, without, &["c"]).await;
        assert_eq!(alone, FeedOutcome::Dropped("infrastructure_failed"));
    }

    #[tokio::test]
    async fn a_member_without_a_row_costs_its_group_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let fine = || vec![call(1, &[1, 2], &[&[3]])];
        let mut refused = call(1, &[1, 2], &[]);
        reply(&mut refused).outcome = episode::Outcome::Refused;
        let mut lost = call(1, &[1, 2], &[]);
        lost.ended = None;
        let told = [
            ("a", Some("g"), Some(1.0), fine()),
            ("b", Some("g"), Some(0.0), fine()),
            ("c", Some("g"), Some(0.0), vec![lost]),
            ("d", Some("g"), Some(0.0), vec![refused]),
        ];
        let store = stored(folder.path(), &told).await;
        let rewards = RewardOptions { advantage: Advantage::DrGrpo, ..RewardOptions::default() };
        let asked = FeedOptions { rewards, ..options() };
        let fed = made(&store, asked.clone(), &["a", "b", "c", "d"]).await;
        let advantages = lines(&fed).iter().map(|row| row["advantage"].clone()).collect::<Vec<_>>();
        assert_eq!(advantages, [0.75, -0.25]);
        let FeedOutcome::Rows(_, silent) = fed else { panic!() };
        assert_eq!(silent, [(3, "member_no_rows"), (4, "member_no_rows")]);
        let none = made(&store, asked, &["c", "d"]).await;
        assert_eq!(none, FeedOutcome::Dropped("no_rows"));
    }

    #[tokio::test]
    async fn a_group_without_a_signal_is_dropped_where_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let fine = || vec![call(1, &[1, 2], &[&[3]])];
        let mut failed = call(1, &[1, 2], &[&[3]]);
        reply(&mut failed).outcome = episode::Outcome::UpstreamFailed;
        let told = [
            ("a", Some("g"), Some(1.0), fine()),
            ("b", Some("g"), Some(1.0), fine()),
            ("c", Some("g"), Some(0.0), fine()),
            ("d", Some("g"), None, fine()),
            // What it was given is no signal.
            ("e", Some("g"), Some(0.0), vec![failed]),
        ];
        let store = stored(folder.path(), &told).await;
        let asked = || FeedOptions { no_signal: true, ..options() };
        for flat in [["a", "b"].as_slice(), &["a", "b", "d"], &["a", "e"], &["e"]] {
            let made = made(&store, asked(), flat).await;
            assert_eq!(made, FeedOutcome::Dropped("no_signal"), "{flat:?}");
        }
        // One whose reward is to come may differ.
        for (names, rows) in [(["a", "c"].as_slice(), 2), (&["a", "d"], 2)] {
            assert_eq!(lines(&made(&store, asked(), names).await).len(), rows, "{names:?}");
        }
        assert_eq!(lines(&made(&store, options(), &["a", "b"]).await).len(), 2);
    }

    #[tokio::test]
    async fn an_episode_that_is_worse_than_asked_for_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut lost = call(2, &[1, 2, 3], &[&[4]]);
        lost.ended = None;
        let calls = vec![call(1, &[1], &[&[2]]), lost.clone()];
        let told = [("a", None, None, calls), ("b", None, None, vec![lost])];
        let store = stored(folder.path(), &told).await;
        let worst = |verdict| FeedOptions { verdict: Some(verdict), ..options() };
        assert_eq!(made(&store, worst("exact"), &["a"]).await, FeedOutcome::Dropped("verdict"));
        assert_eq!(lines(&made(&store, worst("usable"), &["a"]).await).len(), 1);
        assert_eq!(made(&store, options(), &["b"]).await, FeedOutcome::Dropped("no_rows"));
    }

    #[tokio::test]
    async fn a_stream_of_arrow_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = three(folder.path()).await;
        let mut snapshot = store.snapshot().await;
        let mut feed = Feed::new(FeedOptions { encoding: Encoding::Arrow, ..options() }).unwrap();
        let mut bytes = Vec::new();
        for (position, keys) in [(2, [1, 2].as_slice()), (3, &[3])] {
            let item = FeedItem::new(position, keys.to_vec());
            let FeedOutcome::Rows(rows, _) =
                feed.encode_item(&mut snapshot, &item, None).await.unwrap()
            else {
                panic!()
            };
            bytes.extend(rows);
        }
        bytes.extend(feed.finish().unwrap());
        let read = arrow::ipc::reader::StreamReader::try_new(&bytes[..], None).unwrap();
        let items = read.flat_map(|batch| {
            let batch = batch.unwrap();
            let column = batch.column_by_name("feed_item").unwrap();
            let column = column.as_any().downcast_ref::<Int64Array>().unwrap();
            column.values().to_vec()
        });
        assert_eq!(items.collect::<Vec<_>>(), [2, 2, 3]);
    }

    #[tokio::test]
    async fn what_cannot_be_encoded_is_dropped_and_the_stream_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = three(folder.path()).await;
        let mut snapshot = store.snapshot().await;
        for encoding in [Encoding::Jsonl, Encoding::Arrow] {
            let mut feed = Feed::new(FeedOptions { encoding, ..options() }).unwrap();
            let right =
                std::mem::replace(&mut feed.feed_schema, arrow::datatypes::Schema::empty().into());
            let bad =
                feed.encode_item(&mut snapshot, &FeedItem::new(1, vec![1]), None).await.unwrap();
            assert_eq!(bad, FeedOutcome::Dropped("unreadable"));
            feed.feed_schema = right;
            let fine =
                feed.encode_item(&mut snapshot, &FeedItem::new(2, vec![2]), None).await.unwrap();
            let mut whole = Feed::new(FeedOptions { encoding, ..options() }).unwrap();
            let item = FeedItem::new(2, vec![2]);
            assert_eq!(fine, whole.encode_item(&mut snapshot, &item, None).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_version_that_changed_while_a_call_ran_counts_as_both() {
        let folder = tempfile::tempdir().unwrap();
        let mut changed = call(1, &[1, 2], &[&[3]]);
        reply(&mut changed).choices[0].versions.clear();
        let stamps = episode::VersionStamps { start: Some("4".into()), end: Some("step_5".into()) };
        reply(&mut changed).stamps = stamps;
        let store = stored(folder.path(), &[("a", None, None, vec![changed])]).await;
        let at = |at| {
            let versions =
                VersionFilter { at: Some(at), staleness_max: Some(2), ..VersionFilter::default() };
            FeedOptions { versions, ..options() }
        };
        assert_eq!(made(&store, at(7), &["a"]).await, FeedOutcome::Dropped("stale"));
        let row = lines(&made(&store, at(6), &["a"]).await).remove(0);
        assert_eq!(row["versions"], serde_json::json!([-1, -1, -1]));
        let turn = &row["turns"][0];
        assert_eq!((&turn["version_start"], &turn["version_end"]), (&4.into(), &5.into()));
        assert_eq!(row["mixed_versions"], true);
    }
}
