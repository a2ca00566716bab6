//! The four generating routes in front of real and scripted servers.

use std::sync::Arc;

use episode::{CallKind, Fidelity, Outcome, Route, TagSource};
use kit::{Seen, Step, Upstream, World, exchange, post, start_engine, tape};
use proxy::{Config, TokenExtras};
use serde_json::{Value, json};
use wire::Vocabulary;

const QUESTION: &str = "Find the secret number from 1 to 7. You have 3 guesses.";

fn config(upstream: &Upstream) -> Config {
    Config::new(format!("http://{}", upstream.address).parse().unwrap())
}

/// A question on `route`, in that wire's own form, with a tool.
fn question(route: Route, stream: bool) -> String {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    let function = json!({ "name": "guess", "parameters": schema });
    let body = match route {
        Route::Messages => json!({
            "max_tokens": 24,
            "messages": [{ "role": "user", "content": QUESTION }],
            "tools": [{ "name": "guess", "input_schema": schema }],
        }),
        Route::Responses => json!({
            "max_output_tokens": 24,
            "input": QUESTION,
            "tools": [{ "type": "function", "name": "guess", "parameters": schema }],
        }),
        _ => json!({
            "max_tokens": 24,
            "messages": [{ "role": "user", "content": QUESTION }],
            "tools": [{ "type": "function", "function": function }],
        }),
    };
    let mut body = body;
    body["model"] = json!("tiny");
    body["seed"] = json!(5);
    body["temperature"] = json!(0);
    body["stream"] = json!(stream);
    body.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wire_gets_the_same_tokens_and_records_them() {
    let world = World::start(start_engine().await).await;

    for (path, route) in [
        ("/v1/chat/completions", Route::Chat),
        ("/v1/messages?beta=true", Route::Messages),
        ("/v1/responses", Route::Responses),
    ] {
        for stream in [false, true] {
            let reply = post(world.data, &format!("/e/a{path}"), &question(route, stream)).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            assert!(!reply.text().contains("token_ids\":["), "{}", reply.text());
            let answer = wire::answers(route, &reply.body).remove(0).message;
            assert_eq!(answer["tool_calls"][0]["function"]["name"], "guess", "{answer}");
        }
    }

    let calls = world.calls().await;
    assert_eq!(calls.len(), 6);
    let ids = |n: usize| {
        let ended = calls[n].ended.as_ref().unwrap();
        assert_eq!(ended.outcome, Outcome::Complete);
        assert_eq!(ended.choices[0].logprobs.len(), ended.choices[0].token_ids.as_ref()?.len());
        Some((ended.prompts.clone(), ended.choices[0].token_ids.clone()?))
    };

    for (n, call) in calls.iter().enumerate() {
        assert!(ids(n).is_some());
        assert_eq!(ids(n), ids(0), "call {n}");
        let native = call.begun.route == Route::Chat;
        let translated = call.ended.as_ref().unwrap().translated;
        assert_eq!(translated, (!native).then_some(Route::Chat));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_a_translated_call_come_in_the_agents_own_form() {
    let upstream = format!("http://{}", start_engine().await).parse().unwrap();
    let config = Config { allow_foreign_state: true, ..Config::new(upstream) };
    let world = World::start_with(config).await;

    let body = question(Route::Messages, true).replace("tiny", "other");
    let refused = post(world.data, "/e/a/v1/messages", &body).await;
    assert_eq!((refused.status, refused.json()["type"].clone()), (404, json!("error")));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    let body = question(Route::Responses, false).replace("tiny", "other");
    let refused = post(world.data, "/e/a/v1/responses", &body).await;
    assert!(refused.json()["error"]["message"].is_string());
    let thread = r#"{"model":"tiny","max_tokens":1,"thread":{"type":"create"},"messages":[]}"#;
    let refused = post(world.data, "/e/a/v1/messages", thread).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["details"]["unsupported"], json!(["thread"]));
    assert_eq!(world.calls().await[2].ended.as_ref().unwrap().outcome, Outcome::Refused);
    // What chat has no words for goes on as it is; this engine's own route says the same.
    let body = r#"{"model":"tiny","input":"a","previous_response_id":"resp_1"}"#;
    let native = post(world.data, "/e/b/v1/responses", body).await;
    assert_eq!(native.status, 404);
    let calls = world.calls().await;
    let last = calls.last().unwrap().ended.as_ref().unwrap();
    assert!(last.unasked.as_deref().unwrap().starts_with("not translated"), "{last:?}");
    assert_eq!(last.translated, None);
    world.stop().await;
}

/// A server that answers from one tape whatever it is asked.
async fn taped(dialect: &'static str, name: &'static str) -> Upstream {
    let stream = name.ends_with(".sse");
    Upstream::start(dialect, move |_| match stream {
        false => vec![Step::reply("200 OK", "application/json", &tape(name))],
        true => vec![Step::stream_head(), Step::chunk(&tape(name)), Step::chunk(b"")],
    })
    .await
}

#[tokio::test]
async fn sglang_is_asked_by_header_and_its_frame_of_ids_stays_here() {
    let upstream = taped("sglang", "sglang/chat/text_stream.asked.sse").await;
    let world = World::start(upstream.address).await;
    let body = String::from_utf8(tape("sglang/chat/text_stream.request.json")).unwrap();
    let reply = post(world.data, "/e/a/v1/chat/completions", &body).await;
    assert_eq!(reply.body, tape("sglang/chat/text_stream.plain.sse"));
    let sent = upstream.seen().pop().unwrap();
    assert!(sent.head.contains("x-sglext-ids-framed: 1"), "{}", sent.head);
    assert_eq!(sent.body, tape("sglang/chat/text_stream.sent.json"));
    let ended = world.ended_call().await.ended.unwrap();
    assert!(ended.choices[0].token_ids.is_some());
    assert_eq!(ended.logprob_kind, "temperature");
    world.stop().await;
}

#[tokio::test]
async fn a_hosted_server_is_asked_only_with_a_vocabulary() {
    let tokenizer = r#"{"model":{"vocab":{"Hi":13,"!":2}},"decoder":{"type":"ByteLevel"}}"#;
    let reply = r#"{"model":"m","choices":[{"index":0,"message":{"content":"Hi!"},
        "logprobs":{"content":[{"token":"Hi","logprob":-0.5,"bytes":[72,105]},
        {"token":"!","logprob":-0.25,"bytes":[33]}]},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let upstream = Upstream::start("openai", move |_| {
        vec![Step::reply("200 OK", "application/json", reply.as_bytes())]
    })
    .await;
    let body = r#"{"model":"m","messages":[]}"#;
    let world = World::start(upstream.address).await;
    post(world.data, "/e/a/v1/chat/completions", body).await;
    assert_eq!(upstream.seen().pop().unwrap().body, body.as_bytes());
    world.stop().await;

    let vocabulary = Some(Arc::new(Vocabulary::read(tokenizer.as_bytes()).unwrap()));
    let world = World::start_with(Config { vocabulary, ..config(&upstream) }).await;
    let shown = post(world.data, "/e/a/v1/chat/completions", body).await;
    assert!(shown.text().contains(r#""logprobs":null"#));
    assert!(String::from_utf8(upstream.seen().pop().unwrap().body).unwrap().contains("logprobs"));
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[13, 2][..]));
    assert_eq!(ended.choices[0].fidelity, Fidelity::Mapped);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alternatives_are_kept_beside_the_ids_and_shown_to_nobody() {
    let engine = start_engine().await;
    let extras = TokenExtras { top_logprobs: 3, ..TokenExtras::default() };
    let config = Config::new(format!("http://{engine}").parse().unwrap());
    let world = World::start_with(Config { extras, ..config }).await;
    let body = question(Route::Chat, false);
    let plain = post(world.data, "/e/a/v1/chat/completions", &body).await;
    assert!(plain.text().contains(r#""logprobs":null"#));
    let wants = body.replacen('{', r#"{"logprobs":true,"#, 1);
    let shown = post(world.data, "/e/b/v1/chat/completions", &wants).await;
    assert!(shown.text().contains(r#""top_logprobs":[]"#));
    assert!(!shown.text().contains(r#""top_logprobs":[{"#), "{}", shown.text());
    for call in world.calls().await {
        let choice = &call.ended.as_ref().unwrap().choices[0];
        let side = choice.token_columns.iter().find(|side| side.name == "top_logprobs").unwrap();
        let tops: Vec<Vec<Value>> = serde_json::from_str(&side.json).unwrap();
        assert_eq!(tops.len(), choice.logprobs.len());
        assert!(tops.iter().all(|top| top.len() == 3), "{}", side.json);
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_sampling_reaches_the_server_and_the_record() {
    let engine = start_engine().await;
    let mut config = Config::new(format!("http://{engine}").parse().unwrap());
    config.force = "temperature=0".parse().unwrap();
    let world = World::start_with(config).await;

    let announced = r#"{"episode_id":"own","force_sampling":"top_p=1,top_k=off"}"#;
    assert_eq!(post(world.control, "/episodes", announced).await.status, 200);
    let bad = r#"{"episode_id":"x","force_sampling":"model=y"}"#;
    assert_eq!(post(world.control, "/episodes", bad).await.status, 400);
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":1.5,
        "top_k":3,"max_tokens":2}"#;

    for episode in ["own", "other"] {
        let path = format!("/e/{episode}/v1/chat/completions");
        assert_eq!(post(world.data, &path, body).await.status, 200);
    }

    let calls = world.calls().await;
    let sampling = |episode: &str| -> Value {
        let call = calls.iter().find(|c| c.begun.tag.episode.as_str() == episode).unwrap();
        assert_eq!(call.begun.request, body, "the record has the agent's own words");
        serde_json::from_str(call.begun.sampling.as_deref().unwrap()).unwrap()
    };
    let own = json!({ "temperature": 1.5, "top_p": 1, "top_k": -1, "max_tokens": 2 });
    assert_eq!(sampling("own"), own);
    assert_eq!(sampling("other"), json!({ "temperature": 0, "top_k": 3, "max_tokens": 2 }));
    world.stop().await;
}

#[tokio::test]
async fn a_batch_with_forced_choices_keeps_its_prompts_apart() {
    let reply = br#"{"model":"m","choices":[
        {"index":0,"text":"x","prompt_token_ids":[1],"token_ids":[5],"finish_reason":"stop"},
        {"index":1,"text":"y","prompt_token_ids":[2],"token_ids":[6],"finish_reason":"stop"}]}"#;
    let upstream =
        Upstream::start("vllm", move |_| vec![Step::reply("200 OK", "application/json", reply)])
            .await;
    for force in ["n=1", "n=off"] {
        let config = Config { force: force.parse().unwrap(), ..config(&upstream) };
        let world = World::start_with(config).await;
        let body = r#"{"model":"m","prompt":["a","b"],"n":2}"#;
        assert_eq!(post(world.data, "/e/a/v1/completions", body).await.status, 200);
        let ended = world.ended_call().await.ended.unwrap();
        let of: Vec<_> = ended.choices.iter().map(|c| c.prompt_index).collect();
        assert_eq!((of, ended.prompts), (vec![0, 1], vec![vec![1], vec![2]]), "{force}");
        world.stop().await;
    }
}

#[tokio::test]
async fn agents_are_told_apart_and_retries_are_counted() {
    let upstream = taped("vllm", "vllm/chat.plain.json").await;
    let world = World::start(upstream.address).await;
    let turn = r#"{"session_id":"s","thread_id":"t2","parent_thread_id":"t1"}"#;
    let headers = [("x-codex-turn-metadata", turn), ("x-stainless-retry-count", "2")];
    let body = br#"{"model":"m","messages":[]}"#;
    exchange(world.data, ("POST", "/v1/chat/completions"), &headers, body).await;
    let title =
        r#"{"model":"m","messages":[{"role":"system","content":"You are a title generator."}]}"#;
    post(world.data, "/e/s/v1/chat/completions", title).await;
    let calls = world.calls().await;
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| call.begun.tag.episode.as_str() == "s"), "one episode");
    let sub = &calls[0].begun;
    assert_eq!(sub.tag.source, TagSource::Session);
    assert_eq!((sub.lineage.client.as_deref(), sub.lineage.retry), (Some("codex"), 2));
    assert_eq!(sub.lineage.parent.as_deref(), Some("t1"));
    assert_eq!(sub.lineage.kind, CallKind::Subagent);
    assert_eq!(calls[1].begun.lineage.kind, CallKind::Auxiliary);
    world.stop().await;
}

#[tokio::test]
async fn untagged_conversations_are_episodes_of_their_own() {
    let upstream = Upstream::start("vllm", |seen: &Seen| {
        let asked: Value = serde_json::from_slice(&seen.body).unwrap();
        let answer = format!("answer {}", asked["user"].as_str().unwrap_or("?"));
        let reply = json!({ "choices": [{ "index": 0, "finish_reason": "stop",
            "message": { "role": "assistant", "content": answer } }] });
        vec![Step::reply("200 OK", "application/json", reply.to_string().as_bytes())]
    })
    .await;
    let world = World::start(upstream.address).await;

    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let ask = |user: &str, messages: Value| {
        let body = json!({ "model": "m", "user": user, "messages": messages }).to_string();
        async move { post(world.data, "/v1/chat/completions", &body).await }
    };
    let start = said("user", "hi");

    for user in ["a", "b"] {
        ask(user, json!([start])).await;
    }

    for user in ["a", "b", "a"] {
        let history = [start.clone(), said("assistant", &format!("answer {user}"))];
        ask(user, json!([history[0], history[1], said("user", "more")])).await;
    }

    let recorded = world.recorded().await;
    let sizes: Vec<usize> = recorded.iter().map(|(_, calls, _)| calls.len()).collect();
    assert_eq!(sizes, [3, 2], "two conversations, the first with one turn twice");
    assert!(recorded.iter().all(|(episode, ..)| episode.source == TagSource::Auto));
    world.stop().await;
}

#[tokio::test]
async fn a_minted_key_is_a_tag_that_goes_no_further() {
    let upstream = taped("vllm", "vllm/chat.plain.json").await;
    let world = World::start(upstream.address).await;
    let minted = post(world.control, "/episodes/mine/key?attempt=2", "{}").await.json();
    let bearer = format!("Bearer {}", minted["api_key"].as_str().unwrap());
    let body = br#"{"model":"m","messages":[]}"#;
    let with = |key: String| async move {
        let headers = [("authorization", key.as_str())];
        exchange(world.data, ("POST", "/v1/chat/completions"), &headers, body).await
    };
    assert_eq!(with(bearer.clone()).await.status, 200);
    assert!(!upstream.seen().pop().unwrap().head.contains("rt-"));
    let refused = with(format!("{bearer}x")).await;
    assert_eq!((refused.status, refused.header("x-rolltape-error")), (401, Some("1")));
    let call = world.calls().await.remove(0).begun;
    assert_eq!((call.tag.episode.as_str(), call.tag.attempt), ("mine", 2));
    assert_eq!(call.tag.source, TagSource::Key);
    world.stop().await;
}

#[tokio::test]
async fn rolltapes_own_errors_have_the_form_of_the_wire() {
    let upstream = taped("vllm", "vllm/chat.plain.json").await;
    let world = World::start(upstream.address).await;
    let bad = |path: &'static str| async move {
        exchange(world.data, ("POST", path), &[("x-attempt", "one")], b"{}").await
    };
    let messages = bad("/e/a/v1/messages").await;
    assert_eq!((messages.status, messages.header("x-rolltape-error")), (400, Some("1")));
    assert_eq!(messages.json()["error"]["type"], "invalid_request_error");
    assert_eq!(messages.json()["type"], "error");
    let chat = bad("/e/a/v1/chat/completions").await.json();
    assert_eq!(chat["error"]["code"], 400);
    post(world.data, "/e/a/v1/chat/completions", "{}").await;
    post(world.control, "/episodes/a/close", "{}").await;
    let late = post(world.data, "/e/a/v1/messages", "{}").await;
    assert_eq!((late.status, late.header("x-should-retry")), (409, Some("false")));
    assert_eq!(late.json()["type"], "error");
    world.stop().await;
}
