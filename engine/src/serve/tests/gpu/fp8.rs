//! Keys and values in FP8 under a trained model: what replies say of it, and how far logprobs are
//! from those with bf16.

use std::sync::atomic::Ordering;

use kernels::KvFormat;

use super::*;

/// Bytes for the keys and values of the tiny model: 32 pages of bf16.
const CACHE_BYTES: u64 = 32 * 2 * 3 * 16 * 32 * 2;
/// The bound of the logprobs of a trained model beside those with bf16: the worst, and the mean.
const NEAR: f64 = 0.05;
const NEAR_MEAN: f64 = 0.01;

async fn server(kv_format: KvFormat) -> Server {
    let kv_cache_memory = Some(CACHE_BYTES);
    Server::start(EngineOptions { kv_format, kv_cache_memory, ..deterministic() }).await
}

/// The logprobs of the tokens of a prompt.
async fn scores(server: &Server, prompt: &[u32]) -> Vec<f64> {
    let asked = json!({"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0});
    let reply = server.text(asked).await.json();
    let scores = reply["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
    let entries = scores.iter().zip(prompt).skip(1);
    entries.map(|(entry, id)| entry[id.to_string()]["logprob"].as_f64().unwrap()).collect()
}

#[tokio::test]
async fn a_cache_of_fp8_is_told_and_near_and_has_room_for_more() {
    let _emulated = exclusive_gpu_async().await;
    let native = server(KvFormat::Native).await;
    let asked = json!({"prompt": "Where is the key?", "temperature": 0, "max_tokens": 90,
        "ignore_eos": true, "return_token_ids": true});
    let reply = native.text(asked.clone()).await.json();
    let own = &reply["choices"][0];
    let ids = |name: &str| -> Vec<u32> { serde_json::from_value(own[name].clone()).unwrap() };
    let prompt = [ids("prompt_token_ids"), ids("token_ids")].concat();
    let expected = scores(&native, &prompt).await;
    let pages = native.stats.pages_total.load(Ordering::Relaxed);
    assert!(!reply["system_fingerprint"].as_str().unwrap().contains("fp8"));
    native.stop().await;

    let server = server(KvFormat::Fp8).await;
    let more = server.stats.pages_total.load(Ordering::Relaxed);
    assert_eq!((pages, more), (32, 32 * 64 / 33));
    let reply = server.text(asked).await.json();
    let fingerprint = reply["system_fingerprint"].as_str().unwrap();
    assert!(fingerprint.ends_with("-kv-fp8"), "{fingerprint}");
    let about = server.get("/server_info?config_format=json").await.json();
    let expected_about = json!({"cache_dtype": "fp8_e4m3"});
    assert_eq!(about["vllm_config"]["cache_config"], expected_about);

    let found = scores(&server, &prompt).await;
    let gaps: Vec<f64> = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    println!("{} logprobs of a trained model: mean {mean:.5}, worst {worst:.5}", gaps.len());
    assert!(mean < NEAR_MEAN && worst < NEAR && worst > 0.0, "{mean}, {worst}");
    server.stop().await;
}
