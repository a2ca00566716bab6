//! Servers' own routes for text, and routes that sample unrecorded tokens.

use bytes::Bytes;
use episode::{Outcome, Route};
use kit::{Seen, Step, Upstream, World, exchange, post, tape};
use proxy::Config;
use serde_json::{Value, json};
use wire::{AskOptions, Collector, Dialect, Facts, ReplyDocument, ReplyFilter, Request, Splitter};

/// Real replies with our fields and without: server, case, and the ending of the file.
const CASES: [(&str, &str, &str); 10] = [
    ("llamacpp", "text", "json"),
    ("llamacpp", "text_stream", "sse"),
    ("llamacpp", "limit", "json"),
    ("llamacpp", "batch", "json"),
    ("llamacpp", "stop_string", "json"),
    ("sglang", "text", "json"),
    ("sglang", "text_stream", "sse"),
    ("sglang", "limit", "json"),
    ("sglang", "batch", "json"),
    ("sglang", "two_stream", "sse"),
];

/// Keys of values that differ between two runs of one call: ids and times.
const RUNS: [&str; 8] = [
    "id",
    "id_slot",
    "e2e_latency",
    "response_sent_to_client_ts",
    "timings",
    "cached_tokens",
    "cached_tokens_details",
    "tokens_cached",
];

fn file(server: &str, case: &str, ending: &str) -> Bytes {
    Bytes::from(tape(&format!("{server}/generate/{case}.{ending}")))
}

fn asked(server: &str, case: &str) -> (Request, wire::AugmentedRequest) {
    let request = Request::read(&file(server, case, "request.json")).unwrap();
    let options = AskOptions::for_dialect(Dialect::from_word(server).unwrap());
    let asked = wire::ask(&options, Route::Generate, &request, None, |_| false);
    (request, asked)
}

fn events(bytes: &[u8]) -> Vec<wire::Event> {
    let mut splitter = Splitter::default();
    splitter.push(bytes);
    std::iter::from_fn(|| splitter.next_event().unwrap()).collect()
}

fn shown(hide: &ReplyFilter, reply: &Bytes, ending: &str) -> Vec<u8> {
    match ending {
        "sse" => {
            events(reply).iter().filter_map(|event| hide.event(&event.read())).flatten().collect()
        }
        _ => hide.document(&ReplyDocument::new(reply.clone())).to_vec(),
    }
}

/// The documents of a reply, in order, without the values that differ between two runs. Keys keep
/// their order, so equal texts mean equal bytes apart from these values.
fn documents(reply: &[u8]) -> Vec<String> {
    let steady = |bytes: &[u8]| match serde_json::from_slice::<Value>(bytes) {
        Ok(mut document) => {
            steady(&mut document);
            document.to_string()
        }
        Err(_) => String::from_utf8(bytes.to_vec()).unwrap(),
    };
    match reply.starts_with(b"data:") {
        true => events(reply).iter().filter_map(|e| Some(steady(&e.data()?))).collect(),
        false => vec![steady(reply)],
    }
}

fn steady(value: &mut Value) {
    // SGLang writes the ids of an event later than its counts.
    let count = value.pointer("/meta_info/completion_tokens").and_then(Value::as_u64);
    let ids = value.get_mut("output_ids").and_then(Value::as_array_mut);
    if let (Some(count), Some(ids)) = (count, ids) {
        ids.truncate(usize::try_from(count).unwrap());
    }
    match value {
        Value::Array(list) => list.iter_mut().for_each(steady),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if RUNS.contains(&key.as_str()) {
                    *value = Value::Null;
                }
                steady(value);
            }
            // It stands in the first event that a process of the server sends, wherever that is.
            map.shift_remove("response_sent_to_client_ts");
        }
        _ => {}
    }
}

fn facts(server: &str, case: &str, ending: &str) -> Facts {
    let (request, _) = asked(server, case);
    let mut collector = Collector::new(Route::Generate, Some(&request), None);
    let reply = file(server, case, &format!("asked.{ending}"));
    match ending {
        "sse" => events(&reply).iter().filter_map(|event| event.data()).for_each(|data| {
            if data.trim_ascii() != b"[DONE]" {
                collector.take(&data);
            }
        }),
        _ => collector.take(&reply),
    }
    assert!(collector.finished(), "{server} {case}");
    collector.facts()
}

#[test]
fn what_is_asked_on_a_servers_own_route_is_hidden_in_its_reply() {
    for (server, case, ending) in CASES {
        let (_, asked) = asked(server, case);
        assert_eq!(asked.body, file(server, case, "sent.json"), "{server} {case}");
        let reply = file(server, case, &format!("asked.{ending}"));
        let plain = file(server, case, &format!("plain.{ending}"));
        assert_ne!(documents(&reply), documents(&plain), "{server} {case}: nothing was asked");
        let shown = shown(&asked.hide, &reply, ending);
        let (mut shown, mut plain) = (documents(&shown), documents(&plain));
        if case.starts_with("two") {
            // Whose turn it is differs, too.
            shown.sort();
            plain.sort();
        }
        assert_eq!(shown, plain, "{server} {case}");
    }
}

#[test]
fn a_servers_own_route_tells_what_it_sampled() {
    let end = [391, 386, 19, 329, 392, 390];
    let prompt: &[u32] = &[389, 387, 16, 368, 22, 380, 18, 351, 390, 198, 389, 383];
    for (server, case, ending, ids, finish) in [
        ("llamacpp", "text", "json", vec![&end[..]], "stop"),
        ("llamacpp", "text_stream", "sse", vec![&end[..]], "stop"),
        ("llamacpp", "limit", "json", vec![&[19, 21, 21][..]], "length"),
        ("llamacpp", "batch", "json", vec![&end[..4], &[19, 21, 21, 21]], "length"),
        ("sglang", "text", "json", vec![&end[..]], "stop"),
        ("sglang", "text_stream", "sse", vec![&end[..]], "stop"),
        ("sglang", "batch", "json", vec![&end[..4], &[19, 21, 21, 21]], "length"),
        ("sglang", "two_stream", "sse", vec![&[19, 21, 21][..], &[19, 21, 21]], "length"),
    ] {
        let facts = facts(server, case, ending);
        let told: Vec<&[u32]> =
            facts.choices.iter().map(|c| c.token_ids.as_deref().unwrap()).collect();
        assert_eq!(told, ids, "{server} {case}");
        for choice in &facts.choices {
            assert_eq!(choice.finish_reason.as_deref(), Some(finish), "{server} {case}");
            assert_eq!(choice.logprobs.len(), choice.token_ids.as_ref().unwrap().len());
            assert!(choice.logprobs.iter().all(|l| (-20.0..0.0).contains(l)), "{server} {case}");
        }
        let sampled: usize = ids.iter().map(|ids| ids.len()).sum();
        assert_eq!(facts.usage.completion, Some(sampled as u64), "{server} {case}");
        if server == "sglang" && case.starts_with("text") {
            assert_eq!(facts.prompts, [prompt], "{case}");
            assert_eq!(facts.choices[0].versions[0].version, "default");
        }
        let answers =
            wire::answers(Route::Generate, &file(server, case, &format!("plain.{ending}")));
        assert_eq!(answers.len(), ids.len(), "{server} {case}");
    }

    let cut = facts("llamacpp", "stop_string", "json");
    assert_eq!(cut.choices[0].stop_reason.as_deref(), Some("arg"));
    assert_eq!(cut.choices[0].token_ids.as_deref(), Some(&end[..2]));
    assert!(cut.choices[0].logprobs.iter().all(|logprob| logprob.is_nan()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_servers_own_route_is_recorded_with_its_ids() {
    let script = |seen: &Seen| {
        let case = if seen.path.starts_with("/generate") { "sglang" } else { "llamacpp" };
        let reply = tape(&format!("{case}/generate/text.asked.json"));
        match seen.path.as_str() {
            "/tokenize" => {
                let ids = r#"{"tokens":[389,387,16,368,22,380,18,351,390,198,389,383]}"#;
                vec![Step::reply("200 OK", "application/json", ids.as_bytes())]
            }
            _ => vec![Step::reply("200 OK", "application/json", &reply)],
        }
    };

    for (dialect, path, route) in [
        ("sglang", "/generate", Route::Generate),
        ("llamacpp", "/completion", Route::Generate),
        ("llamacpp", "/completions", Route::Completions),
    ] {
        let upstream = Upstream::start(dialect, script).await;
        let world = World::start(upstream.address).await;
        let body = String::from_utf8(tape(&format!("{dialect}/generate/text.request.json")));
        let reply = post(world.data, &format!("/e/a{path}"), &body.unwrap()).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(!reply.text().contains("logprob\":"), "{path}: {}", reply.text());
        let call = world.ended_call().await;
        assert_eq!(call.begun.route, route);
        let ended = call.ended.unwrap();
        assert_eq!(ended.outcome, Outcome::Complete, "{path}");
        assert_eq!(ended.prompts[0].len(), 12, "{path}");
        assert_eq!(ended.choices[0].token_ids.as_ref().unwrap().len(), 6, "{path}");
        assert_eq!((ended.translated, ended.unasked), (None, None), "{path}");
        let sampled: Value = serde_json::from_str(&ended.sampled_with.unwrap()).unwrap();
        assert_eq!(sampled["temperature"], json!({"value": 0, "source": "request"}), "{path}");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invocation_is_recorded_as_what_its_body_is() {
    let upstream = Upstream::start("vllm", |_| {
        let reply = tape("vllm/chat/text.asked.json");
        vec![Step::reply("200 OK", "application/json", &reply)]
    })
    .await;
    let world = World::start(upstream.address).await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let reply = post(world.data, "/e/a/invocations", body).await;
    assert_eq!(reply.status, 200);
    let call = world.ended_call().await;
    assert_eq!((call.begun.route, call.begun.path.as_str()), (Route::Chat, "/invocations"));
    assert!(call.ended.unwrap().choices[0].token_ids.is_some());
    assert_eq!(upstream.seen()[0].path, "/invocations");
    world.stop().await;
}

fn config(upstream: &Upstream) -> Config {
    Config::new(format!("http://{}", upstream.address).parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_samples_unheard_is_refused_unless_it_is_let_pass() {
    let upstream =
        Upstream::start("vllm", |_| vec![Step::reply("200 OK", "application/json", b"{}")]).await;
    let world = World::start(upstream.address).await;

    let paths = [
        "/v1/chat/completions/batch",
        "/e/a/v1/chat/completions/batch",
        "/v1//chat/%63ompletions/batch/",
        "/inference/v1/generate",
        "/api/chat",
        "/generate",
        "/e/a/completion",
    ];

    for path in paths {
        let reply = post(world.data, path, r#"{"text":"a"}"#).await;
        assert_eq!(reply.status, 403, "{path}");
        assert_eq!(reply.json()["error"]["code"], 403, "{path}");
        assert!(reply.text().contains("--allow-unrecorded-sampling"), "{path}: {}", reply.text());
    }

    assert!(upstream.seen().is_empty());
    let get = exchange(world.data, ("GET", "/v1/chat/completions/batch"), &[], b"").await;
    assert_eq!(get.status, 403, "no agent needs it");
    world.stop().await;
    let config = Config { allow_unrecorded_sampling: true, ..config(&upstream) };
    let world = World::start_with(config).await;

    for path in paths {
        assert_eq!(post(world.data, path, r#"{"text":"a"}"#).await.status, 200, "{path}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_messages_call_without_a_limit_is_refused_alike() {
    let upstream = Upstream::start("vllm", |_| vec![Step::Cut]).await;
    let world = World::start(upstream.address).await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
    let reply = post(world.data, "/e/a/v1/messages", body).await;
    assert_eq!((reply.status, reply.json()["type"].clone()), (400, json!("error")));
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    assert!(upstream.seen().is_empty());
    assert_eq!(world.ended_call().await.ended.unwrap().outcome, Outcome::Refused);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_context_that_is_told_inside_a_stream_is_a_refusal() {
    let upstream = Upstream::start("vllm", |_| {
        let body = br#"{"error":{"message":"maximum context length is 4","code":400}}"#;
        vec![Step::reply("400 Bad Request", "application/json", body)]
    })
    .await;
    let world = World::start(upstream.address).await;
    let body = r#"{"model":"m","input":"a","stream":true}"#;
    let reply = post(world.data, "/e/a/v1/responses", body).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("context_length_exceeded"), "{}", reply.text());
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!((ended.outcome, ended.status), (Outcome::Refused, Some(200)));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_there_is_the_servers_own_to_refuse() {
    let upstream = Upstream::start("sglang", |seen| match seen.path.as_str() {
        "/v1/responses" => {
            let body = br#"{"error":{"message":"The model 'nope' does not exist"}}"#;
            vec![Step::reply("404 Not Found", "application/json", body)]
        }
        _ => vec![Step::reply("200 OK", "application/json", &tape("sglang/chat/text.asked.json"))],
    })
    .await;
    let world = World::start(upstream.address).await;

    for (model, status, translated) in
        [("nope", 404, None), ("m", 200, Some(Route::Chat)), ("m:lora", 200, Some(Route::Chat))]
    {
        let body = json!({"model": model, "input": "a"}).to_string();
        let path = format!("/e/{}/v1/responses", model.replace(':', "-"));
        assert_eq!(post(world.data, &path, &body).await.status, status, "{model}");
        let calls = world.calls().await;
        let ended = calls.into_iter().find(|c| c.begun.model.as_deref() == Some(model)).unwrap();
        assert_eq!(ended.ended.unwrap().translated, translated, "{model}");
    }
    world.stop().await;
}
