//! A hybrid on a GPU, beside the CPU: what it says, what it finds in the prefix cache, and weights
//! that change while it serves.

use safetensors::Dtype;

use super::super::hybrid::{folder, weights};
use super::*;
use crate::update::tests::file_of;

/// Error of a logprob in bf16, at worst.
const NEAR: f64 = 0.2;

async fn hybrid(options: EngineOptions) -> Server {
    Server::of(&folder(), options).await
}

/// The chat of the game that the model was trained on.
fn game() -> Value {
    json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0.0,
        "max_tokens": 24, "return_token_ids": true, "logprobs": true})
}

/// Ids and logprobs of the only choice.
fn spoken(reply: &Value) -> (Value, Vec<f64>) {
    let choice = &reply["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let logprobs = tokens.iter().map(|token| token["logprob"].as_f64().unwrap()).collect();
    (choice["token_ids"].clone(), logprobs)
}

fn cached(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn a_hybrid_says_on_a_gpu_what_it_says_on_the_cpu() {
    let _emulated = exclusive_gpu_async().await;
    let on_cpu = EngineOptions { device: DeviceChoice::Cpu, ..deterministic() };
    let server = hybrid(on_cpu).await;
    let expected = spoken(&server.post("/v1/chat/completions", &game()).await.json());
    server.stop().await;
    assert!(expected.1.len() > 2, "{expected:?}");
    for deterministic_too in [false, true] {
        let options = EngineOptions { deterministic: deterministic_too, ..deterministic() };
        let server = hybrid(options).await;
        let found = spoken(&server.post("/v1/chat/completions", &game()).await.json());
        server.stop().await;
        assert_eq!(found.0, expected.0);
        let mut pairs = found.1.iter().zip(&expected.1);
        assert!(pairs.all(|(found, expected)| (found - expected).abs() < NEAR), "{:?}", found.1);
    }
}

#[tokio::test]
async fn bits_are_the_same_alone_together_and_from_kept_states() {
    let emulated = exclusive_gpu_async().await;
    let server = hybrid(deterministic()).await;
    let bodies: Vec<Value> = (0..4).map(numbered).collect();
    let expected = alone(&server, &bodies).await;
    let (before, _) = recordings(&emulated);
    assert_eq!(together(&server, &bodies).await, expected);
    server.post_text("/reset_prefix_cache", "").await;
    assert_eq!(together(&server, &bodies).await, expected);
    assert!(recordings(&emulated).0 > before, "no step was recorded");

    // The prompt goes through two chunks, and its last full page has a state.
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 380).collect();
    let long = merged(numbered(9), json!({"prompt": prompt, "temperature": 0.0, "max_tokens": 20}));
    let first = server.post("/v1/completions", &long).await.json();
    let second = server.post("/v1/completions", &long).await.json();
    assert_eq!((cached(&first), cached(&second)), (0, 64));
    assert_eq!(first["choices"], second["choices"]);

    // The next turn begins at the last full page of prompt and reply.
    let said = first["choices"][0]["token_ids"].as_array().unwrap().clone();
    let mut turn: Vec<Value> = prompt.iter().map(|id| json!(id)).collect();
    turn.extend(said);
    turn.extend([json!(5), json!(6)]);
    let turn = merged(long, json!({"prompt": turn}));
    let third = server.post("/v1/completions", &turn).await.json();
    assert_eq!(cached(&third), 80);
    server.post_text("/reset_prefix_cache", "").await;
    let whole = server.post("/v1/completions", &turn).await.json();
    assert_eq!((cached(&whole), &whole["choices"]), (0, &third["choices"]));
    server.stop().await;
}

#[tokio::test]
async fn a_hybrid_s_weights_are_replaced_and_put_to_sleep() {
    let _emulated = exclusive_gpu_async().await;
    let server = hybrid(deterministic()).await;
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 380).collect();
    let mut bodies: Vec<Value> = (0..2).map(numbered).collect();
    bodies.push(merged(numbered(2), json!({"prompt": prompt})));
    let first = together(&server, &bodies).await;
    let checksum = checked(&server).await;

    // The weights come while replies are under way, which go on with the new ones.
    let long = merged(bodies[2].clone(), json!({"max_tokens": 60, "temperature": 0.0}));
    let under_way = server.begin("/v1/completions", &long);
    let half = file_of(&weights(0.5), Dtype::BF16);
    let pushed = server.post_bytes("/update_weights", &half).await;
    assert_eq!(pushed.status, 200, "{}", pushed.body);
    assert_eq!(said(&under_way.await.unwrap())[0]["token_ids"].as_array().unwrap().len(), 60);
    let other = (checked(&server).await, together(&server, &bodies).await);
    assert!(other.0 != checksum && other.1 != first);
    let back = file_of(&weights(1.0), Dtype::BF16);
    assert_eq!(server.post_bytes("/update_weights", &back).await.status, 200);
    // No state of other weights is found.
    let again = server.post("/v1/completions", &bodies[2]).await.json();
    assert_eq!((cached(&again), &again["choices"]), (0, &first[2]));
    assert_eq!(
        (checked(&server).await, together(&server, &bodies).await),
        (checksum.clone(), first.clone())
    );

    assert_eq!(server.post_text("/sleep?level=1", "").await.status, 200);
    assert_eq!(checked(&server).await, checksum);
    assert_eq!(server.post_text("/wake_up", "").await.status, 200);
    assert_eq!(together(&server, &bodies).await, first);
    server.stop().await;
}
