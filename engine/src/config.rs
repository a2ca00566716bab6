//! A model's `config.json` and `generation_config.json`, as transformers 4 and 5 write them.
//!
//! [`ModelConfig`] is what the forward pass needs; what it could not compute is refused here, by
//! field, before a weight is read.

use kernels::Heads;
use serde_json::Value;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A field that has no default is absent.
    #[error("field `{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field has the wrong type or a value out of range.
    #[error("field `{field}` {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A field asks for something that the forward pass does not do.
    #[error("field `{field}` is `{found}`, which is not supported; supported: {supported}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// Values that would do.
        supported: &'static str,
    },
}

/// How positions are scaled before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    None,
    Linear { factor: f32 },
    Llama3 { factor: f32, low: f32, high: f32, original: f32 },
}

/// A decoder-only transformer of the Llama family.
#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) heads: Heads,
    pub(crate) eps: f32,
    pub(crate) rope_theta: f32,
    pub(crate) rope_scaling: RopeScaling,
    pub(crate) positions: usize,
    pub(crate) tied: bool,
    /// Whether every query and key head has a norm (Qwen3).
    pub(crate) head_norm: bool,
    /// Whether queries, keys and values have a bias.
    pub(crate) qkv_bias: bool,
    /// Whether the attention output has a bias.
    pub(crate) output_bias: bool,
    pub(crate) eos: Vec<u32>,
}

const ARCHITECTURES: &str = "`Qwen3ForCausalLM`, `Qwen2ForCausalLM`, `LlamaForCausalLM`";

impl ModelConfig {
    /// Reads `config.json`.
    pub(crate) fn parse(config: &Value) -> Result<ModelConfig, ConfigError> {
        let architecture = architecture(config)?;
        refuse_unsupported(config)?;
        let hidden = count(config, "hidden_size")?;
        let heads = heads(config, hidden)?;
        let bias = flag(config, "attention_bias")?.unwrap_or(false);
        let (rope_theta, rope_scaling) = rope(config)?;
        Ok(ModelConfig {
            vocab: count(config, "vocab_size")?,
            hidden,
            intermediate: count(config, "intermediate_size")?,
            layers: count(config, "num_hidden_layers")?,
            heads,
            eps: number(config, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope_theta,
            rope_scaling,
            positions: count(config, "max_position_embeddings")?,
            tied: flag(config, "tie_word_embeddings")?.unwrap_or(false),
            head_norm: architecture == Architecture::Qwen3,
            qkv_bias: bias || architecture == Architecture::Qwen2,
            output_bias: bias && architecture != Architecture::Qwen2,
            eos: eos(config)?,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Architecture {
    Qwen3,
    Qwen2,
    Llama,
}

fn architecture(config: &Value) -> Result<Architecture, ConfigError> {
    let field = "architectures";
    let name = config.get(field).and_then(|list| list.get(0)).and_then(Value::as_str);
    match name.ok_or(ConfigError::Missing { field })? {
        "Qwen3ForCausalLM" => Ok(Architecture::Qwen3),
        "Qwen2ForCausalLM" => Ok(Architecture::Qwen2),
        "LlamaForCausalLM" => Ok(Architecture::Llama),
        other => unsupported(field, other, ARCHITECTURES),
    }
}

/// Fields that would change the result and that the forward pass does not know.
fn refuse_unsupported(config: &Value) -> Result<(), ConfigError> {
    let activation = config.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
    if activation != "silu" {
        return unsupported("hidden_act", activation, "`silu`");
    }
    for field in ["use_sliding_window", "mlp_bias"] {
        if flag(config, field)?.unwrap_or(false) {
            return unsupported(field, "true", "`false`");
        }
    }
    let windowed = config.get("layer_types").and_then(Value::as_array);
    let other = windowed.into_iter().flatten().find(|kind| *kind != "full_attention");
    if let Some(kind) = other {
        return unsupported("layer_types", &kind.to_string(), "`full_attention`");
    }
    if number(config, "partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return unsupported("partial_rotary_factor", "below 1", "`1`");
    }
    match config.get("quantization_config") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => unsupported("quantization_config", "set", "no quantization"),
    }
}

fn heads(config: &Value, hidden: usize) -> Result<Heads, ConfigError> {
    let query = count(config, "num_attention_heads")?;
    let kv = match config.get("num_key_value_heads") {
        None | Some(Value::Null) => query,
        Some(_) => count(config, "num_key_value_heads")?,
    };
    let dim = match config.get("head_dim") {
        None | Some(Value::Null) => hidden / query,
        Some(_) => count(config, "head_dim")?,
    };
    if !query.is_multiple_of(kv) {
        let reason = format!("is {kv}, which does not divide `num_attention_heads` = {query}");
        return Err(ConfigError::Field { field: "num_key_value_heads", reason });
    }
    if dim == 0 || !dim.is_multiple_of(2) {
        let reason = format!("is {dim}, which is not a positive even number");
        return Err(ConfigError::Field { field: "head_dim", reason });
    }
    Ok(Heads { query, kv, dim })
}

/// Transformers 4 has `rope_theta` and `rope_scaling`, transformers 5 both in `rope_parameters`.
fn rope(config: &Value) -> Result<(f32, RopeScaling), ConfigError> {
    let parameters = config.get("rope_parameters").filter(|value| value.is_object());
    let scaling = parameters.or_else(|| config.get("rope_scaling").filter(|v| v.is_object()));
    let theta = match parameters.map(|value| number(value, "rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => number(config, "rope_theta")?.unwrap_or(10_000.0),
    };
    let Some(scaling) = scaling else { return Ok((theta as f32, RopeScaling::None)) };
    let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
    let need = |field| number(scaling, field)?.ok_or(ConfigError::Missing { field });
    let scaling = match kind.and_then(Value::as_str).unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? as f32 },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")? as f32,
            low: need("low_freq_factor")? as f32,
            high: need("high_freq_factor")? as f32,
            original: need("original_max_position_embeddings")? as f32,
        },
        other => return unsupported("rope_type", other, "`default`, `linear`, `llama3`"),
    };
    Ok((theta as f32, scaling))
}

/// `eos_token_id` of a configuration: absent, one id, or a list.
pub(crate) fn eos(config: &Value) -> Result<Vec<u32>, ConfigError> {
    let field = "eos_token_id";
    let ids = match config.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.as_slice(),
        Some(id) => std::slice::from_ref(id),
    };
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let reason = || "must be a token id or a list of them".to_owned();
    let ids: Result<_, String> = ids.iter().map(|value| id(value).ok_or_else(reason)).collect();
    ids.map_err(|reason| ConfigError::Field { field, reason })
}

fn unsupported<T>(
    field: &'static str,
    found: &str,
    supported: &'static str,
) -> Result<T, ConfigError> {
    Err(ConfigError::Unsupported { field, found: found.to_owned(), supported })
}

/// A positive whole number that must be there.
fn count(config: &Value, field: &'static str) -> Result<usize, ConfigError> {
    let value = config.get(field).ok_or(ConfigError::Missing { field })?;
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.filter(|count| *count > 0).ok_or_else(|| ConfigError::Field {
        field,
        reason: format!("is {value}, not a positive whole number"),
    })
}

/// A number that may be absent.
pub(crate) fn number(config: &Value, field: &'static str) -> Result<Option<f64>, ConfigError> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(ConfigError::Field { field, reason: format!("is {value}, not a number") }),
        },
    }
}

fn flag(config: &Value, field: &'static str) -> Result<Option<bool>, ConfigError> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(value) => {
            Err(ConfigError::Field { field, reason: format!("is {value}, not a boolean") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(changes: Value) -> Value {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 12,
            "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 3,
            "max_position_embeddings": 32, "rope_theta": 500.0, "eos_token_id": [1, 2],
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    #[test]
    fn both_forms_of_rope_are_read() {
        let four = ModelConfig::parse(&config(json!({}))).unwrap();
        assert_eq!((four.rope_theta, four.rope_scaling), (500.0, RopeScaling::None));
        let five = json!({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}});
        assert_eq!(ModelConfig::parse(&config(five)).unwrap().rope_theta, 7.0);
        let scaled = json!({"rope_scaling": {"type": "linear", "factor": 2.0}});
        let scaled = ModelConfig::parse(&config(scaled)).unwrap();
        assert_eq!(scaled.rope_scaling, RopeScaling::Linear { factor: 2.0 });
        assert_eq!(scaled.heads, Heads { query: 3, kv: 3, dim: 4 });
        assert_eq!(scaled.eos, [1, 2]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_field() {
        let cases = [
            (json!({"architectures": ["MambaForCausalLM"]}), "field `architectures` is `Mamba"),
            (json!({"hidden_act": "gelu"}), "field `hidden_act` is `gelu`"),
            (json!({"vocab_size": 0}), "field `vocab_size` is 0, not a positive whole number"),
            (json!({"hidden_size": "x"}), "field `hidden_size` is \"x\""),
            (json!({"num_key_value_heads": 2}), "field `num_key_value_heads` is 2, which"),
            (json!({"rope_scaling": {"rope_type": "yarn"}}), "field `rope_type` is `yarn`"),
            (json!({"rope_scaling": {"rope_type": "linear"}}), "field `factor` is missing"),
            (json!({"quantization_config": {}}), "field `quantization_config` is `set`"),
            (json!({"eos_token_id": "x"}), "field `eos_token_id` must be a token id"),
        ];
        for (changes, expected) in cases {
            let error = ModelConfig::parse(&config(changes)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
