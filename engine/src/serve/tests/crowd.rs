//! Many calls at once, of which no token may be lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::*;

/// Bytes of one page of the tiny model: keys and values of one head of 32 in three layers.
const PAGE_BYTES: u64 = 16 * 2 * 32 * 4 * 3;

/// Pages enough for the longest sequence, and too few for all that may run.
const PAGES: usize = 70;

/// The largest values of the engine's gauges.
#[derive(Default)]
struct Peaks {
    running: AtomicUsize,
    waiting: AtomicUsize,
    pages: AtomicUsize,
}

impl Peaks {
    /// Watches the gauges until it is dropped.
    async fn watch(self: Arc<Self>, stats: Arc<EngineStats>) {
        loop {
            let see = |peak: &AtomicUsize, gauge: &AtomicUsize| {
                peak.fetch_max(gauge.load(Ordering::Relaxed), Ordering::Relaxed);
            };
            see(&self.running, &stats.running);
            see(&self.waiting, &stats.waiting);
            see(&self.pages, &stats.pages_used);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn asked(number: usize) -> Value {
    json!({"prompt": [number % 380, number / 380, 7, 9], "max_tokens": 20 + number % 11,
        "ignore_eos": true, "seed": number, "stream": true, "return_token_ids": true})
}

/// Returns the ids of all events of a stream, which must end as it should.
fn ids(answer: &Answer) -> Vec<u64> {
    let events = answer.events();
    let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"] == "length");
    assert_eq!(ends.count(), 1);
    let ids = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array());
    ids.flatten().map(|id| id.as_u64().unwrap()).collect()
}

/// Sends a call until it is answered, and returns the ids of the reply.
async fn insist(server: &Server, number: usize, refused: &AtomicUsize) -> Vec<u64> {
    loop {
        let answer = server.post("/v1/completions", &asked(number)).await;
        match answer.status {
            200 => return ids(&answer),
            429 => {
                refused.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer.json()["error"]["type"], "RateLimitError");
                let (_, after) = answer.head.split_once("retry-after: ").unwrap();
                let seconds: u64 = after.lines().next().unwrap().parse().unwrap();
                assert!((1..=600).contains(&seconds), "{seconds}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => panic!("{other}: {}", answer.body),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_at_once_are_all_complete() {
    assert_eq!(crowd(1024).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_queue_turns_calls_away_and_says_when_to_come_back() {
    assert!(crowd(40).await > 0, "a queue of 40 took a thousand calls");
}

/// Starts a thousand streams at once, before a queue of so many calls. Returns the number of
/// refusals; a refused call is sent again.
async fn crowd(max_queue: usize) -> usize {
    let options = EngineOptions {
        seed: Some(1),
        max_num_seqs: 32,
        max_queue,
        kv_cache_memory: Some(PAGES as u64 * PAGE_BYTES),
        ..EngineOptions::default()
    };
    let server = Arc::new(Server::start(options).await);
    let stats = Arc::clone(&server.stats);
    assert_eq!(stats.pages_total.load(Ordering::Relaxed), PAGES);
    let peaks = Arc::new(Peaks::default());
    let watching = tokio::spawn(Arc::clone(&peaks).watch(Arc::clone(&stats)));
    let refused = Arc::new(AtomicUsize::new(0));
    // All have their answer at the same time at most; those that are refused come back.
    let gate = Arc::new(Semaphore::new(0));
    let mut calls = JoinSet::new();
    for number in 0..1000 {
        let (server, gate, refused) = (server.clone(), gate.clone(), refused.clone());
        calls.spawn(async move {
            let _go = gate.acquire().await.unwrap();
            (number, insist(&server, number, &refused).await)
        });
    }
    gate.add_permits(1000);
    let mut said = vec![Vec::new(); 1000];
    while let Some(call) = calls.join_next().await {
        let (number, ids) = call.unwrap();
        assert_eq!(ids.len(), 20 + number % 11);
        said[number] = ids;
    }
    watching.abort();
    assert!(peaks.running.load(Ordering::Relaxed) <= 32);
    assert!(peaks.waiting.load(Ordering::Relaxed) <= max_queue);
    assert!((1..=PAGES).contains(&peaks.pages.load(Ordering::Relaxed)));
    // Whoever was beside whom, the tokens are those of the request alone.
    for number in (0..1000).step_by(97) {
        assert_eq!(ids(&server.post("/v1/completions", &asked(number)).await), said[number]);
    }
    // The last reply is out before its step has ended.
    let left = || {
        let gauges = [&stats.running, &stats.waiting, &stats.pages_used];
        gauges.map(|gauge| gauge.load(Ordering::Relaxed))
    };
    for _ in 0..4000 {
        if left() == [0; 3] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(left(), [0; 3]);
    Arc::into_inner(server).unwrap().stop().await;
    refused.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_prompt_that_could_never_fit_is_refused_before_it_waits() {
    // Room for eight pages: sequences of 128 tokens.
    let options = EngineOptions { kv_cache_memory: Some(8 * PAGE_BYTES), ..Default::default() };
    let server = Server::start(options).await;
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["max_model_len"], 128);
    let long = server.text(json!({"prompt": vec![1; 128]})).await;
    assert_eq!((long.status, &long.json()["error"]["param"]), (400, &json!("input_tokens")));
    let many = server.text(json!({"prompt": vec![1; 100], "max_tokens": 29})).await;
    assert_eq!((many.status, &many.json()["error"]["param"]), (400, &json!("max_tokens")));
    let whole = json!({"prompt": vec![1; 100], "max_tokens": 28, "ignore_eos": true, "n": 3});
    assert_eq!(server.text(whole).await.json()["usage"]["completion_tokens"], 84);
    server.stop().await;
}

#[tokio::test]
async fn what_a_prompt_shares_with_an_earlier_one_is_told() {
    let server = Server::plain().await;
    let cached = async |changes: Value| {
        let asked = json!({"prompt": (0..50).collect::<Vec<u32>>(), "max_tokens": 1});
        let reply = server.text(merged(asked, changes)).await.json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached(json!({})).await, 0);
    assert_eq!(cached(json!({})).await, 48);
    assert_eq!(cached(json!({"cache_salt": "mine"})).await, 0);
    assert_eq!(cached(json!({"cache_salt": "mine"})).await, 48);
    assert_eq!(cached(json!({"cache_salt": "yours"})).await, 0);
    assert_eq!(cached(json!({"prompt_logprobs": 1})).await, 0);
    server.stop().await;
    let options = EngineOptions { prefix_caching: false, ..EngineOptions::default() };
    let server = Server::start(options).await;
    for _ in 0..2 {
        let asked = json!({"prompt": vec![3; 50], "max_tokens": 1});
        let usage = &server.text(asked).await.json()["usage"];
        assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64().is_none_or(|n| n == 0));
    }
    server.stop().await;
}
