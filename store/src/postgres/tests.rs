//! Tests of what only a server's database does: several writers, and a server that comes and goes.

use episode::{CallEnd, CallStart, ReplyHead};
use postgres_kit::Server;

use super::*;
use crate::open;
use crate::site::Site;
use crate::tests::{begun, ended};
use crate::{
    CommitError, PruneFilter, Selection, Snapshot, Store, StoreUnavailable, Writer, prune, verify,
};

fn site() -> Option<Site> {
    Server::shared().map(Site::of_server)
}

async fn told(store: &Store, begun: &CallStart, ended: &CallEnd) -> Result<(), CommitError> {
    store.begin(begun.clone()).await.done().await?;
    store.end(ended.clone()).await.done().await
}

async fn stop((store, writer): (Store, Writer)) {
    drop(store);
    writer.finish().await;
}

async fn numbers(site: &Site) -> Vec<i64> {
    let mut snapshot = site.snapshot().await;
    let all = "SELECT DISTINCT writer FROM reel ORDER BY writer";
    query(all).scalars(snapshot.connection()).await.unwrap()
}

/// A call whose prompt and body begin like those before it.
fn turn(at: i64) -> (CallStart, CallEnd) {
    let history: String = (0..=at).map(|n| format!("turn {n} of a long conversation; ")).collect();
    let begun = CallStart { request: history.repeat(9).into(), ..begun("a", at) };
    let mut ended = ended(begun.call_id);
    ended.prompts = vec![(0..1500 + 10 * at as u32).collect()];
    ended.choices.truncate(1);
    (begun, ended)
}

#[tokio::test]
async fn several_write_one_episode_each_with_a_reel_of_its_own() {
    let Some(site) = site() else { return };
    let mut writers = Vec::new();
    for _ in 0..3 {
        writers.push(site.open().await);
    }
    let mut calls = Vec::new();
    for at in 0..30 {
        let (begun, ended) = turn(at);
        told(&writers[at as usize % 3].0, &begun, &ended).await.unwrap();
        calls.push((begun, ended));
    }
    for writer in writers {
        stop(writer).await;
    }
    assert_eq!(numbers(&site).await, [1, 2, 3]);
    let mut snapshot = site.snapshot().await;
    let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    let found = snapshot.calls(&episode).await.unwrap();
    let found = found.into_iter().map(|call| (call.begun, call.ended.unwrap()));
    assert_eq!(found.collect::<Vec<_>>(), calls);
    assert!(verify(&site.at).await.unwrap().is_clean());
}

#[tokio::test]
async fn a_restarted_writer_goes_on_where_it_was() {
    let Some(site) = site() else { return };
    for at in 0..4 {
        let writer = site.open().await;
        let (begun, ended) = turn(at);
        told(&writer.0, &begun, &ended).await.unwrap();
        stop(writer).await;
    }
    assert_eq!(numbers(&site).await, [1]);
    let mut snapshot = site.snapshot().await;
    let reels: i64 =
        query("SELECT count(*) FROM reel").scalar(snapshot.connection()).await.unwrap();
    let whole: i64 = query("SELECT count(*) FROM prompt WHERE parent_key IS NULL")
        .scalar(snapshot.connection())
        .await
        .unwrap();
    assert_eq!((reels, whole), (1, 1));
}

#[tokio::test]
async fn groups_that_wait_for_each_other_are_written_all_the_same() {
    let Some(site) = site() else { return };
    let writers = [site.open().await, site.open().await];
    let mut acks = Vec::new();
    for at in 0..400 {
        // One goes up through the episodes, the other down: whole groups lock each other out.
        for (which, (store, _)) in writers.iter().enumerate() {
            let number = if which == 0 { at % 20 } else { 19 - at % 20 };
            let mut begun = begun(&format!("e{number}"), at);
            begun.tag.labels = vec![(format!("w{which}-{at}"), "x".into())];
            acks.push(store.begin(begun).await);
        }
    }
    for ack in acks {
        ack.done().await.unwrap();
    }
    let [one, two] = writers;
    stop(one).await;
    stop(two).await;
    assert_eq!(verify(&site.at).await.unwrap().calls, 800);
}

#[tokio::test]
async fn an_episode_that_was_pruned_under_its_writer_begins_anew() {
    let Some(site) = site() else { return };
    let writer = site.open().await;
    let (first, open) = (turn(0), turn(1));
    told(&writer.0, &first.0, &first.1).await.unwrap();
    writer.0.begin(open.0).await.done().await.unwrap();
    let which = PruneFilter { episode: Some("a".parse().unwrap()), ..PruneFilter::default() };
    assert_eq!(prune(&site.at, &which).await.unwrap().plan.candidates.len(), 1);
    let end = writer.0.end(open.1).await.done().await;
    assert!(matches!(end, Err(CommitError::NotBegun(_))), "{end:?}");
    let (begun, ended) = turn(2);
    told(&writer.0, &begun, &ended).await.unwrap();
    stop(writer).await;
    let report = verify(&site.at).await.unwrap();
    assert_eq!((report.damage, report.calls), (Vec::new(), 1));
}

#[tokio::test]
async fn marks_of_one_writer_are_not_those_of_another() {
    let Some(site) = site() else { return };
    let (dead, _) = site.open_as(Durability::Relaxed).await;
    dead.begin(begun("dead", 1)).await.done().await.unwrap();
    let (alive, writer) = site.open_as(Durability::Relaxed).await;
    alive.begin(begun("alive", 1)).await.done().await.unwrap();
    assert_eq!(crate::tests::marked(&site).await, ["alive", "dead"]);
    stop((alive, writer)).await;
    assert_eq!(crate::tests::marked(&site).await, ["dead"]);
}

#[tokio::test]
async fn text_that_postgres_cannot_hold_is_kept_in_the_body() {
    let Some(site) = site() else { return };
    let writer = site.open().await;
    let (mut begun, ended) = turn(0);
    begun.model = Some("a\0b".into());
    told(&writer.0, &begun, &ended).await.unwrap();
    let found = site.snapshot().await.call(begun.call_id).await.unwrap().unwrap();
    assert_eq!(found.begun.model.as_deref(), Some("a\u{fffd}b"));
    assert_eq!(found.begun.request, begun.request);
    stop(writer).await;
}

#[tokio::test]
async fn a_database_without_a_store_is_left_alone_by_readers() {
    let Some(site) = site() else { return };
    let missing = Snapshot::open(&site.at).await.unwrap_err();
    assert!(missing.to_string().contains("there is no store at `postgres://test@"), "{missing}");
    let Location::Server(options) = &site.at else { unreachable!() };
    let mut connection = connect(options).await.unwrap();
    assert_eq!(format(&mut connection).await.unwrap(), None);
    stop(site.open().await).await;
    let raised = "UPDATE _sqlx_migrations SET version = 9000 \
                  WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    query(raised).execute(&mut connection).await.unwrap();
    let newer = Snapshot::open(&site.at).await.unwrap_err();
    assert!(newer.to_string().contains("newer rolltape (format 9000)"), "{newer}");
    let newer = Store::open(&site.at, Durability::Power).await.unwrap_err();
    assert!(matches!(newer, OpenError::Newer(_, 9000)), "{newer}");
}

/// Gives a store the tables and the migrations of the earlier history up to a number.
async fn set_former(site: &Site, newest: i64) {
    let mut connection = open::for_editing(&site.at).await.unwrap();
    for undone in [
        "DROP VIEW annotations, comments",
        "DROP TABLE annotation, comment",
        "ALTER TABLE call DROP COLUMN continued CASCADE, DROP COLUMN reply_head, \
             DROP COLUMN replayed",
        "DROP INDEX episode_with_replay, episode_by_replay",
        "ALTER TABLE episode DROP COLUMN replay",
        "DROP INDEX episode_by_opened, episode_with_terms, episode_by_closing, episode_by_task, \
             episode_failed",
        "ALTER TABLE episode DROP COLUMN continues",
        "DROP TABLE unsettled, gathering",
        "ALTER TABLE consumer DROP COLUMN alone, DROP COLUMN grouped, DROP COLUMN group_count",
        "DROP TABLE sealed, segment_file, late_annotation, forgotten CASCADE",
        "DROP TABLE link",
        "ALTER TABLE reward DROP COLUMN given_by CASCADE, DROP COLUMN given_from, \
             DROP COLUMN key_name, DROP COLUMN over_calls, DROP COLUMN over_chain, \
             DROP COLUMN is_late",
    ] {
        query(undone).execute(&mut connection).await.unwrap();
    }
    query("DELETE FROM _sqlx_migrations").execute(&mut connection).await.unwrap();
    let insert = "INSERT INTO _sqlx_migrations (version, description, success, checksum, \
                  execution_time) SELECT n, 'former', TRUE, decode('00', 'hex'), 0 \
                  FROM generate_series(1, $1) n";
    query(insert).bind(newest).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_store_of_the_former_format_is_converted_when_it_is_opened() {
    let Some(site) = site() else { return };
    let writer = site.open().await;
    let (begun, ended) = turn(0);
    let ended = CallEnd { continued: None, head: ReplyHead::default(), replayed: None, ..ended };
    told(&writer.0, &begun, &ended).await.unwrap();
    stop(writer).await;

    set_former(&site, 10).await;
    let call = site.snapshot().await.call(begun.call_id).await.unwrap().unwrap();
    assert_eq!((call.begun, call.ended), (begun, Some(ended)));
    let mut connection = open::for_editing(&site.at).await.unwrap();
    let applied = query("SELECT version FROM _sqlx_migrations");
    assert_eq!(
        applied.scalars::<i64>(&mut connection).await.unwrap(),
        [15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28]
    );
    stop(site.open().await).await;

    set_former(&site, 9).await;
    let refused = Snapshot::open(&site.at).await.unwrap_err();
    assert!(refused.to_string().contains("(format 9), which commit ada9c43"), "{refused}");
}

#[tokio::test]
async fn many_may_open_a_new_store_at_once() {
    let Some(site) = site() else { return };
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let at = site.at.clone();
            tokio::spawn(async move { Store::open(&at, Durability::Power).await.unwrap() })
        })
        .collect();
    for opened in opening {
        stop(opened.await.unwrap()).await;
    }
}

#[tokio::test]
async fn work_goes_on_when_a_crashed_server_is_back() {
    let Some(server) = Server::start() else { return };
    let site = Site::of_server(&server);
    let writer = site.open().await;
    let (first, second, third) = (turn(0), turn(1), turn(2));
    told(&writer.0, &first.0, &first.1).await.unwrap();
    server.kill();
    let gone = writer.0.begin(second.0.clone()).await.done().await;
    assert!(matches!(gone, Err(CommitError::Unavailable(StoreUnavailable::Gone))), "{gone:?}");
    server.restart();
    for (begun, ended) in [&second, &third] {
        told(&writer.0, begun, ended).await.unwrap();
    }
    // One that was cut while nobody looked costs no record.
    server.kill();
    server.restart();
    let (begun, ended) = turn(3);
    told(&writer.0, &begun, &ended).await.unwrap();
    stop(writer).await;
    let report = verify(&site.at).await.unwrap();
    assert_eq!((report.damage, report.calls, report.holes_found), (Vec::new(), 4, 0));
    assert_eq!(numbers(&site).await, [1]);
}

/// The number of the session that a reader reads in.
async fn session_of(snapshot: &mut Snapshot) -> i64 {
    let number = query("SELECT CAST(pg_backend_pid() AS BIGINT)");
    number.scalar(snapshot.connection()).await.unwrap()
}

#[tokio::test]
async fn readers_share_connections_and_each_reads_its_own_moment() {
    let Some(site) = site() else { return };
    let (store, writer) = site.open().await;
    let at = site.at.clone().with_readers(2);
    let mut first = Snapshot::open(&at).await.unwrap();
    let old = session_of(&mut first).await;
    store.begin_consumer("t", 0).await.unwrap();
    assert!(!first.has_consumer("t").await.unwrap());
    drop(first);

    let reader = |at: Location| async move {
        let mut snapshot = Snapshot::open(&at).await.unwrap();
        assert!(snapshot.has_consumer("t").await.unwrap());
        session_of(&mut snapshot).await
    };
    let readers: Vec<_> = (0..20).map(|_| tokio::spawn(reader(at.clone()))).collect();
    let mut sessions = std::collections::BTreeSet::from([old]);
    for reader in readers {
        sessions.insert(reader.await.unwrap());
    }
    assert!(sessions.len() <= 2, "{sessions:?}");

    // The server may end sessions that wait.
    let mut other = open::for_editing(&site.at).await.unwrap();
    for session in &sessions {
        let end = "SELECT pg_terminate_backend(CAST($1 AS INTEGER), 5000)";
        query(end).bind(*session).execute(&mut other).await.unwrap();
    }
    assert!(!sessions.contains(&reader(at).await));
    stop((store, writer)).await;
}
