//! A hybrid: its files in both forms, weights that change while it serves, kept states, and what is
//! refused.

use safetensors::Dtype;

use super::adapters::{LOAD, named};
use super::*;
use crate::update::tests::{Named, file_of};

pub(super) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny-hybrid")
}

async fn hybrid() -> Server {
    Server::of(&folder(), EngineOptions { seed: Some(1), ..EngineOptions::default() }).await
}

/// The weights, each times `change`.
pub(super) fn weights(change: f32) -> Named {
    let file = std::fs::read(folder().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut named = Named::new();
    for (name, view) in file.iter() {
        let element = |bytes: &[u8; 2]| half::bf16::from_le_bytes(*bytes).to_f32() * change;
        let values = view.data().as_chunks::<2>().0.iter().map(element).collect();
        named.insert(name.to_owned(), (view.shape().to_vec(), values));
    }
    named
}

/// The same under the names of a model that also sees, with tensors that the engine leaves out.
fn seeing(plain: &Named) -> Named {
    let mut named = Named::new();
    for (name, tensor) in plain {
        named.insert(name.replacen("model.", "model.language_model.", 1), tensor.clone());
    }
    for name in ["model.visual.patch_embed.proj.weight", "mtp.layers.0.mlp.up_proj.weight"] {
        named.insert(name.to_owned(), (vec![2, 3], vec![0.5; 6]));
    }
    named
}

fn asked(changes: Value) -> Value {
    let own = json!({"max_tokens": 20, "temperature": 0, "ignore_eos": true, "logprobs": 0,
        "return_token_ids": true});
    merged(own, changes)
}

#[tokio::test]
async fn a_model_that_also_sees_is_served_as_its_language_model() {
    let plain = hybrid().await;
    let expected = plain.text(asked(json!({}))).await.json()["choices"].clone();
    let checksum = plain.get("/weight_info").await.json()["checksum"].clone();
    plain.stop().await;

    let outer = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(folder().join(name), outer.path().join(name)).unwrap();
    }
    let text: Value =
        serde_json::from_slice(&std::fs::read(folder().join("config.json")).unwrap()).unwrap();
    let config = json!({"architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": true,
        "vision_config": {"model_type": "qwen3_5"}, "image_token_id": 5});
    std::fs::write(outer.path().join("config.json"), config.to_string()).unwrap();
    let file = file_of(&seeing(&weights(1.0)), Dtype::BF16);
    std::fs::write(outer.path().join("model.safetensors"), file).unwrap();

    let server = Server::of(outer.path(), EngineOptions::default()).await;
    assert_eq!(server.text(asked(json!({}))).await.json()["choices"], expected);
    assert_eq!(server.get("/weight_info").await.json()["checksum"], checksum);
    server.stop().await;
}

#[tokio::test]
async fn a_hybrid_s_weights_are_pushed_under_both_kinds_of_names() {
    let server = hybrid().await;
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 380).collect();
    let ask = asked(json!({"prompt": prompt}));
    let cached = |reply: &Value| reply["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let before = server.text(ask.clone()).await.json();
    assert_eq!(cached(&server.text(ask.clone()).await.json()), 64);

    let mut checksums = Vec::new();
    for (label, change) in [("half", 0.5), ("back", 1.0)] {
        for (names, named) in [("plain", weights(change)), ("seeing", seeing(&weights(change)))] {
            // Other weights first, so that each push changes something.
            let own = format!("{label}-{names}");
            for (label, named) in [("other", &weights(0.75)), (own.as_str(), &named)] {
                let path = format!("/update_weights?weight_version={label}");
                let pushed = server.post_bytes(&path, &file_of(named, Dtype::BF16)).await;
                assert_eq!(pushed.status, 200, "{}", pushed.body);
            }
            let info = server.get("/weight_info").await.json();
            let read = server.post("/weight_checker", &json!({"action": "checksum"})).await.json();
            assert_eq!(info["checksum"], read["checksum"], "{label} {names}");
            checksums.push(info["checksum"].clone());
            let reply = server.text(ask.clone()).await.json();
            // No state of other weights is found.
            assert_eq!(cached(&reply), 0);
            let is_same = reply["choices"][0]["logprobs"] == before["choices"][0]["logprobs"];
            assert_eq!(is_same, label == "back");
        }
    }
    assert_eq!(checksums[0], checksums[1]);
    assert_eq!(checksums[2], checksums[3]);
    assert_ne!(checksums[0], checksums[2]);
    server.stop().await;
}

#[tokio::test]
async fn a_sleep_changes_no_reply_and_a_reset_begins_anew() {
    let server = hybrid().await;
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 380).collect();
    let ask = asked(json!({"prompt": prompt, "n": 2, "temperature": 1.0}));
    let first = server.text(ask.clone()).await.json();
    for path in ["/sleep?level=1", "/wake_up", "/reset_prefix_cache"] {
        assert_eq!(server.post_text(path, "").await.status, 200, "{path}");
    }
    let again = server.text(ask.clone()).await.json();
    let third = server.text(ask).await.json();
    for reply in [&again, &third] {
        assert_eq!(reply["choices"], first["choices"]);
    }
    let cached = |reply: &Value| reply["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!((cached(&first), cached(&again)), (json!(0), json!(0)));
    assert_eq!(cached(&third), 64);
    server.stop().await;
}

#[tokio::test]
async fn what_a_hybrid_cannot_do_is_refused_with_a_way_out() {
    let server = hybrid().await;
    let adapter = server.post(LOAD, &named("a", "every")).await;
    assert_eq!(adapter.status, 400, "{}", adapter.body);
    for words in ["linear attention", "merge the adapter into the weights"] {
        assert!(adapter.body.contains(words), "{}", adapter.body);
    }
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let seen = json!({"messages": [{"role": "user", "content": [image]}]});
    let seen = server.post("/v1/chat/completions", &seen).await;
    assert!(seen.status == 400 && seen.body.contains("image_url"), "{}", seen.body);
    server.stop().await;
}
