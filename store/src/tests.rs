//! Tests that what is written comes back.

use std::path::Path;
use std::time::Duration;

use episode::{
    Annotation, AttemptId, CallEnd, CallId, CallKind, CallStart, Choice, Comment, ContinueReason,
    Continued, EpisodeId, Fidelity, Lineage, Outcome, ReplyHead, Reward, RewardScope, Route, Tag,
    TagSource, TokenColumn, TokenCounts, VersionSpan, VersionStamps,
};
use tempfile::TempDir;
use uuid::Uuid;

use crate::database::query::query;
use crate::open as open_store;
use crate::site::{Site, on_both};
use crate::{
    Announcement, Budget, CommitError, Durability, OpenError, PruneFilter, Selection, Snapshot,
    Store, StoreEditor, Writer, prune,
};

fn tag(episode: &str, attempt: u32) -> Tag {
    Tag {
        episode: episode.parse().unwrap(),
        attempt,
        group: Some("g".parse().unwrap()),
        task: None,
        labels: vec![("split".into(), "train".into())],
        source: TagSource::Path,
    }
}

pub(crate) fn announced(tag: Tag) -> Announcement {
    Announcement {
        tag,
        at: 5,
        force: None,
        continues: None,
        replay: None,
        group_size: None,
        budget: Budget::default(),
    }
}

pub(crate) fn begun(episode: &str, at: i64) -> CallStart {
    CallStart {
        call_id: CallId(Uuid::now_v7()),
        tag: tag(episode, 0),
        started_at: at,
        method: "POST".into(),
        path: "/v1/chat/completions?x=1".into(),
        route: Route::Chat,
        model: Some("m".into()),
        request: vec![0, 255, 10, 13].into(),
        sampling: Some(r#"{"temperature":0.5}"#.into()),
        lineage: Lineage {
            client: Some("codex".into()),
            session: Some("s".into()),
            agent: Some("t2".into()),
            parent: Some("t1".into()),
            kind: CallKind::Subagent,
            retry: 1,
        },
    }
}

pub(crate) fn ended(call_id: CallId) -> CallEnd {
    let choice = |index, ids: Option<Vec<u32>>, logprobs| Choice {
        index,
        prompt_index: index,
        token_ids: ids,
        logprobs,
        finish_reason: Some("stop".into()),
        stop_reason: None,
        versions: vec![VersionSpan { version: "a\"b".into(), start: 0, end: 2 }],
        fidelity: Fidelity::Mapped,
        token_columns: vec![TokenColumn {
            name: "top_logprobs".into(),
            json: "[[],[1.50]]".repeat(40),
        }],
    };
    CallEnd {
        call_id,
        ended_at: 20,
        first_byte_at: Some(15),
        status: Some(200),
        outcome: Outcome::Complete,
        error: None,
        reply: "data: [DONE]\n\n".repeat(50).into(),
        model: Some("m".into()),
        prompts: vec![vec![1, 2, u32::MAX], vec![]],
        choices: vec![
            choice(0, Some(vec![7, 8]), vec![-0.5, -1.19e-7]),
            choice(1, None, Vec::new()),
        ],
        usage: TokenCounts { prompt: Some(3), completion: None },
        sampled_with: Some(r#"{"top_p":{"value":0.9,"source":"server"}}"#.into()),
        logprob_kind: "processed".into(),
        translated: Some(Route::Chat),
        unasked: Some("because".into()),
        stamps: VersionStamps { start: Some("3".into()), end: None },
        engine: Some("a:8000".into()),
        routed: Some("kept".into()),
        heartbeats: 2,
        continued: Some(Continued { tokens: 3, reason: Some(ContinueReason::StopCut) }),
        head: ReplyHead(vec![("retry-after".into(), "1".into())]),
        replayed: Some(CallId(uuid::Uuid::from_u128(9))),
    }
}

async fn open() -> (TempDir, Store, Writer) {
    let folder = tempfile::tempdir().unwrap();
    let (store, writer) = open_at(&folder.path().join("a.db")).await;
    (folder, store, writer)
}

pub(crate) async fn open_at(path: &Path) -> (Store, Writer) {
    Store::open(path, Durability::Power).await.unwrap()
}

fn id(name: &str) -> EpisodeId {
    name.parse().unwrap()
}

#[tokio::test]
async fn calls_come_back_as_they_were_seen() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let (first, second) = (begun("a", 10), begun("a", 11));
        let end = ended(first.call_id);
        store.begin(first.clone()).await.done().await.unwrap();
        store.begin(second.clone()).await.done().await.unwrap();
        store.end(end.clone()).await.done().await.unwrap();
        let mut snapshot = store.snapshot().await.unwrap();
        let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
        let calls = snapshot.calls(&episodes[0]).await.unwrap();
        assert_eq!(calls[0].begun, first);
        assert_eq!(calls[0].ended.as_ref(), Some(&end));
        assert_eq!(calls[1].begun, second);
        assert_eq!(calls[1].ended, None, "a call without an end is a visible hole");
        let ended_calls = snapshot.ended_calls(&episodes[0]).await.unwrap();
        assert_eq!(ended_calls, [(first.call_id, first.path)]);
        drop((store, snapshot));
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_very_wide_call_leaves_its_neighbors_alone() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let (wide, small) = (begun("a", 10), begun("b", 11));
        store.begin(wide.clone()).await.done().await.unwrap();
        store.begin(small.clone()).await.done().await.unwrap();
        let mut end = ended(wide.call_id);
        let choice = end.choices.remove(0);
        end.prompts = (0..6000).map(|n| vec![1, n]).collect();
        end.choices = (0..6000)
            .map(|n| Choice {
                index: n,
                prompt_index: n,
                token_columns: Vec::new(),
                ..choice.clone()
            })
            .collect();
        let (one, other) = (store.end(end.clone()).await, store.end(ended(small.call_id)).await);
        other.done().await.unwrap();
        one.done().await.unwrap();
        let mut snapshot = store.snapshot().await.unwrap();
        let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
        let calls = snapshot.calls(&episodes[0]).await.unwrap();
        assert!(calls[0].ended.as_ref() == Some(&end), "every choice and prompt is there");
        drop((store, snapshot));
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_does_not_see_what_comes_later() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        store.begin(begun("a", 1)).await.done().await.unwrap();
        let mut before = store.snapshot().await.unwrap();
        store.begin(begun("b", 2)).await.done().await.unwrap();
        assert_eq!(before.episodes(&Selection::default()).await.unwrap().len(), 1);
        let mut after = store.snapshot().await.unwrap();
        let only = Selection { episode: Some(id("b")), ..Selection::default() };
        assert_eq!(after.episodes(&only).await.unwrap().len(), 1);
        assert_eq!(after.summaries(&Selection::default()).await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn many_at_once_are_grouped_and_none_is_lost() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let mut waiting = Vec::new();
        for n in 0..500 {
            let store = store.clone();
            waiting.push(tokio::spawn(async move {
                let begun = begun(&format!("e{}", n % 7), n);
                let end = ended(begun.call_id);
                let (begin, end) = (store.begin(begun).await, store.end(end).await);
                begin.done().await.unwrap();
                end.done().await.unwrap();
            }));
        }
        for task in waiting {
            task.await.unwrap();
        }
        let mut snapshot = store.snapshot().await.unwrap();
        let summaries = snapshot.summaries(&Selection::default()).await.unwrap();
        assert_eq!(summaries.iter().map(|s| s.calls).sum::<u64>(), 500);
        assert_eq!(summaries.iter().map(|s| s.with_ids).sum::<u64>(), 500);
        assert_eq!(summaries.iter().map(|s| s.incomplete).sum::<u64>(), 0);
        drop((store, snapshot));
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn one_bad_record_costs_only_itself() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let good = begun("a", 1);
        let twice = store.begin(good.clone()).await;
        let again = store.begin(good).await;
        let other = store.begin(begun("a", 2)).await;
        assert!(twice.done().await.is_ok());
        assert!(matches!(again.done().await, Err(CommitError::Database(_))));
        assert!(other.done().await.is_ok());
        let lost = store.end(ended(CallId(Uuid::now_v7()))).await.done().await;
        assert!(lost.is_err(), "an end without a beginning is not a success");
    })
    .await;
}

#[tokio::test]
async fn a_refused_call_is_not_an_incomplete_one() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let outcomes =
            [Some(Outcome::Complete), Some(Outcome::Refused), Some(Outcome::ClientGone), None];
        for (at, outcome) in (1..).zip(outcomes) {
            let call = begun("a", at);
            let id = call.call_id;
            store.begin(call).await.done().await.unwrap();
            if let Some(outcome) = outcome {
                let end = CallEnd::without_reply(id, at, outcome);
                store.end(end).await.done().await.unwrap();
            }
        }
        let mut snapshot = store.snapshot().await.unwrap();
        let summary = snapshot.summaries(&Selection::default()).await.unwrap().remove(0);
        assert_eq!((summary.calls, summary.incomplete, summary.refused), (4, 2, 1));
    })
    .await;
}

/// Rewards without what they are over, which the tests of the chain look at.
fn without_chains(mut rewards: Vec<Reward>) -> Vec<Reward> {
    rewards.iter_mut().for_each(|reward| reward.provenance.over = None);
    rewards
}

#[tokio::test]
async fn closed_episodes_refuse_and_rewards_keep_their_history() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let announcement = Announcement {
            force: Some("top_p=1".into()),
            continues: Some("exact".into()),
            ..announced(tag("a", 1))
        };
        store.announce(announcement).await.unwrap();
        let reward = |value| Reward {
            scope: RewardScope::Episode,
            name: "reward".into(),
            value,
            source: "test".into(),
            at: 6,
            provenance: episode::Provenance::default(),
        };
        for value in [Some(1.0), None] {
            store.reward("a/1".parse().unwrap(), reward(value)).await.unwrap();
        }
        let unknown = store.reward("a/0".parse().unwrap(), reward(None)).await;
        assert!(matches!(unknown, Err(CommitError::Unknown(..))));
        store.close("a/1".parse().unwrap(), 7, Some("failed".into())).await.unwrap();
        store.close("a/1".parse().unwrap(), 9, Some("completed".into())).await.unwrap();
        let late = CallStart { tag: tag("a", 1), ..begun("a", 8) };
        assert!(matches!(
            store.begin(late).await.done().await,
            Err(CommitError::Closed(AttemptId { attempt: 1, .. }))
        ));
        let mut snapshot = store.snapshot().await.unwrap();
        let forced = &snapshot.episodes(&Selection::default()).await.unwrap()[0].force_sampling;
        assert_eq!(forced.as_deref(), Some("top_p=1"));
        let summary = snapshot.summaries(&Selection::default()).await.unwrap().remove(0);
        assert_eq!(summary.episode.closed_at, Some(7));
        assert_eq!(summary.episode.status.as_deref(), Some("failed"));
        assert_eq!((summary.calls, summary.incomplete, summary.refused), (1, 0, 1));
        assert_eq!(summary.reward, None);
        let rewards = snapshot.rewards(&summary.episode).await.unwrap();
        assert_eq!(without_chains(rewards), [reward(Some(1.0)), reward(None)]);
    })
    .await;
}

/// A comment of a person.
pub(crate) fn comment(call: Option<CallId>, text: Option<&str>, score: Option<f64>) -> Comment {
    let text = text.map(str::to_owned);
    let provenance = episode::Provenance {
        by: Some(episode::Giver::ControlToken),
        from: Some("127.0.0.1".into()),
        key: Some("control-00000000".into()),
        over: None,
    };
    Comment { call, text, score, author: "ada".into(), at: 6, provenance }
}

#[tokio::test]
async fn comments_are_appended_all_or_none_to_attempts_that_are_there() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let begun = begun("a", 1);
        let call = begun.call_id;
        store.begin(begun).await.done().await.unwrap();
        let a: AttemptId = "a/0".parse().unwrap();
        let (said, scored) =
            (comment(None, Some("a <b>\u{1F600}"), None), comment(Some(call), None, Some(-0.5)));
        let both = vec![(a.clone(), said.clone()), (a.clone(), scored.clone())];
        store.comment(both).await.unwrap();

        let nowhere = ("a/1".parse().unwrap(), said.clone());
        let refused = store.comment(vec![(a.clone(), said.clone()), nowhere]).await;
        assert!(matches!(refused, Err(CommitError::Unknown(_))));
        let other = comment(Some(CallId(Uuid::nil())), Some("x"), None);
        let refused = store.comment(vec![(a.clone(), said.clone()), (a, other)]).await;
        assert!(matches!(refused, Err(CommitError::UnknownCall(_))));

        let mut snapshot = store.snapshot().await.unwrap();
        let record = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
        assert_eq!(snapshot.comments(&record).await.unwrap(), [said, scored]);
    })
    .await;
}

#[tokio::test]
async fn a_reward_keeps_what_it_is_about() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let begun = begun("a", 1);
        let call = begun.call_id;
        store.begin(begun).await.done().await.unwrap();
        let reward = |scope| Reward {
            scope,
            name: "reward".into(),
            value: Some(0.5),
            source: "test".into(),
            at: 6,
            provenance: episode::Provenance::default(),
        };
        let scopes = [
            RewardScope::Episode,
            RewardScope::Trajectory { call, choice: 1 },
            RewardScope::Call(call),
            RewardScope::Tokens { call, choice: 2, start: 3, end: u32::MAX },
        ];
        for scope in scopes {
            store.reward("a/0".parse().unwrap(), reward(scope)).await.unwrap();
        }
        let other = RewardScope::Trajectory { call: CallId(Uuid::nil()), choice: 0 };
        let refused = store.reward("a/0".parse().unwrap(), reward(other)).await;
        assert!(matches!(refused, Err(CommitError::UnknownCall(_))));
        let mut snapshot = store.snapshot().await.unwrap();
        let summary = snapshot.summaries(&Selection::default()).await.unwrap().remove(0);
        assert_eq!(summary.reward, Some(0.5));
        let found = snapshot.rewards(&summary.episode).await.unwrap();
        assert_eq!(without_chains(found), scopes.map(reward));
        let later = Reward { value: None, at: 7, ..reward(RewardScope::Episode) };
        store.reward("a/0".parse().unwrap(), later).await.unwrap();
        let mut snapshot = store.snapshot().await.unwrap();
        for (until, expected) in [(5, None), (6, Some(Some(0.5))), (7, Some(None))] {
            let found = snapshot.episode_rewards("reward", until, None).await.unwrap();
            assert_eq!(found.get(&summary.episode.key).copied(), expected);
            assert_eq!(snapshot.episode_rewards("style", until, None).await.unwrap(), [].into());
        }
    })
    .await;
}

#[tokio::test]
async fn annotations_are_all_appended_or_none_and_are_pruned() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let begun = begun("a", 1);
        let call = begun.call_id;
        store.begin(begun).await.done().await.unwrap();
        let said = |version: &str, values: &[f32]| Annotation {
            call,
            choice: 1,
            name: "trainer_logprobs".into(),
            version: version.into(),
            start: 2,
            values: values.into(),
            at: 6,
        };
        let both = [said("7", &[-0.5, -1e-30, 0.0]), said("8", &[f32::MIN])];
        store.annotate(both.to_vec()).await.unwrap();
        let foreign = Annotation { call: CallId(Uuid::nil()), ..said("9", &[1.0]) };
        let refused = store.annotate(vec![said("9", &[1.0]), foreign]).await;
        assert!(matches!(refused, Err(CommitError::UnknownCall(_))));
        store.annotate(vec![said("9", &[f32::NAN])]).await.unwrap();

        let mut snapshot = store.snapshot().await.unwrap();
        let record = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
        let mut found = snapshot.annotations(&record).await.unwrap();
        assert!(found.pop().unwrap().values[0].is_nan());
        assert_eq!(found, both);
        assert_eq!(snapshot.call_annotations(call).await.unwrap().len(), 3);
        assert_eq!(snapshot.call_annotations(CallId(Uuid::nil())).await.unwrap(), []);
        drop((snapshot, store));
        writer.finish().await;

        let all = PruneFilter { episode: Some("a".parse().unwrap()), ..PruneFilter::default() };
        prune(&site.at, &all).await.unwrap();
        assert!(crate::verify(&site.at).await.unwrap().is_clean());
    })
    .await;
}

#[tokio::test]
async fn reading_what_is_not_there_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let error = Snapshot::open(&folder.path().join("none.db")).await.unwrap_err();
    assert!(error.to_string().contains("there is no store at"), "{error}");
}

#[tokio::test]
async fn what_was_rolled_back_is_written_whole_when_it_is_tried_again() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let first = begun("a", 1);
        store.begin(first.clone()).await.done().await.unwrap();
        let words: String =
            (0..2000u32).map(|n| n.wrapping_mul(2_654_435_761).to_string()).collect();
        let good = CallStart { request: words.into(), ..begun("b", 2) };
        // Both wait for the same transaction, which the second one fails.
        let (kept, twice) = (store.begin(good.clone()).await, store.begin(first).await);
        kept.done().await.unwrap();
        assert!(twice.done().await.is_err());
        let mut snapshot = store.snapshot().await.unwrap();
        let found = snapshot.call(good.call_id).await.unwrap().unwrap();
        assert_eq!(found.begun.request, good.request);
    })
    .await;
}

#[tokio::test]
async fn what_a_later_call_says_of_its_episode_is_added() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        store.begin(begun("a", 1)).await.done().await.unwrap();
        let mut second = begun("a", 2);
        second.tag.task = Some("t".parse().unwrap());
        second.tag.labels = vec![("seed".into(), "7".into())];
        store.begin(second).await.done().await.unwrap();
        let mut snapshot = store.snapshot().await.unwrap();
        let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
        assert_eq!(episode.task.unwrap().as_str(), "t");
        let labels: Vec<_> = episode.labels.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(labels, ["split", "seed"]);
    })
    .await;
}

#[tokio::test]
async fn a_history_that_is_sent_again_is_not_stored_again() {
    on_both(async |site| {
        let (store, _writer) = site.open().await;
        let noise = |n: u32| n.wrapping_mul(2_654_435_761).rotate_left(n % 31).to_string();
        let (mut history, mut tokens) = (String::new(), Vec::new());
        for turn in 0..40u32 {
            history.extend((0..300).map(|n| noise(turn * 300 + n)));
            tokens.extend((0..300).map(|n| turn * 300 + n));
            let begun = CallStart { request: history.clone().into(), ..begun("a", turn.into()) };
            let mut end = ended(begun.call_id);
            end.prompts = vec![tokens.clone()];
            end.choices.truncate(1);
            end.choices[0].token_ids = Some(vec![turn, turn]);
            tokens.extend([turn, turn]);
            store.begin(begun).await.done().await.unwrap();
            store.end(end).await.done().await.unwrap();
        }
        let mut snapshot = store.snapshot().await.unwrap();
        let stored = "SELECT CAST(sum(length) AS BIGINT) FROM segment WHERE track = $1";
        let texts: i64 = query(stored)
            .bind(crate::log::format::BODIES)
            .scalar(snapshot.connection())
            .await
            .unwrap();
        assert!((texts as usize) < history.len() * 2, "{texts} for {}", history.len());
        let fresh = "SELECT CAST(sum(tokens - shared) AS BIGINT) FROM prompt";
        let fresh: i64 = query(fresh).scalar(snapshot.connection()).await.unwrap();
        assert_eq!(fresh as usize, tokens.len() - 2 * 40);
    })
    .await;
}

#[tokio::test]
async fn two_recorders_are_refused_and_statements_beside_one_are_not() {
    let (folder, store, writer) = open().await;
    let path = folder.path().join("a.db");
    store.begin(begun("a", 1)).await.done().await.unwrap();
    let second = Store::open(&path, Durability::Power).await.unwrap_err();
    assert!(matches!(second, OpenError::InUse(..)), "{second}");
    let reward = Reward {
        scope: RewardScope::Episode,
        name: "reward".into(),
        value: Some(1.0),
        source: "test".into(),
        at: 6,
        provenance: episode::Provenance::default(),
    };
    StoreEditor::open(&path).await.unwrap().reward("a/0".parse().unwrap(), reward).await.unwrap();
    StoreEditor::open(&path).await.unwrap().close("a/0".parse().unwrap(), 9, None).await.unwrap();
    let unknown =
        StoreEditor::open(&path).await.unwrap().close("b/0".parse().unwrap(), 9, None).await;
    assert!(matches!(unknown, Err(CommitError::Unknown(..))));
    let none = StoreEditor::open(&folder.path().join("none.db")).await;
    assert!(matches!(none, Err(OpenError::Missing(_))));
    // The recorder goes on, and sees what was said beside it.
    let late = store.begin(begun("a", 2)).await.done().await;
    assert!(matches!(late, Err(CommitError::Closed(..))));
    drop(store);
    writer.finish().await;
    Store::open(&path, Durability::Power).await.unwrap();
}

/// Lists the episodes that say that they may lack calls.
pub(crate) async fn marked(site: &Site) -> Vec<String> {
    let mut snapshot = site.snapshot().await;
    let all = snapshot.episodes(&Selection::default()).await.unwrap();
    all.into_iter().filter(|e| e.may_lack_calls).map(|e| e.id.to_string()).collect()
}

#[tokio::test]
async fn relaxed_marks_what_it_may_lose_until_it_is_safe() {
    on_both(async |site| {
        let (store, writer) = site.open_as(Durability::Relaxed).await;
        for episode in ["closed", "open"] {
            store.begin(begun(episode, 1)).await.done().await.unwrap();
        }
        assert_eq!(marked(&site).await, ["closed", "open"]);
        store.close("closed/0".parse().unwrap(), 2, None).await.unwrap();
        assert_eq!(marked(&site).await, ["open"]);
        let late = store.begin(begun("closed", 3)).await.done().await;
        assert!(matches!(late, Err(CommitError::Closed(..))));
        drop(store);
        writer.finish().await;
        assert!(marked(&site).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn relaxed_drops_what_finds_no_room_and_says_so_for_ever() {
    on_both(async |site| {
        let (store, writer) = site.open_as(Durability::Relaxed).await;
        for episode in ["lossy", "other"] {
            store.begin(begun(episode, 1)).await.done().await.unwrap();
        }
        // One thread: the writer cannot take anything out meanwhile.
        for at in 0..2000 {
            let call = begun("lossy", at);
            store.begin(call.clone()).await.done().await.unwrap();
            store.end(ended(call.call_id)).await.done().await.unwrap();
        }
        drop(store);
        writer.finish().await;
        assert_eq!(marked(&site).await, ["lossy"]);
        let (store, writer) = site.open().await;
        drop(store);
        writer.finish().await;
        assert_eq!(marked(&site).await, ["lossy"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wal_starts_over_under_steady_load() {
    let (folder, store, writer) = open().await;
    let wal = folder.path().join("a.db-wal");
    write_mebibytes(&store, 200).await;
    let bytes = std::fs::metadata(&wal).unwrap().len();
    assert!(bytes < 160 << 20, "200 MiB were written, the WAL has {bytes} bytes");
    drop(store);
    writer.finish().await;
    assert!(!wal.exists(), "a clean stop leaves one file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wal_starts_over_though_there_is_always_a_reader() {
    let (folder, store, writer) = open().await;
    let wal = folder.path().join("a.db-wal");
    // Feeds that are read at the same time: each opens its next snapshot before another's ends.
    let readers = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                held.push(store.snapshot().await.unwrap());
                tokio::time::sleep(Duration::from_millis(20)).await;
                held.drain(..held.len().saturating_sub(3));
            }
        })
    };

    write_mebibytes(&store, 400).await;
    let bytes = std::fs::metadata(&wal).unwrap().len();
    // Of the attempts, one with every further 64 MiB, those in which a busy machine keeps a reader
    // from its turn for longer than the writer waits are in vain.
    assert!(bytes < 288 << 20, "400 MiB were written, the WAL has {bytes} bytes");
    readers.abort();
    let _ = readers.await;
    drop(store);
    writer.finish().await;
}

/// Begins calls whose requests have a MiB each that cannot be compressed.
async fn write_mebibytes(store: &Store, count: i64) {
    let mut state = 1u64;
    for at in 0..count {
        let request: Vec<u8> = (0..1 << 20)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let call = CallStart { request: request.into(), ..begun("a", at) };
        store.begin(call).await.done().await.unwrap();
    }
}

#[tokio::test]
async fn every_probe_is_written() {
    let (folder, store, _writer) = open().await;
    store.begin(begun("a", 1)).await.done().await.unwrap();
    let wal = || std::fs::metadata(folder.path().join("a.db-wal")).unwrap().len();
    for _ in 0..3 {
        let before = wal();
        store.probe().await.unwrap();
        assert!(wal() > before, "what writes nothing meets no full disk");
    }
}

#[tokio::test]
async fn a_reward_that_was_stored_without_a_scope_has_one() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let call = begun("a", 1);
        let scopes = [RewardScope::Episode, RewardScope::Call(call.call_id)];
        store.begin(call).await.done().await.unwrap();
        for scope in scopes {
            let (name, source) = ("reward".into(), "test".into());
            let reward = Reward {
                scope,
                name,
                value: Some(0.5),
                source,
                at: 2,
                provenance: episode::Provenance::default(),
            };
            store.reward(AttemptId { episode: id("a"), attempt: 0 }, reward).await.unwrap();
        }
        drop(store);
        writer.finish().await;

        let mut connection = open_store::for_editing(&site.at).await.unwrap();
        query("UPDATE reward SET scope = NULL").execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let mut snapshot = site.snapshot().await;
        let found = snapshot.episodes(&Selection::default()).await.unwrap();
        let rewards = snapshot.rewards(&found[0]).await.unwrap();
        assert_eq!(rewards.into_iter().map(|reward| reward.scope).collect::<Vec<_>>(), scopes);
    })
    .await;
}
