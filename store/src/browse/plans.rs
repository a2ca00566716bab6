//! The cost of a page, however many attempts there are: a file finds it by an index. A plan says so
//! without a clock.

use episode::AttemptId;

use super::episodes::{EpisodeOrder, EpisodePage, listing};
use super::filter::{EpisodeFilter, EpisodeState};
use super::groups::newest_members;
use super::text_index::next_states;
use super::total::ALL_GROUPS;
use crate::database::query::query;
use crate::site::{Site, on_both};
use crate::snapshot::condition::Condition;
use crate::snapshot::{EPISODE, budgeted, wishing};
use crate::tests::begun;
use crate::types::OpenedKey;
use crate::{Announcement, Budget, Selection, Snapshot};

fn page(order: EpisodeOrder, descending: bool, after: Option<OpenedKey>) -> EpisodePage {
    EpisodePage { order, descending, limit: 2, offset: 0, after }
}

/// Attempts that began at the times `at`, in groups of two.
async fn begun_at(site: &Site, at: &[i64]) {
    let (store, writer) = site.open().await;
    for (number, at) in at.iter().enumerate() {
        let mut start = begun(&format!("e-{number}"), *at);
        start.tag.group = Some(format!("g-{}", number / 2).parse().unwrap());
        store.begin(start).await.done().await.unwrap();
    }
    drop(store);
    writer.finish().await;
}

#[tokio::test]
async fn a_page_is_found_by_an_index() {
    let site = Site::file();
    begun_at(&site, &[1]).await;
    let mut snapshot = site.snapshot().await;
    let (all, after) = (EpisodeFilter::default(), Some(OpenedKey { opened_at: 5, key: 5 }));
    let ordered = |order, descending, after| listing(&all, page(order, descending, after));
    let by_opened = "INDEX episode_by_opened";
    let episode = Selection { episode: Some("e-0".parse().unwrap()), ..Selection::default() };
    let group = Selection { group: Some("g-0".parse().unwrap()), ..Selection::default() };
    let of = |selection| {
        let chosen = Condition::of(selection);
        chosen.query(format!("{EPISODE} WHERE {}", chosen.sql))
    };
    let task = EpisodeFilter { task: Some("t".parse().unwrap()), ..all.clone() };
    let failed = EpisodeFilter { state: Some(EpisodeState::Failed), ..all.clone() };
    let filtered = |filter, after| listing(filter, page(EpisodeOrder::Opened, true, after));
    let replays = Condition::of_replays(&"e-0/0".parse().unwrap());

    for (statement, index) in [
        (ordered(EpisodeOrder::Opened, true, None), by_opened),
        (ordered(EpisodeOrder::Opened, false, None), by_opened),
        (ordered(EpisodeOrder::Opened, true, after), "SEARCH e USING INDEX episode_by_opened"),
        (ordered(EpisodeOrder::Opened, false, after), "SEARCH e USING INDEX episode_by_opened"),
        (ordered(EpisodeOrder::Name, true, None), "e USING INDEX sqlite_autoindex_episode_1"),
        (filtered(&task, after), "SEARCH e USING INDEX episode_by_task (task_id=? AND"),
        (filtered(&failed, None), "SCAN e USING INDEX episode_failed"),
        (newest_members(&all, after), by_opened),
        (next_states(&all, after, 10), by_opened),
        (of(&episode), "SEARCH e USING INDEX sqlite_autoindex_episode_1"),
        (of(&group), "SEARCH e USING INDEX episode_by_group"),
        (
            replays.query(format!("{EPISODE} WHERE {}", replays.sql)),
            "SEARCH e USING INDEX episode_by_replay",
        ),
        // The open attempts, by the one of two indexes that SQLite prefers.
        (query(wishing()), "SEARCH e USING INDEX episode_by_closing (closed_at=?)"),
        (query(budgeted()), "SEARCH e USING INDEX episode_by_closing (closed_at=?)"),
        (query(ALL_GROUPS).bind(9), "SEARCH e USING COVERING INDEX episode_by_group"),
    ] {
        let sql = format!("{statement:?}");
        let plan = statement.plan(snapshot.connection()).await;
        assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{plan}\n{sql}");
    }
}

#[tokio::test]
async fn pages_follow_each_other_without_a_gap() {
    on_both(async |site: Site| {
        begun_at(&site, &[7, 7, 7, 3, 9, 7, 1]).await;
        let mut snapshot = site.snapshot().await;
        let expected = ["e-4", "e-5", "e-2", "e-1", "e-0", "e-3", "e-6"];
        assert_eq!(walked(&mut snapshot, true).await, expected);
        let mut other_way = walked(&mut snapshot, false).await;
        other_way.reverse();
        assert_eq!(other_way, expected);
    })
    .await;
}

/// The names on all pages, each found behind the last one of the page before.
async fn walked(snapshot: &mut Snapshot, descending: bool) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let part = page(EpisodeOrder::Opened, descending, after);
        let listed = snapshot.page(&EpisodeFilter::default(), part).await.unwrap();
        assert_eq!((listed.total.count, listed.total.is_least, listed.sorted), (7, false, None));
        let Some(last) = listed.episodes.last() else { return names };
        after = Some(last.episode.place());
        names.extend(listed.episodes.iter().map(|one| one.episode.id.to_string()));
    }
}

#[tokio::test]
async fn groups_come_with_the_newest_attempt_first() {
    on_both(async |site: Site| {
        begun_at(&site, &[1, 50, 20, 21, 30, 31]).await;
        let mut snapshot = site.snapshot().await;
        let all = EpisodeFilter::default();
        let one = EpisodeFilter { group: Some("g-1".parse().unwrap()), ..all.clone() };
        let late = EpisodeFilter { since: Some(25), ..all.clone() };
        for (filter, limit, expected, count) in [
            (&all, 9, vec!["g-0", "g-2", "g-1"], 3),
            (&all, 2, vec!["g-0", "g-2"], 3),
            (&one, 9, vec!["g-1"], 1),
            (&late, 9, vec!["g-0", "g-2"], 2),
        ] {
            let (found, total) = snapshot.newest_groups(filter, limit).await.unwrap();
            let found: Vec<&str> = found.iter().map(|group| group.as_str()).collect();
            assert_eq!((found, total.count), (expected, count), "{filter:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_start_reads_the_open_attempts_with_terms() {
    on_both(async |site: Site| {
        let (store, writer) = site.open().await;
        let announce = async |name: &str, force: Option<&str>, calls| {
            let attempt: AttemptId = format!("{name}/0").parse().unwrap();
            let terms = Announcement {
                tag: begun(name, 1).tag,
                at: 1,
                force: force.map(str::to_owned),
                continues: None,
                replay: None,
                group_size: None,
                budget: Budget { calls, ..Budget::default() },
            };
            store.announce(terms).await.unwrap();
            attempt
        };
        announce("plain", None, None).await;
        announce("forced", Some("top_p=1"), None).await;
        announce("budget", None, Some(3)).await;
        let over = announce("over", Some("top_p=1"), Some(3)).await;
        store.close(over, 2, None).await.unwrap();

        let mut snapshot = site.snapshot().await;
        let wishing = snapshot.wishing_attempts().await.unwrap();
        let names: Vec<&str> = wishing.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(names, ["forced"]);
        let budgeted = snapshot.budgeted_attempts().await.unwrap();
        assert_eq!(budgeted, ["budget/0".parse().unwrap()]);
        drop(store);
        writer.finish().await;
    })
    .await;
}
