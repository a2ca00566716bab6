//! The feed over HTTP: shared by readers, waited for, read slowly, left in the middle.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::{Reply, Step, Upstream, World, connect, exchange, post, request, tape};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::wait::until;

async fn upstream() -> Upstream {
    Upstream::start("vllm", |_| {
        // Versions are told by the trainer here.
        let whole = String::from_utf8(tape("vllm/chat.asked.json")).unwrap();
        let spans = r#""weight_versions":[{"version":"7","start":0,"end":2}]"#;
        let silent = whole.replace(spans, r#""weight_versions":null"#);
        assert_ne!(silent, whole);
        vec![Step::reply("200 OK", "application/json", silent.as_bytes())]
    })
    .await
}

async fn get(control: SocketAddr, page: &str) -> Reply {
    exchange(control, ("GET", page), &[], b"").await
}

/// Asks the feed for items.
async fn ask_feed(control: SocketAddr, page: &str) -> Reply {
    post(control, page, "").await
}

/// Makes a call of `bytes` bytes and closes its episode.
async fn play(world: &World, episode: &str, bytes: usize) {
    let words = "word ".repeat(bytes / 5 + 1);
    let body = json!({ "messages": [{ "role": "user", "content": words }] });
    let path = format!("/e/{episode}/v1/chat/completions");
    assert_eq!(post(world.data, &path, &body.to_string()).await.status, 200);
    close(world, episode).await;
}

async fn close(world: &World, episode: &str) {
    assert_eq!(post(world.control, &format!("/episodes/{episode}/close"), "").await.status, 200);
}

fn rows(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.whole);
    reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(reply: &Reply) -> Vec<String> {
    rows(reply).iter().map(|row| row["episode_id"].as_str().unwrap().to_owned()).collect()
}

async fn counts(world: &World) -> Value {
    get(world.control, "/feed/consumers").await.json()["consumers"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_readers_share_what_is_finished_and_none_gets_the_same() {
    let world = World::start(upstream().await.address).await;

    let control = world.control;
    let all_played = Arc::new(AtomicBool::new(false));
    let played = all_played.clone();
    let reader = move || async move {
        let mut seen = Vec::new();
        loop {
            let is_last = played.load(Ordering::Relaxed);
            let reply = ask_feed(control, "/feed?consumer=t&limit=3&wait_s=2").await;
            match reply.status {
                204 if is_last => return seen,
                204 => continue,
                _ => {}
            }
            seen.extend(names(&reply));
            let lease = reply.header("x-rolltape-lease").unwrap().to_owned();
            let acked = post(control, &format!("/feed/leases/{lease}/ack"), "").await;
            assert_eq!(acked.status, 200, "{}", acked.text());
        }
    };
    let readers = [tokio::spawn(reader.clone()()), tokio::spawn(reader())];
    let all: BTreeSet<String> = (0..40).map(|at| format!("e{at}")).collect();

    for episode in &all {
        play(&world, episode, 10).await;
    }
    all_played.store(true, Ordering::Relaxed);

    let mut seen = Vec::new();
    for reader in readers {
        seen.extend(reader.await.unwrap());
    }

    assert_eq!((seen.len(), seen.into_iter().collect()), (40, all));
    let told = counts(&world).await;
    assert_eq!(
        (&told["acked"], &told["depth"], &told["leased"]),
        (&40.into(), &0.into(), &0.into())
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_reader_wakes_at_a_close_and_leaves_at_the_end() {
    let world = World::start(upstream().await.address).await;
    let control = world.control;
    let wait = |query: &'static str| {
        tokio::spawn(async move { ask_feed(control, &format!("/feed?{query}")).await })
    };
    let waiting = [wait("wait_s=60"), wait("consumer=t&wait_s=60&rewarded=true")];
    play(&world, "a", 10).await;
    let [first, rewarded] = waiting;
    let first = first.await.unwrap();
    assert_eq!((names(&first), first.header("x-rolltape-cursor")), (vec!["a".into()], Some("1")));
    assert!(!rewarded.is_finished(), "it has no reward yet");
    post(control, "/episodes/a/rewards", r#"{"value":0.5}"#).await;
    let rewarded = rewarded.await.unwrap();
    assert_eq!(rows(&rewarded)[0]["reward"], 0.5);
    let last = wait("cursor=1&wait_s=600");
    // No event says that a reader waits. A reader that came too late would be refused the
    // connection, and this test would fail.
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::time::timeout(Duration::from_secs(20), world.stop()).await.expect("it ends");
    assert_eq!(last.await.unwrap().status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_waited_for_and_what_it_leaves_is_given_back() {
    const EPISODES: usize = 240;
    const BYTES: usize = 200_000;
    let world = World::start(upstream().await.address).await;

    for at in 0..EPISODES {
        play(&world, &format!("e{at}"), BYTES).await;
    }

    let mut slow = connect(world.control).await;
    let ask = request("POST", "/feed?consumer=t&limit=1000&lease_s=3600", &[], b"");
    slow.write_all(&ask).await.unwrap();
    let mut head = vec![0; 64 * 1024];
    slow.read_exact(&mut head).await.unwrap();
    // Wait until the sockets between are full. The only sign is that no more items are made. A
    // pause that is mistaken for it makes the numbers below easier to reach, not harder.
    let mut made = 0;

    while world.items() > made {
        made = world.items();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    assert!(made < EPISODES / 2, "{made} items of 200 kB were made for a reader that reads none");
    assert_eq!(counts(&world).await["leased"], EPISODES);
    // Others are not held up by it.
    play(&world, "late", 10).await;
    let late = ask_feed(world.control, "/feed?consumer=t").await;
    assert_eq!(names(&late), ["late"]);
    drop(slow);
    // The server sees that the reader is gone when it next writes, and gives back behind that.
    let depth = until("episodes that were given back", async || {
        counts(&world).await["depth"].as_u64().filter(|depth| *depth > 0)
    })
    .await;
    assert!(depth as usize > EPISODES / 2, "what was not sent is there for another: {depth}");
    assert!((depth as usize) < EPISODES, "what was sent is not, while the lease lasts: {depth}");
    world.stop().await;
}

#[tokio::test]
async fn what_is_too_old_is_dropped_for_good_and_counted() {
    let world = World::start(upstream().await.address).await;

    for (version, episode) in [("1", "old"), ("5", "new")] {
        post(world.control, "/version", &format!(r#"{{"version":"{version}"}}"#)).await;
        play(&world, episode, 10).await;
    }

    let fresh = ask_feed(world.control, "/feed?consumer=t&max_staleness=2").await;
    assert_eq!(
        (names(&fresh), fresh.header("x-rolltape-version")),
        (vec!["new".into()], Some("5"))
    );
    assert_eq!(rows(&fresh)[0]["staleness"], 0);
    assert_eq!(ask_feed(world.control, "/feed?consumer=t").await.status, 204);
    let told = counts(&world).await;
    assert_eq!(told["dropped"], json!({ "stale": 1 }));
    let page = get(world.control, "/metrics").await.text();

    for line in [
        "rolltape_feed_dropped_total{consumer=\"t\",reason=\"stale\"} 1",
        "rolltape_feed_leased{consumer=\"t\"} 1",
        "rolltape_feed_depth{consumer=\"t\"} 0",
        "rolltape_calls_begun_total 2",
        "rolltape_calls_ended_total{outcome=\"complete\"} 2",
        "rolltape_calls_in_flight 0",
        "# TYPE rolltape_feed_depth gauge",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    world.stop().await;
}

#[tokio::test]
async fn groups_come_whole_with_their_advantages() {
    let world = World::start(upstream().await.address).await;

    for (at, reward) in [1.0, 0.0, 1.0].into_iter().enumerate() {
        let told = json!({ "episode_id": format!("e{at}"), "group_id": "g", "group_size": 2 });
        assert_eq!(post(world.control, "/episodes", &told.to_string()).await.status, 200);
        let told = json!({ "value": reward }).to_string();
        post(world.control, &format!("/episodes/e{at}/rewards"), &told).await;
        play(&world, &format!("e{at}"), 10).await;
    }

    let page = "/feed?consumer=t&unit=group&advantage=dr-grpo&lease_s=60";
    let group = ask_feed(world.control, page).await;
    let found: Vec<_> = rows(&group).iter().map(|row| row["advantage"].clone()).collect();
    assert_eq!(
        (names(&group), found),
        (vec!["e0".into(), "e1".into()], vec![0.5.into(), (-0.5).into()])
    );
    assert_eq!(ask_feed(world.control, page).await.status, 204, "the third one is alone");
    let lease = group.header("x-rolltape-lease").unwrap();
    let nack = post(world.control, &format!("/feed/leases/{lease}/nack"), "").await;
    assert_eq!(nack.status, 200);
    let again = ask_feed(world.control, page).await;
    assert_eq!(names(&again), names(&group));
    let lease = again.header("x-rolltape-lease").unwrap();

    for (word, body, status) in [
        ("renew", r#"{"lease_s":10}"#, 200),
        ("ack", r#"{"episodes":[{"episode_id":"e0"}]}"#, 200),
        ("ack", r#"{"episodes":[{"episode_id":"none"}]}"#, 404),
        ("ack", r#"{"episodes":7}"#, 400),
        ("eat", "", 404),
        ("ack", "", 200),
        ("ack", "", 200),
    ] {
        let said = post(world.control, &format!("/feed/leases/{lease}/{word}"), body).await;
        assert_eq!(said.status, status, "{word} {body}: {}", said.text());
    }

    for nobody in ["none", ""] {
        let said = post(world.control, &format!("/feed/leases/{nobody}/ack"), "").await;
        assert_eq!(said.status, 409, "{nobody}: {}", said.text());
    }
    world.stop().await;
}

#[tokio::test]
async fn a_part_of_a_group_keeps_the_advantages_of_the_whole() {
    let world = World::start(upstream().await.address).await;

    for (at, reward) in [1.0, 0.0, 2.0, 3.0].into_iter().enumerate() {
        let told = json!({ "episode_id": format!("e{at}"), "group_id": "g", "group_size": 4 });
        post(world.control, "/episodes", &told.to_string()).await;
        let told = json!({ "value": reward }).to_string();
        post(world.control, &format!("/episodes/e{at}/rewards"), &told).await;
        play(&world, &format!("e{at}"), 10).await;
    }

    let page = "/feed?consumer=t&unit=group&advantage=grpo&group_stats=true";
    let whole = ask_feed(world.control, page).await;
    let lease = whole.header("x-rolltape-lease").unwrap();

    for (word, episodes) in [("ack", ["e0", "e1"]), ("nack", ["e2", "e3"])] {
        let episodes = episodes.map(|name| json!({ "episode_id": name }));
        let body = json!({ "episodes": episodes }).to_string();
        let said = post(world.control, &format!("/feed/leases/{lease}/{word}"), &body).await;
        assert_eq!(said.status, 200);
    }

    let rest = ask_feed(world.control, page).await;
    assert_eq!(rows(&rest), rows(&whole)[2..]);
    world.stop().await;
}

/// Announces an attempt of the group `g` of two, and rewards it.
async fn announce(world: &World, episode: &str, reward: f64) {
    let told = json!({ "episode_id": episode, "group_id": "g", "group_size": 2 });
    assert_eq!(post(world.control, "/episodes", &told.to_string()).await.status, 200);
    let told = json!({ "value": reward }).to_string();
    post(world.control, &format!("/episodes/{episode}/rewards"), &told).await;
}

#[tokio::test]
async fn a_name_of_a_group_used_again_is_as_in_an_export() {
    let world = World::start(upstream().await.address).await;
    for (episode, reward) in [("a", 1.0), ("z", 0.0), ("b", 0.0), ("c", 0.0)] {
        announce(&world, episode, reward).await;
        play(&world, episode, 10).await;
    }
    // Of the third set, one has no call.
    for (episode, reward) in [("d", 1.0), ("e", 0.0)] {
        announce(&world, episode, reward).await;
    }
    play(&world, "d", 10).await;
    close(&world, "e").await;

    let advantages = |rows: &[Value]| -> Vec<(String, Value)> {
        let of =
            |row: &Value| (row["episode_id"].as_str().unwrap().into(), row["advantage"].clone());
        rows.iter().map(of).collect()
    };
    let fed = ask_feed(world.control, "/feed?consumer=t&unit=group&advantage=dr-grpo").await;
    let expected = [("a", 0.5), ("z", -0.5), ("b", 0.0), ("c", 0.0), ("d", 0.5)];
    let expected = expected.map(|(name, advantage)| (name.to_owned(), advantage.into()));
    assert_eq!(advantages(&rows(&fed)), expected);
    assert_eq!(counts(&world).await["dropped"], json!({ "no_rows": 1 }));

    let out = world.store().with_file_name("rows.jsonl");
    let advantage = exporter::Advantage::DrGrpo;
    let rewards = exporter::RewardOptions { advantage, ..Default::default() };
    let options = exporter::Options { out: out.clone().into(), rewards, ..Default::default() };
    exporter::export(world.snapshot().await, &options).await.unwrap();
    let exported: Vec<Value> = std::fs::read_to_string(&out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(advantages(&exported), expected);
    world.stop().await;
}

#[tokio::test]
async fn what_is_asked_wrongly_is_told() {
    let world = World::start(upstream().await.address).await;

    for (query, why) in [
        ("consumr=t", "`consumr` is not a parameter"),
        ("consumer=a/b", "is not an id"),
        ("limit=0", "1 to 1024"),
        ("wait_s=601", "0 to 600"),
        ("lease_s=0", "1 to 86400"),
        ("unit=call", "episode or group"),
        ("group_size=4", "need unit=group"),
        ("unit=group&group_wait_s=1", "needs a `consumer`"),
        ("advantage=grpo", "unit=group"),
        ("rewarded=maybe", "true or false"),
        ("cursor=-1", "a position from 0"),
        ("kind=main,none", "none of the kinds"),
        ("limit=1&limit=2", "given twice"),
    ] {
        let reply = ask_feed(world.control, &format!("/feed?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        let told = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(told.contains(why), "{query}: {told}");
    }

    let told = r#"{"episode_id":"a","group_size":2}"#;
    assert_eq!(post(world.control, "/episodes", told).await.status, 400);
    world.stop().await;
}
