//! Attempts that leave a store for segments are read as before.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use episode::{
    Annotation, AttemptId, Call, CallId, ChainHead, Comment, Micros, ReplyHead, Reward, RewardScope,
};
use tempfile::TempDir;

use crate::database::query::query;
use crate::location::Location;
use crate::maintenance::extract::{ExtractFilter, extract};
use crate::maintenance::segments::gather::{GatheredStore, SegmentAtHand};
use crate::maintenance::segments::remove::{SegmentRemoval, Unwanted, remove_from_folder};
use crate::maintenance::segments::seal::{SealReport, seal};
use crate::maintenance::segments::{SealOptions, SegmentError};
use crate::open;
use crate::site::{Site, on_both};
use crate::snapshot::catalog::{CatalogEntry, EntryKind, SegmentFolder};
use crate::tests::{announced, begun, comment, ended};
use crate::{
    Announcement, CommitError, EpisodeFilter, EpisodeSummary, PastCalls, Selection, Snapshot,
    Store, StoreEditor, VerifyReport, VersionRecord, bring_segments_back_with, prune, verify,
};

/// A moment after all that is recorded here, in microseconds.
const LATER: Micros = 4_000_000_000_000_000;

fn now() -> Micros {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

fn attempt(name: &str) -> AttemptId {
    name.parse().unwrap()
}

fn reward(value: f64, at: Micros) -> Reward {
    Reward {
        scope: RewardScope::Episode,
        name: "reward".into(),
        value: Some(value),
        source: "test".into(),
        at,
        provenance: episode::Provenance::default(),
    }
}

/// Records an attempt of three calls, each with the history before it.
async fn record(store: &Store, name: &str, group: Option<&str>) -> Vec<CallId> {
    let id = attempt(name);
    let mut calls = Vec::new();
    for turn in 0..3_usize {
        let mut begun = begun(id.episode.as_str(), now());
        begun.tag.attempt = id.attempt;
        begun.tag.group = group.map(|group| group.parse().unwrap());
        begun.request = format!("{name}: {}", "what was said; ".repeat(20 * (turn + 1))).into();
        let mut end = ended(begun.call_id);
        end.prompts[0] = (0..600 + 40 * turn as u32).collect();
        calls.push(begun.call_id);
        store.begin(begun).await.done().await.unwrap();
        store.end(end).await.done().await.unwrap();
    }
    calls
}

async fn finish(store: &Store, name: &str) {
    store.reward(attempt(name), reward(0.25, 6)).await.unwrap();
    store.close(attempt(name), now(), Some("completed".into())).await.unwrap();
}

/// Two attempts of a group and one without, all finished; one that is open, with the newest call.
async fn filled(site: &Site) -> Vec<CallId> {
    let (store, writer) = site.open().await;
    let mut calls = Vec::new();
    for (name, group) in [("a/0", Some("g")), ("b/1", Some("g")), ("c/0", None)] {
        calls.extend(record(&store, name, group).await);
        finish(&store, name).await;
    }
    let annotation = Annotation {
        call: calls[0],
        choice: 0,
        name: "trainer_logprobs".into(),
        version: "7".into(),
        start: 0,
        values: vec![-0.5, 0.0],
        at: 6,
    };
    store.annotate(vec![annotation]).await.unwrap();
    let comment = comment(Some(calls[0]), Some("good"), None);
    store.comment(vec![(attempt("a/0"), comment)]).await.unwrap();
    store.version(VersionRecord { label: "3".into(), ..VersionRecord::default() }).await.unwrap();
    calls.extend(record(&store, "open/0", None).await);
    drop(store);
    writer.finish().await;
    calls
}

/// All that is recorded of an attempt.
#[derive(Debug, Clone, PartialEq)]
struct Recorded {
    calls: Vec<Call>,
    rewards: Vec<Reward>,
    annotations: Vec<Annotation>,
    comments: Vec<Comment>,
    summary: EpisodeSummary,
    version: Option<String>,
    last_call: Option<CallId>,
    chain: ChainHead,
}

/// All that is recorded, by the names of the attempts, without the store's own keys.
async fn recorded(at: &Location) -> BTreeMap<String, Recorded> {
    let mut snapshot = Snapshot::open(at).await.unwrap();
    let mut all = BTreeMap::new();
    for mut summary in snapshot.summaries(&Selection::default()).await.unwrap() {
        let record = summary.episode.clone();
        summary.episode.key = 0;
        let one = snapshot.summary(record.clone()).await.unwrap();
        assert_eq!((one.calls, one.model), (summary.calls, summary.model.clone()));
        let last_call = snapshot.last_call_row(record.key).await.unwrap();
        let recorded = Recorded {
            calls: snapshot.calls(&record).await.unwrap(),
            rewards: snapshot.rewards(&record).await.unwrap(),
            annotations: snapshot.annotations(&record).await.unwrap(),
            comments: snapshot.comments(&record).await.unwrap(),
            summary,
            version: snapshot.last_version_of(record.key).await.unwrap(),
            last_call: last_call.map(|row| row.call_id),
            chain: snapshot.chain(&record).await.unwrap(),
        };
        all.insert(format!("{}/{}", record.id, record.attempt), recorded);
    }
    all
}

struct Segments(TempDir);

impl Segments {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn options(&self) -> SealOptions {
        SealOptions {
            folder: self.0.path().to_owned(),
            finished_before: LATER,
            segment_bytes: 64 << 20,
            segment_bytes_min: 0,
            short_before: 0,
            group_wait: LATER,
            now: now(),
        }
    }

    async fn seal(&self, site: &Site) -> SealReport {
        seal(&site.at, &self.options()).await.unwrap()
    }

    fn entries(&self) -> Vec<CatalogEntry> {
        SegmentFolder::at(self.0.path()).entries().unwrap()
    }

    async fn gathered(&self) -> GatheredStore {
        let at_hand = |entry| SegmentAtHand { entry, folder: self.0.path().to_owned() };
        let files: Vec<_> = self.live().into_iter().map(at_hand).collect();
        GatheredStore::of(&files).await.unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.entries().iter().map(|entry| self.0.path().join(&entry.file)).collect()
    }
}

fn all() -> EpisodeFilter {
    EpisodeFilter::default()
}

async fn count(site: &Site, table: &str) -> i64 {
    let mut snapshot = site.snapshot().await;
    query(format!("SELECT count(*) FROM {table}")).scalar(snapshot.connection()).await.unwrap()
}

#[tokio::test]
async fn sealed_attempts_are_read_as_before() {
    on_both(async |site| {
        let calls = filled(&site).await;
        let before = recorded(&site.at).await;
        let segments = Segments::new();
        let report = segments.seal(&site).await;
        assert_eq!((report.attempts, report.waiting, report.changed), (3, 0, 0));
        assert_eq!((report.entries.len(), report.entries[0].calls), (1, 9));
        assert_eq!(report.entries, segments.entries());

        assert_eq!(recorded(&site.at).await, before);
        let mut snapshot = site.snapshot().await;
        let mut past = PastCalls::of(EpisodeFilter { group: Some("g".parse().unwrap()), ..all() });
        let mut found = Vec::new();
        while let [call] = snapshot.calls_before(&mut past, 1).await.unwrap().as_slice() {
            found.push(call.call_id);
        }
        found.reverse();
        assert_eq!(found, calls[..6]);
        for call in &calls {
            let found = snapshot.call(*call).await.unwrap().unwrap();
            let of = format!("{}/{}", found.begun.tag.episode, found.begun.tag.attempt);
            assert!(before[&of].calls.contains(&found));
        }
        drop(snapshot);
        assert_eq!((count(&site, "call").await, count(&site, "choice").await), (3, 6));
        assert_eq!(count(&site, "annotation").await, 0);
        assert!(verify(&site.at).await.unwrap().is_clean());

        // There is nothing left to seal.
        let again = segments.seal(&site).await;
        assert_eq!((again.attempts, again.entries.len()), (0, 0));
    })
    .await;
}

/// Takes out of a segment what versions before 24 did not write.
async fn make_older(path: PathBuf) {
    let mut segment = open::for_editing(&Location::File(path)).await.unwrap();
    for undone in [
        "DROP VIEW calls",
        "ALTER TABLE call DROP COLUMN reply_head",
        "ALTER TABLE call DROP COLUMN replayed",
        "DROP INDEX episode_with_replay",
        "DROP INDEX episode_by_replay",
        "ALTER TABLE episode DROP COLUMN replay",
        "DROP INDEX reward_late",
        "ALTER TABLE reward DROP COLUMN is_late",
        "DROP VIEW comments",
        "DROP TABLE comment",
    ] {
        query(undone).execute(&mut segment).await.unwrap();
    }
}

#[tokio::test]
async fn segments_of_earlier_versions_are_read_and_copied() {
    let site = Site::file();
    filled(&site).await;
    let mut before = recorded(&site.at).await;
    let segments = Segments::new();
    segments.seal(&site).await;
    for path in segments.files() {
        make_older(path).await;
    }

    let names = ["a/0", "b/1", "c/0"];
    for name in names {
        for call in &mut before.get_mut(name).unwrap().calls {
            let ended = call.ended.as_mut().unwrap();
            (ended.head, ended.replayed) = (ReplyHead::default(), None);
        }
    }
    assert_eq!(recorded(&site.at).await, before);

    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("some.db");
    let episodes = vec![("a".parse().unwrap(), None)];
    extract(&site.at, &ExtractFilter { episodes, ..ExtractFilter::default() }, &to).await.unwrap();
    let copied = recorded(&to.into()).await;
    assert_eq!(copied["a/0"].calls, before["a/0"].calls);
}

#[tokio::test]
async fn segments_alone_are_a_store() {
    on_both(async |site| {
        filled(&site).await;
        let mut before = recorded(&site.at).await;
        let segments = Segments::new();
        segments.seal(&site).await;
        let gathered = segments.gathered().await;
        before.remove("open/0");
        assert_eq!(recorded(&gathered.location()).await, before);
        let mut snapshot = Snapshot::open(gathered.location()).await.unwrap();
        assert_eq!(snapshot.versions().await.unwrap().len(), 1);
        assert_eq!(snapshot.last_position().await.unwrap(), 3);
        assert!(verify(gathered.location()).await.unwrap().is_clean());
    })
    .await;
}

#[tokio::test]
async fn sealed_attempts_are_copied_with_the_others() {
    on_both(async |site| {
        filled(&site).await;
        let mut before = recorded(&site.at).await;
        let segments = Segments::new();
        segments.seal(&site).await;
        let to = segments.0.path().join("copy.db");
        let episodes = ["a", "b", "open"].map(|id| (id.parse().unwrap(), None)).to_vec();
        let which = crate::ExtractFilter { episodes, ..crate::ExtractFilter::default() };
        let report = crate::extract(&site.at, &which, &to).await.unwrap();
        assert_eq!((report.attempts, report.calls), (3, 9));
        before.remove("c/0");
        assert_eq!(recorded(&Location::from(&to)).await, before);
        assert!(verify(&to).await.unwrap().is_clean());
    })
    .await;
}

#[tokio::test]
async fn rewards_that_come_late_are_beside_the_segments() {
    on_both(async |site| {
        filled(&site).await;
        let segments = Segments::new();
        segments.seal(&site).await;
        let (store, writer) = site.open().await;
        store.reward(attempt("a/0"), reward(0.75, 9)).await.unwrap();
        drop(store);
        writer.finish().await;
        let now = recorded(&site.at).await;
        assert_eq!(now["a/0"].summary.reward, Some(0.75));

        let report = segments.seal(&site).await;
        assert_eq!(report.entries[0].kind, EntryKind::Rewards);
        assert_eq!((report.entries[0].attempts, report.attempts), (1, 0));
        let gathered = recorded(&segments.gathered().await.location()).await;
        assert_eq!(gathered["a/0"], now["a/0"]);
        assert_eq!(gathered["b/1"], now["b/1"]);
    })
    .await;
}

#[tokio::test]
async fn a_late_reward_is_over_the_chain_that_was_sealed() {
    on_both(async |site| {
        let calls = filled(&site).await;
        let (store, writer) = site.open().await;
        let of_call = Reward { scope: RewardScope::Call(calls[1]), ..reward(0.5, 7) };
        store.reward(attempt("a/0"), of_call).await.unwrap();
        let segments = Segments::new();
        segments.seal(&site).await;
        store.reward(attempt("a/0"), reward(0.75, 8)).await.unwrap();
        drop(store);
        writer.finish().await;
        segments.seal(&site).await;

        let report = verify(&site.at).await.unwrap();
        assert_eq!(report.damage, []);
        let gathered = segments.gathered().await;
        for at in [site.at.clone(), gathered.location()] {
            let attempt = recorded(&at).await.remove("a/0").unwrap();
            let over: Vec<_> = attempt.rewards.iter().map(|r| r.provenance.over.unwrap()).collect();
            assert_eq!(over, [attempt.chain; 3]);
            assert_eq!(attempt.chain.calls, 3);
        }

        let mut connection = crate::open::for_editing(&site.at).await.unwrap();
        let other = "UPDATE reward SET over_chain = given.over_chain FROM \
             (SELECT over_chain FROM reward WHERE episode_key = 2) AS given WHERE given_at = 8";
        query(other).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let found = verify(&site.at).await.unwrap().damage;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().contains("given over other records"), "{found:?}");
    })
    .await;
}

fn annotation(call: CallId, version: &str, value: f32) -> Annotation {
    Annotation {
        call,
        choice: 0,
        name: "trainer_logprobs".into(),
        version: version.into(),
        start: 0,
        values: vec![value, -0.125],
        at: 7,
    }
}

/// Gives rewards to calls of sealed attempts, and annotates some.
async fn speak_late(site: &Site, calls: &[CallId]) {
    let (store, writer) = site.open().await;
    let of_call = Reward { scope: RewardScope::Call(calls[1]), ..reward(0.5, 9) };
    let span = RewardScope::Tokens { call: calls[1], choice: 0, start: 0, end: 1 };
    store.reward(attempt("a/0"), of_call).await.unwrap();
    store.reward(attempt("a/0"), Reward { scope: span, ..reward(0.25, 10) }).await.unwrap();
    let open = calls[calls.len() - 1];
    let said = [(calls[1], "8"), (open, "8"), (calls[0], "8"), (calls[6], "9")];
    let said = said.map(|(call, version)| annotation(call, version, -0.5)).to_vec();
    store.annotate(said).await.unwrap();
    drop(store);
    writer.finish().await;
}

#[tokio::test]
async fn people_may_say_something_of_a_sealed_call() {
    on_both(async |site| {
        let calls = filled(&site).await;
        let segments = Segments::new();
        segments.seal(&site).await;

        let late = comment(Some(calls[1]), Some("late"), Some(0.5));
        let (store, writer) = site.open().await;
        store.comment(vec![(attempt("a/0"), late.clone())]).await.unwrap();
        let other = store.comment(vec![(attempt("c/0"), late.clone())]).await.unwrap_err();
        assert!(matches!(other, CommitError::UnknownCall(_)), "{other}");
        drop(store);
        writer.finish().await;

        let editor = StoreEditor::open(&site.at).await.unwrap();
        editor.comment(vec![(attempt("a/0"), late.clone())]).await.unwrap();
        assert_eq!(recorded(&site.at).await["a/0"].comments[1..], [late.clone(), late]);
        assert_eq!(verify(&site.at).await.unwrap().damage, []);
    })
    .await;
}

#[tokio::test]
async fn what_is_said_late_of_a_call_is_read_everywhere() {
    on_both(async |site| {
        let calls = filled(&site).await;
        let before = recorded(&site.at).await;
        let segments = Segments::new();
        segments.seal(&site).await;
        speak_late(&site, &calls).await;

        let said = recorded(&site.at).await;
        assert_eq!(said["a/0"].rewards.len(), before["a/0"].rewards.len() + 2);
        let versions = |name: &str| {
            let all = said[name].annotations.iter();
            all.map(|one| (one.call, one.version.clone())).collect::<Vec<_>>()
        };
        let of_a = [(calls[0], "7"), (calls[1], "8"), (calls[0], "8")];
        assert_eq!(versions("a/0"), of_a.map(|(call, version)| (call, version.to_owned())));
        assert_eq!((versions("c/0").len(), versions("open/0").len()), (1, 1));
        let of_call = site.snapshot().await.call_annotations(calls[0]).await.unwrap();
        assert_eq!(of_call.iter().map(|one| &*one.version).collect::<Vec<_>>(), ["7", "8"]);
        assert_eq!(verify(&site.at).await.unwrap().damage, []);

        // Written beside the segments, once.
        let kinds = |report: &SealReport| {
            report.entries.iter().map(|entry| (entry.kind, entry.attempts)).collect::<Vec<_>>()
        };
        let wanted = [(EntryKind::Rewards, 2), (EntryKind::Annotations, 3)];
        assert_eq!(kinds(&segments.seal(&site).await), wanted);
        assert_eq!(kinds(&segments.seal(&site).await), []);
        let gathered = segments.gathered().await;
        let alone = recorded(&gathered.location()).await;
        for name in ["a/0", "b/1", "c/0"] {
            assert_eq!(alone[name], said[name]);
        }
        assert_eq!(verify(gathered.location()).await.unwrap().damage, []);

        let to = segments.0.path().join("copy.db");
        let episodes = ["a", "b", "c", "open"].map(|id| (id.parse().unwrap(), None)).to_vec();
        let which = ExtractFilter { episodes, ..ExtractFilter::default() };
        extract(&site.at, &which, &to).await.unwrap();
        assert_eq!(recorded(&Location::from(&to)).await, said);
    })
    .await;
}

#[tokio::test]
async fn calls_that_no_segment_has_take_nothing() {
    on_both(async |site| {
        let calls = filled(&site).await;
        let segments = Segments::new();
        segments.seal(&site).await;
        let (store, writer) = site.open().await;
        let other = Reward { scope: RewardScope::Call(calls[3]), ..reward(0.5, 9) };
        let refused = store.reward(attempt("a/0"), other).await;
        assert!(matches!(refused, Err(CommitError::UnknownCall(_))), "{refused:?}");
        let unknown = CallId(uuid::Uuid::now_v7());
        let both = vec![annotation(calls[0], "8", 0.5), annotation(unknown, "8", 0.5)];
        let refused = store.annotate(both).await;
        assert!(matches!(refused, Err(CommitError::UnknownCall(call)) if call == unknown));
        assert_eq!(count(&site, "late_annotation").await, 0, "all of it or nothing");

        // A call may be in a segment that cannot be read.
        std::fs::remove_file(&segments.files()[0]).unwrap();
        let of_call = Reward { scope: RewardScope::Call(calls[0]), ..reward(0.5, 9) };
        let refused = store.reward(attempt("a/0"), of_call.clone()).await.unwrap_err();
        assert!(refused.to_string().contains("its segment cannot be read"), "{refused}");
        let editor = crate::StoreEditor::open(&site.at).await.unwrap();
        assert!(editor.reward(attempt("a/0"), of_call).await.is_err());
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_late_reward_counts_though_another_had_its_key() {
    let site = Site::file();
    let calls = filled(&site).await;
    let segments = Segments::new();
    segments.seal(&site).await;
    let give = async |name: &str, call: CallId| {
        let reward = Reward { scope: RewardScope::Call(call), ..reward(0.5, 9) };
        let editor = crate::StoreEditor::open(&site.at).await.unwrap();
        editor.reward(attempt(name), reward).await.unwrap();
    };
    give("a/0", calls[1]).await;
    assert_eq!(segments.seal(&site).await.entries.len(), 1);
    let filter = crate::PruneFilter {
        episode: Some("a".parse().unwrap()),
        now: LATER,
        ..crate::PruneFilter::default()
    };
    prune(&site.at, &filter).await.unwrap();

    // SQLite gives the highest key again once its row is gone.
    give("b/1", calls[4]).await;
    assert_eq!(segments.seal(&site).await.entries.len(), 1);
    let alone = recorded(&segments.gathered().await.location()).await;
    assert_eq!(alone["b/1"], recorded(&site.at).await["b/1"]);
}

#[tokio::test]
async fn a_late_word_about_a_call_that_is_not_there_is_found() {
    let site = Site::file();
    let calls = filled(&site).await;
    let segments = Segments::new();
    segments.seal(&site).await;
    speak_late(&site, &calls).await;
    let mut connection = open::for_editing(&site.at).await.unwrap();
    let (call, other) = (calls[1].to_string(), CallId(uuid::Uuid::now_v7()).to_string());
    for (change, found) in [
        ("UPDATE reward SET call_id = $2 WHERE call_id = $1", 1),
        ("UPDATE late_annotation SET call_id = $2 WHERE call_id = $1", 2),
        ("UPDATE late_annotation SET tokens = 9 WHERE call_id = $2 AND call_id <> $1", 3),
        ("UPDATE late_annotation SET episode_key = 4 WHERE call_id = $2 AND call_id <> $1", 2),
    ] {
        query(change).bind(&call).bind(&other).execute(&mut connection).await.unwrap();
        let damage = verify(&site.at).await.unwrap().damage;
        assert_eq!(damage.len(), found, "{change}: {damage:?}");
    }
}

#[tokio::test]
async fn a_group_is_sealed_as_a_whole_or_once_it_has_waited() {
    let site = Site::file();
    let (store, writer) = site.open().await;
    let of_group = |name| Announcement { group_size: Some(2), ..announced(begun(name, 1).tag) };
    store.announce(of_group("a")).await.unwrap();
    record(&store, "a/0", Some("g")).await;
    finish(&store, "a/0").await;
    record(&store, "z/0", None).await;
    drop(store);
    writer.finish().await;

    let segments = Segments::new();
    let report = segments.seal(&site).await;
    assert_eq!((report.attempts, report.waiting), (0, 1));
    let waited = SealOptions { group_wait: 0, now: LATER, ..segments.options() };
    let report = seal(&site.at, &waited).await.unwrap();
    assert_eq!((report.attempts, report.waiting), (1, 0));

    // The other attempt of the group comes late: who reads its segment reads the first one, too.
    let (store, writer) = site.open().await;
    store.announce(of_group("b")).await.unwrap();
    record(&store, "b/0", Some("g")).await;
    finish(&store, "b/0").await;
    record(&store, "y/0", None).await;
    drop(store);
    writer.finish().await;
    let report = segments.seal(&site).await;
    assert_eq!(report.entries[0].joins, [1]);
}

#[tokio::test]
async fn a_sealing_that_died_after_its_entry_is_taken_up() {
    on_both(async |site| {
        filled(&site).await;
        let before = recorded(&site.at).await;
        let segments = Segments::new();
        // A copy of the store before the calls left it is what a crash after step 3 leaves.
        let Location::File(path) = &site.at else { return };
        let copy = path.with_file_name("copy.db");
        crate::backup(&site.at, &copy).await.unwrap();
        let copy = Site::at(copy);
        let (store, writer) = copy.open().await;
        store.reward(attempt("c/0"), reward(0.5, 9)).await.unwrap();
        drop(store);
        writer.finish().await;
        // Both are one store from here on, which had its id before it died.
        segments.seal(&copy).await;

        let report = segments.seal(&site).await;
        assert_eq!((report.attempts, report.entries.len()), (3, 0));
        assert_eq!(recorded(&site.at).await, before);
        assert_eq!(count(&site, "call").await, 3);
        assert_eq!(segments.entries().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_attempt_that_was_changed_stays_and_is_sealed_again() {
    let site = Site::file();
    let calls = filled(&site).await;
    let Location::File(path) = &site.at else { unreachable!() };
    let copy = Site::at(path.with_file_name("copy.db"));
    let segments = Segments::new();
    seal(&site.at, &SealOptions { finished_before: 0, ..segments.options() }).await.unwrap();
    let Location::File(to) = &copy.at else { unreachable!() };
    crate::backup(&site.at, to).await.unwrap();
    segments.seal(&copy).await;

    let (store, writer) = site.open().await;
    let annotation = Annotation {
        call: calls[3],
        choice: 0,
        name: "n".into(),
        version: "8".into(),
        start: 0,
        values: vec![1.0],
        at: 7,
    };
    store.annotate(vec![annotation]).await.unwrap();
    drop(store);
    writer.finish().await;
    let before = recorded(&site.at).await;

    let report = segments.seal(&site).await;
    assert_eq!((report.changed, report.attempts), (1, 3));
    assert_eq!(segments.entries().last().unwrap().joins, [1]);
    assert_eq!(recorded(&site.at).await, before);
    let gathered = recorded(&segments.gathered().await.location()).await;
    assert_eq!(gathered["b/1"], before["b/1"]);
}

#[tokio::test]
async fn damage_of_a_segment_is_found() {
    let site = Site::file();
    filled(&site).await;
    let segments = Segments::new();
    segments.seal(&site).await;
    let file = &segments.files()[0];
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, &bytes).unwrap();
    let report = verify(&site.at).await.unwrap();
    assert!(format!("{report:?}").contains("its hash differs"), "{report:?}");
    std::fs::remove_file(file).unwrap();
    let report = verify(&site.at).await.unwrap();
    assert!(!report.is_clean());
}

#[tokio::test]
async fn a_sealed_attempt_is_pruned_like_another() {
    let site = Site::file();
    filled(&site).await;
    let segments = Segments::new();
    segments.seal(&site).await;
    let filter = crate::PruneFilter {
        episode: Some("a".parse().unwrap()),
        now: LATER,
        ..crate::PruneFilter::default()
    };
    let report = prune(&site.at, &filter).await.unwrap();
    assert_eq!(report.plan.candidates.len(), 1);
    assert!(!recorded(&site.at).await.contains_key("a/0"));
    assert!(verify(&site.at).await.unwrap().is_clean());
}

#[tokio::test]
async fn the_attempt_of_the_newest_call_stays() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        for name in ["a/0", "b/0"] {
            record(&store, name, None).await;
            finish(&store, name).await;
        }
        drop(store);
        writer.finish().await;
        let last = "SELECT max(call_key) FROM call";
        let before: i64 = query(last).scalar(site.snapshot().await.connection()).await.unwrap();

        assert_eq!(Segments::new().seal(&site).await.attempts, 1);
        let after: i64 = query(last).scalar(site.snapshot().await.connection()).await.unwrap();
        assert_eq!(after, before, "keys of later calls are larger");
    })
    .await;
}

fn of_episode(id: &str) -> crate::PruneFilter {
    let episode = Some(id.parse().unwrap());
    crate::PruneFilter { episode, now: LATER, ..crate::PruneFilter::default() }
}

impl Segments {
    fn folder(&self) -> SegmentFolder {
        SegmentFolder::at(self.0.path())
    }

    /// Entries that none replaces, and nothing else.
    fn live(&self) -> Vec<CatalogEntry> {
        let entries = self.entries();
        SegmentFolder::live(&entries).into_iter().cloned().collect()
    }

    /// All that is recorded in the segments alone, and what a check of them finds.
    async fn alone(&self) -> (BTreeMap<String, Recorded>, VerifyReport) {
        let gathered = self.gathered().await;
        let report = verify(gathered.location()).await.unwrap();
        (recorded(&gathered.location()).await, report)
    }

    /// The names of the files of the folder, without the catalog.
    fn names(&self) -> Vec<String> {
        let files = self.0.path().read_dir().unwrap().flatten();
        let files = files.filter(|file| file.path().is_file());
        let mut names: Vec<_> = files.map(|file| file.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Makes files without an entry old enough to be taken for left ones.
    fn age(&self) {
        for name in self.names() {
            let file = std::fs::File::options().write(true).open(self.0.path().join(name));
            let before = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
            file.unwrap().set_modified(before).unwrap();
        }
    }

    fn live_names(&self) -> Vec<String> {
        let live = self.live().into_iter().filter(|entry| !entry.is_empty());
        let mut names: Vec<_> = live.map(|entry| entry.file).collect();
        names.sort();
        names
    }

    async fn remove(&self, names: &[&str]) -> SegmentRemoval {
        let attempts = names.iter().map(|name| attempt(name)).collect();
        remove_from_folder(&self.folder(), &attempts).await.unwrap()
    }
}

/// Sealed attempts `a/0`, `b/1` and `c/0`, and what was said late of calls of `a/0` and `c/0`.
async fn sealed(site: &Site) -> Segments {
    let calls = filled(site).await;
    let segments = Segments::new();
    segments.seal(site).await;
    speak_late(site, &calls).await;
    segments.seal(site).await;
    segments
}

#[tokio::test]
async fn a_pruned_attempt_leaves_its_segment() {
    on_both(async |site| {
        let segments = sealed(&site).await;
        let mut all = recorded(&site.at).await;
        let old = segments.names();

        let report = prune(&site.at, &of_episode("a")).await.unwrap();
        assert_eq!((report.segments_replaced, report.segments_left), (3, None));
        all.remove("a/0");
        assert_eq!(recorded(&site.at).await, all);
        let report = verify(&site.at).await.unwrap();
        assert_eq!((report.damage, report.removed), (Vec::new(), 1));
        assert_eq!((count(&site, "forgotten").await, count(&site, "segment_file").await), (0, 1));

        all.remove("open/0");
        let (alone, report) = segments.alone().await;
        assert_eq!(alone, all);
        assert_eq!((report.damage, report.removed), (Vec::new(), 1));
        assert_eq!(segments.names(), segments.live_names());
        assert!(old.iter().all(|name| !segments.names().contains(name)));
        for name in segments.names() {
            let bytes = std::fs::read(segments.0.path().join(name)).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("\"episode_id\":\"a\""));
        }

        // Nothing more happens, and what comes later is sealed as before.
        let again = segments.seal(&site).await;
        assert_eq!((again.attempts, again.entries.len()), (0, 0));
        let (store, writer) = site.open().await;
        store.reward(attempt("b/1"), reward(0.75, 9)).await.unwrap();
        record(&store, "a/0", Some("g")).await;
        finish(&store, "a/0").await;
        record(&store, "last/0", None).await;
        drop(store);
        writer.finish().await;
        segments.seal(&site).await;
        let (alone, report) = segments.alone().await;
        assert_eq!((report.damage, report.removed), (Vec::new(), 1));
        assert_eq!(alone["a/0"], recorded(&site.at).await["a/0"], "the name is free again");
    })
    .await;
}

#[tokio::test]
async fn an_attempt_leaves_a_folder_without_its_store() {
    on_both(async |site| {
        let segments = sealed(&site).await;
        let mut all = recorded(&site.at).await;
        let removal = segments.remove(&["b/1", "c/0", "none/0"]).await;
        assert_eq!((removal.entries.len(), removal.files_removed), (2, 2));
        let positions = removal.entries[0].positions;
        assert_eq!((removal.entries[0].attempts, positions), (1, (1, 1)));
        assert_eq!(segments.names(), segments.live_names());
        let (alone, report) = segments.alone().await;
        assert_eq!((report.damage, report.removed), (Vec::new(), 2));
        assert_eq!(alone.keys().collect::<Vec<_>>(), ["a/0"]);
        assert_eq!(alone["a/0"], all["a/0"]);
        assert_eq!(segments.remove(&["b/1"]).await.entries, []);

        // The store finds what is left, and says of the others that they were removed.
        let mut snapshot = site.snapshot().await;
        for record in snapshot.episodes(&Selection::default()).await.unwrap() {
            let calls = snapshot.calls(&record).await;
            match record.id.as_str() {
                "b" | "c" => {
                    let told = calls.unwrap_err().to_string();
                    assert!(told.contains("was removed from its segment"), "{told}");
                }
                name => assert_eq!(calls.unwrap(), all[&format!("{name}/0")].calls),
            }
        }
        drop(snapshot);
        let report = verify(&site.at).await.unwrap();
        assert_eq!((report.damage, report.removed, report.removed_here.len()), (vec![], 2, 2));

        // The next sealing takes their lines out of the store.
        segments.seal(&site).await;
        all.retain(|name, _| name == "a/0" || name == "open/0");
        assert_eq!(recorded(&site.at).await, all);
        let report = verify(&site.at).await.unwrap();
        assert_eq!((report.damage, report.removed, report.removed_here.len()), (vec![], 2, 0));
    })
    .await;
}

#[tokio::test]
async fn a_segment_of_which_nothing_is_left_has_no_file() {
    on_both(async |site| {
        let segments = sealed(&site).await;
        let all = recorded(&site.at).await;
        let before = segments.entries().len();
        for name in ["a", "b", "c"] {
            prune(&site.at, &of_episode(name)).await.unwrap();
        }
        assert_eq!(segments.names(), Vec::<String>::new());
        assert!(segments.live().iter().all(|entry| entry.is_empty()));
        assert_eq!(segments.live().len(), before);
        let (alone, report) = segments.alone().await;
        assert_eq!((alone.len(), report.damage, report.removed), (0, Vec::new(), 3));
        let report = verify(&site.at).await.unwrap();
        assert_eq!((report.damage, report.removed), (Vec::new(), 3));
        let left = recorded(&site.at).await;
        assert_eq!((left.len(), &left["open/0"]), (1, &all["open/0"]));
        let mut snapshot = site.snapshot().await;
        assert!(snapshot.call(CallId(uuid::Uuid::nil())).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_removal_that_died_is_old_or_new_and_is_taken_up() {
    on_both(async |site| {
        let segments = sealed(&site).await;
        let all = recorded(&site.at).await;
        let without = |names: &[&str]| {
            let mut left = recorded_names(&all);
            left.retain(|name| !names.contains(&name.as_str()));
            left
        };

        // It died before any segment: the store has forgotten it, the segments have not.
        crate::maintenance::prune::prune(&site.at, &of_episode("a")).await.unwrap();
        assert_eq!(recorded_names(&recorded(&site.at).await), without(&["a/0"]));
        assert_eq!(segments.alone().await.0["a/0"], all["a/0"]);
        assert_eq!(verify(&site.at).await.unwrap().damage, []);
        segments.seal(&site).await;
        assert!(!segments.alone().await.0.contains_key("a/0"));
        assert_eq!(segments.names(), segments.live_names());

        // It died before its entry: the file is not read.
        let unwanted = ["c/0".parse().unwrap()].into();
        let store = segments.entries()[0].store.clone();
        let gone = BTreeSet::new();
        let unwanted = Unwanted { store: &store, attempts: &unwanted, gone };
        let number = segments.live()[0].number;
        let entry = segments.folder().without(number, &unwanted).await.unwrap().unwrap();
        let path = segments.0.path().join(SegmentFolder::entry_name(entry.number));
        let hidden = path.with_extension("hidden");
        std::fs::rename(&path, &hidden).unwrap();
        assert_eq!(segments.alone().await.0["c/0"], all["c/0"]);
        assert_eq!(recorded_names(&recorded(&site.at).await), without(&["a/0"]));
        assert_eq!(verify(&site.at).await.unwrap().damage, []);

        // It died after its entry: the folder is new, and the store reads the old file.
        std::fs::rename(&hidden, &path).unwrap();
        let (alone, report) = segments.alone().await;
        assert_eq!((alone.contains_key("c/0"), report.damage), (false, Vec::new()));
        assert_eq!(recorded(&site.at).await["c/0"], all["c/0"]);
        let report = verify(&site.at).await.unwrap();
        assert_eq!((report.damage, report.removed_here.len()), (Vec::new(), 1));
        prune(&site.at, &of_episode("c")).await.unwrap();
        assert_eq!(recorded_names(&recorded(&site.at).await), without(&["a/0", "c/0"]));
        assert_eq!(recorded(&site.at).await["b/1"], all["b/1"]);
        assert_eq!(segments.names(), segments.live_names());
        let (alone, report) = segments.alone().await;
        assert_eq!((alone.len(), report.damage, report.removed), (1, Vec::new(), 2));
    })
    .await;
}

fn recorded_names(all: &BTreeMap<String, Recorded>) -> Vec<String> {
    all.keys().cloned().collect()
}

#[tokio::test]
async fn what_came_late_follows_after_a_removal_that_died() {
    let site = Site::file();
    let segments = sealed(&site).await;
    let store = segments.entries()[0].store.clone();
    let attempts = ["a/0".parse().unwrap()].into();
    let unwanted = Unwanted { store: &store, attempts: &attempts, gone: BTreeSet::new() };
    segments.folder().without(1, &unwanted).await.unwrap().unwrap();
    let held = |name: &str| {
        let path = segments.0.path().join(name);
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"episode_id\":\"a\""))
    };
    assert!(segments.live_names().iter().any(|name| held(name)));
    segments.remove(&["a/0"]).await;
    assert!(!segments.live_names().iter().any(|name| held(name)));
    assert_eq!(segments.alone().await.1.damage, []);
}

#[tokio::test]
async fn two_removals_at_once_remove_both() {
    let site = Site::file();
    let segments = sealed(&site).await;
    let (one, other) = tokio::join!(segments.remove(&["a/0"]), segments.remove(&["c/0"]));
    assert!(one.entries.len() + other.entries.len() >= 4);
    let (alone, report) = segments.alone().await;
    assert_eq!(alone.keys().collect::<Vec<_>>(), ["b/1"]);
    assert_eq!((report.damage, report.removed), (Vec::new(), 2));
    let mut replaced: Vec<_> =
        segments.entries().into_iter().filter_map(|entry| entry.replaces).collect();
    let all = replaced.len();
    replaced.dedup();
    assert_eq!(replaced.len(), all, "no two entries replace one");
    segments.seal(&site).await;
    assert_eq!(segments.names(), segments.live_names());
}

#[tokio::test]
async fn a_file_that_is_read_is_removed_later() {
    let site = Site::file();
    let segments = sealed(&site).await;
    let all = recorded(&site.at).await;
    let (mut reader, mut late) = (site.snapshot().await, site.snapshot().await);
    let episodes = reader.episodes(&Selection::default()).await.unwrap();
    let of = |name: &str| episodes.iter().find(|one| one.id.as_str() == name).unwrap();
    assert_eq!(reader.calls(of("b")).await.unwrap(), all["b/1"].calls);

    let report = prune(&site.at, &of_episode("a")).await.unwrap();
    let told = report.segments_left.unwrap();
    assert!(told.contains("was replaced, and is still read"), "{told}");
    assert_eq!(segments.names().len(), segments.live_names().len() + 1);
    assert_eq!(reader.calls(of("a")).await.unwrap(), all["a/0"].calls, "of its moment");
    drop(reader);
    segments.seal(&site).await;
    assert_eq!(segments.names(), segments.live_names());

    // A reader of an earlier moment finds the file that took the place of the one it knows.
    assert_eq!(late.calls(of("c")).await.unwrap(), all["c/0"].calls);
    assert!(late.calls(of("a")).await.unwrap_err().to_string().contains("was removed"));
}

#[tokio::test]
async fn a_file_without_an_entry_goes_with_the_next_sealing() {
    let site = Site::file();
    let segments = sealed(&site).await;
    let stray = "0000000009-00.db";
    std::fs::write(segments.0.path().join(stray), b"a sealing that died").unwrap();
    let mut connection = open::for_editing(&site.at).await.unwrap();
    let insert = "INSERT INTO segment_file (folder, name, number, hash, bytes, first_call_at, \
        last_call_at, sealed_at) SELECT folder, $1, 9, hash, 1, 0, 0, 0 FROM segment_file";
    query(insert).bind(stray).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    segments.seal(&site).await;
    assert_eq!(segments.names(), segments.live_names());
    assert_eq!(count(&site, "segment_file").await, 1);
}

#[tokio::test]
async fn a_file_that_is_being_made_is_left_alone() {
    let site = Site::file();
    let segments = sealed(&site).await;
    let folder = segments.folder();
    let (unnamed, named) = (folder.making().unwrap(), folder.making().unwrap());
    let kept = folder.keep(named, 9, "db").unwrap();
    std::fs::write(segments.0.path().join("0000000008-of-mine.txt"), b"old").unwrap();
    segments.age();
    std::fs::write(segments.0.path().join("0000000007-new.db"), b"new").unwrap();
    std::fs::write(segments.0.path().join("notes.txt"), b"mine").unwrap();
    let unnamed = unnamed.keep().unwrap();
    segments.seal(&site).await;
    let others = segments.names().len() - segments.live_names().len();
    assert_eq!(others, 5, "{:?}", segments.names());
    drop((unnamed, kept));
    segments.seal(&site).await;
    let others = segments.names().len() - segments.live_names().len();
    assert_eq!(others, 3, "{:?}", segments.names());
}

#[tokio::test]
async fn segments_that_were_not_mounted_are_left_for_later() {
    let site = Site::file();
    let segments = sealed(&site).await;
    let away = segments.0.path().with_extension("away");
    std::fs::rename(segments.0.path(), &away).unwrap();
    let report = prune(&site.at, &of_episode("a")).await.unwrap();
    assert!(report.segments_left.unwrap().contains("cannot use"));
    std::fs::rename(&away, segments.0.path()).unwrap();
    assert!(segments.alone().await.0.contains_key("a/0"));
    let report = prune(&site.at, &of_episode("a")).await.unwrap();
    assert_eq!((report.plan.candidates.len(), report.segments_replaced), (0, 3));
    assert!(!segments.alone().await.0.contains_key("a/0"));
}

#[tokio::test]
async fn a_pruned_attempt_leaves_older_states_of_it_as_well() {
    let site = Site::file();
    let calls = filled(&site).await;
    let Location::File(path) = &site.at else { unreachable!() };
    let copy = Site::at(path.with_file_name("copy.db"));
    let segments = Segments::new();
    seal(&site.at, &SealOptions { finished_before: 0, ..segments.options() }).await.unwrap();
    let Location::File(to) = &copy.at else { unreachable!() };
    crate::backup(&site.at, to).await.unwrap();
    segments.seal(&copy).await;
    let (store, writer) = site.open().await;
    store.annotate(vec![annotation(calls[3], "8", 1.0)]).await.unwrap();
    drop(store);
    writer.finish().await;
    assert_eq!(segments.seal(&site).await.changed, 1);

    prune(&site.at, &of_episode("b")).await.unwrap();
    let (alone, report) = segments.alone().await;
    assert_eq!(alone.keys().collect::<Vec<_>>(), ["a/0", "c/0"]);
    assert_eq!(report.removed, 2, "of two segments");
    assert_eq!(segments.names(), segments.live_names());
}

thread_local! {
    /// Steps that are left until the process dies; `None` where it does not.
    static DIES_AFTER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Dies, as far as a function can: it leaves all that it holds.
pub(super) fn between_steps() -> Result<(), SegmentError> {
    match DIES_AFTER.get() {
        Some(0) => Err(SegmentError::InUse("a process that died".into())),
        left => {
            DIES_AFTER.set(left.map(|left| left - 1));
            Ok(())
        }
    }
}

/// Does something at every kind of site, and dies after each number of steps. Returns the numbers
/// of steps after which it did not die any more.
async fn dying_after_each_step(test: impl AsyncFn(&Site, u32) -> bool) -> Vec<u32> {
    let mut counts = Vec::new();
    for kind in 0..crate::site::sites().len() {
        let mut steps = 0;
        while test(&crate::site::sites().remove(kind), steps).await {
            steps += 1;
        }
        counts.push(steps);
    }
    counts
}

async fn dying<T>(steps: u32, work: impl Future<Output = T>) -> T {
    DIES_AFTER.set(Some(steps));
    let done = work.await;
    DIES_AFTER.set(None);
    done
}

#[tokio::test]
async fn a_sealing_that_dies_between_any_two_steps_loses_nothing() {
    let counts = dying_after_each_step(async |site, steps| {
        let calls = filled(site).await;
        let before = recorded(&site.at).await;
        let segments = Segments::new();
        let options = SealOptions { segment_bytes: 1, ..segments.options() };
        let died = dying(steps, seal(&site.at, &options)).await.is_err();
        assert_eq!(recorded(&site.at).await, before, "after {steps} steps");
        assert_eq!(verify(&site.at).await.unwrap().damage, []);
        let (alone, report) = segments.alone().await;
        assert!(alone.iter().all(|(name, one)| *one == before[name]), "after {steps} steps");
        assert_eq!(report.damage, []);

        // What is said now is late for some attempts, and not for others.
        speak_late(site, &calls).await;
        let said = recorded(&site.at).await;
        seal(&site.at, &options).await.unwrap();
        assert_eq!(recorded(&site.at).await, said, "after {steps} steps");
        let (mut alone, report) = segments.alone().await;
        assert_eq!(report.damage, []);
        alone.insert("open/0".into(), said["open/0"].clone());
        assert_eq!(alone, said, "after {steps} steps");
        assert_eq!(count(site, "call").await, 3);
        assert_eq!(verify(&site.at).await.unwrap().damage, []);
        segments.age();
        segments.seal(site).await;
        assert_eq!(segments.names(), segments.live_names());
        died
    })
    .await;
    assert!(counts.iter().all(|steps| *steps == 10), "{counts:?}");
}

#[tokio::test]
async fn late_words_are_sealed_once_though_a_sealing_dies() {
    let counts = dying_after_each_step(async |site, steps| {
        let calls = filled(site).await;
        let segments = Segments::new();
        segments.seal(site).await;
        speak_late(site, &calls).await;
        let mut said = recorded(&site.at).await;
        let died = dying(steps, seal(&site.at, &segments.options())).await.is_err();
        assert_eq!(recorded(&site.at).await, said, "after {steps} steps");
        segments.seal(site).await;
        assert_eq!(recorded(&site.at).await, said, "after {steps} steps");
        said.remove("open/0");
        let (alone, report) = segments.alone().await;
        assert_eq!((alone, report.damage), (said, Vec::new()), "after {steps} steps");
        died
    })
    .await;
    assert!(counts.iter().all(|steps| *steps == 4), "{counts:?}");
}

#[tokio::test]
async fn a_removal_that_dies_between_any_two_steps_is_taken_up() {
    let counts = dying_after_each_step(async |site, steps| {
        let segments = sealed(site).await;
        let mut all = recorded(&site.at).await;
        let report = dying(steps, prune(&site.at, &of_episode("a"))).await.unwrap();
        let died = report.segments_left.is_some();
        let (alone, found) = segments.alone().await;
        assert!(alone.iter().all(|(name, one)| *one == all[name]), "after {steps} steps");
        assert_eq!(found.damage, []);
        all.remove("a/0");
        assert_eq!(recorded(&site.at).await, all, "after {steps} steps");
        assert_eq!(verify(&site.at).await.unwrap().damage, []);

        segments.seal(site).await;
        assert_eq!(recorded(&site.at).await, all, "after {steps} steps");
        assert_eq!(count(site, "forgotten").await, 0);
        all.remove("open/0");
        let (alone, report) = segments.alone().await;
        assert_eq!((alone, report.damage, report.removed), (all, Vec::new(), 1));
        segments.age();
        segments.seal(site).await;
        assert_eq!(segments.names(), segments.live_names(), "after {steps} steps");
        died
    })
    .await;
    assert!(counts.iter().all(|steps| *steps == 10), "{counts:?}");
}

#[tokio::test]
async fn two_stores_seal_into_one_folder_at_once() {
    let segments = Segments::new();
    let options = SealOptions { segment_bytes: 1, ..segments.options() };
    let mut stores = crate::site::sites();
    stores.push(Site::file());
    let mut all = BTreeMap::new();
    for (number, site) in stores.iter().enumerate() {
        let (store, writer) = site.open().await;
        for attempt in 0..6 {
            let name = format!("s{number}-{attempt}/0");
            record(&store, &name, None).await;
            finish(&store, &name).await;
        }
        drop(store);
        writer.finish().await;
        all.extend(recorded(&site.at).await);
    }
    let mut sealing = tokio::task::JoinSet::new();
    for site in &stores {
        let (at, options) = (site.at.clone(), options.clone());
        sealing.spawn(async move { seal(at, &options).await });
    }
    for report in sealing.join_all().await {
        assert_eq!(report.unwrap().attempts, 5, "the newest call stays");
    }

    let entries = segments.entries();
    let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (1..=5 * stores.len() as u64).collect::<Vec<_>>());
    let (alone, report) = segments.alone().await;
    assert_eq!((alone.len(), report.damage), (numbers.len(), Vec::new()));
    for (name, one) in &alone {
        assert_eq!((&one.calls, &one.rewards), (&all[name].calls, &all[name].rewards));
    }
    for site in &stores {
        for (name, one) in recorded(&site.at).await {
            assert_eq!(one, all[&name]);
        }
        assert_eq!(verify(&site.at).await.unwrap().damage, []);
    }
    assert_eq!(segments.names(), segments.live_names());
}

/// The way back from what tests take for a bucket: a folder, whose path is its URL.
fn copied(
    url: &str,
    entry: &CatalogEntry,
    folder: &SegmentFolder,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    std::fs::copy(PathBuf::from(url).join(&entry.file), folder.file(entry))?;
    Ok(entry.check(&folder.file(entry))?)
}

impl Segments {
    /// Copies all files to a bucket, and keeps those of the last so many bytes.
    fn keep(&self, bucket: &TempDir, bytes_max: u64) -> u64 {
        bring_segments_back_with(copied);
        let (live, url) = (self.live(), bucket.path().display().to_string());
        for entry in live.iter().filter(|entry| !entry.is_empty()) {
            let from = self.folder().file(entry);
            assert!(from.exists() || bucket.path().join(&entry.file).exists());
            let _ = std::fs::copy(from, bucket.path().join(&entry.file));
        }
        self.folder().keep_newest(&live.iter().collect::<Vec<_>>(), &url, bytes_max).unwrap()
    }

    fn segments_there(&self) -> usize {
        self.names().iter().filter(|name| name.ends_with(".db")).count()
    }
}

#[tokio::test]
async fn what_left_the_folder_is_brought_back_to_be_read() {
    on_both(async |site| {
        let (segments, bucket) = (sealed(&site).await, tempfile::tempdir().unwrap());
        let before = recorded(&site.at).await;
        assert_eq!((segments.keep(&bucket, 0), segments.segments_there()), (1, 0));
        let late = segments.names().into_iter().filter(|name| name.ends_with(".jsonl")).count();
        assert_eq!(late, 2, "what came late stays");

        assert_eq!(recorded(&site.at).await, before);
        assert_eq!((segments.segments_there(), segments.keep(&bucket, 0)), (1, 1));
        assert!(verify(&site.at).await.unwrap().is_clean());
        assert_eq!((segments.segments_there(), segments.keep(&bucket, 0)), (1, 1));
        let (alone, report) = segments.alone().await;
        assert_eq!(alone.len(), before.len() - 1);
        assert!(report.is_clean() && segments.keep(&bucket, 0) == 1);

        // A removal makes another file, and the one before is read nowhere.
        let report = prune(&site.at, &of_episode("a")).await.unwrap();
        assert_eq!((report.segments_replaced, report.segments_left), (3, None));
        assert_eq!((segments.keep(&bucket, 0), segments.segments_there()), (1, 0));
        let mut rest = before;
        rest.remove("a/0");
        assert_eq!(recorded(&site.at).await, rest);
        assert!(verify(&site.at).await.unwrap().is_clean());
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_brought_back_is_named() {
    on_both(async |site| {
        let (segments, bucket) = (sealed(&site).await, tempfile::tempdir().unwrap());
        segments.keep(&bucket, 0);
        let entry = segments.live().remove(0);
        let there = bucket.path().join(&entry.file);
        let bytes = std::fs::read(&there).unwrap();
        std::fs::write(&there, &bytes[1..]).unwrap();

        let mut snapshot = site.snapshot().await;
        let record = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
        let error = snapshot.calls(&record).await.unwrap_err();
        let told = crate::error::with_causes(&error);
        let bucket = bucket.path().display().to_string();
        assert!([&entry.file, &bucket, "its hash differs"].iter().all(|part| told.contains(*part)));
        assert!(!verify(&site.at).await.unwrap().is_clean());

        std::fs::remove_file(segments.folder().file(&entry)).unwrap();
        std::fs::write(&there, bytes).unwrap();
        assert_eq!(snapshot.calls(&record).await.unwrap().len(), 3);
    })
    .await;
}

#[tokio::test]
async fn those_leave_first_that_came_first() {
    let site = Site::file();
    filled(&site).await;
    let (segments, bucket) = (Segments::new(), tempfile::tempdir().unwrap());
    let options = SealOptions { segment_bytes: 1, ..segments.options() };
    let report = seal(&site.at, &options).await.unwrap();
    let [old, new] = report.entries.as_slice() else { panic!("{report:?}") };
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let file = std::fs::File::options().write(true).open(segments.folder().file(new)).unwrap();
    file.set_modified(before).unwrap();

    assert_eq!(segments.keep(&bucket, old.bytes + new.bytes), 0);
    assert_eq!(segments.keep(&bucket, old.bytes + new.bytes - 1), 1);
    assert!(segments.folder().file(old).exists() && !segments.folder().file(new).exists());

    // What was brought back came last, and what is read stays.
    segments.folder().at_hand(new).await.unwrap();
    let mut snapshot = site.snapshot().await;
    let of_old = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    snapshot.calls(&of_old).await.unwrap();
    assert_eq!(segments.keep(&bucket, 0), 1);
    assert!(segments.folder().file(old).exists());
    drop(snapshot);
    assert_eq!((segments.keep(&bucket, 0), segments.segments_there()), (1, 0));
}

#[tokio::test]
async fn what_replaced_a_file_that_is_away_is_read_in_its_place() {
    on_both(async |site| {
        let (segments, bucket) = (sealed(&site).await, tempfile::tempdir().unwrap());
        let mut rest = recorded(&site.at).await;
        segments.keep(&bucket, 0);
        // The store does not know that its segment was replaced, and no bucket has it any more.
        segments.remove(&["c/0"]).await;
        segments.keep(&bucket, 0);
        let live = segments.live_names();
        for file in bucket.path().read_dir().unwrap().flatten() {
            if !live.contains(&file.file_name().into_string().unwrap()) {
                std::fs::remove_file(file.path()).unwrap();
            }
        }

        let mut snapshot = site.snapshot().await;
        let record = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
        assert_eq!((record.id.as_str(), snapshot.calls(&record).await.unwrap().len()), ("a", 3));
        drop(snapshot);
        segments.seal(&site).await;
        rest.remove("c/0");
        assert_eq!(recorded(&site.at).await, rest);
    })
    .await;
}
