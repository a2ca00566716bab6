//! Several recorders write to one database, and the server under them crashes.

use std::net::SocketAddr;
use std::time::Duration;

use kit::{Seen, Step, Upstream, post, try_post};
use postgres_kit::Server;
use serde_json::Value;
use store::{Location, Selection, Snapshot};

use crate::recorder::Recorder;

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
    let calling = tokio::spawn(call_on(recorder.data));
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        server.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.restart();
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    let (acknowledged, refused) = calling.await.unwrap();
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
    println!("{} acknowledged, {refused} refused with a 503", acknowledged.len());
    assert!(acknowledged.len() > 20 && refused > 0);
}

/// Calls for a while: the requests that were answered, and how many were refused.
async fn call_on(data: SocketAddr) -> (Vec<String>, usize) {
    let (mut acknowledged, mut refused) = (Vec::new(), 0);
    let until = tokio::time::Instant::now() + Duration::from_millis(2400);
    let mut turn = 0;
    while tokio::time::Instant::now() < until {
        let request = request(0, turn % 40).replace("\"m\"", &format!("\"m{turn}\""));
        turn += 1;
        let Some(reply) = try_post(data, "/e/crash/v1/chat/completions", &request).await else {
            continue;
        };
        match reply.status {
            200 => acknowledged.push(request),
            503 => {
                assert!(reply.text().contains("database server"), "{}", reply.text());
                refused += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => panic!("{other}: {}", reply.text()),
        }
    }
    (acknowledged, refused)
}
