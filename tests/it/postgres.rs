//! Several recorders write to one database, and the server under them crashes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kit::{Seen, Step, Upstream, post, try_post};
use postgres_kit::Server;
use serde_json::Value;
use store::{Location, Selection, Snapshot};

use crate::recorder::Recorder;
use crate::wait::until;

const TURNS: u32 = 12;

/// A chat whose prompt is the conversation, and whose one sampled token tells the turn.
fn chat(request: &Seen) -> Vec<Step> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let turn = body["messages"].as_array().unwrap().len() as u32;
    let ids: Vec<u32> = (0..10 * turn).collect();
    let reply = serde_json::json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "prompt_token_ids": ids,
        "choices": [{
            "index": 0, "finish_reason": "stop", "token_ids": [10 * turn],
            "message": { "role": "assistant", "content": "x" },
            "logprobs": { "content": [
                { "token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": [] }
            ] },
        }],
        "usage": { "prompt_tokens": ids.len(), "completion_tokens": 1 },
    });
    vec![Step::reply("200 OK", "application/json", reply.to_string().as_bytes())]
}

fn request(episode: usize, turn: u32) -> String {
    let message = |n| serde_json::json!({ "role": "user", "content": format!("{episode} {n}") });
    let messages: Vec<Value> = (0..=turn).map(message).collect();
    serde_json::json!({ "model": "m", "messages": messages }).to_string()
}

/// One conversation, whose calls go through the recorders in turn.
async fn talk(recorders: Vec<SocketAddr>, episode: usize) {
    for turn in 0..TURNS {
        let at = recorders[(turn as usize + episode) % recorders.len()];
        let path = format!("/e/both-{episode}/v1/chat/completions");
        let reply = post(at, &path, &request(episode, turn)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_proxies_write_one_database() {
    let Some(server) = Server::shared() else { return };
    let upstream = Upstream::start("vllm", chat).await;
    let url = server.database();
    let recorders: Vec<_> =
        (0..3).map(|_| Recorder::start(&url, "power", upstream.address)).collect();
    let addresses: Vec<_> = recorders.iter().map(|recorder| recorder.data).collect();
    let talks = (0..16).map(|episode| tokio::spawn(talk(addresses.clone(), episode)));

    for talk in talks.collect::<Vec<_>>() {
        talk.await.unwrap();
    }

    recorders.into_iter().for_each(Recorder::stop);
    let at: Location = url.parse().unwrap();
    let report = store::verify(&at).await.unwrap();
    assert_eq!((report.damage, report.holes_found), (Vec::new(), 0));
    let mut snapshot = Snapshot::open(&at).await.unwrap();

    for episode in snapshot.episodes(&Selection::default()).await.unwrap() {
        let calls = snapshot.calls(&episode).await.unwrap();
        let number: usize = episode.id.as_str().trim_start_matches("both-").parse().unwrap();
        let found: Vec<_> = calls.iter().map(|call| call.begun.request.clone()).collect();
        let sent: Vec<_> = (0..TURNS).map(|turn| request(number, turn)).collect();
        assert_eq!(found, sent, "episode {number}");
        for (turn, call) in (1u32..).zip(&calls) {
            let ended = call.ended.as_ref().unwrap();
            assert_eq!(ended.prompts, [(0..10 * turn).collect::<Vec<_>>()]);
            assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[10 * turn][..]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_costs_nothing_that_was_acknowledged() {
    let Some(server) = Server::start() else { return };
    let upstream = Upstream::start("vllm", chat).await;
    let url = server.database();
    let recorder = Recorder::start(&url, "power", upstream.address);
    let progress = Arc::new(Progress::default());
    let calling = tokio::spawn(call_until_over(recorder.data, Arc::clone(&progress)));

    for _ in 0..3 {
        grows("acknowledged calls", &progress.acknowledged, 10).await;
        server.kill();
        grows("refused calls", &progress.refused, 2).await;
        server.restart();
    }
    grows("acknowledged calls", &progress.acknowledged, 10).await;
    progress.is_over.store(true, Ordering::Relaxed);
    let acknowledged = calling.await.unwrap();
    recorder.stop();

    let at: Location = url.parse().unwrap();
    assert_eq!(store::verify(&at).await.unwrap().damage, []);
    let mut snapshot = Snapshot::open(&at).await.unwrap();
    let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    let calls = snapshot.calls(&episode).await.unwrap();
    for request in &acknowledged {
        let call = calls.iter().find(|call| call.begun.request == request.as_bytes()).unwrap();
        assert!(call.ended.is_some(), "{request}");
    }
    let refused = progress.refused.load(Ordering::Relaxed);
    println!("{} acknowledged, {refused} refused with a 503", acknowledged.len());
    assert!(acknowledged.len() > 20 && refused > 0);
}

/// The counts of a series of calls while it runs.
#[derive(Debug, Default)]
struct Progress {
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
    /// Ends the series.
    is_over: AtomicBool,
}

/// Waits until a count has grown by `more`.
async fn grows(what: &str, count: &AtomicUsize, more: usize) {
    let goal = count.load(Ordering::Relaxed) + more;
    until(what, async || (count.load(Ordering::Relaxed) >= goal).then_some(())).await;
}

/// Calls until the series is over. Returns the requests that were acknowledged.
async fn call_until_over(data: SocketAddr, progress: Arc<Progress>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let mut turn = 0;
    while !progress.is_over.load(Ordering::Relaxed) {
        let request = request(0, turn % 40).replace("\"m\"", &format!("\"m{turn}\""));
        turn += 1;
        let Some(reply) = try_post(data, "/e/crash/v1/chat/completions", &request).await else {
            continue;
        };
        match reply.status {
            200 => {
                acknowledged.push(request);
                progress.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            503 => {
                assert!(reply.text().contains("database server"), "{}", reply.text());
                progress.refused.fetch_add(1, Ordering::Relaxed);
                // A client that tries again at once would only load the recorder.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => panic!("{other}: {}", reply.text()),
        }
    }
    acknowledged
}
