//! The sampling of calls, as far as servers report it, and the verdicts on their rows.

use exporter::{Options, export};
use kit::{Step, Upstream, World, post};
use serde_json::{Value, json};

/// A whole reply with the ids that were asked for.
const REPLY: &[u8] = br#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[
    {"index":0,"message":{"role":"assistant","content":"x"},"logprobs":{"content":[
    {"token":"x","logprob":-0.5,"bytes":[120],"top_logprobs":[]}]},"finish_reason":"stop",
    "token_ids":[5]}],"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1},
    "prompt_token_ids":[1,2]}"#;

async fn server(about: Option<Vec<u8>>) -> Upstream {
    let reply = |_: &_| vec![Step::reply("200 OK", "application/json", REPLY)];
    let upstream = Upstream::start("vllm", reply).await;
    if let Some(about) = about {
        upstream.tells(about);
    }
    upstream
}

/// vLLM's description of itself, with changes in its configuration.
fn about(changes: &Value) -> Vec<u8> {
    let mut page: Value = serde_json::from_slice(&kit::tape("vllm/server_info.json")).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        page["vllm_config"]["model_config"][key] = value.clone();
    }
    page.to_string().into_bytes()
}

async fn call(world: &World, episode: &str, sampling: &Value) {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
    for (key, value) in sampling.as_object().unwrap() {
        body[key] = value.clone();
    }
    let path = format!("/e/{episode}/v1/chat/completions");
    assert_eq!(post(world.data, &path, &body.to_string()).await.status, 200);
}

/// The reasons of the only row.
async fn reasons(world: &World) -> Vec<&'static str> {
    let out = tempfile::tempdir().unwrap();
    let options = Options { out: out.path().to_owned().into(), ..Options::default() };
    let report = export(world.snapshot().await, &options).await.unwrap();
    assert_eq!(report.rows, 1);
    report.notes.reasons.keys().map(|reason| reason.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_exact_only_where_the_server_says_how_it_samples() {
    let neutral = json!({"generation_config": "vllm"});
    let cut = json!({"generation_config": "vllm", "override_generation_config": {"top_k": 5}});
    let processed = json!({"logprobs_mode": "processed_logprobs"});
    let (none, min_tokens) = (json!({}), json!({"min_tokens": 3}));
    let bent = vec!["logprobs_not_of_sampling_distribution"];
    let cases = [
        (None, &none, "raw", vec!["sampling_unknown"]),
        (Some(about(&json!({}))), &none, "raw", vec!["sampling_unknown"]),
        (Some(about(&neutral)), &none, "raw", vec![]),
        (Some(about(&neutral)), &min_tokens, "raw", bent.clone()),
        (Some(about(&cut)), &none, "raw", bent),
        (Some(about(&processed)), &min_tokens, "processed", vec![]),
    ];

    for (number, (about, sampling, kind, wanted)) in cases.into_iter().enumerate() {
        let upstream = server(about).await;
        let world = World::start(upstream.address).await;
        call(&world, "a", sampling).await;
        assert_eq!(reasons(&world).await, wanted, "case {number}");
        let ended = world.ended_call().await.ended.unwrap();
        assert_eq!(ended.logprob_kind, kind, "case {number}");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_otherwise_is_asked_again() {
    let fails = |seen: &kit::Seen| match seen.path.contains("chat") {
        true if seen.body.windows(4).any(|bytes| bytes == b"boom") => vec![Step::Cut],
        _ => vec![Step::reply("200 OK", "application/json", REPLY)],
    };
    let upstream = Upstream::start("vllm", fails).await;
    upstream.tells(about(&json!({"generation_config": "vllm"})));
    let world = World::start(upstream.address).await;

    let sampled_with = async |episode: &str| -> Value {
        let calls = world.calls().await;
        let call = calls.into_iter().find(|call| call.begun.tag.episode.as_str() == episode);
        let recorded = call.unwrap().ended.unwrap().sampled_with.unwrap();
        serde_json::from_str(&recorded).unwrap()
    };
    call(&world, "first", &json!({"top_p": 0.9})).await;
    let first = sampled_with("first").await;
    assert_eq!(first["top_p"], json!({"value": 0.9, "source": "request"}));
    assert_eq!(first["temperature"], json!({"value": 1.0, "source": "server"}));
    upstream.tells(about(&json!({})));
    call(&world, "held", &json!({})).await;
    assert_eq!(sampled_with("held").await["temperature"]["source"], "server");
    let boom = r#"{"model":"m","messages":[{"role":"user","content":"boom"}]}"#;
    assert_eq!(post(world.data, "/e/lost/v1/chat/completions", boom).await.status, 502);
    call(&world, "later", &json!({})).await;
    assert_eq!(sampled_with("later").await["temperature"]["source"], "unknown");
    world.stop().await;
}
