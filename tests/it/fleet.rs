//! Several upstreams: which gets a call, which gets none, and control of all.

use std::time::Duration;

use kit::{Reply, ScriptedEngine, World, exchange, post};
use proxy::{Config, EngineSpec};
use serde_json::{Value, json};

use crate::wait::until;

const CHAT: &str = "/v1/chat/completions";

pub(crate) async fn engines(count: usize, latency: Duration) -> Vec<ScriptedEngine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(ScriptedEngine::start(latency).await);
    }
    engines
}

/// The settings of a proxy in front of engines, named by their ports.
pub(crate) fn config(engines: &[ScriptedEngine]) -> Config {
    let url = |engine: &ScriptedEngine| format!("http://{}", engine.address);
    let mut config = Config::new(url(&engines[0]).parse().unwrap());
    config.fleet.engines = engines
        .iter()
        .map(|engine| {
            let name = engine.address.port().to_string();
            EngineSpec { name, ..url(engine).parse::<proxy::Upstream>().unwrap().into() }
        })
        .collect();
    config
}

fn said(words: &[&str]) -> String {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages: Vec<Value> =
        roles.zip(words).map(|(role, text)| json!({ "role": role, "content": text })).collect();
    json!({ "model": "m", "messages": messages }).to_string()
}

async fn chat(world: &World, episode: &str, words: &[&str]) -> Reply {
    post(world.data, &format!("/e/{episode}{CHAT}"), &said(words)).await
}

/// The name of the engine that answered.
fn engine_of(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let told = reply.json()["system_fingerprint"].as_str().unwrap().to_owned();
    told.split('/').next().unwrap().to_owned()
}

async fn control(world: &World, method: &str, path: &str, body: &str) -> Reply {
    let headers = [("content-type", "application/json")];
    exchange(world.control, (method, path), &headers, body.as_bytes()).await
}

async fn states(world: &World) -> Vec<(String, String)> {
    let listed = control(world, "GET", "/upstreams", "").await.json();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    let all = listed["upstreams"].as_array().unwrap();
    all.iter().map(|one| (text(one, "name"), text(one, "state"))).collect()
}

async fn until_state(world: &World, name: &str, state: &str) {
    until(&format!("{name} is {state}"), async || {
        let all = states(world).await;
        all.iter().any(|(n, s)| n == name && s == state).then_some(())
    })
    .await;
}

#[tokio::test]
async fn threads_spread_and_stay_with_their_forks_on_an_engine() {
    let engines = engines(4, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;

    // Engines are named by their ports: once in 250 runs one of them would get none of 24 threads.
    let mut used = std::collections::BTreeSet::new();
    for episode in 0..48 {
        let name = format!("e{episode}");
        let first = engine_of(&chat(&world, &name, &["hi"]).await);
        for words in [&["hi", "a", "b"][..], &["hi", "a", "c"], &["hi", "other"]] {
            assert_eq!(engine_of(&chat(&world, &name, words).await), first);
        }
        used.insert(first);
    }
    assert_eq!(used.len(), 4, "threads spread");

    let calls = world.calls().await;
    let routed = |word: &str| {
        let of =
            |call: &&episode::Call| call.ended.as_ref().unwrap().routed.as_deref() == Some(word);
        calls.iter().filter(of).count()
    };
    assert_eq!((routed("new"), routed("kept")), (48, 144));
    assert!(calls.iter().all(|call| call.ended.as_ref().unwrap().engine.is_some()));
    world.stop().await;
}

#[tokio::test]
async fn proxies_that_know_the_same_engines_agree() {
    let engines = engines(4, Duration::ZERO).await;
    let (one, other) =
        (World::start_with(config(&engines)).await, World::start_with(config(&engines)).await);
    let mut agreed = 0;
    for episode in 0..32 {
        let name = format!("e{episode}");
        let first = engine_of(&chat(&one, &name, &["hi"]).await);
        agreed += usize::from(engine_of(&chat(&other, &name, &["hi", "a", "b"]).await) == first);
    }
    // Each places what its bound lets stay; few threads at the bound are placed by their order.
    assert_eq!(agreed, 32, "both saw the threads in one order");
}

#[tokio::test]
async fn one_upstream_has_no_engine_in_the_record() {
    let engines = engines(1, Duration::ZERO).await;
    let world = World::start(engines[0].address).await;
    chat(&world, "e", &["hi"]).await;
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!((ended.engine, ended.routed), (None, None));
}

#[tokio::test]
async fn a_call_that_reaches_nobody_goes_to_the_next_engine_at_once() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    let home = engine_of(&chat(&world, "e", &["hi"]).await);
    let dead = engines.iter().find(|one| one.address.port().to_string() == home).unwrap();
    dead.kill().await;
    let next = engine_of(&chat(&world, "e", &["hi", "a", "b"]).await);
    assert_ne!(next, home);
    let calls = world.calls().await;
    let last = calls.last().unwrap().ended.as_ref().unwrap();
    assert_eq!(last.engine.as_deref(), Some(next.as_str()));
    assert_eq!(last.routed.as_deref(), Some("moved: lost"));
}

#[tokio::test]
async fn a_generation_that_had_begun_is_not_sent_again() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    let home = engine_of(&chat(&world, "e", &["hi"]).await);
    let cut = engines.iter().find(|one| one.address.port().to_string() == home).unwrap();
    cut.cut_next();
    let reply = chat(&world, "e", &["hi", "a", "b"]).await;
    assert_eq!(reply.status, 502, "an SDK sends it again");
    let sent: usize = engines.iter().map(|engine| engine.chats().len()).sum();
    assert_eq!(sent, 2, "one for each call of the agent");
    // It answers when it is looked at, so it is well, and has the thread.
    until_state(&world, &home, "up").await;
    assert_eq!(engine_of(&chat(&world, "e", &["hi", "a", "b"]).await), home);
}

#[tokio::test]
async fn an_engine_with_old_weights_gets_no_calls() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    let name = |index: usize| engines[index].address.port().to_string();
    let push = async |label: &str| {
        let body = json!({ "weight_dir": "/w", "weight_version": label }).to_string();
        control(&world, "POST", "/update_weights", &body).await
    };
    let reply = push("1").await;
    assert_eq!((reply.status, reply.header("x-rolltape-engines")), (200, Some("2")));

    // One refuses: the answer names each, and it gets no calls.
    engines[1].refuse_weights(true);
    let reply = push("2").await;
    assert_eq!(reply.status, 502);
    let each = &reply.json()["upstreams"];
    assert_eq!((&each[name(0)]["status"], &each[name(1)]["status"]), (&json!(200), &json!(400)));
    until_state(&world, &name(1), "fenced").await;
    for episode in 0..8 {
        assert_eq!(engine_of(&chat(&world, &format!("a{episode}"), &["hi"]).await), name(0));
    }
    engines[1].refuse_weights(false);
    assert_eq!(push("3").await.status, 200);
    until_state(&world, &name(1), "up").await;

    // One dies and comes back with its first weights.
    engines[0].kill().await;
    until_state(&world, &name(0), "lost").await;
    engines[0].revive().await;
    until_state(&world, &name(0), "fenced").await;
    for episode in 0..8 {
        assert_eq!(engine_of(&chat(&world, &format!("b{episode}"), &["hi"]).await), name(1));
    }
    assert_eq!(push("4").await.status, 200);
    until_state(&world, &name(0), "up").await;

    // Each call is stamped with the label of its engine.
    chat(&world, "c", &["hi"]).await;
    let last = world.calls().await.pop().unwrap().ended.unwrap();
    assert_eq!(last.stamps.constant(), Some("4"));
    world.stop().await;
}

#[tokio::test]
async fn a_call_while_weights_are_pushed_has_no_version() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    let push = async |label: &str| {
        let body = json!({ "weight_version": label }).to_string();
        control(&world, "POST", "/update_weights", &body).await
    };
    push("1").await;
    chat(&world, "e", &["hi"]).await;

    engines.iter().for_each(|engine| engine.slow_down_pushes(Duration::from_secs(3)));
    let (pushed, during) = tokio::join!(push("2"), async {
        until("the new weights sample", async || {
            engines.iter().all(|engine| engine.label() == "2").then_some(())
        })
        .await;
        chat(&world, "e", &["hi", "a", "b"]).await
    });
    assert_eq!((pushed.status, during.status), (200, 200));
    chat(&world, "e", &["hi", "a", "b", "c", "d"]).await;

    let calls = world.calls().await;
    let stamped: Vec<Option<&str>> =
        calls.iter().map(|call| call.ended.as_ref().unwrap().stamps.constant()).collect();
    assert_eq!(stamped, [Some("1"), None, Some("2")]);
}

#[tokio::test]
async fn a_rolling_update_ends_at_the_first_failure() {
    let engines = engines(3, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    engines[1].refuse_weights(true);
    let body = json!({ "weight_version": "1" }).to_string();
    let reply = control(&world, "POST", "/update_weights?rolling=true", &body).await;
    assert_eq!(reply.status, 502);
    let document = reply.json();
    let names = engines.iter().map(|engine| engine.address.port().to_string());
    let statuses: Vec<Value> =
        names.map(|name| document["upstreams"][name]["status"].clone()).collect();
    assert_eq!(statuses, [json!(200), json!(400), Value::Null]);
    let asked = |engine: &ScriptedEngine| engine.seen().len();
    assert_eq!(engines.iter().map(asked).collect::<Vec<_>>(), [1, 1, 0]);
}

#[tokio::test]
async fn affinity_finds_prefixes_that_turns_in_rotation_do_not() {
    // Two engines for each way, so that neither finds what the other left behind.
    let mut shares = Vec::new();
    for keeps_threads in [true, false] {
        let addresses = [kit::start_engine().await, kit::start_engine().await];
        let mut config = Config::new(format!("http://{}", addresses[0]).parse().unwrap());
        let named = addresses.map(|at| format!("http://{at} dialect=rolltape").parse().unwrap());
        config.fleet.engines = named.to_vec();
        let world = World::start_with(config).await;
        for turn in 0..6 {
            for session in 0..6 {
                let words: Vec<String> =
                    (0..=2 * turn).map(|part| format!("word {session} of part {part}")).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let mut body: Value = serde_json::from_str(&said(&words)).unwrap();
                body["model"] = json!("tiny");
                body["max_tokens"] = json!(2);
                let reply = match keeps_threads {
                    true => {
                        let path = format!("/e/s{session}{CHAT}");
                        post(world.data, &path, &body.to_string()).await
                    }
                    // As a balancer that takes each in turn: a thread alternates.
                    false => post(addresses[(turn + session) % 2], CHAT, &body.to_string()).await,
                };
                assert_eq!(reply.status, 200, "{}", reply.text());
            }
        }
        let (mut queries, mut hits) = (0.0, 0.0);
        for at in addresses {
            let page = exchange(at, ("GET", "/metrics"), &[], b"").await.text();
            queries += metric(&page, "vllm:prefix_cache_queries_total");
            hits += metric(&page, "vllm:prefix_cache_hits_total");
        }
        shares.push(hits / queries);
    }
    println!("prefix hits: {:.3} with affinity, {:.3} in rotation", shares[0], shares[1]);
    assert!(shares[0] > shares[1] + 0.1, "{shares:?}");
}

/// The value of a metric without regard to its labels.
fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn without_the_fence_old_weights_get_calls() {
    let engines = engines(1, Duration::ZERO).await;
    let mut config = config(&engines);
    config.fleet.is_open = true;
    config.fleet.fences_versions = false;
    let world = World::start_with(config).await;
    let push = async |label: &str| {
        let body = json!({ "weight_version": label }).to_string();
        control(&world, "POST", "/update_weights", &body).await
    };
    push("1").await;
    engines[0].kill().await;
    let name = engines[0].address.port().to_string();
    until_state(&world, &name, "lost").await;
    engines[0].revive().await;
    until_state(&world, &name, "up").await;
    engines[0].expect_label(1);
    assert_eq!(engine_of(&chat(&world, "e", &["hi"]).await), name);
    assert_eq!(engines[0].stale(), 1, "the storm would see it");
}

#[tokio::test]
async fn a_push_of_several_requests_is_all_or_nothing_for_each_engine() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    assert_eq!(control(&world, "POST", "/start_weight_update", "{}").await.status, 200);
    engines[1].refuse_weights(true);
    assert_eq!(control(&world, "POST", "/update_weights", r#"{"names":[]}"#).await.status, 502);
    engines[1].refuse_weights(false);
    assert_eq!(control(&world, "POST", "/finish_weight_update", "{}").await.status, 200);
    let finished = |engine: &ScriptedEngine| {
        engine.seen().iter().any(|seen| seen.path == "/finish_weight_update")
    };
    assert!(finished(&engines[0]) && !finished(&engines[1]), "it missed a part");
    let name = engines[1].address.port().to_string();
    until_state(&world, &name, "fenced").await;
}

#[tokio::test]
async fn each_engine_joins_the_trainers_group_with_its_own_ranks() {
    let engines = engines(3, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    let sizes = control(&world, "GET", "/get_world_size", "").await.json();
    assert_eq!(sizes, json!({ "world_size": 6 }));
    let body = json!({ "init_info": { "master_port": 1, "rank_offset": 1, "world_size": 7 } });
    let path = "/init_weight_transfer_engine?rolling=true";
    let reply = control(&world, "POST", path, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut offsets = Vec::new();
    for engine in &engines {
        let seen = engine.seen();
        let joined = seen.iter().find(|seen| seen.path == "/init_weight_transfer_engine").unwrap();
        let body: Value = serde_json::from_slice(&joined.body).unwrap();
        assert_eq!(body["init_info"]["world_size"], 7);
        offsets.push(body["init_info"]["rank_offset"].as_u64().unwrap());
    }
    assert_eq!(offsets, [1, 3, 5]);
}

#[tokio::test]
async fn upstreams_are_added_drained_and_removed() {
    let engines = engines(3, Duration::ZERO).await;
    let mut config = config(&engines[..1]);
    config.fleet.is_open = true;
    let world = World::start_with(config).await;
    let name = |index: usize| engines[index].address.port().to_string();
    assert_eq!(engine_of(&chat(&world, "e", &["hi"]).await), name(0));

    for index in [1, 2] {
        let url = format!("http://{}", engines[index].address);
        let body = json!({ "url": url, "name": name(index), "weight": 2, "calls_max": 9 });
        assert_eq!(control(&world, "POST", "/upstreams", &body.to_string()).await.status, 200);
    }
    assert_eq!(states(&world).await.len(), 3);
    let drained = control(&world, "POST", &format!("/upstreams/{}/drain", name(0)), "").await;
    assert_eq!(drained.json(), json!({ "status": "ok", "calls": 0 }));
    let moved = engine_of(&chat(&world, "e", &["hi", "a", "b"]).await);
    assert_ne!(moved, name(0));
    let last = world.calls().await.pop().unwrap().ended.unwrap();
    assert_eq!(last.routed.as_deref(), Some("moved: draining"));

    for index in [0, 1] {
        let path = format!("/upstreams/{}", name(index));
        assert_eq!(control(&world, "DELETE", &path, "").await.status, 200);
        assert_eq!(control(&world, "DELETE", &path, "").await.status, 404);
    }
    let last = control(&world, "DELETE", &format!("/upstreams/{}", name(2)), "").await;
    assert_eq!(last.status, 409, "{}", last.text());
    assert_eq!(engine_of(&chat(&world, "f", &["hi"]).await), name(2));
    let twice = json!({ "url": "http://h:1", "name": "a b" }).to_string();
    assert_eq!(control(&world, "POST", "/upstreams", &twice).await.status, 400);
}

#[tokio::test]
async fn a_full_engine_lets_calls_go_elsewhere_and_keeps_its_thread() {
    let engines = engines(2, Duration::from_millis(300)).await;
    let mut config = config(&engines);
    config.fleet.engines.iter_mut().for_each(|spec| spec.calls_max = Some(1));
    let world = World::start_with(config).await;
    let home = engine_of(&chat(&world, "e", &["hi"]).await);
    let (one, two, three) = tokio::join!(
        chat(&world, "e", &["hi", "a", "b"]),
        chat(&world, "e", &["hi", "a", "c"]),
        chat(&world, "e", &["hi", "a", "d"]),
    );
    let used = [one, two, three].map(|reply| engine_of(&reply));
    assert!(used.iter().any(|name| *name != home), "{used:?}");
    assert_eq!(engine_of(&chat(&world, "e", &["hi", "a", "e"]).await), home);
}

#[tokio::test]
async fn a_busy_upstream_is_waited_for_when_asked() {
    let engines = engines(1, Duration::ZERO).await;
    let mut config = Config::new(format!("http://{}", engines[0].address).parse().unwrap());
    config.fleet.absorb_for = Duration::from_secs(10);
    let world = World::start_with(config).await;
    engines[0].refuse_next(429);
    engines[0].refuse_next(503);
    assert_eq!(chat(&world, "e", &["hi"]).await.status, 200);
    assert_eq!((engines[0].chats().len(), world.calls().await.len()), (3, 1));

    let plain = World::start(engines[0].address).await;
    engines[0].refuse_next(429);
    assert_eq!(chat(&plain, "e", &["hi"]).await.status, 429);
}

#[tokio::test]
async fn a_router_behind_learns_the_thread() {
    let engines = engines(1, Duration::ZERO).await;
    let mut config = Config::new(format!("http://{}", engines[0].address).parse().unwrap());
    config.fleet.session_header = Some("x-routing-key".parse().unwrap());
    let world = World::start_with(config).await;
    for words in [&["hi"][..], &["hi", "a", "b"]] {
        chat(&world, "e", words).await;
    }
    let headers = [("x-session-id", "ses-1"), ("content-type", "application/json")];
    exchange(world.data, ("POST", CHAT), &headers, said(&["hi"]).as_bytes()).await;
    let line = |head: &str, name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let chats = engines[0].chats();
    let keys: Vec<String> =
        chats.iter().map(|seen| line(&seen.head, "x-routing-key").unwrap()).collect();
    assert!(keys[0] == keys[1] && keys[1] != keys[2], "{keys:?}");
    assert_eq!(line(&chats[2].head, "x-session-id").as_deref(), Some("ses-1"));
}

#[tokio::test]
async fn without_an_engine_calls_are_to_retry_and_none_is_ready() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    assert_eq!(control(&world, "GET", "/ready", "").await.status, 200);
    for engine in &engines {
        engine.kill().await;
        until_state(&world, &engine.address.port().to_string(), "lost").await;
    }
    assert_eq!(control(&world, "GET", "/ready", "").await.status, 503);
    let reply = chat(&world, "e", &["hi"]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
}

#[tokio::test]
async fn metrics_name_each_upstream() {
    let engines = engines(2, Duration::ZERO).await;
    let world = World::start_with(config(&engines)).await;
    let home = engine_of(&chat(&world, "e", &["hi"]).await);
    let page = control(&world, "GET", "/metrics", "").await.text();
    for line in [
        format!("rolltape_upstream_calls_begun_total{{upstream=\"{home}\"}} 1"),
        format!("rolltape_upstream_threads{{upstream=\"{home}\"}} 1"),
        format!("rolltape_upstream_state{{state=\"up\",upstream=\"{home}\"}} 1"),
        "rolltape_upstream_calls_waiting{reason=\"room\"} 0".to_owned(),
    ] {
        assert!(page.contains(&line), "{line}\n{page}");
    }
}
