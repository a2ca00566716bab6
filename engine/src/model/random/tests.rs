//! Random weights, and the tokenizers that are made for them.

use std::fs;
use std::path::PathBuf;

use kernels::Cpu;
use tempfile::TempDir;

use super::*;
use crate::model::cache::SequenceCache;
use crate::model::forward::{LogitRows, SequenceChunk};
use crate::model::tests::made;
use crate::{Engine, EngineOptions};

pub(crate) fn config(changes: Value) -> (TempDir, PathBuf) {
    let mut config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 2000, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "eos_token_id": 1999, "bos_token_id": 3, "tie_word_embeddings": true,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.json");
    fs::write(&path, config.to_string()).unwrap();
    (folder, path)
}

#[test]
fn numbers_are_spread_as_asked_and_follow_from_the_name() {
    let take = |name: &str, shape: &[usize]| match RandomWeights.take(name, shape).unwrap() {
        Tensor::Bf16(values) => values,
        Tensor::F32(_) => panic!("weights are to be bf16"),
    };
    let name = "model.layers.0.mlp.up_proj.weight";
    let values = take(name, &[300, 100]);
    assert_eq!(values, take(name, &[300, 100]));
    assert_ne!(values, take("model.layers.1.mlp.up_proj.weight", &[300, 100]));
    let values: Vec<f32> = values.into_iter().map(|v| bf16::from_bits(v).to_f32()).collect();
    let mean = values.iter().sum::<f32>() / 30_000.0;
    let variance = values.iter().map(|value| value * value).sum::<f32>() / 30_000.0;
    assert!(mean.abs() < 0.002, "{mean}");
    assert!((variance - 0.01).abs() < 0.0003, "{variance}");
    let norm = take("model.norm.weight", &[64]);
    assert!(norm.into_iter().all(|v| (bf16::from_bits(v).to_f32() - 1.0).abs() < 0.4));
}

#[test]
fn a_made_tokenizer_has_a_token_for_every_id_and_takes_any_text() {
    let (_keep, path) = config(json!({"eos_token_id": [7, 1999]}));
    let ModelFolder { tokenizer, eos, .. } = model_folder(&path).unwrap();
    assert_eq!((tokenizer.size(), eos), (2000, vec![7, 1999]));
    for text in ["Hello, world!\n\ttwo  spaces", "é€😀\u{0}", "<|begin|>x<|end_1999|>"] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
    assert_eq!(tokenizer.encode("<|begin|><|end_7|><|end_1999|>", false).unwrap(), [3, 7, 1999]);
    let texts: std::collections::BTreeSet<String> =
        (259..1999).map(|id| tokenizer.decode(&[id], false)).collect();
    assert_eq!(texts.len(), 1999 - 259);
    assert!(texts.iter().all(|text| text.starts_with(' ') && text.len() >= 3));
}

#[test]
fn a_mixture_of_experts_is_made_and_its_experts_are_counted() {
    let experts = json!({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1]});
    let (_keep, path) = config(experts);
    let model = model_folder(&path).unwrap().model;
    let (_keep_dense, dense) = config(json!({}));
    let dense = model_folder(&dense).unwrap().model;
    // One layer has a router and 8 experts 32 wide in place of a part 96 wide.
    let more = 2 * (8 * (64 + 3 * 64 * 32) - 3 * 64 * 96);
    assert_eq!(weight_bytes(&model), weight_bytes(&dense) + more);
    assert!(Engine::random(&path, EngineOptions::default()).is_ok());
}

#[test]
fn a_hybrid_is_made_and_its_norms_are_stored_less_one() {
    let hybrid = json!({"architectures": ["Qwen3_5ForCausalLM"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 2});
    let (_keep, path) = config(hybrid);
    let model = model_folder(&path).unwrap().model;
    // Attention has gates, and the other layer 32 + 64 + 64 + 8 rows and 64 columns of a result.
    let attention = 64 * (3 * 64 + 2 * 32);
    let delta = 64 * (32 + 64 + 64 + 8 + 64);
    let rest = 2 * 3 * 64 * 96 + 2000 * 64;
    assert_eq!(weight_bytes(&model), 2 * (attention + delta + rest));
    assert!(Engine::random(&path, EngineOptions::default()).is_ok());
    let mean = |name| {
        let values = RandomHybrid.take(name, &[64]).unwrap().widen();
        (values.iter().sum::<f32>() / 64.0).round()
    };
    assert_eq!(mean("model.layers.0.input_layernorm.weight"), 0.0);
    assert_eq!(mean("model.layers.0.linear_attn.norm.weight"), 1.0);
}

#[test]
fn a_hybrid_of_mixtures_is_made_and_counted() {
    let both = json!({"architectures": ["Qwen3_5MoeForCausalLM"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48});
    let (_keep, path) = config(both);
    let model = model_folder(&path).unwrap().model;
    let attention = 64 * (3 * 64 + 2 * 32);
    let delta = 64 * (32 + 64 + 64 + 8 + 64);
    let mixtures = 2 * (8 * (64 + 3 * 64 * 32) + 3 * 64 * 48);
    assert_eq!(weight_bytes(&model), 2 * (attention + delta + mixtures + 2000 * 64));
    assert!(Engine::random(&path, EngineOptions::default()).is_ok());
}

#[test]
fn logits_of_random_weights_are_not_flat() {
    let (_keep, path) = config(json!({}));
    let engine = Engine::random(&path, EngineOptions::default()).unwrap();
    let mut model = made(Cpu::default(), &path);
    let mut cache = SequenceCache { pages: vec![0], ..SequenceCache::default() };
    let tokens = &[5, 900, 31, 77];
    let chunk = SequenceChunk {
        tokens,
        cache: &mut cache,
        logit_rows: LogitRows::Last,
        adapter: None,
        draw: None,
        feedback: None,
    };
    let logits = model.forward(&mut [chunk]).unwrap();
    let mean = logits.iter().sum::<f32>() / logits.len() as f32;
    let spread = logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / logits.len() as f32;
    assert!((1.5..6.0).contains(&spread.sqrt()), "{}", spread.sqrt());
    assert_eq!(engine.model_name(), "small");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let refused = |changes: Value| {
        let (_keep, path) = config(changes);
        model_folder(&path).unwrap_err().to_string()
    };
    assert!(refused(json!({"vocab_size": 200})).contains("`vocab_size` = 200 is too small"));
    assert!(refused(json!({"hidden_act": "gelu"})).starts_with("cannot use"));
}

#[test]
fn only_where_weights_end_up_must_there_be_room_for_all() {
    let (_keep, path) = config(json!({"num_hidden_layers": 100_000, "hidden_size": 100_000}));
    let model = model_folder(&path).unwrap().model;
    let refused = |room| RandomWeights.check_room(&model, room).unwrap_err().to_string();
    assert!(refused(None).starts_with("the weights take"));
    assert!(refused(Some(1 << 40)).starts_with("the GPU has no memory"));
    // The machine could not hold them either, and does not have to.
    RandomWeights.check_room(&model, Some(u64::MAX)).unwrap();
    let error = Engine::random(&path, EngineOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("the weights take"), "{error}");
}
