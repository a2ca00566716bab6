//! Chats in front of a server that takes a prompt as ids: the model reads the text of the server's
//! template, and what was sampled keeps its ids. The server is rolltape's own engine, which answers
//! as vLLM 0.33 does, without its own memory of replies.

use std::net::SocketAddr;

use engine::EngineOptions;
use episode::{Call, CallEnd, ContinueReason, Continued, Outcome, Route};
use exporter::{Options, export};
use kit::{Seen, Step, Upstream, World, connect, post, read_some, request, start_engine_with};
use proxy::{Config, ContinueMode, EngineSpec};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use wire::Dialect;

use crate::wait::until;

async fn engine() -> SocketAddr {
    let options =
        EngineOptions { prefix_exact_chat: false, seed: Some(7), ..EngineOptions::default() };
    start_engine_with("tiny", options).await
}

fn config(upstream: SocketAddr) -> Config {
    let config = Config::new(format!("http://{upstream}").parse().unwrap());
    Config { dialect: Some(Dialect::Vllm), continues: ContinueMode::Exact, ..config }
}

/// An agent that goes on from what it said before, on one of the wires.
struct Agent {
    path: &'static str,
    messages: Vec<Value>,
    turn: usize,
    /// Fields of every request.
    more: Value,
}

impl Agent {
    fn new(path: &'static str) -> Self {
        let messages = vec![json!({"role": "user", "content": "Find the number."})];
        Self { path, messages, turn: 0, more: json!({}) }
    }

    fn route(&self) -> Route {
        wire::route("POST", &self.path["/e/a".len()..])
    }

    /// Has its answers sampled letter by letter, so that their ids are hardly ever those of their
    /// text. Only the chat route has such a field.
    async fn spelling(mut self, server: SocketAddr) -> Self {
        let mut letters = Vec::new();
        for letter in "theransio".chars() {
            letters.extend(ids_of(server, &letter.to_string()).await);
        }
        self.more = json!({"allowed_token_ids": letters, "temperature": 2.0});
        self
    }

    /// Asks for an answer. Every second one is streamed.
    async fn say(&mut self, data: SocketAddr, more: Value) {
        self.turn += 1;
        let history = if self.route() == Route::Responses { "input" } else { "messages" };
        let limit = match self.route() {
            Route::Responses => "max_output_tokens",
            _ => "max_tokens",
        };
        let mut body = json!({"model": "tiny", history: self.messages, limit: 12,
            "stream": self.turn.is_multiple_of(2)});
        let more = [&self.more, &more];
        for (name, value) in more.into_iter().flat_map(|more| more.as_object().unwrap()) {
            body[name] = value.clone();
        }
        let reply = post(data, self.path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(!reply.text().contains("kv_transfer_params\":{"), "{}", reply.text());
        let answer = wire::answers(self.route(), &reply.body).remove(0).message;
        self.messages.push(json!({"role": "assistant", "content": answer["content"]}));
        self.messages.push(json!({"role": "user", "content": format!("too low {}", self.turn)}));
    }
}

fn ended(call: &Call) -> &CallEnd {
    call.ended.as_ref().unwrap()
}

/// The text of ids, as the server has it.
async fn text_of(server: SocketAddr, ids: &[u32]) -> String {
    let asked = json!({"tokens": ids}).to_string();
    post(server, "/detokenize", &asked).await.json()["prompt"].as_str().unwrap().to_owned()
}

/// The ids of a text, as the server has them.
async fn ids_of(server: SocketAddr, text: &str) -> Vec<u32> {
    let asked = json!({"prompt": text, "add_special_tokens": false}).to_string();
    let reply = post(server, "/tokenize", &asked).await.json();
    serde_json::from_value(reply["tokens"].clone()).unwrap()
}

/// Checks that each prompt goes on from the path before; returns how many the server would have
/// encoded otherwise.
async fn check_path(server: SocketAddr, calls: &[Call]) -> usize {
    let mut torn = 0;
    for pair in calls.windows(2) {
        let [before, after] = pair else { unreachable!() };
        let (before, after) = (ended(before), ended(after));
        let path = [&*before.prompts[0], before.choices[0].token_ids.as_ref().unwrap()].concat();
        let expected = Continued { tokens: path.len() as u32, reason: None };
        assert_eq!(after.continued, Some(expected));
        assert!(after.prompts[0].starts_with(&path));
        let text = text_of(server, &after.prompts[0]).await;
        torn += usize::from(ids_of(server, &text).await != after.prompts[0]);
    }
    torn
}

/// The rows of an export.
async fn rows(world: &World) -> usize {
    let out = world.store().with_file_name("rows.jsonl");
    let options = Options { out: out.clone().into(), ..Options::default() };
    export(world.snapshot().await, &options).await.unwrap();
    std::fs::read_to_string(&out).unwrap().lines().count()
}

#[tokio::test]
async fn every_wire_keeps_the_sampled_ids() {
    let server = engine().await;
    for path in ["/e/a/v1/chat/completions", "/e/a/v1/messages", "/e/a/v1/responses"] {
        let world = World::start_with(config(server)).await;
        let mut agent = Agent::new(path);
        let spells = agent.route() == Route::Chat;
        if spells {
            agent = agent.spelling(server).await;
        }
        for _ in 0..6 {
            agent.say(world.data, json!({})).await;
        }
        let calls = world.calls().await;
        assert_eq!(ended(&calls[0]).continued, Some(Continued::none(ContinueReason::NoParent)));
        let torn = check_path(server, &calls).await;
        assert_eq!(torn > 0, spells, "{path}: {torn} prompts that the server encodes otherwise");
        assert_eq!(rows(&world).await, 1, "{path}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_restart_goes_on_from_the_store() {
    let server = engine().await;
    let world = World::start_with(config(server)).await;
    let mut agent = Agent::new("/e/a/v1/chat/completions").spelling(server).await;
    for _ in 0..3 {
        agent.say(world.data, json!({})).await;
    }
    let folder = world.stop().await;
    let world = World::start_in(folder, config(server)).await;
    for _ in 0..2 {
        agent.say(world.data, json!({})).await;
    }
    let calls = world.calls().await;
    assert_eq!(calls.len(), 5);
    check_path(server, &calls).await;
    world.stop().await;
}

#[tokio::test]
async fn what_is_too_long_to_be_read_back_is_left_to_the_server() {
    let server = engine().await;
    let world = World::start_with(config(server)).await;
    let mut agent = Agent::new("/e/a/v1/chat/completions");
    for _ in 0..9 {
        agent.say(world.data, json!({})).await;
    }
    let folder = world.stop().await;
    // Readers have 64 KiB, and each body counts for 4.
    let narrow = Config { memory_bytes_max: 192 << 10, ..config(server) };
    let world = World::start_in(folder, narrow).await;
    agent.say(world.data, json!({})).await;
    let calls = world.calls().await;
    let continued = ended(calls.last().unwrap()).continued.unwrap();
    assert_eq!(continued, Continued { tokens: 0, reason: Some(ContinueReason::NotRead) });
    world.stop().await;
}

#[tokio::test]
async fn an_answer_that_was_edited_is_left_to_the_server() {
    let server = engine().await;
    let world = World::start_with(config(server)).await;
    let mut agent = Agent::new("/e/a/v1/chat/completions");
    for _ in 0..2 {
        agent.say(world.data, json!({})).await;
    }
    agent.messages[1]["content"] = json!("I said something else.");
    agent.say(world.data, json!({"an_unknown_field": 1})).await;
    agent.say(world.data, json!({"an_unknown_field": 1})).await;
    agent.messages[2]["content"] = json!([{"type": "text", "text": "too low"}]);
    agent.say(world.data, json!({"truncate_prompt_tokens": 500})).await;

    let calls = world.calls().await;
    let reasons: Vec<_> = calls.iter().map(|call| ended(call).continued.unwrap().reason).collect();
    let expected = [
        Some(ContinueReason::NoParent),
        None,
        // A field that nobody knows is first seen to change nothing.
        Some(ContinueReason::NotProven),
        None,
        Some(ContinueReason::PromptFields),
    ];
    assert_eq!(reasons, expected);
    world.stop().await;
}

#[tokio::test]
async fn choices_and_forks_go_on_from_their_own_path() {
    let server = engine().await;
    let world = World::start_with(config(server)).await;
    let chat = "/e/a/v1/chat/completions";
    let first = json!({"model": "tiny", "messages": [{"role": "user", "content": "Which?"}],
        "n": 4, "max_tokens": 8, "temperature": 1.0, "seed": 3});
    let reply = post(world.data, chat, &first.to_string()).await;
    let answers = wire::answers(Route::Chat, &reply.body);
    for answer in &answers {
        let body = json!({"model": "tiny", "max_tokens": 4, "messages": [
            {"role": "user", "content": "Which?"},
            {"role": "assistant", "content": answer.message["content"]},
            {"role": "user", "content": "Why?"}]});
        assert_eq!(post(world.data, chat, &body.to_string()).await.status, 200);
    }
    let calls = world.calls().await;
    let first = ended(&calls[0]);
    for (at, call) in calls[1..].iter().enumerate() {
        let prompt = &ended(call).prompts[0];
        let of = |choice: &episode::Choice| {
            [&*first.prompts[0], choice.token_ids.as_ref().unwrap()].concat()
        };
        let same: Vec<_> = first.choices.iter().filter(|c| prompt.starts_with(&of(c))).collect();
        assert!(!same.is_empty(), "choice {at}: {:?}", ended(call).continued);
    }
    world.stop().await;
}

#[tokio::test]
async fn an_episode_has_a_wish_of_its_own_that_outlives_a_restart() {
    let server = engine().await;
    let off = Config { continues: ContinueMode::Off, ..config(server) };
    let world = World::start_with(off.clone()).await;
    let wish = r#"{"episode_id": "a", "continue": "exact"}"#;
    assert_eq!(post(world.control, "/episodes", wish).await.status, 200);
    let wrong = r#"{"episode_id": "b", "continue": "yes"}"#;
    let refused = post(world.control, "/episodes", wrong).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("as_sampled"), "{}", refused.text());
    let mut agent = Agent::new("/e/a/v1/chat/completions").spelling(server).await;
    agent.say(world.data, json!({})).await;
    let world = World::start_in(world.stop().await, off).await;
    agent.say(world.data, json!({})).await;
    check_path(server, &world.calls().await).await;

    let mut other = Agent::new("/e/b/v1/chat/completions");
    other.say(world.data, json!({})).await;
    let recorded = world.recorded().await;
    let (_, calls, _) = recorded.iter().find(|(it, ..)| it.id.as_str() == "b").unwrap();
    assert_eq!(ended(&calls[0]).continued, None);
    world.stop().await;
}

/// A server that says how it encodes a chat, and encodes it itself whatever it is sent.
fn stubborn(seen: &Seen) -> Vec<Step> {
    let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    let turns = body["messages"].as_array().map_or(0, Vec::len) as u32;
    let prompt: Vec<u32> = (0..turns).flat_map(|turn| [1, 10 + turn]).chain([1]).collect();
    let document = match seen.path.as_str() {
        "/tokenize" => {
            let strings = prompt.iter().map(|id| match id {
                1 => "<|turn|>".to_owned(),
                id => format!("m{id}"),
            });
            json!({"count": prompt.len(), "max_model_len": 99, "tokens": prompt,
                "token_strs": strings.collect::<Vec<_>>()})
        }
        "/detokenize" => {
            let ids: Vec<u32> = serde_json::from_value(body["tokens"].clone()).unwrap();
            let text = ids.iter().map(|id| match id {
                1 => "<|turn|>".to_owned(),
                id if *id >= 100 => (*id as u8 as char).to_string(),
                id => format!("m{id}"),
            });
            json!({"prompt": text.collect::<String>()})
        }
        // Spells `m11` as three tokens.
        _ => json!({"model": "m", "prompt_token_ids": prompt, "choices": [{"index": 0,
            "message": {"role": "assistant", "content": "m11"}, "finish_reason": "stop",
            "token_ids": [109, 305, 305, 1], "logprobs": {"content": []}}]}),
    };
    vec![Step::reply("200 OK", "application/json", document.to_string().as_bytes())]
}

#[tokio::test]
async fn a_server_that_ignores_the_ids_is_noticed_and_left_alone() {
    let upstream = Upstream::start("vllm", stubborn).await;
    let world = World::start_with(config(upstream.address)).await;
    let mut messages = vec![json!({"role": "user", "content": "a"})];
    for _ in 0..4 {
        let body = json!({"model": "m", "messages": messages}).to_string();
        let reply = post(world.data, "/e/a/v1/chat/completions", &body).await;
        assert_eq!(reply.status, 200);
        messages.push(json!({"role": "assistant", "content": "m11"}));
        messages.push(json!({"role": "user", "content": "b"}));
    }
    let sent = upstream
        .seen()
        .iter()
        .filter(|seen| String::from_utf8_lossy(&seen.body).contains("kv_transfer_params"))
        .count();
    assert_eq!(sent, 1, "it is tried once");
    let calls = world.calls().await;
    let reasons: Vec<_> = calls.iter().map(|call| ended(call).continued.unwrap().reason).collect();
    let no = Some(ContinueReason::NotSupported);
    assert_eq!(reasons, [Some(ContinueReason::NoParent), no, no, no]);
    world.stop().await;
}

#[tokio::test]
async fn a_thread_that_moves_to_another_engine_keeps_the_sampled_ids() {
    let engines = [engine().await, engine().await];
    let mut config = config(engines[0]);
    let spec = |(address, name): (&SocketAddr, &str)| EngineSpec {
        name: name.to_owned(),
        ..format!("http://{address}").parse::<proxy::Upstream>().unwrap().into()
    };
    config.fleet.engines = engines.iter().zip(["one", "two"]).map(spec).collect();
    let world = World::start_with(config).await;
    let mut agent = Agent::new("/e/a/v1/chat/completions").spelling(engines[0]).await;
    for _ in 0..3 {
        agent.say(world.data, json!({})).await;
    }
    let first = world.calls().await[0].ended.as_ref().unwrap().engine.clone().unwrap();
    let drained = post(world.control, &format!("/upstreams/{first}/drain"), "").await;
    assert_eq!(drained.status, 200, "{}", drained.text());
    for _ in 0..3 {
        agent.say(world.data, json!({})).await;
    }

    let calls = world.calls().await;
    let moved = calls
        .iter()
        .filter(|call| call.ended.as_ref().unwrap().engine.as_ref() != Some(&first))
        .count();
    assert_eq!(moved, 3);
    assert!(check_path(engines[0], &calls).await > 0, "there was little to do");
    assert_eq!(rows(&world).await, 1);
    world.stop().await;
}

/// Leaves a long answer in the middle, and says what was recorded of it.
async fn leave(agent: &Agent, world: &World) -> CallEnd {
    let mut body = json!({"model": "tiny", "messages": agent.messages, "stream": true,
        "max_tokens": 400, "ignore_eos": true});
    for (name, value) in agent.more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let before = world.calls().await.len();
    let mut socket = connect(world.data).await;
    let asked = body.to_string();
    socket.write_all(&request("POST", agent.path, &[], asked.as_bytes())).await.unwrap();
    let events = |read: &[u8]| read.windows(6).filter(|at| at == b"data: ").count();
    read_some(&mut socket, |read| events(read) > 8).await;
    drop(socket);
    until("the call has ended", async || {
        let calls = world.calls().await;
        calls.get(before)?.ended.clone()
    })
    .await
}

#[tokio::test]
async fn an_answer_that_the_agent_left_is_gone_on_from_and_beside() {
    let server = engine().await;
    let world = World::start_with(config(server)).await;
    let mut agent = Agent::new("/e/a/v1/chat/completions").spelling(server).await;
    for _ in 0..2 {
        agent.say(world.data, json!({})).await;
    }
    let left = leave(&agent, &world).await;
    assert_eq!(left.outcome, Outcome::ClientGone);
    // It asks again, and another one goes on from the half of the answer that it was given.
    agent.say(world.data, json!({})).await;
    let said = left.choices[0].token_ids.clone().unwrap();
    let text = text_of(server, &said).await;
    agent.messages.truncate(agent.messages.len() - 2);
    agent.messages.push(json!({"role": "assistant", "content": text}));
    agent.messages.push(json!({"role": "user", "content": "go on"}));
    agent.say(world.data, json!({})).await;

    let calls = world.calls().await;
    let [_, second, third, again, on] = &calls[..] else { panic!("{} calls", calls.len()) };
    let path = |call: &Call| {
        let end = ended(call);
        [&*end.prompts[0], end.choices[0].token_ids.as_ref().unwrap()].concat()
    };
    assert!(ended(third).prompts[0].starts_with(&path(second)));
    assert_eq!(ended(again).prompts, ended(third).prompts);
    let whole = path(third);
    let expected = Continued { tokens: whole.len() as u32, reason: None };
    assert_eq!(ended(on).continued, Some(expected));
    assert!(ended(on).prompts[0].starts_with(&whole));
    world.stop().await;
}
