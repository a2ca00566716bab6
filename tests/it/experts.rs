//! Experts of long episodes, each of which is asked for about once.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use episode::Call;
use exporter::{Options, export};
use kit::{Seen, Step, Upstream, World, post, start_engine_of};
use proxy::{Config, TokenExtras};
use serde_json::{Value, json};

const CHAT: &str = "/e/a/v1/chat/completions";
/// Experts of a token of the mixture: three layers of two.
const WIDTH: usize = 6;

async fn world(upstream: SocketAddr) -> World {
    let config = Config::new(format!("http://{upstream}").parse().unwrap());
    let extras = TokenExtras { routed_experts: true, ..TokenExtras::default() };
    World::start_with(Config { extras, ..config }).await
}

/// An agent that only adds to its history, as long as `turns` say; every second reply is a stream.
async fn play(world: &World, turns: usize) {
    let mut messages = vec![json!({"role": "user", "content": "Find the number."})];
    for turn in 0..turns {
        let stream = turn % 2 == 1;
        let body = json!({"model": "tiny-moe", "messages": messages, "max_tokens": 12,
            "seed": turn, "stream": stream});
        let reply = post(world.data, CHAT, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(!reply.text().contains("NUMPY") && !reply.text().contains("k05VTVBZ"));
        let answer = wire::answers(episode::Route::Chat, &reply.body).remove(0).message;
        messages.push(json!({"role": "assistant", "content": answer["content"]}));
        messages.push(json!({"role": "user", "content": format!("too low {turn}")}));
    }
}

async fn rows(world: &World) -> Vec<Value> {
    let out = world.store().with_file_name("rows.jsonl");
    let options = Options { out: out.clone().into(), ..Options::default() };
    export(world.snapshot().await, &options).await.unwrap();
    let text = std::fs::read_to_string(&out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The experts of these ids, asked for as a whole.
async fn whole(engine: SocketAddr, ids: &Value) -> Vec<Vec<u8>> {
    let body = json!({"token_ids": ids, "return_routed_experts": true,
        "sampling_params": {"max_tokens": 1}});
    let reply = post(engine, "/inference/v1/generate", &body.to_string()).await.json();
    let file = reply["choices"][0]["routed_experts"].as_str().unwrap();
    let file = BASE64_STANDARD.decode(file).unwrap();
    file[128..].chunks_exact(WIDTH).map(<[u8]>::to_vec).collect()
}

/// The tokens of each call's experts, and of all that it could have asked for.
fn asked(calls: &[Call]) -> Vec<(usize, usize)> {
    let of = |call: &Call| {
        let ended = call.ended.as_ref().unwrap();
        let choice = &ended.choices[0];
        let path = ended.prompts[0].len() + choice.token_ids.as_ref().unwrap().len();
        let column = choice.token_columns.iter().find(|c| c.name == "routed_experts").unwrap();
        (wire::routing(&column.json, path).unwrap().tokens(), path - 1)
    };
    calls.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn experts_in_parts_are_those_of_a_whole_asking() {
    let engine = start_engine_of("tiny-moe").await;
    let world = world(engine).await;
    play(&world, 7).await;

    let calls = world.calls().await;
    let asked = asked(&calls);
    assert!(asked[..2].iter().all(|(told, all)| told == all), "the second shows that they go on");
    for (turn, (told, all)) in asked.iter().enumerate().skip(2) {
        let before = calls[turn - 1].ended.as_ref().unwrap().prompts[0].len();
        assert_eq!(*told, all + 1 - before, "turn {turn}");
    }

    for row in rows(&world).await {
        let ids = row["input_ids"].as_array().unwrap();
        let expected = whole(engine, &row["input_ids"]).await;
        let found = row["routed_experts"].as_array().unwrap();
        let mask = row["routed_experts_mask"].as_array().unwrap();
        assert!(mask[..ids.len() - 1].iter().all(|known| *known == 1), "{mask:?}");
        for (token, expected) in expected.iter().enumerate().take(ids.len() - 1) {
            assert_eq!(found[token], json!(expected), "token {token}");
        }
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_is_rewritten_is_asked_for_as_a_whole() {
    let engine = start_engine_of("tiny-moe").await;
    let world = world(engine).await;
    play(&world, 3).await;
    let messages = json!([{"role": "user", "content": "A summary of what happened."}]);
    let body = json!({"model": "tiny-moe", "messages": messages, "max_tokens": 5});
    assert_eq!(post(world.data, CHAT, &body.to_string()).await.status, 200);

    let asked = asked(&world.calls().await);
    assert_eq!(asked[3].0, asked[3].1);
    for row in rows(&world).await {
        let mask = row["routed_experts_mask"].as_array().unwrap();
        assert!(mask[..mask.len() - 1].iter().all(|known| *known == 1), "{mask:?}");
    }
    world.stop().await;
}

/// A reply of vLLM's with the experts of one layer from `start` on: those of token 5 are [5].
fn reply(prompt: usize, start: usize) -> Vec<u8> {
    let count = prompt + 1 - start;
    let head = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, 1, 1), }}");
    let head = format!("{head:<117}\n");
    let size = (head.len() as u16).to_le_bytes();
    let experts: Vec<u8> = (start..=prompt).map(|token| token as u8).collect();
    let file = [b"\x93NUMPY\x01\x00", &size[..], head.as_bytes(), &experts].concat();
    let ids: Vec<usize> = (0..prompt).collect();
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "a"},
        "token_ids": [7, 8], "finish_reason": "stop",
        "routed_experts": BASE64_STANDARD.encode(file)});
    json!({"choices": [choice], "prompt_token_ids": ids}).to_string().into_bytes()
}

fn sent(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_the_field_is_asked_for_all() {
    for refuses in [false, true] {
        let script = move |seen: &Seen| {
            let body = sent(seen);
            let start = &body["routed_experts_prompt_start"];
            if refuses && !start.is_null() {
                let error = br#"{"error":{"message":"no","param":"routed_experts_prompt_start"}}"#;
                return vec![Step::reply("400 Bad Request", "application/json", error)];
            }
            let prompt = body["messages"].as_array().unwrap().len() * 10;
            let start = start.as_u64().unwrap_or(0) as usize;
            vec![Step::reply("200 OK", "application/json", &reply(prompt, start))]
        };
        let upstream = Upstream::start("vllm", script).await;
        let world = world(upstream.address).await;
        let mut messages = vec![json!({"role": "user", "content": "a"})];
        for _ in 0..4 {
            let body = json!({"model": "m", "messages": messages}).to_string();
            let shown = post(world.data, CHAT, &body).await.json();
            assert_eq!(shown["choices"][0]["routed_experts"], Value::Null);
            assert_eq!(shown["choices"][0]["finish_reason"], "stop");
            messages.push(json!({"role": "assistant", "content": "a"}));
            messages.push(json!({"role": "tool", "content": "b"}));
        }

        let starts: Vec<_> = upstream
            .seen()
            .iter()
            .map(|seen| sent(seen)["routed_experts_prompt_start"].as_u64())
            .collect();
        let expected = match refuses {
            true => vec![None, None, Some(29), None, None],
            false => vec![None, None, Some(29), Some(49)],
        };
        assert_eq!(starts, expected);
        let told: Vec<_> = asked(&world.calls().await).iter().map(|(told, _)| *told).collect();
        let parts = if refuses { [11, 31, 51, 71] } else { [11, 31, 22, 22] };
        assert_eq!(told, parts);
        world.stop().await;
    }
}
