//! Attempts that leave a store for segments are read as before.

use std::collections::BTreeMap;
use std::path::PathBuf;

use episode::{
    Annotation, AttemptId, Call, CallId, ChainHead, Comment, Micros, ReplyHead, Reward, RewardScope,
};
use tempfile::TempDir;

use crate::database::query::query;
use crate::location::Location;
use crate::maintenance::extract::{ExtractFilter, extract};
use crate::maintenance::segments::SealOptions;
use crate::maintenance::segments::catalog::{CatalogEntry, EntryKind, SegmentFolder};
use crate::maintenance::segments::gather::{GatheredStore, SegmentAtHand};
use crate::maintenance::segments::seal::{SealReport, seal};
use crate::open;
use crate::site::{Site, on_both};
use crate::tests::{announced, begun, comment, ended};
use crate::{
    Announcement, EpisodeFilter, EpisodeSummary, PastCalls, Selection, Snapshot, Store,
    VersionRecord, prune, verify,
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
#[derive(Debug, PartialEq)]
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
        let files: Vec<_> = self.entries().into_iter().map(at_hand).collect();
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
