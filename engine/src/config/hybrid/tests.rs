//! Configurations of hybrids that are read, and those that are refused.

use kernels::{ExpertChoice, Heads};
use serde_json::json;

use super::*;
use crate::config::ModelConfig;

/// The fields of Qwen3.5-0.8B, less deep.
fn text(changes: Value) -> Value {
    let mut config = json!({
        "model_type": "qwen3_5_text", "vocab_size": 1000, "hidden_size": 1024,
        "intermediate_size": 3584, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "attn_output_gate": true,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262_144, "tie_word_embeddings": true, "eos_token_id": 7,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7,
            "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
            "mrope_interleaved": true},
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn a_hybrid_is_read_alone_and_within_a_model_that_also_sees() {
    let alone = ModelConfig::parse(&text(json!({"architectures": ["Qwen3_5ForCausalLM"]})));
    let alone = alone.unwrap();
    let hybrid = alone.hybrid.clone().unwrap();
    let (key, value) = (16, 32);
    let heads = DeltaHeads { key, value, key_dim: 128, value_dim: 128, taps: 4 };
    assert_eq!(hybrid.heads, heads);
    assert_eq!((heads.channels(), heads.row()), (8192, 8192 + 4096 + 64));
    let is_linear: Vec<bool> = (0..8).map(|layer| layer % 4 != 3).collect();
    assert_eq!(hybrid.is_linear, is_linear);
    assert_eq!([2, 3, 4, 7].map(|layer| hybrid.index_of_kind(layer)), [2, 0, 3, 1]);
    assert_eq!((alone.attention_layers(), hybrid.linear_layers()), (2, 6));
    assert_eq!((alone.heads, alone.rotary), (Heads { query: 8, kv: 2, dim: 256 }, 64));
    assert!(alone.head_norm && alone.tied && alone.norm_offset() == 1.0);

    let seeing = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text(json!({"tie_word_embeddings": true})),
        "vision_config": {"model_type": "qwen3_5"}, "tie_word_embeddings": false,
    });
    let seeing = ModelConfig::parse(&seeing).unwrap();
    assert_eq!((seeing.hybrid, seeing.eos, seeing.tied), (alone.hybrid, alone.eos, false));
}

#[test]
fn a_hybrid_may_have_mixtures_with_a_shared_expert() {
    let mixed = |changes: Value| {
        let mut config = text(json!({"model_type": "qwen3_5_moe_text", "intermediate_size": null,
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 768}));
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::parse(&config)
    };
    let found = mixed(json!({})).unwrap();
    let experts = found.experts.unwrap();
    let choice = ExpertChoice { experts: 256, chosen: 8, normed: true };
    assert_eq!((experts.choice, experts.intermediate), (choice, 512));
    assert_eq!((experts.shared, found.intermediate), (Some(768), 768));
    assert!(experts.is_mixture == [true; 8] && found.hybrid.is_some());

    let seeing = json!({"architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": text(json!({"num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}))});
    assert!(ModelConfig::parse(&seeing).unwrap().experts.is_some());
    for missing in ["shared_expert_intermediate_size", "num_experts", "moe_intermediate_size"] {
        let error = mixed(json!({missing: null})).unwrap_err().to_string();
        assert!(error.contains(missing), "{error}");
    }
}

#[test]
fn what_a_hybrid_leaves_out_has_the_family_s_default() {
    let listed = json!({"layer_types": ["full_attention", "linear_attention"],
        "num_hidden_layers": 2, "rope_parameters": {"rope_theta": 5.0}});
    let found = ModelConfig::parse(&text(listed)).unwrap();
    assert_eq!(found.hybrid.unwrap().is_linear, [false, true]);
    assert_eq!(found.rotary, 64);
    let apart = ModelConfig::parse(&text(json!({"full_attention_interval": 2}))).unwrap();
    assert_eq!(apart.hybrid.unwrap().is_linear[..4], [true, false, true, false]);
    let older = json!({"rope_parameters": null, "rope_theta": 1e6, "partial_rotary_factor": 0.5});
    assert_eq!(ModelConfig::parse(&text(older)).unwrap().rotary, 128);
}

#[test]
fn what_a_hybrid_cannot_compute_is_refused_by_field() {
    let rope = |part: f64| json!({"rope_parameters": {"partial_rotary_factor": part}});
    let cases = [
        (json!({"attn_output_gate": false}), "field `attn_output_gate` is `false`"),
        (json!({"layer_types": ["full_attention"]}), "field `layer_types` has 1 entries"),
        (
            json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}),
            "field `layer_types` is `sliding_attention`",
        ),
        (json!({"linear_num_value_heads": 24}), "field `linear_num_value_heads` is 24, not a mult"),
        (json!({"linear_value_head_dim": 40}), "field `linear_value_head_dim` is 40, not a mult"),
        (json!({"linear_conv_kernel_dim": 0}), "field `linear_conv_kernel_dim` is 0, not a"),
        (json!({"linear_key_head_dim": null}), "field `linear_key_head_dim` is null, not a"),
        (json!({"num_experts": 8}), "field `num_experts` is `8`"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "field `quantization_config` is"),
        (rope(1.5), "field `partial_rotary_factor` is 1.5, which"),
        (rope(0.005), "field `partial_rotary_factor` is 0.005, which"),
        (
            json!({"architectures": ["Qwen3NextForCausalLM"]}),
            "field `architectures` is `Qwen3NextForCausalLM`",
        ),
    ];
    for (changes, expected) in cases {
        let error = ModelConfig::parse(&text(changes)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
