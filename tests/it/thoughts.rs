//! Agents that send reasoning back sealed, and never as text.

use std::path::Path;

use episode::{Outcome, Route};
use exporter::Options;
use kit::{Seen, Step, Upstream, World, post};
use serde_json::{Value, json};

/// The model's output, turn by turn: reasoning, text, and a command.
const TURNS: [(&str, &str, Option<&str>); 3] = [
    ("The user wants\na \"list\".", "I look.", Some("ls")),
    ("Two files: a \u{e9}, b.", "", Some("cat a b")),
    ("Done.", "There are two.", None),
];

/// A template that keeps all reasoning. The tokens of a message are the bytes of its text.
fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn sampled(thoughts: &str, said: &str, command: Option<&str>) -> String {
    let thoughts =
        if thoughts.is_empty() { String::new() } else { format!("<think>{thoughts}</think>") };
    let call = command.map(|command| format!("<call>{}", arguments(command)));
    format!("{thoughts}{said}{}<end>", call.unwrap_or_default())
}

fn arguments(command: &str) -> String {
    json!({ "cmd": command }).to_string()
}

/// The prompt that a chat request makes.
fn prompt(chat: &Value) -> String {
    let mut prompt = String::new();
    for message in chat["messages"].as_array().unwrap() {
        let text = |key: &str| message[key].as_str().unwrap_or_default();
        prompt += &format!("<{}>", text("role"));
        prompt += &match text("role") {
            "assistant" => {
                let call = message["tool_calls"][0]["function"]["arguments"].as_str();
                let command = call.map(|json| serde_json::from_str::<Value>(json).unwrap());
                let command = command.as_ref().map(|call| call["cmd"].as_str().unwrap());
                sampled(text("reasoning"), text("content"), command)
            }
            _ => text("content").to_owned(),
        };
    }
    prompt + "<assistant>"
}

/// The reply of vLLM's chat route, whole or streamed, to the turn that is asked for.
fn answer(seen: &Seen) -> Vec<Step> {
    let chat: Value = serde_json::from_slice(&seen.body).unwrap();
    let roles = chat["messages"].as_array().unwrap().iter();
    let turn = roles.filter(|message| message["role"] == "tool").count();
    let (thoughts, said, command) = TURNS[turn];
    let mut message = json!({ "role": "assistant", "content": said, "reasoning": thoughts });
    if let Some(command) = command {
        message["tool_calls"] = json!([{ "index": 0, "id": format!("call_{turn}"),
            "type": "function", "function": { "name": "sh", "arguments": arguments(command) } }]);
    }

    let ids = tokens(&sampled(thoughts, said, command));
    let entries: Vec<Value> =
        ids.iter().map(|_| json!({ "token": "x", "logprob": -0.5, "bytes": [120] })).collect();
    let streams = chat["stream"] == true;
    let mut reply = json!({ "id": format!("chatcmpl-{turn}"), "created": 1, "model": "m",
        "prompt_token_ids": tokens(&prompt(&chat)),
        "choices": [{ "index": 0, "logprobs": { "content": entries }, "token_ids": ids,
            "finish_reason": if command.is_some() { "tool_calls" } else { "stop" } }] });
    reply["choices"][0][if streams { "delta" } else { "message" }] = message;
    match streams {
        false => vec![Step::reply("200 OK", "application/json", reply.to_string().as_bytes())],
        true => vec![
            Step::stream_head(),
            Step::chunk(format!("data: {reply}\n\ndata: [DONE]\n\n").as_bytes()),
            Step::chunk(b""),
        ],
    }
}

/// The items of a reply, as an agent keeps them.
fn items(reply: &[u8], streams: bool) -> Vec<Value> {
    if !streams {
        let response: Value = serde_json::from_slice(reply).unwrap();
        return response["output"].as_array().unwrap().clone();
    }
    let text = String::from_utf8_lossy(reply);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let done: Vec<Value> = done.map(|event| event["item"].clone()).collect();
    assert_eq!(json!(done), events.last().unwrap()["response"]["output"]);
    done
}

/// A run of an agent that keeps its history itself, and sends reasoning back sealed.
async fn play(world: &World, episode: &str, include: &Value, streamed: [bool; 3]) {
    let mut input = vec![json!({ "type": "message", "role": "user", "content": "What is here?" })];
    for (turn, streams) in streamed.into_iter().enumerate() {
        let body = json!({ "model": "m", "stream": streams, "store": false, "include": include,
            "input": input, "tools": [{ "type": "function", "name": "sh" }] });
        let path = format!("/e/{episode}/v1/responses");
        let reply = post(world.data, &path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        for mut item in items(&reply.body, streams) {
            if item["type"] == "reasoning" {
                assert_eq!(item["content"][0]["text"], TURNS[turn].0);
                item["content"] = Value::Null;
            }
            input.push(item);
        }
        if TURNS[turn].2.is_some() {
            input.push(json!({ "type": "function_call_output",
                "call_id": format!("call_{turn}"), "output": "a b" }));
        }
    }
}

async fn exported(world: &World, out: &Path) -> (u64, Vec<Value>) {
    let options = Options { out: out.to_owned().into(), ..Options::default() };
    let report = exporter::export(world.snapshot().await, &options).await.unwrap();
    let calls = world.calls().await;
    assert!(calls.iter().all(|call| call.ended.as_ref().unwrap().outcome == Outcome::Complete));
    let last = &calls.last().unwrap().begun.request.read();
    (report.rows as u64, wire::conversation(Route::Responses, last).unwrap().messages)
}

#[tokio::test]
async fn sealed_thoughts_reach_the_next_prompt_without_a_fork() {
    let include = json!(["reasoning.encrypted_content"]);
    // vLLM answers whole calls itself, but refuses to read what is sealed: that is for chat.
    for streamed in [[true; 3], [true, false, true], [true, false, false]] {
        let upstream = Upstream::start("vllm", answer).await;
        let world = World::start(upstream.address).await;
        play(&world, "a", &include, streamed).await;
        let seen = upstream.seen();
        let last: Value = serde_json::from_slice(&seen.last().unwrap().body).unwrap();
        for (turn, (thoughts, ..)) in TURNS.iter().enumerate().take(2) {
            assert_eq!(last["messages"][1 + 2 * turn]["reasoning"], *thoughts, "{last}");
        }
        let out = tempfile::tempdir().unwrap();
        let (rows, messages) = exported(&world, out.path()).await;
        assert_eq!(rows, 1, "one conversation, one path: {streamed:?}");
        assert_eq!(messages[3]["reasoning"], TURNS[1].0, "what is exported shows them");
        world.stop().await;
    }
}

#[tokio::test]
async fn thoughts_are_sealed_for_those_only_who_ask() {
    let upstream = Upstream::start("vllm", answer).await;
    let world = World::start(upstream.address).await;
    play(&world, "a", &json!([]), [true; 3]).await;
    let last: Value = serde_json::from_slice(&upstream.seen().last().unwrap().body).unwrap();
    assert!(last["messages"][1].get("reasoning").is_none(), "{last}");
    let out = tempfile::tempdir().unwrap();
    assert_eq!(exported(&world, out.path()).await.0, 3, "each turn left out what came before");
    world.stop().await;
}
