//! Admission by version: first calls wait until what began before them was trained on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kit::{Reply, Step, Upstream, World, exchange, post};
use postgres_kit::Server;
use proxy::Config;
use serde_json::{Value, json};
use store::Selection;
use tokio::task::{JoinHandle, JoinSet};

use crate::recorder::Recorder;
use crate::wait::until;

/// A reply without its version.
const SILENT: &str = r#"{"id":"c","model":"m","prompt_token_ids":[1],"choices":[{"index":0,
    "message":{"role":"assistant","content":"x"},"finish_reason":"stop","token_ids":[5],
    "logprobs":{"content":[{"token":"x","logprob":-0.5,"bytes":[120],"top_logprobs":[]}]}}]}"#;

async fn upstream() -> Upstream {
    Upstream::start("vllm", |_| vec![Step::reply("200 OK", "application/json", SILENT.as_bytes())])
        .await
}

async fn call(data: SocketAddr, episode: &str) -> Reply {
    let path = format!("/e/{episode}/v1/chat/completions");
    post(data, &path, r#"{"messages":[{"role":"user","content":"hi"}]}"#).await
}

fn calling(data: SocketAddr, episode: &str) -> JoinHandle<Reply> {
    let episode = episode.to_owned();
    tokio::spawn(async move { call(data, &episode).await })
}

async fn set_rule(control: SocketAddr, rule: Value) -> Value {
    let reply = post(control, "/admission", &rule.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["admission"].clone()
}

async fn shown(control: SocketAddr) -> Value {
    exchange(control, ("GET", "/admission"), &[], b"").await.json()["admission"].clone()
}

async fn close(control: SocketAddr, episode: &str) {
    assert_eq!(post(control, &format!("/episodes/{episode}/close"), "").await.status, 200);
}

/// Takes up to `limit` attempts from the feed; returns the lease and their names.
async fn lease(control: SocketAddr, limit: usize) -> (String, Vec<String>) {
    let page = format!("/feed?consumer=t&limit={limit}&wait_s=10");
    let reply = post(control, &page, "").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let rows = reply.text();
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let names = rows.map(|row| row["episode_id"].as_str().unwrap().to_owned()).collect();
    (reply.header("x-rolltape-lease").unwrap().to_owned(), names)
}

async fn ack(control: SocketAddr, lease: &str) {
    let acked = post(control, &format!("/feed/leases/{lease}/ack"), "").await;
    assert_eq!(acked.status, 200, "{}", acked.text());
}

/// Closes an attempt and trains on it.
async fn train(control: SocketAddr, episode: &str) {
    close(control, episode).await;
    let (id, names) = lease(control, 1).await;
    assert_eq!(names, [episode]);
    ack(control, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_call_is_refused_until_earlier_ones_were_trained_on() {
    let upstream = upstream().await;
    let world = World::start(upstream.address).await;
    let (data, control) = (world.data, world.control);
    assert_eq!(shown(control).await, Value::Null);
    assert_eq!(call(data, "before").await.status, 200);

    let rule = json!({"consumer": "t", "batch_attempts": 1, "max_versions": 1, "wait_s": 0});
    let set = set_rule(control, rule).await;
    assert_eq!((&set["limit"], &set["open"]), (&2.into(), &1.into()));
    assert_eq!(call(data, "a").await.status, 200);
    let sent = upstream.seen().len();
    let refused = call(data, "b").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert!(refused.text().contains("no new episode may begin"), "{}", refused.text());
    assert_eq!(upstream.seen().len(), sent, "the upstream heard nothing of it");
    let recorded = world.snapshot().await.episodes(&Selection::default()).await.unwrap();
    assert!(recorded.iter().all(|episode| episode.id.as_str() != "b"));

    // What is open goes on, and a closed attempt says that it is closed.
    for open in ["before", "a"] {
        assert_eq!(call(data, open).await.status, 200);
    }
    close(control, "before").await;
    assert_eq!(call(data, "before").await.status, 409);
    assert_eq!(call(data, "b").await.status, 503, "it is not trained on yet");
    let (id, _) = lease(control, 1).await;
    assert_eq!(call(data, "b").await.status, 503, "it is being trained on");
    ack(control, &id).await;
    assert_eq!(call(data, "b").await.status, 200);

    let status = shown(control).await;
    assert_eq!((&status["taken"], &status["refused"]), (&2.into(), &3.into()));
    let page = exchange(control, ("GET", "/metrics"), &[], b"").await.text();
    for line in [
        "rolltape_admission_attempts{state=\"open\"} 2",
        "rolltape_admission_limit 2",
        "rolltape_admission_calls_total{result=\"refused\"} 3",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }

    // The rule is in the store.
    let folder = world.stop().await;
    let config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
    let world = World::start_in(folder, config).await;
    assert_eq!(call(world.data, "c").await.status, 503);
    assert_eq!(call(world.data, "b").await.status, 200);
    let lifted = exchange(world.control, ("DELETE", "/admission"), &[], b"").await;
    assert_eq!(lifted.status, 200);
    assert_eq!(call(world.data, "c").await.status, 200);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_calls_that_wait_begin_in_their_order() {
    let world = World::start(upstream().await.address).await;
    let (data, control) = (world.data, world.control);
    let rule = json!({"consumer": "t", "batch_attempts": 1, "max_versions": 0, "wait_s": 30});
    set_rule(control, rule).await;
    assert_eq!(call(data, "a").await.status, 200);
    let mut waiting = Vec::new();
    for (number, episode) in ["b", "c"].into_iter().enumerate() {
        waiting.push(calling(data, episode));
        until("a call that waits", async || {
            (shown(control).await["waiting"] == json!(number + 1)).then_some(())
        })
        .await;
    }

    let mut waiting = waiting.into_iter();
    let (second, third) = (waiting.next().unwrap(), waiting.next().unwrap());
    train(control, "a").await;
    assert_eq!(second.await.unwrap().status, 200);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!third.is_finished(), "there is one place");
    train(control, "b").await;
    assert_eq!(third.await.unwrap().status, 200);

    // An agent that leaves takes no place, and a rule that is lifted lets all begin.
    let (gone, fourth) = (calling(data, "gone"), calling(data, "d"));
    until("two calls that wait", async || (shown(control).await["waiting"] == 2).then_some(()))
        .await;
    gone.abort();
    until("one that left", async || (shown(control).await["waiting"] == 1).then_some(())).await;
    assert_eq!(exchange(control, ("DELETE", "/admission"), &[], b"").await.status, 200);
    assert_eq!(fourth.await.unwrap().status, 200);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_calls_that_have_not_begun() {
    let upstream = upstream().await;
    let mut config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.drain_wait = Duration::from_secs(600);
    let world = World::start_with(config).await;
    let (data, control) = (world.data, world.control);
    let rule = json!({"consumer": "t", "batch_attempts": 1, "max_versions": 0, "wait_s": 600});
    set_rule(control, rule).await;
    assert_eq!(call(data, "a").await.status, 200);
    let waiting = calling(data, "b");
    until("a call that waits", async || (shown(control).await["waiting"] == 1).then_some(())).await;
    let began_at = Instant::now();
    world.stop().await;
    assert_eq!(waiting.await.unwrap().status, 503);
    assert!(began_at.elapsed() < Duration::from_secs(60), "{:?}", began_at.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_group_begins_although_others_wait() {
    let world = World::start(upstream().await.address).await;
    let (data, control) = (world.data, world.control);
    let rule = json!({"consumer": "t", "batch_attempts": 2, "max_versions": 0, "unit": "group",
        "wait_s": 0});
    set_rule(control, rule).await;
    for (episode, group) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        let body = json!({"episode_id": episode, "group_id": group, "group_size": 2});
        assert_eq!(post(control, "/episodes", &body.to_string()).await.status, 200);
    }
    let mut seen = Vec::new();
    for episode in ["a1", "b1", "alone", "a2", "b2"] {
        seen.push(call(data, episode).await.status);
    }
    // An attempt without a group, such as an evaluation, is not held back.
    assert_eq!(seen, [200, 503, 200, 200, 503]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attempt_is_trained_later_than_the_rule_says() {
    const BATCH: usize = 2;
    const MAX_VERSIONS: u64 = 1;
    let world = World::start(upstream().await.address).await;
    let (data, control) = (world.data, world.control);
    let rule = json!({"consumer": "t", "batch_attempts": BATCH, "max_versions": MAX_VERSIONS,
        "wait_s": 60});
    set_rule(control, rule).await;
    post(control, "/version", r#"{"version":0}"#).await;
    // More agents than may run, each of which plays one attempt after another.
    let mut agents = JoinSet::new();
    for agent in 0..6 {
        agents.spawn(async move {
            for number in 0..10 {
                let episode = format!("e{agent}-{number}");
                if call(data, &episode).await.status != 200 {
                    return;
                }
                close(control, &episode).await;
            }
        });
    }

    let mut latest = 0;
    for version in 1..=12 {
        let mut leases = Vec::new();
        while leases.len() < BATCH {
            let (id, names) = lease(control, 1).await;
            let began = version_of(&world, &names[0]).await;
            latest = latest.max(version - 1 - began);
            leases.push(id);
        }
        // The weights are pushed before the batch is acked.
        post(control, "/version", &json!({ "version": version }).to_string()).await;
        for id in leases {
            ack(control, &id).await;
        }
    }
    assert_eq!(latest, MAX_VERSIONS, "all that may be under way is");
    agents.shutdown().await;
    world.stop().await;
}

/// The version that was current when an episode began.
async fn version_of(world: &World, episode: &str) -> u64 {
    let only = Selection { episode: Some(episode.parse().unwrap()), ..Selection::default() };
    let mut snapshot = world.snapshot().await;
    let record = snapshot.episodes(&only).await.unwrap().remove(0);
    let call = snapshot.calls(&record).await.unwrap().remove(0);
    call.ended.unwrap().stamps.start.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_admit_together_what_one_would() {
    let Some(server) = Server::shared() else { return };
    let upstream = upstream().await;
    let url = server.database();
    let both = [(), ()].map(|()| Recorder::start(&url, "power", upstream.address));
    let rule = json!({"consumer": "t", "batch_attempts": 2, "max_versions": 2, "wait_s": 0});
    set_rule(both[0].control, rule).await;
    until("the rule at the other", async || {
        (shown(both[1].control).await["limit"] == 6).then_some(())
    })
    .await;

    let calls: Vec<_> =
        (0..20).map(|number| calling(both[number % 2].data, &format!("e{number}"))).collect();
    let mut admitted = 0;
    for call in calls {
        admitted += usize::from(call.await.unwrap().status == 200);
    }
    assert_eq!(admitted, 6);
    assert_eq!(shown(both[1].control).await["taken"], 6);
    both.into_iter().for_each(Recorder::stop);
}
