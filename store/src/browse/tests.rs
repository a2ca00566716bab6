//! Lists: what their filters take, their order, and what changes.

use episode::{CallKind, Outcome, Reward, RewardScope};
use rusqlite::Connection;

use super::calls::LastKeys;
use super::episodes::{EpisodeOrder, EpisodePage};
use super::filter::{EpisodeFilter, EpisodeState};
use crate::site::{Site, on_both};
use crate::tests::{begun, ended};
use crate::{MessageRow, PastCalls, Snapshot, SqlCell, Store};

const NEWEST: EpisodePage = EpisodePage {
    order: EpisodeOrder::Opened,
    descending: true,
    limit: 100,
    offset: 0,
    after: None,
};

fn reward(value: f64) -> Reward {
    let (name, source) = ("reward".to_owned(), "test".to_owned());
    Reward {
        scope: RewardScope::Episode,
        name,
        value: Some(value),
        source,
        at: 30,
        provenance: episode::Provenance::default(),
    }
}

async fn call(store: &Store, episode: &str, at: i64) {
    let start = begun(episode, at);
    let mut end = ended(start.call_id);
    end.usage.completion = Some(7);
    store.begin(start).await.done().await.unwrap();
    store.end(end).await.done().await.unwrap();
}

/// Episodes `a` to `e`: `b_b` has two calls and the reward 1, `c` the reward 0.5, `d` is closed.
async fn recorded(site: &Site) {
    let (store, writer) = site.open().await;
    for (at, name) in ["a", "b_b", "c", "d", "e"].into_iter().enumerate() {
        call(&store, name, 10 * at as i64).await;
    }
    call(&store, "b_b", 15).await;
    store.reward("b_b/0".parse().unwrap(), reward(1.0)).await.unwrap();
    store.reward("c/0".parse().unwrap(), reward(0.5)).await.unwrap();
    store.close("d/0".parse().unwrap(), 90, Some("failed".to_owned())).await.unwrap();
    drop(store);
    writer.finish().await;
}

async fn names(snapshot: &mut Snapshot, filter: EpisodeFilter, page: EpisodePage) -> Vec<String> {
    let listed = snapshot.page(&filter, page).await.unwrap();
    let (found, total) = (listed.episodes, listed.total.count);
    let shown = found.len() as u64 + page.offset;
    assert!(total >= shown && (shown == total || found.len() == page.limit as usize));
    found.into_iter().map(|summary| summary.episode.id.to_string()).collect()
}

#[tokio::test]
async fn a_page_holds_what_its_filter_takes_in_its_order() {
    on_both(async |site: Site| {
        recorded(&site).await;
        let mut snapshot = site.snapshot().await;
        let all = EpisodeFilter::default;
        let text = |text: &str| Some(text.to_owned());
        for (filter, expected) in [
            (all(), vec!["e", "d", "c", "b", "a"]),
            (EpisodeFilter { name: text("B_B"), ..all() }, vec!["b"]),
            (EpisodeFilter { name: text("_"), ..all() }, vec!["b"]),
            (EpisodeFilter { name: text("%"), ..all() }, vec![]),
            (EpisodeFilter { min_reward: Some(0.6), ..all() }, vec!["b"]),
            (EpisodeFilter { max_reward: Some(0.6), ..all() }, vec!["c"]),
            (EpisodeFilter { since: Some(20), until: Some(40), ..all() }, vec!["d", "c"]),
            (EpisodeFilter { state: Some(EpisodeState::Closed), ..all() }, vec!["d"]),
            (
                EpisodeFilter { state: Some(EpisodeState::Ended("failed".into())), ..all() },
                vec!["d"],
            ),
            (EpisodeFilter { group: Some("other".parse().unwrap()), ..all() }, vec![]),
            (
                EpisodeFilter {
                    label: Some(("split".into(), "train".into())),
                    state: Some(EpisodeState::Open),
                    ..all()
                },
                vec!["e", "c", "b", "a"],
            ),
            (EpisodeFilter { label: Some(("split".into(), "x".into())), ..all() }, vec![]),
        ] {
            let found = names(&mut snapshot, filter.clone(), NEWEST).await;
            let initials: Vec<&str> = found.iter().map(|name| &name[..1]).collect();
            assert_eq!(initials, expected, "{filter:?}");
        }

        for (order, descending, expected) in [
            (EpisodeOrder::Reward, true, ["b_b", "c"]),
            (EpisodeOrder::Reward, false, ["c", "b_b"]),
            (EpisodeOrder::Calls, true, ["b_b", "e"]),
            (EpisodeOrder::Tokens, true, ["b_b", "e"]),
            (EpisodeOrder::Closed, false, ["d", "a"]),
            (EpisodeOrder::Name, false, ["a", "b_b"]),
        ] {
            let page = EpisodePage { order, descending, limit: 2, ..NEWEST };
            assert_eq!(names(&mut snapshot, all(), page).await, expected, "{order:?}");
        }
        let second = EpisodePage { limit: 2, offset: 2, ..NEWEST };
        assert_eq!(names(&mut snapshot, all(), second).await, ["c", "b_b"]);
    })
    .await;
}

#[tokio::test]
async fn groups_and_calls_are_counted_without_their_bodies() {
    on_both(async |site: Site| {
        recorded(&site).await;
        let mut snapshot = site.snapshot().await;
        let scores = snapshot.scores(&EpisodeFilter::default()).await.unwrap();
        let rewards: Vec<Option<f64>> = scores.iter().map(|score| score.reward).collect();
        assert_eq!(rewards, [None, Some(1.0), Some(0.5), None, None]);
        let counts = snapshot.group_counts(&["g".parse().unwrap()]).await.unwrap();
        assert_eq!(counts[scores[0].group.as_ref().unwrap()].calls, 6);

        let window = EpisodeFilter { since: Some(15), until: Some(30), ..Default::default() };
        let rows = snapshot.calls_before(&mut PastCalls::of(window.clone()), 10).await.unwrap();
        let started: Vec<i64> = rows.iter().map(|row| row.started_at).collect();
        assert_eq!(started, [15, 20], "by key, the newest first");
        assert_eq!(rows[0].version.as_deref(), Some("a\"b"));
        assert_eq!(rows[0].finish_reason.as_deref(), Some("stop"));
        let mut past = PastCalls::of(window);
        for row in &rows {
            let next = snapshot.calls_before(&mut past, 1).await.unwrap();
            assert_eq!(next, std::slice::from_ref(row));
        }
        assert_eq!(snapshot.calls_before(&mut past, 1).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_file_is_asked_in_sql_with_messages_beside_its_views() {
    let site = Site::file();
    recorded(&site).await;
    let mut snapshot = Snapshot::open_here(&site.at).await.unwrap();
    let message = |episode_id: &str, text: &str| MessageRow {
        episode_id: episode_id.to_owned(),
        role: "user".to_owned(),
        content: Some(text.to_owned()),
        ..MessageRow::default()
    };
    snapshot.add_messages(vec![message("c", "one"), message("b_b", "two")]).unwrap();
    let joined = "SELECT e.reward, m.content AS said, NULL AS absent FROM messages m \
                  JOIN episodes e USING (episode_id, attempt) ORDER BY e.reward DESC";
    let answer = snapshot.ask(joined, 1).unwrap();
    assert_eq!(answer.columns, ["reward", "said", "absent"]);
    let row = [SqlCell::Real(1.0), SqlCell::Text("two".to_owned()), SqlCell::Null];
    assert!(answer.rows == [row] && answer.has_more);
    for wrong in ["SELEC 1", "DELETE FROM episode", "INSERT INTO reward DEFAULT VALUES", ""] {
        let why = snapshot.ask(wrong, 1).unwrap_err().to_string();
        assert!(why.starts_with("the store does not take this question: "), "{wrong}: {why}");
    }
    assert!(!Snapshot::open(&site.at).await.unwrap().takes_sql());
}

#[tokio::test]
async fn what_changes_after_a_moment_is_found_by_its_keys() {
    on_both(async |site: Site| {
        recorded(&site).await;
        let before = site.snapshot().await.last_keys().await.unwrap();
        let (store, writer) = site.open().await;
        let running = begun("f", 70);
        store.begin(running.clone()).await.done().await.unwrap();
        store.reward("a/0".parse().unwrap(), reward(0.0)).await.unwrap();
        store.close("a/0".parse().unwrap(), 91, None).await.unwrap();

        let mut snapshot = site.snapshot().await;
        let rows = snapshot.call_rows_after(before.call, 10).await.unwrap();
        assert_eq!((rows.len(), rows[0].outcome.as_deref()), (1, None));
        assert_eq!(snapshot.running_calls(0).await.unwrap(), [rows[0].key]);
        assert!(snapshot.ended_rows(&[rows[0].key]).await.unwrap().is_empty());
        let rewards = snapshot.reward_rows_after(before.reward, 10).await.unwrap();
        assert_eq!((rewards.len(), rewards[0].attempt.episode.as_str()), (1, "a"));
        let changed = snapshot.changed_attempts(before).await.unwrap();
        assert_eq!(changed.len(), 2, "`f` began and `a` was closed");
        drop(snapshot);

        store.end(ended(running.call_id)).await.done().await.unwrap();
        let mut snapshot = site.snapshot().await;
        let found = snapshot.ended_rows(&[rows[0].key]).await.unwrap();
        assert_eq!(found[0].outcome.as_deref(), Some("complete"));
        let LastKeys { call, .. } = snapshot.last_keys().await.unwrap();
        assert_eq!(call, rows[0].key);
        drop(snapshot);
        drop(store);
        writer.finish().await;
    })
    .await;
}

/// Bytes that do not compress and have no chunk in common with those of another seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// An episode whose second call has a long request and no reply, between two short calls.
async fn long_episode(site: &Site) {
    let (store, writer) = site.open().await;
    let bodies = [noise(1, 2000), noise(2, 3 << 20), noise(3, 2000)];
    for (at, request) in bodies.into_iter().enumerate() {
        let mut start = begun("long", 10 * at as i64);
        start.lineage.kind = CallKind::Main;
        start.request = request.into();
        let mut end = ended(start.call_id);
        end.reply = noise(10 + at as u64, 3000).into();
        if at == 1 {
            (end.outcome, end.status) = (Outcome::UpstreamFailed, Some(503));
        }
        store.begin(start).await.done().await.unwrap();
        store.end(end).await.done().await.unwrap();
    }
    drop(store);
    writer.finish().await;
}

#[tokio::test]
async fn the_first_and_the_last_body_of_an_attempt_are_read() {
    on_both(async |site: Site| {
        long_episode(&site).await;
        let mut snapshot = site.snapshot().await;
        let found = snapshot.page(&EpisodeFilter::default(), NEWEST).await.unwrap().episodes;
        let key = found[0].episode.key;
        let first = snapshot.first_request(key).await.unwrap().unwrap();
        assert!(snapshot.body_alone(&first, 1 << 20).await.unwrap().unwrap() == noise(1, 2000));
        assert_eq!(snapshot.body_alone(&first, 1999).await.unwrap(), None);
        let last = snapshot.last_reply(key).await.unwrap().unwrap();
        assert!(snapshot.body_alone(&last, 4 << 20).await.unwrap().unwrap() == noise(12, 3000));

        let fault = snapshot.last_fault_row(key).await.unwrap().unwrap();
        assert_eq!((fault.started_at, fault.status), (10, Some(503)));
        let reply = snapshot.reply_of(&fault).await.unwrap().unwrap();
        assert!(snapshot.body_alone(&reply, 4 << 20).await.unwrap().unwrap() == noise(11, 3000));
        let last = snapshot.last_call_row(key).await.unwrap().unwrap();
        assert_eq!(last.outcome.as_deref(), Some("complete"));
    })
    .await;
}

#[tokio::test]
async fn the_last_body_is_read_without_the_log_before_it() {
    let site = Site::file();
    long_episode(&site).await;
    let path = site.at.to_string();
    let file = Connection::open(&path).unwrap();
    let long = "DELETE FROM segment WHERE track = 0 AND length > 1000000";
    assert_eq!(file.execute(long, []).unwrap(), 1);
    drop(file);

    let mut snapshot = site.snapshot().await;
    let found = snapshot.page(&EpisodeFilter::default(), NEWEST).await.unwrap().episodes;
    let episode = &found[0].episode;
    assert!(snapshot.calls(episode).await.is_err(), "the log as a whole is broken");
    let last = snapshot.last_reply(episode.key).await.unwrap().unwrap();
    assert!(snapshot.body_alone(&last, 1 << 20).await.unwrap().unwrap() == noise(12, 3000));
}

#[tokio::test]
async fn what_failed_is_found_whoever_failed() {
    on_both(async |site: Site| {
        recorded(&site).await;
        let (store, writer) = site.open().await;
        for (name, status) in [("a", episode::INFRASTRUCTURE_FAILED), ("c", "aborted")] {
            let attempt = format!("{name}/0").parse().unwrap();
            store.close(attempt, 95, Some(status.to_owned())).await.unwrap();
        }
        drop(store);
        writer.finish().await;

        let mut snapshot = site.snapshot().await;
        let taken = async |snapshot: &mut Snapshot, state| {
            let filter = EpisodeFilter { state: Some(state), ..EpisodeFilter::default() };
            names(snapshot, filter, NEWEST).await
        };
        assert_eq!(taken(&mut snapshot, EpisodeState::Failed).await, ["d", "a"]);
        let infrastructure = EpisodeState::Ended(episode::INFRASTRUCTURE_FAILED.to_owned());
        assert_eq!(taken(&mut snapshot, infrastructure).await, ["a"]);
    })
    .await;
}
