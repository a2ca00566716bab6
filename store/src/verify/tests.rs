//! Whatever is broken is found and named.

use std::path::{Path, PathBuf};

use episode::{Call, CallId, CallStart, Reward, RewardScope};
use postgres_kit::Server;
use rusqlite::Connection;
use tempfile::TempDir;

use super::verify;
use crate::Selection;
use crate::database::query::query;
use crate::location::Location;
use crate::open;
use crate::site::{Site, on_both};
use crate::snapshot::Snapshot;
use crate::tests::{begun, comment, ended};

/// Bytes that do not shrink.
fn noise(count: u32, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// An episode `a` of four turns whose histories grow, with a reward of its last call and a call
/// without an end, and a plain episode `b`.
async fn fill(site: &Site) {
    let (store, writer) = site.open().await;
    let (mut history, mut tokens) = (noise(6000, 1), (0..700).collect::<Vec<u32>>());
    let mut last = None;
    for turn in 0..4 {
        let begun = CallStart { request: history.clone().into(), ..begun("a", turn) };
        let mut end = ended(begun.call_id);
        end.prompts = vec![tokens.clone(), vec![9; 5]];
        end.choices[0].token_ids = Some((0..90).map(|n| n * 31 + turn as u32).collect());
        end.choices[0].logprobs = (0..90).map(|n| -0.37 * n as f32).collect();
        tokens.extend(end.choices[0].token_ids.clone().unwrap());
        tokens.extend([1, 2, 3]);
        history.extend(noise(5000, 2 + turn as u64));
        last = Some(begun.call_id);
        store.begin(begun).await.done().await.unwrap();
        store.end(end).await.done().await.unwrap();
    }
    let reward = |call: Option<CallId>| Reward {
        scope: call.map_or(RewardScope::Episode, RewardScope::Call),
        name: "reward".into(),
        value: Some(1.0),
        source: "test".into(),
        at: 6,
        provenance: episode::Provenance::default(),
    };
    for scope in [last, None] {
        store.reward("a/0".parse().unwrap(), reward(scope)).await.unwrap();
    }
    let comment = comment(last, Some("why this tool?"), None);
    store.comment(vec![("a/0".parse().unwrap(), comment)]).await.unwrap();
    store.begin(begun("a", 10)).await.done().await.unwrap();
    let other = begun("b", 11);
    let end = ended(other.call_id);
    store.begin(other).await.done().await.unwrap();
    store.end(end).await.done().await.unwrap();
    drop(store);
    writer.finish().await;
}

/// The same in a file.
async fn sound() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    fill(&Site::at(path.as_path())).await;
    (folder, path)
}

fn behind_its_back(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "foreign_keys", false).unwrap();
    connection
}

#[tokio::test]
async fn a_sound_store_is_clean_and_its_hole_is_told() {
    on_both(async |site| {
        fill(&site).await;
        let report = verify(&site.at).await.unwrap();
        assert_eq!(report.damage, []);
        assert_eq!((report.episodes, report.calls, report.bodies), (2, 6, 11));
        assert_eq!((report.prompts, report.choices), (10, 10));
        assert!(report.segments > 10);
        let hole = report.holes[0].episode.clone();
        assert_eq!((report.holes_found, hole), (1, Some(("a".into(), 0))));
    })
    .await;
}

/// A statement that breaks something, and what must be said of it.
const BROKEN: &[(&str, &str)] = &[
    ("DELETE FROM segment WHERE start = 0 AND track = 0 AND reel_key = 1", "are lost"),
    ("DELETE FROM segment WHERE segment_key = 3", "damaged"),
    ("DELETE FROM segment WHERE track = 1 AND reel_key = 1", "not in the log"),
    ("UPDATE segment SET track = 7 WHERE segment_key = 1", "track 7"),
    ("UPDATE segment SET start = start + 1 WHERE segment_key = 3", "`segment` 3 of `reel` 1"),
    ("UPDATE segment SET length = length + 1 WHERE segment_key = 3", "`segment` 3 of `reel` 1"),
    ("UPDATE segment SET length = 1 << 60 WHERE segment_key = 3", "`segment` 3 of `reel` 1"),
    ("UPDATE segment SET context = 1 << 40 WHERE segment_key = 3", "context"),
    ("UPDATE segment SET encoding = 9 WHERE segment_key = 3", "encoding 9"),
    ("UPDATE segment SET data = x'' WHERE segment_key = 1", "`segment` 1 of `reel` 1"),
    ("DELETE FROM reel WHERE reel_key = 1", "refers to a `reel` that does not exist"),
    ("UPDATE reel SET episode_key = 2 WHERE reel_key = 1", "in no log of this episode"),
    ("DELETE FROM body WHERE body_key = 3", "`body` 3"),
    ("UPDATE body SET data = x'00' WHERE body_key = 3", "its request (`body` 3) is damaged"),
    ("UPDATE body SET length = length + 1 WHERE body_key = 3", "its request (`body` 3)"),
    ("UPDATE body SET length = 1 << 60 WHERE body_key = 4", "its reply (`body` 4)"),
    ("UPDATE body SET hash = zeroblob(16) WHERE body_key = 4", "its reply (`body` 4)"),
    ("UPDATE body SET hash = NULL WHERE body_key = 4", "the hash of its reply"),
    ("UPDATE body SET encoding = 9 WHERE body_key = 4", "encoding 9"),
    ("UPDATE body SET depth = 9 WHERE body_key = 3", "the depth of `body` 3 is wrong"),
    ("UPDATE body SET base_key = NULL WHERE body_key = 7", "`body` 7"),
    ("UPDATE body SET base_key = body_key WHERE body_key = 7", "`body` 7"),
    ("UPDATE body SET base_key = 11 WHERE body_key = 3", "based on 11"),
    ("DELETE FROM call WHERE call_key = 2", "`choice` 3 refers to a `call`"),
    ("DELETE FROM call WHERE outcome IS NULL", "belongs to no call"),
    ("UPDATE call SET call_id = 'x' WHERE call_key = 2", "its id is not a call id"),
    ("UPDATE call SET outcome = 'x' WHERE call_key = 2", "`x` is not a known outcome"),
    ("UPDATE call SET outcome = NULL WHERE call_key = 2", "its outcome is lost"),
    ("UPDATE call SET ended_at = NULL WHERE call_key = 2", "the time of its end"),
    ("UPDATE call SET reply_body = NULL WHERE call_key = 2", "its reply is lost"),
    ("UPDATE call SET request_body = 1 WHERE call_key = 2", "`body` 3 belongs to no call"),
    ("UPDATE call SET reel_key = NULL WHERE call_key = 2", "choice 0"),
    ("UPDATE call SET episode_key = 9 WHERE call_key = 6", "refers to a `episode`"),
    ("DELETE FROM prompt WHERE call_key = 1 AND prompt_index = 0", "prompt 0 is lost"),
    ("DELETE FROM prompt WHERE call_key = 1 AND prompt_index = 1", "continues a path"),
    ("UPDATE prompt SET tokens = tokens + 1 WHERE call_key = 2", "a prompt is damaged"),
    ("UPDATE prompt SET shared = 1 << 50 WHERE call_key = 2 AND prompt_index = 0", "prompt"),
    ("UPDATE prompt SET hash = zeroblob(16) WHERE call_key = 2", "a prompt is damaged"),
    ("UPDATE prompt SET hash = NULL WHERE call_key = 2", "the hash of prompt 0 is lost"),
    ("UPDATE prompt SET start = start + 1 WHERE call_key = 2", "a prompt is damaged"),
    ("UPDATE prompt SET depth = 7 WHERE call_key = 2", "the wrong depth"),
    ("UPDATE prompt SET parent_key = NULL WHERE call_key = 2 AND prompt_index = 0", "prompt"),
    ("UPDATE prompt SET parent_key = 6 WHERE call_key = 2 AND prompt_index = 0", "prompt 0"),
    ("UPDATE prompt SET parent_key = call_key WHERE call_key = 2", "a prompt is damaged"),
    ("DELETE FROM choice WHERE call_key = 2 AND choice_index = 0", "continues a path"),
    ("DELETE FROM choice WHERE call_key = 4 AND choice_index = 0", "choice 0 is lost"),
    ("UPDATE choice SET tokens = tokens - 1 WHERE call_key = 4 AND tokens > 0", "the seal differs"),
    ("UPDATE choice SET start = 1 << 40 WHERE call_key = 4 AND tokens > 0", "not in the log"),
    ("UPDATE choice SET logprobs = x'00' WHERE call_key = 1 AND choice_index = 0", "choice 0"),
    ("UPDATE choice SET logprob_count = logprob_count + 1 WHERE call_key = 1", "choice 0"),
    (
        "UPDATE choice SET logprob_count = 1 << 60 WHERE call_key = 1 AND choice_index = 0",
        "choice 0",
    ),
    ("UPDATE choice SET encoding = 9 WHERE call_key = 1 AND choice_index = 0", "choice 0"),
    (
        "UPDATE choice SET versions = 'x' WHERE call_key = 1 AND choice_index = 0",
        "list of version spans",
    ),
    (
        "UPDATE choice SET versions = '[[\"1\",5,2]]' WHERE call_key = 1 AND choice_index = 0",
        "the seal differs",
    ),
    ("UPDATE choice SET fidelity = 'x' WHERE call_key = 1 AND choice_index = 0", "fidelity"),
    ("UPDATE choice SET call_key = 99 WHERE choice_key = 10", "refers to a `call`"),
    ("UPDATE choice SET finish_reason = 'x' WHERE call_key = 1", "the seal differs"),
    ("UPDATE choice SET versions = NULL WHERE call_key = 1", "the seal differs"),
    ("UPDATE choice SET tokens = NULL WHERE call_key = 4 AND choice_index = 0", "the seal differs"),
    ("DELETE FROM choice WHERE call_key = 4 AND choice_index = 1", "lost"),
    ("UPDATE call SET status = 500 WHERE call_key = 4", "the seal differs"),
    ("UPDATE call SET completion_tokens = 7 WHERE call_key = 4", "the seal differs"),
    ("UPDATE call SET seal = zeroblob(16) WHERE call_key = 4", "the seal differs"),
    ("UPDATE side SET data = x'00' WHERE call_key = 2", "`top_logprobs` of choice 0 is damaged"),
    ("UPDATE side SET length = length + 1 WHERE call_key = 2", "`top_logprobs` of choice 0"),
    (
        "UPDATE side SET choice_index = 9 WHERE call_key = 2 AND choice_index = 1",
        "choice 9 is lost",
    ),
    ("UPDATE reward SET call_id = 'x' WHERE call_id IS NOT NULL", "`x` is not a known call id"),
    ("UPDATE reward SET episode_key = 2 WHERE call_id IS NOT NULL", "which is lost"),
    ("UPDATE reward SET scope = 'x'", "`x` is none of episode, trajectory, call, tokens"),
    ("UPDATE reward SET scope = 'tokens' WHERE scope = 'call'", "needs `start`"),
    ("UPDATE reward SET given_by = 'x' WHERE call_id IS NULL", "`x` is not a known giver"),
    ("UPDATE reward SET over_calls = 9 WHERE call_id IS NULL", "9 calls, which the chain"),
    ("UPDATE reward SET over_calls = 3 WHERE call_id IS NULL", "given over other records"),
    ("UPDATE reward SET over_chain = zeroblob(16) WHERE call_id IS NULL", "over other records"),
    ("UPDATE link SET chain = zeroblob(16) WHERE number = 2", "the chain breaks at this call"),
    ("UPDATE link SET number = 7 WHERE number = 3", "it is number 7"),
    ("DELETE FROM link WHERE number = 2", "it is number 3"),
    ("UPDATE link SET call_key = 99 WHERE number = 2", "`link` 99 refers to a `call`"),
    ("UPDATE call SET path = '/x' WHERE call_key = 2", "the chain breaks at this call"),
    ("UPDATE call SET seal = NULL WHERE call_key = 2", "the chain breaks at this call"),
    ("UPDATE body SET hash = zeroblob(16) WHERE body_key = 3", "the chain breaks at this call"),
    ("UPDATE reward SET episode_key = 9", "`reward` 1 refers to a `episode`"),
    ("UPDATE comment SET episode_key = 9", "`comment` 1 refers to a `episode`"),
    ("UPDATE comment SET episode_key = 2", "`comment` 1 is about this call, which is lost"),
    ("UPDATE comment SET call_id = 'x'", "`comment` 1: `x` is not a known call id"),
    ("UPDATE label SET episode_key = 9 WHERE label_key = 1", "`label` 1 refers to a `episode`"),
    ("DELETE FROM episode WHERE episode_key = 1", "refers to a `episode` that does not exist"),
    ("UPDATE episode SET source = 'x' WHERE episode_key = 1", "`x` is not a known source"),
    ("UPDATE episode SET episode_id = '?' WHERE episode_key = 1", "not a known episode id"),
];

/// Not all is compared with a hash of its own when it is read: a prompt that another begins with
/// the whole of is compared with that one's.
#[tokio::test]
async fn what_is_broken_is_never_read_as_if_it_were_whole() {
    let (folder, sound) = sound().await;
    let path = folder.path().join("broken.db");
    let read = async |path: &Path| {
        let mut snapshot = Snapshot::open(path).await?;
        let episodes = snapshot.episodes(&Selection::default()).await?;
        snapshot.calls(&episodes[0]).await
    };
    let told = |call: &Call| {
        let ended = call.ended.as_ref().map(|ended| (ended.reply.clone(), ended.prompts.clone()));
        (call.begun.call_id, call.begun.request.clone(), ended)
    };
    let whole: Vec<_> = read(&sound).await.unwrap().iter().map(told).collect();
    let verbs = ["UPDATE ", "DELETE FROM "];
    let tables = ["segment ", "body ", "prompt "];
    let of_content = |statement: &&str| {
        let table = verbs.iter().find_map(|verb| statement.strip_prefix(verb));
        table.is_some_and(|table| tables.iter().any(|name| table.starts_with(name)))
    };
    let (mut refused, mut harmless) = (0, 0);
    for statement in BROKEN.iter().map(|(statement, _)| *statement).filter(of_content) {
        std::fs::copy(&sound, &path).unwrap();
        behind_its_back(&path).execute(statement, ()).unwrap();
        match read(&path).await {
            Err(_) => refused += 1,
            Ok(calls) => {
                let found: Vec<_> = calls.iter().map(told).collect();
                assert!(found == whole, "{statement} is not noticed");
                harmless += 1;
            }
        }
    }
    assert!(refused > 15 && harmless > 3, "{refused} refused, {harmless} harmless");
}

#[tokio::test]
async fn each_broken_row_is_found_and_named() {
    let (folder, sound) = sound().await;
    let path = folder.path().join("broken.db");
    let mut missed = Vec::new();
    for (statement, named) in BROKEN {
        std::fs::copy(&sound, &path).unwrap();
        let broken = behind_its_back(&path).execute(statement, ()).unwrap();
        assert!(broken > 0, "{statement} breaks nothing");
        let report = verify(&path).await.unwrap();
        let told: Vec<_> = report.damage.iter().map(ToString::to_string).collect();
        assert_eq!(report.damage_found as usize, told.len());
        if !told.iter().any(|line| line.contains(named)) {
            missed.push((statement, told));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// A statement in the words of PostgreSQL.
fn in_postgres(statement: &str) -> String {
    [("x''", "''"), ("x'00'", "'\\x00'"), ("zeroblob(16)", "decode(repeat('00', 16), 'hex')")]
        .into_iter()
        .fold(statement.replace(" 1 <<", " 1::bigint <<"), |sql, (from, to)| sql.replace(from, to))
}

#[tokio::test]
async fn each_broken_row_of_a_server_is_found_and_named() {
    let Some(server) = Server::shared() else { return };
    let sound = Site::of_server(server);
    fill(&sound).await;
    let mut missed = Vec::new();
    for (statement, named) in BROKEN {
        let broken = Site::at(server.copy(&sound.name()).parse::<Location>().unwrap());
        let mut connection = open::for_editing(&broken.at).await.unwrap();
        // As if its own checks had failed.
        query("SET session_replication_role = replica").execute(&mut connection).await.unwrap();
        query(in_postgres(statement)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let report = verify(&broken.at).await.unwrap();
        let told: Vec<_> = report.damage.iter().map(ToString::to_string).collect();
        if !told.iter().any(|line| line.contains(named)) {
            missed.push((statement, told));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Columns of bytes that a checksum or a hash covers.
const COVERED: &[(&str, &str, &str)] = &[
    ("segment", "data", "encoding = 1"),
    ("body", "data", "reel_key = 1"),
    ("body", "hash", "reel_key = 1"),
    ("prompt", "hash", "call_key < 6"),
    ("side", "data", "call_key < 6"),
    ("choice", "logprobs", "call_key < 6 AND logprob_count > 0"),
    ("call", "seal", "call_key < 6 AND ended_at IS NOT NULL"),
    ("link", "chain", "call_key < 6"),
    ("reward", "over_chain", "reward_key < 6"),
];

#[tokio::test]
async fn each_flipped_byte_is_found() {
    let (folder, sound) = sound().await;
    let path = folder.path().join("broken.db");
    for (table, column, which) in COVERED {
        std::fs::copy(&sound, &path).unwrap();
        let rows = format!("SELECT {column} FROM {table} WHERE {which} ORDER BY 1");
        let connection = behind_its_back(&path);
        let rows: Vec<Vec<u8>> = {
            let mut found = connection.prepare(&rows).unwrap();
            found.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let change = format!("UPDATE {table} SET {column} = $1 WHERE {column} = $2 AND {which}");
        for old in rows.iter().step_by(2).filter(|old| !old.is_empty()) {
            for at in [0, old.len() / 2, old.len() - 1] {
                let mut new = old.clone();
                new[at] ^= 4;
                for (to, from) in [(&new, old), (old, &new)] {
                    connection.execute(&change, (to, from)).unwrap();
                    let report = verify(&path).await.unwrap();
                    assert_eq!(report.is_clean(), to == old, "{table}.{column} byte {at}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_damaged_page_is_told_and_the_rest_is_checked() {
    let (_folder, path) = sound().await;
    let mut bytes = std::fs::read(&path).unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'choice'";
    let root: i64 = behind_its_back(&path).query_row(root, (), |row| row.get(0)).unwrap();
    let size: i64 = behind_its_back(&path).query_row("PRAGMA page_size", (), |r| r.get(0)).unwrap();
    let page = (root as usize - 1) * size as usize;
    bytes[page..page + 200].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    let report = verify(&path).await.unwrap();
    assert!(!report.is_clean());
    assert_eq!(report.episodes, 2, "{report:?}");
}

#[tokio::test]
async fn calls_that_a_damaged_stretch_does_not_touch_are_sound() {
    let (_folder, path) = sound().await;
    let last = "UPDATE segment SET data = zeroblob(20), encoding = 1 WHERE segment_key = \
                (SELECT max(segment_key) FROM segment WHERE reel_key = 1 AND track = 0)";
    behind_its_back(&path).execute(last, ()).unwrap();
    let report = verify(&path).await.unwrap();
    let calls: Vec<_> = report.damage.iter().filter_map(|d| d.place.call.clone()).collect();
    assert_eq!(calls.len(), 1, "{:#?}", report.damage);
    assert_eq!(report.damage_found, 2, "the stretch, and the call that stands on it");
}
