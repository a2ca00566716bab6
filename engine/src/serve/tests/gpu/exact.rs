//! The same tokens with preemption, with cached prefixes and in any batch.

use std::sync::atomic::Ordering;

use super::*;
use crate::update::tests::{Named, file_of, folder_of, tiny, variant};

/// Bytes of a page of the tiny model's keys and values.
const PAGE_BYTES: u64 = 2 * 3 * 16 * 32 * 2;

#[tokio::test]
async fn a_reply_is_the_same_alone_in_company_and_after_it_gave_way() {
    let _emulated = exclusive_gpu_async().await;
    let bodies: Vec<Value> =
        (1..4).map(|n| merged(numbered(n), json!({"max_tokens": 12}))).collect();
    // Four pages for three replies that need one each at first, and two in the end.
    let few = EngineOptions {
        kv_cache_memory: Some(4 * PAGE_BYTES),
        max_model_len: Some(64),
        prefix_caching: false,
        ..deterministic()
    };
    let server = Server::start(few).await;
    assert_eq!(server.stats.pages_total.load(Ordering::Relaxed), 4);
    let expected = alone(&server, &bodies).await;
    assert_eq!(server.stats.preemptions.load(Ordering::Relaxed), 0);
    assert_eq!(together(&server, &bodies).await, expected);
    assert!(server.stats.preemptions.load(Ordering::Relaxed) > 0, "there are pages for all");
    server.stop().await;
}

#[tokio::test]
async fn what_is_known_of_a_prompt_changes_no_bit_of_its_reply() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let system: Vec<u32> = (0..50).map(|i| i * 31 % 380).collect();
    let body = |n: u32| {
        let own = numbered(n)["prompt"].as_array().unwrap().clone();
        let prompt: Vec<Value> = system.iter().map(|id| json!(id)).chain(own).collect();
        merged(numbered(n), json!({ "prompt": prompt }))
    };
    let bodies = [body(1), body(2), body(3)];
    let mut cold = Vec::new();
    for body in &bodies {
        server.post_text("/reset_prefix_cache", "").await;
        cold.extend(alone(&server, std::slice::from_ref(body)).await);
    }
    assert_eq!(server.stats.prefix_hits.load(Ordering::Relaxed), 0);
    server.post_text("/reset_prefix_cache", "").await;
    // Together the first computes what they have in common; then each finds all of its own.
    assert_eq!(together(&server, &bodies).await, cold);
    assert_eq!(server.stats.prefix_hits.load(Ordering::Relaxed), 2 * 48);
    assert_eq!(alone(&server, &bodies).await, cold);
    let whole: u64 = [body(1), body(2), body(3)]
        .iter()
        .map(|body| (body["prompt"].as_array().unwrap().len() as u64 - 1) / 16 * 16)
        .sum();
    assert_eq!(server.stats.prefix_hits.load(Ordering::Relaxed), 2 * 48 + whole);
    server.stop().await;
}

#[tokio::test]
async fn tokens_of_the_host_and_of_the_device_come_from_one_step() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    // Those in between are chosen by the host: a bias, a form, a penalty, scores of the prompt.
    let bodies = [
        numbered(1),
        merged(numbered(2), json!({"logit_bias": {"7": 4.0}})),
        numbered(3),
        merged(numbered(4), json!({"structured_outputs": {"regex": "[0-9]{5}"}})),
        merged(numbered(5), json!({"repetition_penalty": 1.3})),
        numbered(6),
        merged(numbered(7), json!({"prompt_logprobs": 1})),
    ];
    let expected = alone(&server, &bodies).await;
    assert_eq!(together(&server, &bodies).await, expected);
    let mut reversed = bodies.to_vec();
    reversed.reverse();
    let mut found = together(&server, &reversed).await;
    found.reverse();
    assert_eq!(found, expected);
    server.stop().await;
}

/// Makes a folder of the tiny model with other weights.
fn model_of(number: u32) -> tempfile::TempDir {
    let folder = folder_of(&variant(number));
    for file in std::fs::read_dir(tiny()).unwrap() {
        let file = file.unwrap();
        let to = folder.path().join(file.file_name());
        if !to.exists() {
            std::fs::copy(file.path(), to).unwrap();
        }
    }
    folder
}

#[tokio::test]
async fn checksums_are_those_of_what_the_gpu_computes_with() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let first = checked(&server).await;
    let info = server.get("/server_info?config_format=json").await.json();
    assert_eq!(info["vllm_config"]["model_config"]["dtype"], "torch.bfloat16");
    // A trainer's numbers are rounded here; those that it has rounded itself are the same ones.
    let rounded = |mut named: Named| {
        for (shape, values) in named.values_mut() {
            let matrix = if shape.len() == 2 { &mut values[..] } else { &mut [] };
            matrix.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
        }
        named
    };
    let push = async |named: &Named| {
        let file = file_of(named, safetensors::Dtype::F32);
        let done = server.post_bytes("/update_weights", &file).await;
        assert_eq!(done.status, 200, "{}", done.body);
        checked(&server).await
    };
    assert_ne!(rounded(variant(1)), variant(1));
    let second = push(&variant(1)).await;
    assert_ne!(second, first);
    assert_eq!(push(&rounded(variant(1))).await, second);
    assert_eq!(push(&variant(0)).await, first);
    server.stop().await;
}

#[tokio::test]
async fn recorded_steps_compute_with_new_weights() {
    let emulated = exclusive_gpu_async().await;
    let bodies: Vec<Value> = (0..3).map(numbered).collect();
    let other = model_of(1);
    let server = Server::of(other.path(), deterministic()).await;
    let expected = together(&server, &bodies).await;
    server.stop().await;
    let server = Server::start(deterministic()).await;
    let before = together(&server, &bodies).await;
    assert_ne!(before, expected);
    // What came up once is recorded when it comes again.
    server.post_text("/reset_prefix_cache", "").await;
    assert_eq!(together(&server, &bodies).await, before);
    let (recorded, launched) = recordings(&emulated);
    assert!(recorded > 0);
    for number in [1, 0, 1] {
        let folder = folder_of(&variant(number));
        let done = server.post("/update_weights", &json!({"weight_dir": folder.path()})).await;
        assert_eq!(done.status, 200, "{}", done.body);
        let found = together(&server, &bodies).await;
        assert_eq!(found, if number == 1 { expected.clone() } else { before.clone() });
    }
    let after = recordings(&emulated);
    assert_eq!(after.0, recorded, "steps were recorded anew");
    assert!(after.1 >= launched + 3 * 3, "{after:?} after {launched}");
    server.stop().await;
}
