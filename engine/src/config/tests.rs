//! Configurations that are read, and those that are refused.

use serde_json::json;

use super::*;
use crate::config::rope::RopeScaling;

fn config(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 12,
        "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 3,
        "max_position_embeddings": 32, "rope_theta": 500.0, "eos_token_id": [1, 2],
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn parse(changes: Value) -> ModelConfig {
    ModelConfig::parse(&config(changes)).unwrap()
}

#[test]
fn what_a_file_leaves_out_has_the_family_s_default() {
    let llama = parse(json!({}));
    assert_eq!(llama.heads, Heads { query: 3, kv: 3, dim: 4 });
    assert_eq!(llama.eos, [1, 2]);
    assert!(!llama.tied && !llama.qkv_bias && !llama.output_bias && !llama.head_norm);
    let qwen3 = parse(json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": null}));
    assert_eq!(qwen3.heads.dim, 128);
    assert!(qwen3.head_norm && !qwen3.qkv_bias);
    let qwen2 = parse(json!({"architectures": null, "model_type": "qwen2"}));
    assert_eq!((qwen2.heads.dim, qwen2.qkv_bias, qwen2.output_bias), (4, true, false));
    let biased = parse(json!({"attention_bias": true}));
    assert!(biased.qkv_bias && biased.output_bias);
}

#[test]
fn both_forms_of_rope_are_read() {
    let four = parse(json!({})).rope;
    assert_eq!((four.theta, four.scaling), (500.0, RopeScaling::None));
    let five = json!({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}});
    assert_eq!(parse(five).rope.theta, 7.0);
    assert_eq!(parse(json!({"rope_theta": null})).rope.theta, 10_000.0);
    let scaled = parse(json!({"rope_scaling": {"type": "linear", "factor": 2.0}}));
    assert_eq!(scaled.rope, Rope { theta: 500.0, scaling: RopeScaling::Linear { factor: 2.0 } });
    assert_eq!(scaled.positions, 64);
}

#[test]
fn windows_that_are_off_are_accepted() {
    let qwen = |changes: Value| {
        let mut all = json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096});
        for (key, value) in changes.as_object().unwrap() {
            all[key] = value.clone();
        }
        ModelConfig::parse(&config(all)).map_err(|error| error.to_string())
    };
    let off = [
        json!({}),
        json!({"use_sliding_window": false, "max_window_layers": 2}),
        json!({"use_sliding_window": true, "max_window_layers": 4}),
        json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0}),
        json!({"layer_types": ["full_attention", "full_attention"]}),
    ];
    for changes in off {
        assert!(qwen(changes.clone()).is_ok(), "{changes}");
    }
    let on = json!({"use_sliding_window": true, "max_window_layers": 3});
    assert!(qwen(on).unwrap_err().starts_with("field `sliding_window` is `4096`"));
    let mixed = json!({"layer_types": ["full_attention", "sliding_attention"]});
    assert!(qwen(mixed).unwrap_err().starts_with("field `layer_types` is `sliding_attention`"));
}

#[test]
fn what_cannot_be_computed_is_refused_by_field() {
    let rope = |fields: Value| json!({"rope_scaling": fields});
    let cases = [
        (json!({"architectures": ["MambaForCausalLM"]}), "field `architectures` is `Mamba"),
        (json!({"architectures": ["Qwen2MoeForCausalLM"]}), "field `architectures` is `Qwen2Moe"),
        (json!({"architectures": []}), "field `architectures` is missing"),
        (json!({"architectures": [], "model_type": "gpt2"}), "field `model_type` is `gpt2`"),
        (json!({"num_experts": 8}), "field `num_experts` is `8`"),
        (json!({"hidden_act": "gelu"}), "field `hidden_act` is `gelu`"),
        (json!({"mlp_bias": true}), "field `mlp_bias` is `true`"),
        (json!({"sliding_window": 16}), "field `sliding_window` is `16`"),
        (json!({"vocab_size": 0}), "field `vocab_size` is 0, not a positive whole number"),
        (json!({"vocab_size": 1_u64 << 40}), "field `vocab_size` is 1099511627776, more than"),
        (json!({"hidden_size": "x"}), "field `hidden_size` is \"x\""),
        (json!({"hidden_size": 13}), "field `hidden_size` is 13, not a multiple of"),
        (json!({"head_dim": 5}), "field `head_dim` is 5, which is not an even number"),
        (json!({"head_dim": 0}), "field `head_dim` is 0, not a positive"),
        (json!({"num_key_value_heads": 2}), "field `num_key_value_heads` is 2, which"),
        (json!({"attention_bias": 1}), "field `attention_bias` is 1, not a boolean"),
        (json!({"partial_rotary_factor": 0.5}), "field `partial_rotary_factor` is `0.5`"),
        (json!({"rope_theta": 0}), "field `rope_theta` is 0, not above zero"),
        (json!({"rope_parameters": 3}), "field `rope_parameters` is 3, not an object"),
        (json!({"rope_parameters": {"full_attention": {}}}), "field `rope_parameters` is `one"),
        (rope(json!({"rope_type": "dynamic", "factor": 2})), "field `rope_type` is `dynamic`"),
        (rope(json!({"rope_type": "longrope"})), "field `rope_type` is `longrope`"),
        (rope(json!({"rope_type": "linear"})), "field `factor` is missing"),
        (rope(json!({"rope_type": "linear", "factor": -1})), "field `factor` is -1, not above"),
        (rope(json!({"rope_type": "llama3", "factor": 8})), "field `low_freq_factor` is missing"),
        (json!({"quantization_config": {"quant_method": "awq"}}), "field `quantization_config` is"),
        (json!({"eos_token_id": "x"}), "field `eos_token_id` must be a token id"),
    ];
    for (changes, expected) in cases {
        let error = ModelConfig::parse(&config(changes)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
