//! Recorded episodes that answer an agent in place of the upstream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use episode::{Call, Replay, ReplayMode};
use kit::{Reply, Seen, Step, Upstream, World, exchange, post};
use proxy::Config;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

const CHAT: &str = "v1/chat/completions";

/// One request of an agent, by a word that says how the upstream answers.
fn chat(words: &[&str]) -> String {
    let message = |word: &&str| json!({ "role": "user", "content": word });
    let messages: Vec<Value> = words.iter().map(message).collect();
    json!({ "model": "m", "messages": messages, "stream": words.last() == Some(&"stream") })
        .to_string()
}

fn event(text: &str, finish: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": { "content": text }, "finish_reason": finish,
        "token_ids": [text.len()], "logprobs": { "content": [{ "token": text, "logprob": -0.5,
            "bytes": null, "top_logprobs": [] }] } });
    let chunk = json!({ "id": "c", "object": "chat.completion.chunk", "model": "m",
        "prompt_token_ids": [1, 2], "choices": [choice] });
    format!("data: {chunk}\n\n")
}

fn document(choices: usize) -> String {
    let choice = |index| {
        json!({ "index": index, "message": { "role": "assistant",
        "content": format!("answer {index}") }, "finish_reason": "stop", "token_ids": [7, 8],
        "logprobs": { "content": [{ "token": "a", "logprob": -0.5, "bytes": null,
            "top_logprobs": [] }, { "token": "b", "logprob": -0.25, "bytes": null,
            "top_logprobs": [] }] } })
    };
    let choices: Vec<Value> = (0..choices).map(choice).collect();
    json!({ "id": "c", "object": "chat.completion", "model": "m", "prompt_token_ids": [1, 2, 3],
        "choices": choices, "usage": { "prompt_tokens": 3, "completion_tokens": 2 } })
    .to_string()
}

/// Answers by the last word of the request.
fn script(seen: &Seen) -> Vec<Step> {
    let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    match messages.last().and_then(|message| message["content"].as_str()) {
        Some("stream") => vec![
            Step::stream_head(),
            Step::chunk(event("Hi", None).as_bytes()),
            Step::chunk(event(" you", Some("stop")).as_bytes()),
            Step::chunk(b"data: [DONE]\n\n"),
            Step::chunk(b""),
        ],
        Some("crawl") => vec![
            Step::stream_head(),
            Step::chunk(event("Hi", None).as_bytes()),
            Step::Pause(Duration::from_millis(400)),
            Step::chunk(event(" you", Some("stop")).as_bytes()),
            Step::chunk(b"data: [DONE]\n\n"),
            Step::chunk(b""),
        ],
        Some("cut") => vec![
            Step::stream_head(),
            Step::chunk(event("Hi", None).as_bytes()),
            Step::Pause(Duration::from_millis(50)),
            Step::Cut,
        ],
        Some("busy") => vec![Step::Send(
            b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nx-request-id: q1\r\n\
              set-cookie: secret\r\ncontent-type: application/json\r\ncontent-length: 41\r\n\r\n\
              {\"error\":{\"message\":\"busy\",\"type\":\"rate\"}}"
                .to_vec(),
        )],
        Some("boom") => vec![Step::reply("500 Oops", "text/plain", b"it broke")],
        Some("gone") => vec![Step::Cut],
        Some("two") => vec![Step::reply("200 OK", "application/json", document(2).as_bytes())],
        Some("slow") => vec![
            Step::Pause(Duration::from_millis(400)),
            Step::reply("200 OK", "application/json", document(1).as_bytes()),
        ],
        _ => vec![Step::reply("200 OK", "application/json", document(1).as_bytes())],
    }
}

async fn ask(world: &World, episode: &str, words: &[&str]) -> Reply {
    post(world.data, &format!("/e/{episode}/{CHAT}"), &chat(words)).await
}

fn replay(mode: ReplayMode) -> Replay {
    let source = "a/0".parse().unwrap();
    Replay { source, until: None, mode, ignore: Vec::new(), keeps_time: false }
}

/// A recorder with the store of `folder` that has no upstream.
async fn without_upstream(folder: TempDir, replay: Option<Replay>) -> World {
    let mut config = Config::new("http://127.0.0.1:9".parse().unwrap());
    config.has_upstream = false;
    config.replay = replay;
    World::start_in(folder, config).await
}

/// Records one conversation as the episode `a`; returns its store.
async fn recorded(turns: &[&[&str]]) -> (TempDir, Vec<Reply>) {
    let upstream = Upstream::start("vllm", script).await;
    let world = World::start(upstream.address).await;
    let mut replies = Vec::new();
    for words in turns {
        replies.push(ask(&world, "a", words).await);
    }
    (world.stop().await, replies)
}

/// The parts of a reply that an agent can tell.
fn seen(reply: &Reply) -> (u16, Vec<Option<&str>>, &[u8], bool) {
    let names = ["content-type", "retry-after", "x-request-id"];
    let headers = names.iter().map(|name| reply.header(name)).collect();
    (reply.status, headers, &reply.body, reply.whole)
}

const KINDS: [&[&str]; 8] = [
    &["go"],
    &["go", "stream"],
    &["go", "two"],
    &["go", "busy"],
    &["go", "busy"],
    &["go", "boom"],
    &["go", "cut"],
    &["go", "after"],
];

#[tokio::test]
async fn replies_of_every_kind_are_given_again_to_the_byte() {
    let (folder, replies) = recorded(&KINDS).await;
    let world = without_upstream(folder, Some(replay(ReplayMode::Strict))).await;
    for (words, recorded) in KINDS.iter().zip(&replies) {
        let given = ask(&world, "b", words).await;
        assert_eq!(seen(recorded), seen(&given), "{words:?}");
        assert_eq!(given.header("set-cookie"), None, "cookies are secrets, and are not kept");
    }

    let all = world.recorded().await;
    let [(source, of_source, _), (again, of_again, _)] = all.as_slice() else { panic!("two") };
    assert_eq!((source.id.as_str(), again.id.as_str()), ("a", "b"));
    for (one, other) in of_source.iter().zip(of_again) {
        let (one, other) = (one.ended.as_ref().unwrap(), other.ended.as_ref().unwrap());
        assert_eq!(other.replayed, Some(one.call_id), "it names its source");
        assert_eq!((&other.choices, &other.prompts), (&one.choices, &one.prompts));
        assert_eq!((other.outcome, other.usage), (one.outcome, episode::TokenCounts::default()));
    }
    let damage = store::verify(&world.store()).await.unwrap().damage;
    assert!(damage.is_empty(), "{damage:?}");
    world.stop().await;
}

#[tokio::test]
async fn an_error_of_the_recorder_is_told_again() {
    let (folder, replies) = recorded(&[&["gone"]]).await;
    assert_eq!(replies[0].status, 502);
    let world = without_upstream(folder, Some(replay(ReplayMode::Strict))).await;
    let given = ask(&world, "b", &["gone"]).await;
    assert_eq!(
        (given.status, given.json()["error"]["type"].as_str()),
        (502, Some("upstream_error"))
    );
    world.stop().await;
}

#[tokio::test]
async fn a_request_that_differs_is_refused_with_the_difference() {
    let (folder, _) = recorded(&[&["go"], &["go", "at 10:15"]]).await;
    let world = without_upstream(folder, Some(replay(ReplayMode::Strict))).await;
    ask(&world, "b", &["go"]).await;
    let refused = ask(&world, "b", &["go", "at 11:20"]).await;
    assert_eq!((refused.status, refused.header("x-should-retry")), (409, Some("false")));
    let error = refused.json()["error"].clone();
    assert_eq!(error["type"], "replay_differs");
    let told = error["message"].as_str().unwrap();
    for part in ["call 2 of the recording `a/0`", "messages.1.content", "10:15", "11:20"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(told.ends_with("--ignore clocks"), "{told}");

    // It is on record, and the next request is answered all the same.
    assert_eq!(ask(&world, "b", &["go", "at 10:15"]).await.status, 200);
    for words in [&["go"][..], &["go", "at 10:15"], &["new"]] {
        assert_eq!(ask(&world, "b", words).await.status, 409, "{words:?}");
    }
    let refusals = world.calls().await;
    let told: Vec<_> =
        refusals.iter().filter_map(|call| call.ended.as_ref()?.error.clone()).collect();
    assert_eq!(told.len(), 4);
    world.stop().await;
}

#[tokio::test]
async fn rules_let_pass_what_does_not_matter() {
    let (folder, replies) = recorded(&[&["at 10:15 in /tmp/x/y"]]).await;
    let ignore = vec!["clocks".to_owned(), "paths".to_owned()];
    let with_rules = Replay { ignore, ..replay(ReplayMode::Strict) };
    let world = without_upstream(folder, Some(with_rules)).await;
    let given = ask(&world, "b", &["at 12:00 in /home/me/z"]).await;
    assert_eq!((given.status, &given.body), (200, &replies[0].body));
    world.stop().await;
}

#[tokio::test]
async fn a_loose_replay_gives_the_nearest_reply() {
    let (folder, replies) = recorded(&[&["one"], &["one", "two"]]).await;
    let world = without_upstream(folder, Some(replay(ReplayMode::Loose))).await;
    let given = ask(&world, "b", &["one", "other"]).await;
    assert_eq!(given.body, replies[1].body, "the nearest one answers");
    world.stop().await;
}

#[tokio::test]
async fn calls_at_once_each_get_their_own_reply() {
    let turns: Vec<Vec<String>> = (0..6).map(|n| vec!["go".into(), format!("tool {n}")]).collect();
    let words: Vec<Vec<&str>> =
        turns.iter().map(|turn| turn.iter().map(String::as_str).collect()).collect();
    let slices: Vec<&[&str]> = words.iter().map(Vec::as_slice).collect();
    let (folder, _) = recorded(&slices).await;
    let world = Arc::new(without_upstream(folder, Some(replay(ReplayMode::Strict))).await);
    let asked = turns.iter().rev().cloned().map(|turn| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let words: Vec<&str> = turn.iter().map(String::as_str).collect();
            ask(&world, "b", &words).await.status
        })
    });
    let asked: Vec<_> = asked.collect();
    for one in asked {
        assert_eq!(one.await.unwrap(), 200);
    }
    let given = world.calls().await;
    let mut sources: Vec<_> =
        given.iter().filter_map(|call| call.ended.as_ref()?.replayed).collect();
    sources.sort_unstable();
    sources.dedup();
    assert_eq!(sources.len(), 6, "each recorded call answered once");
}

#[tokio::test]
async fn a_restarted_recorder_goes_on_where_the_replay_was() {
    let (folder, replies) = recorded(&[&["busy"], &["busy"], &["go"]]).await;
    let world = without_upstream(folder, None).await;
    let announced = json!({ "episode_id": "b", "replay": { "episode_id": "a" } }).to_string();
    assert_eq!(post(world.control, "/episodes", &announced).await.status, 200);
    assert_eq!(ask(&world, "b", &["busy"]).await.body, replies[0].body);
    assert_eq!(ask(&world, "c", &["busy"]).await.status, 409, "another attempt has no recording");

    let world = without_upstream(world.stop().await, None).await;
    assert_eq!(ask(&world, "b", &["busy"]).await.status, 429);
    assert_eq!(ask(&world, "b", &["busy"]).await.status, 409, "two were recorded");
    assert_eq!(ask(&world, "b", &["go"]).await.body, replies[2].body);
    let state = exchange(world.control, ("GET", "/episodes/b"), &[], b"").await.json();
    assert_eq!(
        (state["replay"]["source"].as_str(), state["replay"]["given"].as_u64()),
        (Some("a/0"), Some(3))
    );
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_left_gets_its_reply_when_it_asks_again() {
    let (folder, replies) = recorded(&[&["crawl"], &["slow"], &["go"]]).await;
    let timed = Replay { keeps_time: true, ..replay(ReplayMode::Strict) };
    let world = without_upstream(folder, Some(timed)).await;
    for (words, recorded) in [(&["crawl"], &replies[0]), (&["slow"], &replies[1])] {
        let left = ask(&world, "b", words);
        assert!(
            timeout(Duration::from_millis(100), left).await.is_err(),
            "it takes four times that"
        );
        // The recorder notices in its own time that an agent has left.
        let got = async {
            loop {
                let reply = ask(&world, "b", words).await;
                if reply.status != 409 {
                    return reply;
                }
            }
        };
        assert_eq!(timeout(Duration::from_secs(30), got).await.unwrap().body, recorded.body);
        assert_eq!(ask(&world, "b", words).await.status, 409, "it has arrived");
    }

    let world = without_upstream(world.stop().await, Some(replay(ReplayMode::Strict))).await;
    assert_eq!(ask(&world, "b", &["go"]).await.body, replies[2].body);
    assert_eq!(ask(&world, "b", &["go"]).await.status, 409);
    let headers = [("x-stainless-retry-count", "1"), ("content-type", "application/json")];
    let body = chat(&["go"]);
    let target = ("POST", format!("/e/b/{CHAT}"));
    let again = exchange(world.data, (target.0, &target.1), &headers, body.as_bytes()).await;
    assert_eq!(again.body, replies[2].body, "the client says that it asks again");
    world.stop().await;
}

#[tokio::test]
async fn an_announcement_of_what_cannot_be_replayed_is_refused() {
    let (folder, _) = recorded(&[&["go"]]).await;
    let world = without_upstream(folder, None).await;
    for (replay, part) in [
        (json!({ "episode_id": "none" }), "no recorded attempt `none/0`"),
        (json!({ "episode_id": "a", "attempt": 7 }), "no recorded attempt `a/7`"),
        (json!({ "episode_id": "a", "mode": "lax" }), "strict or loose"),
        (json!({ "episode_id": "a", "ignore": ["clock"] }), "`clock` is no rule"),
        (json!({ "episode_id": "a", "turns": 3 }), "turns"),
    ] {
        let body = json!({ "episode_id": "b", "replay": replay }).to_string();
        let refused = post(world.control, "/episodes", &body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text().contains(part), "{}", refused.text());
    }
    let body = json!({ "episode_id": "a", "replay": { "episode_id": "a" } }).to_string();
    assert_eq!(post(world.control, "/episodes", &body).await.status, 400, "not of itself");
    world.stop().await;
}

#[tokio::test]
async fn behind_its_turns_a_branch_is_live() {
    let upstream = Upstream::start("vllm", script).await;
    let world = World::start(upstream.address).await;
    for words in [&["go"][..], &["go", "b"], &["go", "b", "c"]] {
        ask(&world, "a", words).await;
    }
    let asked = upstream.seen().len();

    let announced = json!({ "episode_id": "b", "group_id": "g",
        "replay": { "episode_id": "a", "until": 2 } });
    assert_eq!(post(world.control, "/episodes", &announced.to_string()).await.status, 200);
    for words in [&["go"][..], &["go", "b"]] {
        assert_eq!(ask(&world, "b", words).await.status, 200);
    }
    assert_eq!(upstream.seen().len(), asked, "no request of these reached the upstream");
    assert_eq!(ask(&world, "b", &["go", "b", "other"]).await.status, 200);
    assert!(upstream.seen().len() > asked, "the third turn is live");

    let recorded = world.recorded().await;
    let replayed = |calls: &[Call]| {
        calls.iter().filter(|call| call.ended.as_ref().unwrap().replayed.is_some()).count()
    };
    let (branch, calls, _) = recorded.iter().find(|(one, ..)| one.id.as_str() == "b").unwrap();
    assert_eq!((replayed(calls), calls.len()), (2, 3));
    assert_eq!(branch.replay.as_ref().unwrap().until, Some(2));
    assert_eq!(branch.continues.as_deref(), Some("exact"), "it goes on from recorded ids");
    world.stop().await;
}

#[tokio::test]
async fn replies_take_their_time_if_asked_to() {
    let (folder, _) = recorded(&[&["slow"]]).await;
    for (keeps_time, least) in [(true, 350), (false, 0)] {
        let timed = Replay { keeps_time, ..replay(ReplayMode::Strict) };
        // A folder of its own: the store is written.
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(folder.path().join("test.db"), copy.path().join("test.db")).unwrap();
        let world = without_upstream(copy, Some(timed)).await;
        let began = Instant::now();
        assert_eq!(ask(&world, "b", &["slow"]).await.status, 200);
        assert!(began.elapsed() >= Duration::from_millis(least));
        world.stop().await;
    }
}
