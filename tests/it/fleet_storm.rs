//! Sessions on engines of which one dies again and again, as a measurement: turns on their engine,
//! balance, and what must never happen. Small here; `just fleet` takes the size of the docs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{Reply, ScriptedEngine, World, post, try_post};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fleet::{config, engines};

/// Tries of an agent for one turn, as many as an SDK with patience makes.
const TRIES_MAX: u32 = 12;

/// The size of a storm.
#[derive(Clone, Copy)]
struct Storm {
    engines: usize,
    sessions: usize,
    turns: usize,
    latency: Duration,
    dies_every: Duration,
    dead_for: Duration,
}

/// What agents saw.
#[derive(Default)]
struct Seen {
    /// Numbers of the requests that were answered.
    acked: BTreeSet<u64>,
    /// Turns whose engine lived from the turn before to the end of this one.
    could_stay: usize,
    stayed: usize,
    failed: usize,
    tries: usize,
}

/// A number for each request that an agent sends.
static REQUESTS: AtomicU64 = AtomicU64::new(0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dying_engine_costs_nothing_that_was_acknowledged() {
    let is_full = std::env::var_os("ROLLTAPE_FLEET").is_some();
    let storm = match is_full {
        true => Storm {
            engines: 8,
            sessions: 500,
            turns: 30,
            latency: Duration::from_millis(1500),
            dies_every: Duration::from_secs(10),
            dead_for: Duration::from_secs(4),
        },
        false => Storm {
            engines: 4,
            sessions: 32,
            turns: 8,
            latency: Duration::from_millis(400),
            dies_every: Duration::from_millis(2500),
            dead_for: Duration::from_millis(1500),
        },
    };
    run(storm).await;
}

async fn run(storm: Storm) {
    let engines = Arc::new(engines(storm.engines, storm.latency).await);
    let world = World::start_with(config(&engines)).await;
    push(&world, &engines, 1).await;
    let began_at = Instant::now();

    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut sessions = JoinSet::new();
    for number in 0..storm.sessions {
        let (data, engines, seen) = (world.data, Arc::clone(&engines), Arc::clone(&seen));
        sessions.spawn(async move {
            // They begin one after another, as rollouts do.
            let spread = storm.latency.mul_f64(number as f64 / storm.sessions as f64);
            sleep(spread).await;
            session(data, number, storm.turns, &engines, &seen).await;
        });
    }
    let mut deaths = 0;
    let mut label = 1;
    loop {
        let all = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(storm.dies_every - storm.dead_for, all).await.is_ok() {
            break;
        }
        let victim = &engines[deaths % storm.engines];
        victim.kill().await;
        deaths += 1;
        sleep(storm.dead_for).await;
        victim.revive().await;
        // It is behind the fence now; the next push brings it back.
        sleep(Duration::from_millis(300)).await;
        label += 1;
        push(&world, &engines, label).await;
    }
    let took = began_at.elapsed();
    report(&world, storm, &engines, &seen, (deaths, took)).await;
}

/// Pushes weights to all that live, and has every later chat checked for their label.
async fn push(world: &World, engines: &[ScriptedEngine], label: u64) {
    let body = json!({ "weight_dir": "/w", "weight_version": label.to_string() }).to_string();
    let reply = post(world.control, "/update_weights", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    engines.iter().for_each(|engine| engine.expect_label(label));
}

async fn session(
    data: std::net::SocketAddr,
    number: usize,
    turns: usize,
    engines: &[ScriptedEngine],
    seen: &Mutex<Seen>,
) {
    let path = format!("/e/s{number}/v1/chat/completions");
    let mut messages = vec![json!({ "role": "user", "content": format!("task {number}") })];
    let mut home: Option<(String, u64)> = None;
    for turn in 0..turns {
        let Some(told) = one_turn(data, &path, &messages, seen).await else {
            seen.lock().unwrap().failed += 1;
            return;
        };
        if let Some((port, life)) = &home {
            let engine = engines.iter().find(|one| one.address.port().to_string() == *port);
            let lived = engine.is_some_and(|engine| engine.life() == *life);
            let mut seen = seen.lock().unwrap();
            seen.could_stay += usize::from(lived);
            seen.stayed += usize::from(lived && told.0 == *port);
        }
        home = Some(told);
        messages.push(json!({ "role": "assistant", "content": "ok" }));
        messages.push(json!({ "role": "user", "content": format!("turn {turn}") }));
    }
}

/// Sends a turn until it is answered; returns the engine and its life.
async fn one_turn(
    data: std::net::SocketAddr,
    path: &str,
    messages: &[Value],
    seen: &Mutex<Seen>,
) -> Option<(String, u64)> {
    for try_number in 0..TRIES_MAX {
        let request = REQUESTS.fetch_add(1, Ordering::Relaxed);
        let body = json!({ "model": "m", "user": request.to_string(), "messages": messages });
        let reply = try_post(data, path, &body.to_string()).await;
        seen.lock().unwrap().tries += 1;
        match reply.filter(|reply| reply.status == 200 && reply.whole) {
            Some(reply) => {
                seen.lock().unwrap().acked.insert(request);
                return Some(told(&reply));
            }
            None => sleep(Duration::from_millis(200 * u64::from(try_number + 1))).await,
        }
    }
    None
}

fn told(reply: &Reply) -> (String, u64) {
    let document = reply.json();
    let (port, life) = document["system_fingerprint"].as_str().unwrap().split_once('/').unwrap();
    (port.to_owned(), life.parse().unwrap())
}

/// The number that an agent gave a request.
fn number_of(body: &[u8]) -> u64 {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["user"].as_str().unwrap().parse().unwrap()
}

async fn report(
    world: &World,
    storm: Storm,
    engines: &[ScriptedEngine],
    seen: &Mutex<Seen>,
    (deaths, took): (usize, Duration),
) {
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let mut begun: BTreeMap<u64, usize> = BTreeMap::new();
    let mut counts = Vec::new();
    for engine in engines {
        let chats = engine.chats();
        counts.push(chats.len());
        chats.iter().for_each(|chat| *begun.entry(number_of(&chat.body)).or_default() += 1);
    }
    let twice = begun.values().filter(|count| **count > 1).count();
    let stale: usize = engines.iter().map(ScriptedEngine::stale).sum();
    let mean = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    let busiest = counts.iter().copied().max().unwrap_or(0) as f64 / mean;
    let on_engine = 100.0 * seen.stayed as f64 / seen.could_stay.max(1) as f64;
    let mut recorded = BTreeSet::new();
    for call in world.calls().await {
        let is_whole = call.ended.is_some_and(|end| end.outcome == episode::Outcome::Complete);
        if is_whole {
            recorded.insert(number_of(&call.begun.request.read()));
        }
    }
    let lost = seen.acked.difference(&recorded).count();

    println!(
        "| {} engines, {} sessions of {} turns | |",
        storm.engines, storm.sessions, storm.turns
    );
    println!("| --- | --- |");
    println!("| deaths of an engine, in {:.0} s | {deaths} |", took.as_secs_f64());
    println!(
        "| answered turns, of requests of the agents | {}, {} |",
        seen.acked.len(),
        seen.tries
    );
    println!("| sessions that gave up | {} |", seen.failed);
    println!("| turns on their engine, while it lives | {on_engine:.2} % |");
    println!("| busiest engine, over the mean | {busiest:.2} |");
    println!("| acknowledged calls that are lost | {lost} |");
    println!("| begun generations that were sent twice | {twice} |");
    println!("| calls to an engine with an old label | {stale} |");

    assert_eq!((lost, twice, stale, seen.failed), (0, 0, 0, 0));
    assert_eq!(seen.acked.len(), storm.sessions * storm.turns);
    assert!(deaths > 0 && on_engine >= 99.0, "{on_engine}");
    // Few sessions cannot be spread as evenly as many.
    let bound = if storm.sessions < 100 { 1.6 } else { 1.25 };
    assert!(busiest <= bound, "{counts:?}");
}
