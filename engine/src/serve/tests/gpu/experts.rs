//! A mixture of experts on a GPU, beside the CPU.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use safetensors::Dtype;

use super::super::adapters::LOAD;
use super::adapters::{apart, scores};
use super::*;
use crate::update::tests::{Named, file_of, mixture as weights};

/// Error of a logprob in bf16, at worst and on average: that of the dense model.
const NEAR: f64 = 0.2;
const NEAR_MEAN: f64 = 0.03;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny-moe")
}

async fn mixture(options: EngineOptions) -> Server {
    Server::of(&folder(), options).await
}

fn on_cpu() -> EngineOptions {
    EngineOptions { device: DeviceChoice::Cpu, ..deterministic() }
}

/// The chat of the game that the model was trained on.
fn game(number: u32) -> Value {
    let messages = json!([{"role": "user", "content": QUESTION}]);
    json!({"messages": messages, "seed": number, "temperature": 0.0, "max_tokens": 24,
        "return_token_ids": true, "return_routed_experts": true, "logprobs": true})
}

/// Ids, logprobs and experts of the only choice.
fn spoken(reply: &Value) -> (Value, Vec<f64>, Vec<u8>) {
    let choice = &reply["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let logprobs = tokens.iter().map(|token| token["logprob"].as_f64().unwrap()).collect();
    let experts = BASE64_STANDARD.decode(choice["routed_experts"].as_str().unwrap()).unwrap();
    (choice["token_ids"].clone(), logprobs, experts)
}

#[tokio::test]
async fn a_mixture_says_on_a_gpu_what_it_says_on_the_cpu() {
    let _emulated = exclusive_gpu_async().await;
    let server = mixture(on_cpu()).await;
    let expected = spoken(&server.post("/v1/chat/completions", &game(1)).await.json());
    server.stop().await;
    for deterministic_too in [false, true] {
        let options = EngineOptions { deterministic: deterministic_too, ..deterministic() };
        let server = mixture(options).await;
        let found = spoken(&server.post("/v1/chat/completions", &game(1)).await.json());
        server.stop().await;
        assert_eq!(found.0, expected.0);
        let mut pairs = found.1.iter().zip(&expected.1);
        assert!(pairs.all(|(found, expected)| (found - expected).abs() < NEAR), "{:?}", found.1);
        // Nearly equal experts of a token may change places.
        let same = found.2.iter().zip(&expected.2).filter(|(found, expected)| found == expected);
        let (same, all) = (same.count(), expected.2.len());
        assert!(found.2.len() == all && same * 20 > all * 19, "{same} of {all} bytes");
    }
}

#[tokio::test]
async fn experts_are_the_same_alone_together_and_from_the_cache() {
    let emulated = exclusive_gpu_async().await;
    let server = mixture(deterministic()).await;
    let routed = |number| merged(numbered(number), json!({"return_routed_experts": true}));
    let bodies: Vec<Value> = (0..4).map(routed).collect();
    let expected = alone(&server, &bodies).await;
    assert!(expected.iter().all(|choices| choices[0]["routed_experts"].is_string()));
    let (before, _) = recordings(&emulated);
    assert_eq!(together(&server, &bodies).await, expected);
    server.post_text("/reset_prefix_cache", "").await;
    assert_eq!(together(&server, &bodies).await, expected);
    assert!(recordings(&emulated).0 > before, "no step was recorded");

    // The second reply takes the prompt's pages, and their experts, from the cache.
    let prompt: Vec<u32> = (0..50).map(|i| i * 7 % 380).collect();
    let long = json!({"prompt": prompt, "temperature": 0.0, "return_routed_experts": true});
    let body = merged(numbered(9), long);
    let first = alone(&server, &[body.clone(), body]).await;
    assert_eq!(first[0], first[1]);
    server.stop().await;
}

#[tokio::test]
async fn experts_are_replaced_and_put_to_sleep() {
    let _emulated = exclusive_gpu_async().await;
    let server = mixture(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let first = together(&server, &bodies).await;
    let checksum = checked(&server).await;
    let mut others = Vec::new();
    for named in weights(0.5) {
        let pushed = server.post_bytes("/update_weights", &file_of(&named, Dtype::BF16)).await;
        assert_eq!(pushed.status, 200, "{}", pushed.body);
        others.push((checked(&server).await, together(&server, &bodies).await));
        let back = file_of(&weights(1.0)[0], Dtype::BF16);
        assert_eq!(server.post_bytes("/update_weights", &back).await.status, 200);
        assert_eq!((checked(&server).await, together(&server, &bodies).await).1, first);
    }
    assert_eq!(others[0], others[1], "the layouts differ");
    assert_ne!(others[0], (checksum.clone(), first.clone()));

    assert_eq!(server.post_text("/sleep?level=1", "").await.status, 200);
    assert_eq!(checked(&server).await, checksum);
    assert_eq!(server.post_text("/wake_up", "").await.status, 200);
    assert_eq!(together(&server, &bodies).await, first);
    server.stop().await;
}

/// Writes an adapter that adds to a matrix of `rows` rows and 96 columns.
fn adapter_of(matrix: &str, rows: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let name = |factor: &str| format!("base_model.model.model.layers.{matrix}.{factor}.weight");
    let numbers = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let factors = [
        (name("lora_A"), (vec![4, 96], numbers(4 * 96))),
        (name("lora_B"), (vec![rows, 4], numbers(rows * 4))),
    ];
    let file = file_of(&Named::from_iter(factors), Dtype::F32);
    std::fs::write(folder.path().join("adapter_model.safetensors"), file).unwrap();
    let config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"});
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    folder
}

#[tokio::test]
async fn an_adapter_adds_to_attention_and_one_for_experts_is_refused() {
    let _emulated = exclusive_gpu_async().await;
    let prompt: Vec<u32> = (0..30).map(|i| i * 7 % 380).collect();
    let scored = json!({"prompt": prompt, "prompt_logprobs": 0, "max_tokens": 1});
    let (attention, experts) =
        (adapter_of("1.self_attn.q_proj", 96), adapter_of("1.mlp.experts.3.gate_proj", 64));
    let mut all = Vec::new();
    for options in [on_cpu(), deterministic()] {
        let server = mixture(EngineOptions { max_loras: 1, ..options }).await;
        let load = |folder: &tempfile::TempDir| {
            let path = folder.path();
            json!({"lora_name": "added", "lora_path": path, "load_inplace": false})
        };
        let refused = server.post(LOAD, &load(&experts)).await;
        let told = refused.status == 400
            && refused.body.contains("mlp.experts.3.gate_proj")
            && refused.body.contains("mixture of experts");
        assert!(told, "{}", refused.body);
        assert_eq!(server.post(LOAD, &load(&attention)).await.status, 200);
        let of = |model: &str| merged(numbered(0), merged(scored.clone(), json!({"model": model})));
        let replies = alone(&server, &[of("tiny-moe"), of("added")]).await;
        all.push(replies.iter().map(scores).collect::<Vec<_>>());
        server.stop().await;
    }
    for (found, expected) in all[1].iter().zip(&all[0]) {
        let (mean, worst) = apart(found, expected);
        assert!(mean < NEAR_MEAN && worst < NEAR, "{mean} on average, {worst}");
    }
    // What it adds is more than the error of bf16.
    let ((error, _), (added, _)) = (apart(&all[1][1], &all[0][1]), apart(&all[0][0], &all[0][1]));
    assert!(added > 2.0 * error, "adds {added}, with an error of {error}");
}
