//! Configurations of mixtures that are read, and those that are refused.

use serde_json::json;

use super::*;
use crate::config::ModelConfig;

fn parse(changes: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 8, "hidden_size": 12,
        "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 3,
        "max_position_embeddings": 32, "rope_theta": 500.0, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 5, "norm_topk_prob": true,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::parse(&config)
}

#[test]
fn both_forms_of_a_configuration_are_read() {
    let choice = ExpertChoice { experts: 6, chosen: 2, normed: true };
    let found = parse(json!({})).unwrap();
    assert!(found.head_norm && found.heads.dim == 4);
    let expected =
        ExpertConfig { choice, intermediate: 5, shared: None, is_mixture: vec![true; 4] };
    assert_eq!(found.experts.as_ref(), Some(&expected));
    let newer = json!({"num_experts": null, "num_local_experts": 6, "mlp_only_layers": null,
        "architectures": null, "model_type": "qwen3_moe"});
    assert_eq!(parse(newer).unwrap().experts, found.experts);

    let layers = |changes| parse(changes).unwrap().experts.map(|experts| experts.is_mixture);
    let every_other = layers(json!({"decoder_sparse_step": 2}));
    assert_eq!(every_other, Some(vec![false, true, false, true]));
    let some = layers(json!({"decoder_sparse_step": 2, "mlp_only_layers": [1]}));
    assert_eq!(some, Some(vec![false, false, false, true]));
    assert_eq!(layers(json!({"mlp_only_layers": [0, 1, 2, 3]})), None);
    let plain = parse(json!({"norm_topk_prob": null})).unwrap().experts.unwrap();
    assert!(!plain.choice.normed, "transformers' default");
}

#[test]
fn mixtures_that_are_not_implemented_are_refused_by_name() {
    for (changes, expected) in [
        (json!({"num_experts": null}), "`num_experts`"),
        (json!({"num_local_experts": 7}), "`num_local_experts` is 7, but `num_experts` is 6"),
        (json!({"num_experts_per_tok": 7}), "`num_experts_per_tok` is 7, more than"),
        (json!({"num_experts": 1 << 17}), "at most 65536"),
        (json!({"moe_intermediate_size": null}), "`moe_intermediate_size`"),
        (json!({"mlp_only_layers": "x"}), "`mlp_only_layers`"),
        (json!({"shared_expert_intermediate_size": 4}), "`shared_expert_intermediate_size`"),
        (json!({"n_shared_experts": 1}), "`n_shared_experts`"),
        (json!({"n_routed_experts": 4}), "`n_routed_experts`"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "`quantization_config`"),
        (json!({"architectures": ["Qwen2MoeForCausalLM"]}), "`Qwen2MoeForCausalLM`"),
        (json!({"architectures": ["DeepseekV3ForCausalLM"]}), "`DeepseekV3ForCausalLM`"),
        (json!({"architectures": ["Qwen3ForCausalLM"]}), "`num_experts` is `6`"),
    ] {
        let found = parse(changes).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}");
    }
}
