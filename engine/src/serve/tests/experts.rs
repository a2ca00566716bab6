//! The experts of tokens, in vLLM's places and in SGLang's.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use safetensors::Dtype;

use super::*;
use crate::update::tests::{file_of, mixture as weights};

async fn mixture() -> Server {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny-moe");
    Server::of(&folder, EngineOptions { seed: Some(1), ..EngineOptions::default() }).await
}

/// The numbers of a NumPy file of bytes, `[tokens, 3, 2]`.
fn numpy(value: &Value, tokens: usize) -> Vec<u8> {
    let file = BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
    let header = format!("'descr': '|u1', 'fortran_order': False, 'shape': ({tokens}, 3, 2), }}");
    assert!(String::from_utf8_lossy(&file[..128]).contains(&header), "{file:?}");
    file[128..].to_vec()
}

fn asked(changes: Value) -> Value {
    let own = json!({"max_tokens": 6, "ignore_eos": true, "return_routed_experts": true});
    merged(own, changes)
}

#[tokio::test]
async fn every_route_has_the_experts_of_all_tokens_but_the_last() {
    let server = mixture().await;
    let text = server.text(asked(json!({}))).await.json();
    let experts = numpy(&text["choices"][0]["routed_experts"], 8);
    assert_eq!(experts.len(), 8 * 6);
    for token in experts.chunks_exact(6) {
        assert_eq!(token[..2], [0, 0], "the first layer has none");
        assert!(token[2] != token[3] && token[4] != token[5], "{token:?}");
        assert!(token.iter().all(|expert| *expert < 8));
    }
    assert!(experts.chunks_exact(6).any(|token| *token != experts[..6]), "all have the same");

    let events = server.text(asked(json!({"stream": true}))).await.events();
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["choices"][0]["routed_experts"], text["choices"][0]["routed_experts"]);
    assert!(before.iter().all(|event| event["choices"][0].get("routed_experts").is_none()));

    let sampling = json!({"max_tokens": 6, "ignore_eos": true, "seed": 5});
    let body = json!({"token_ids": [1, 2, 3], "sampling_params": sampling,
        "return_routed_experts": true});
    let ids = server.post("/inference/v1/generate", &body).await.json();
    assert_eq!(numpy(&ids["choices"][0]["routed_experts"], 8), experts);

    let from_two = json!({"token_ids": [1, 2, 3], "return_routed_experts": true,
        "sampling_params": {"max_tokens": 6, "ignore_eos": true, "seed": 5,
            "routed_experts_prompt_start": 2}});
    let later = server.post("/inference/v1/generate", &from_two).await.json();
    assert_eq!(numpy(&later["choices"][0]["routed_experts"], 6), experts[2 * 6..]);
    for (field, start) in [("routed_experts_prompt_start", 3), ("routed_experts_start_len", 1)] {
        let whole = server.text(asked(json!({field: start}))).await.json();
        let found = &whole["choices"][0]["routed_experts"];
        assert_eq!(numpy(found, 8 - start), experts[start * 6..], "{field}");
        let events = server.text(asked(json!({field: start, "stream": true}))).await.events();
        assert_eq!(&events.last().unwrap()["choices"][0]["routed_experts"], found, "{field}");
        let refused = server.text(asked(json!({field: 4}))).await;
        assert!(refused.status == 400 && refused.body.contains("between 0 and the prompt length"));
    }

    let sampling = json!({"max_new_tokens": 6, "ignore_eos": true, "sampling_seed": 5});
    let body = json!({"input_ids": [1, 2, 3], "sampling_params": sampling,
        "return_routed_experts": true});
    let wide: Vec<u8> = experts.iter().flat_map(|expert| [*expert, 0, 0, 0]).collect();
    for (start, from) in [(json!(null), 0), (json!(2), 2 * 6)] {
        let body = merged(body.clone(), json!({"routed_experts_start_len": start}));
        let reply = server.post("/generate", &body).await.json();
        let found = reply["meta_info"]["routed_experts"].as_str().unwrap();
        assert_eq!(BASE64_STANDARD.decode(found).unwrap(), wide[from * 4..]);
    }
    let body = merged(body, json!({"routed_experts_start_len": 4}));
    let refused = server.post("/generate", &body).await;
    assert!(refused.status == 400 && refused.body.contains("routed_experts_start_len"));
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_from_the_cache_has_the_experts_of_the_first_one() {
    let server = mixture().await;
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 380).collect();
    let ask = json!({"prompt": prompt, "n": 2, "temperature": 1.0});
    let first = server.text(asked(ask.clone())).await.json();
    let again = server.text(asked(ask)).await.json();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    for index in 0..2 {
        let of = |reply: &Value| numpy(&reply["choices"][index]["routed_experts"], 75);
        assert_eq!(of(&first), of(&again));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_chat_has_them_if_it_asks_and_a_dense_model_has_none() {
    let server = mixture().await;
    let silent = server.chat(json!({"max_tokens": 4})).await.json();
    assert_eq!(silent["choices"][0]["routed_experts"], json!(null));
    let ask = asked(json!({"return_token_ids": true}));
    let whole = server.chat(ask.clone()).await.json();
    let tokens = list(&whole["prompt_token_ids"]).len() + 5;
    let experts = numpy(&whole["choices"][0]["routed_experts"], tokens);
    assert_eq!(experts.len(), tokens * 6);
    let events = server.chat(merged(ask.clone(), json!({"stream": true}))).await.events();
    let found = &events.last().unwrap()["choices"][0]["routed_experts"];
    assert_eq!(found, &whole["choices"][0]["routed_experts"]);
    server.stop().await;

    let dense = Server::plain().await;
    assert_eq!(dense.chat(ask).await.json()["choices"][0]["routed_experts"], json!(null));
    dense.stop().await;
}

#[tokio::test]
async fn experts_are_pushed_while_it_serves_in_either_layout() {
    let server = mixture().await;
    let ask = asked(json!({"temperature": 0, "return_token_ids": true, "logprobs": 0}));
    let before = server.text(ask.clone()).await.json()["choices"][0]["logprobs"].clone();
    let first = server.get("/weight_info").await.json();
    let mut checksums = Vec::new();
    for (label, named) in ["single", "joined"].into_iter().zip(weights(0.5)) {
        // Back to the first weights, then to the others.
        for (label, named) in [(format!("{label}-1"), &weights(1.0)[1]), (label.into(), &named)] {
            let path = format!("/update_weights?weight_version={label}");
            let pushed = server.post_bytes(&path, &file_of(named, Dtype::BF16)).await;
            assert_eq!(pushed.status, 200, "{}", pushed.body);
            let info = server.get("/weight_info").await.json();
            let read = server.post("/weight_checker", &json!({"action": "checksum"})).await.json();
            assert_eq!(info["checksum"], read["checksum"]);
            checksums.push(info["checksum"].clone());
        }
        let reply = server.text(ask.clone()).await.json();
        assert_ne!(reply["choices"][0]["logprobs"], before);
    }
    assert_eq!(checksums[0], first["checksum"]);
    assert_eq!((&checksums[0], &checksums[1]), (&checksums[2], &checksums[3]));
    assert_ne!(checksums[0], checksums[1]);
    server.stop().await;
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}
