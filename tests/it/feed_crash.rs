//! `kill -9` of the recorder while a trainer reads. An acked episode never comes again, and every
//! other one does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use kit::{Step, Upstream, exchange, tape, try_post};
use postgres_kit::Server;
use serde_json::Value;

use crate::recorder::Recorder;

const KILLS: usize = 6;
/// The shortest life of a recorder, and the most that is added to it, in ms.
const LIFE_MS: (u64, u64) = (150, 700);

/// A trainer's view of the episodes.
#[derive(Debug, Default)]
struct Seen {
    /// Number of times that it got each episode.
    handed: BTreeMap<String, usize>,
    /// Episodes whose ack was answered.
    acked: BTreeSet<String>,
    /// Episodes whose ack was sent and not answered, which may or may not count.
    unsure: BTreeSet<String>,
}

/// Plays episodes and closes them. Returns the names of those whose close was answered.
async fn play(data: SocketAddr, control: SocketAddr, life: usize) -> BTreeSet<String> {
    let mut closed = BTreeSet::new();
    for number in 0.. {
        let episode = format!("e{life}-{number}");
        let call = format!("/e/{episode}/v1/chat/completions");
        let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
        if try_post(data, &call, body).await.is_none_or(|reply| reply.status != 200) {
            break;
        }
        let close = try_post(control, &format!("/episodes/{episode}/close"), "").await;
        if close.is_none_or(|reply| reply.status != 200) {
            break;
        }
        closed.insert(episode);
    }
    closed
}

/// Takes leases. Acks two of three; nacks some and forgets some of the rest.
async fn train(control: SocketAddr, seen: &mut Seen, drain: bool) {
    let wait = if drain { 3 } else { 1 };
    let page = format!("/feed?consumer=t&limit=4&lease_s=1&wait_s={wait}");
    for turn in 0.. {
        let Some(reply) = try_post(control, &page, "").await else { return };
        if reply.status == 204 && drain {
            return;
        }
        if reply.status != 200 || !reply.whole {
            continue;
        }

        let text = reply.text();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let names: BTreeSet<String> =
            rows.map(|row| row["episode_id"].as_str().unwrap().to_owned()).collect();
        for name in &names {
            assert!(!seen.acked.contains(name), "{name} was acked and came again");
            *seen.handed.entry(name.clone()).or_default() += 1;
        }

        let lease = reply.header("x-rolltape-lease").unwrap();
        let word = if drain || turn % 3 < 2 { "ack" } else { "nack" };
        // A lease that is never answered runs out.
        if !drain && turn % 7 == 6 {
            continue;
        }
        let answer = try_post(control, &format!("/feed/leases/{lease}/{word}"), "").await;
        match (word, answer.map_or(0, |reply| reply.status)) {
            ("ack", 200) => seen.acked.extend(names),
            ("ack", 409) | ("nack", _) => {}
            ("ack", _) => seen.unsure.extend(names),
            _ => unreachable!(),
        }
    }
}

async fn killed_while_it_is_read(store: &str) {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("200 OK", "application/json", &tape("vllm/chat.asked.json"))]
    })
    .await;
    let (mut seen, mut closed) = (Seen::default(), BTreeSet::new());
    let mut random = u64::from(std::process::id()) | 1;

    // A slow disk closes few episodes in a life.
    for life in 0..10 * KILLS {
        if life >= KILLS && closed.len() > KILLS {
            break;
        }
        let mut recorder = Recorder::start(store, "power", upstream.address);
        let (data, control) = (recorder.data, recorder.control);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lived = LIFE_MS.0 + (random >> 33) % LIFE_MS.1;
        let playing = tokio::spawn(play(data, control, life));
        let training = train(control, &mut seen, false);
        let killing = async {
            // The moment of the kill must not depend on the state of the recorder.
            tokio::time::sleep(Duration::from_millis(lived)).await;
            recorder.kill();
        };
        tokio::join!(training, killing);
        closed.extend(playing.await.unwrap());
    }

    let recorder = Recorder::start(store, "power", upstream.address);
    train(recorder.control, &mut seen, true).await;
    let handed: BTreeSet<String> = seen.handed.keys().cloned().collect();
    assert!(closed.len() > KILLS, "too few to say anything: {}", closed.len());
    // One whose close was not answered may be there, too.
    assert!(closed.is_subset(&handed), "lost: {:?}", closed.difference(&handed));
    let done: BTreeSet<String> = seen.acked.union(&seen.unsure).cloned().collect();
    assert_eq!(done, handed);
    let counts = exchange(recorder.control, ("GET", "/feed/consumers"), &[], b"").await.json();
    assert_eq!(counts["consumers"][0]["acked"], handed.len());
    let again: usize = seen.handed.values().filter(|times| **times > 1).count();
    println!("{} handed out, {again} of them again, {} unsure", handed.len(), seen.unsure.len());
    recorder.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn from_a_file_only_items_without_an_ack_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("feed.db");
    killed_while_it_is_read(store.to_str().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_a_database_only_items_without_an_ack_come_again() {
    let Some(server) = Server::shared() else { return };
    killed_while_it_is_read(&server.database()).await;
}
