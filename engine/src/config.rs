//! A model's `config.json` and `generation_config.json`, as transformers 4 and 5 write them.
//!
//! [`ModelConfig`] is what the forward pass needs; what it could not compute is refused here, by
//! field, before a weight is read.

use kernels::Heads;
use serde_json::Value;

use crate::rope::Rope;

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
    /// A field that is not known asks for a variant of the method.
    #[error("field `{field}` is `{found}`, which is not supported")]
    Variant {
        /// The field.
        field: String,
        /// Its value.
        found: String,
    },
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
    pub(crate) rope: Rope,
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

/// The largest count that is believed; products of two of them fit a machine word.
const LARGEST: usize = 1 << 28;

/// What `transformers` takes the width of a head to be where a Qwen3 configuration does not say.
const QWEN3_HEAD_DIM: usize = 128;

/// Layers without a window where a Qwen configuration does not say (`max_window_layers`).
const DEFAULT_FULL_LAYERS: f64 = 28.0;

impl ModelConfig {
    /// Reads `config.json`.
    pub(crate) fn parse(config: &Value) -> Result<ModelConfig, ConfigError> {
        let architecture = architecture(config)?;
        refuse_unsupported(config)?;
        refuse_windows(config, architecture)?;
        let hidden = count(config, "hidden_size")?;
        let heads = heads(config, hidden, architecture)?;
        let bias = flag(config, "attention_bias")?.unwrap_or(false);
        let rope = Rope::parse(config)?;
        Ok(ModelConfig {
            vocab: count(config, "vocab_size")?,
            hidden,
            intermediate: count(config, "intermediate_size")?,
            layers: count(config, "num_hidden_layers")?,
            heads,
            eps: number(config, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            positions: rope.positions(count(config, "max_position_embeddings")?),
            rope,
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

/// The model's class, or its `model_type` where nobody wrote the class down.
fn architecture(config: &Value) -> Result<Architecture, ConfigError> {
    let field = "architectures";
    let listed = config.get(field).and_then(|list| list.get(0));
    let kind = config.get("model_type").and_then(Value::as_str);
    match (listed.and_then(Value::as_str), kind) {
        (Some("Qwen3ForCausalLM"), _) | (None, Some("qwen3")) => Ok(Architecture::Qwen3),
        (Some("Qwen2ForCausalLM"), _) | (None, Some("qwen2")) => Ok(Architecture::Qwen2),
        (Some("LlamaForCausalLM"), _) | (None, Some("llama")) => Ok(Architecture::Llama),
        (Some(other), _) => unsupported(field, other, ARCHITECTURES),
        (None, Some(other)) => unsupported("model_type", other, "`qwen3`, `qwen2`, `llama`"),
        (None, None) => Err(ConfigError::Missing { field }),
    }
}

/// Fields that would change the result and that the forward pass does not know.
fn refuse_unsupported(config: &Value) -> Result<(), ConfigError> {
    let activation = config.get("hidden_act").filter(|value| !value.is_null());
    if let Some(other) = activation.filter(|name| *name != "silu" && *name != "swish") {
        return unsupported("hidden_act", &plain(other), "`silu`");
    }
    if flag(config, "mlp_bias")?.unwrap_or(false) {
        return unsupported("mlp_bias", "true", "`false`");
    }
    for field in ["num_experts", "num_local_experts", "n_routed_experts"] {
        if let Some(experts) = number(config, field)?.filter(|experts| *experts != 0.0) {
            return unsupported(field, &experts.to_string(), "no mixture of experts");
        }
    }
    for field in ["quantization_config", "compression_config"] {
        match config.get(field) {
            None | Some(Value::Null) => {}
            Some(found) => {
                let method = found.get("quant_method").map_or("set".into(), plain);
                return unsupported(field, &method, "no quantization");
            }
        }
    }
    Ok(())
}

/// Attention to less than everything before. Fields that switch nothing on may say what they like:
/// most of these models name a window that they do not use.
fn refuse_windows(config: &Value, architecture: Architecture) -> Result<(), ConfigError> {
    const ALL: &str = "`full_attention`";
    if let Some(kinds) = config.get("layer_types").and_then(Value::as_array) {
        let other = kinds.iter().find(|kind| *kind != "full_attention");
        return other.map_or(Ok(()), |kind| unsupported("layer_types", &plain(kind), ALL));
    }
    let window = number(config, "sliding_window")?;
    let used = flag(config, "use_sliding_window")?.unwrap_or(architecture == Architecture::Llama);
    let Some(window) = window.filter(|_| used) else { return Ok(()) };
    let layers = count(config, "num_hidden_layers")?;
    let full = match number(config, "max_window_layers")? {
        Some(full) => full,
        None if architecture == Architecture::Llama => 0.0,
        None => DEFAULT_FULL_LAYERS,
    };
    if full >= layers as f64 {
        return Ok(());
    }
    unsupported("sliding_window", &window.to_string(), "`null`, or `use_sliding_window` = `false`")
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn heads(config: &Value, hidden: usize, architecture: Architecture) -> Result<Heads, ConfigError> {
    let query = count(config, "num_attention_heads")?;
    let optional = |field| match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => count(config, field).map(Some),
    };
    let kv = optional("num_key_value_heads")?.unwrap_or(query);
    if !query.is_multiple_of(kv) {
        let reason = format!("is {kv}, which does not divide `num_attention_heads` = {query}");
        return Err(ConfigError::Field { field: "num_key_value_heads", reason });
    }
    let dim = match optional("head_dim")? {
        Some(dim) => dim,
        None if architecture == Architecture::Qwen3 => QWEN3_HEAD_DIM,
        None if hidden.is_multiple_of(query) => hidden / query,
        None => {
            let reason = format!("is {hidden}, not a multiple of `num_attention_heads` = {query}");
            return Err(ConfigError::Field { field: "hidden_size", reason });
        }
    };
    if !dim.is_multiple_of(2) {
        let reason = format!("is {dim}, which is not an even number");
        return Err(ConfigError::Field { field: "head_dim", reason });
    }
    Ok(Heads { query, kv, dim })
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

pub(crate) fn unsupported<T>(
    field: &'static str,
    found: &str,
    supported: &'static str,
) -> Result<T, ConfigError> {
    Err(ConfigError::Unsupported { field, found: found.to_owned(), supported })
}

/// A positive whole number that must be there.
pub(crate) fn count(config: &Value, field: &'static str) -> Result<usize, ConfigError> {
    let value = config.get(field).ok_or(ConfigError::Missing { field })?;
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| *count > 0).ok_or_else(|| ConfigError::Field {
        field,
        reason: format!("is {value}, not a positive whole number"),
    })?;
    if count > LARGEST {
        let reason = format!("is {count}, more than any model has");
        return Err(ConfigError::Field { field, reason });
    }
    Ok(count)
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

pub(crate) fn flag(config: &Value, field: &'static str) -> Result<Option<bool>, ConfigError> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(value) => {
            Err(ConfigError::Field { field, reason: format!("is {value}, not a boolean") })
        }
    }
}

#[cfg(test)]
mod tests;
