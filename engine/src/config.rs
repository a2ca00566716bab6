//! A model's `config.json`, as transformers 4 and 5 write it.
//!
//! [`ModelConfig`] is what the forward pass needs. A field that it cannot honor is refused here, by
//! name, before a weight is read.
//!
//! - [`experts`], [`hybrid`], [`rope`]: its parts.
//! - [`fields`]: typed reads of the fields of any JSON configuration.

pub(crate) mod experts;
pub(crate) mod fields;
pub(crate) mod hybrid;
pub(crate) mod rope;

use kernels::Heads;
use serde_json::Value;

use crate::error::ConfigError;
use experts::ExpertConfig;
use fields::{count, eos_ids, flag, number, optional_count, plain_text};
use hybrid::HybridConfig;
use rope::Rope;

/// A decoder-only transformer of the Llama family.
#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    /// The width of a feed-forward part that every row goes through: one that is no mixture of
    /// experts, or the shared expert of a mixture.
    pub(crate) intermediate: usize,
    /// The mixtures of experts, if any layer has one.
    pub(crate) experts: Option<ExpertConfig>,
    pub(crate) layers: usize,
    /// The layers that have no attention, if any. Attention then has an output gate, and norms but
    /// those within such layers are stored less one.
    pub(crate) hybrid: Option<HybridConfig>,
    pub(crate) heads: Heads,
    pub(crate) eps: f32,
    pub(crate) rope: Rope,
    /// The elements of a head that are rotated.
    pub(crate) rotary: usize,
    pub(crate) positions: usize,
    /// True if the embedding serves as the output head.
    pub(crate) tied: bool,
    /// True if every query and key head has a norm (Qwen3).
    pub(crate) head_norm: bool,
    /// True if queries, keys and values have a bias.
    pub(crate) qkv_bias: bool,
    /// True if the attention output has a bias.
    pub(crate) output_bias: bool,
    pub(crate) eos: Vec<u32>,
}

const ARCHITECTURES: &str = "`Qwen3_5ForCausalLM`, `Qwen3_5ForConditionalGeneration`, \
                             `Qwen3_5MoeForCausalLM`, `Qwen3_5MoeForConditionalGeneration`, \
                             `Qwen3ForCausalLM`, `Qwen3MoeForCausalLM`, `Qwen2ForCausalLM`, \
                             `LlamaForCausalLM`";

const MODEL_TYPES: &str = "`qwen3_5_text`, `qwen3_5`, `qwen3_5_moe_text`, `qwen3_5_moe`, `qwen3`, \
                           `qwen3_moe`, `qwen2`, `llama`";

/// The width of a Qwen3 head without `head_dim`, as `transformers` has it.
const QWEN3_HEAD_DIM: usize = 128;

/// The default of `max_window_layers` in Qwen configurations: layers without a window.
const DEFAULT_FULL_LAYERS: f64 = 28.0;

impl ModelConfig {
    /// Reads `config.json`.
    pub(crate) fn parse(config: &Value) -> Result<ModelConfig, ConfigError> {
        let architecture = architecture(config)?;
        refuse_unsupported(config)?;
        let is_hybrid =
            matches!(architecture, Architecture::Qwen3Hybrid | Architecture::Qwen3HybridMoe);
        let tied = hybrid::is_tied(config)?;
        // A model that also sees has its language model in an object of its own.
        let config = if is_hybrid { hybrid::text_config(config) } else { config };
        refuse_unsupported(config)?;
        let is_mixture =
            matches!(architecture, Architecture::Qwen3Moe | Architecture::Qwen3HybridMoe);
        if !is_mixture {
            ExpertConfig::refuse(config)?;
        }
        let experts = if is_mixture { ExpertConfig::parse(config, is_hybrid)? } else { None };
        let hybrid = if is_hybrid { Some(HybridConfig::parse(config)?) } else { None };
        if hybrid.is_none() {
            refuse_windows(config, architecture)?;
        }

        let hidden = count(config, "hidden_size")?;
        let heads = heads(config, hidden, architecture)?;
        // Qwen2 has biases on queries, keys and values only, whatever the file says.
        let bias = flag(config, "attention_bias")?.unwrap_or(false);
        let rope = Rope::parse(config)?;

        Ok(ModelConfig {
            vocab: count(config, "vocab_size")?,
            hidden,
            // Where every layer has a shared expert, no other part uses the field.
            intermediate: match experts.as_ref().and_then(|experts| experts.shared) {
                Some(shared) => shared,
                None => count(config, "intermediate_size")?,
            },
            experts,
            layers: count(config, "num_hidden_layers")?,
            rotary: hybrid::rotary_width(config, heads.dim, is_hybrid)?,
            hybrid,
            heads,
            eps: norm_eps(config)?,
            positions: rope.positions(count(config, "max_position_embeddings")?),
            rope,
            tied,
            head_norm: !matches!(architecture, Architecture::Qwen2 | Architecture::Llama),
            qkv_bias: bias || architecture == Architecture::Qwen2,
            output_bias: bias && architecture != Architecture::Qwen2,
            eos: eos_ids(config)?,
        })
    }

    /// The layers with attention, which are those with keys and values.
    pub(crate) fn attention_layers(&self) -> usize {
        self.layers - self.hybrid.as_ref().map_or(0, HybridConfig::linear_layers)
    }

    /// The addend of the weights of norms, but of those within layers without attention.
    pub(crate) fn norm_offset(&self) -> f32 {
        if self.hybrid.is_some() { 1.0 } else { 0.0 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Architecture {
    Qwen3Hybrid,
    Qwen3HybridMoe,
    Qwen3,
    Qwen3Moe,
    Qwen2,
    Llama,
}

/// The model's class from `architectures`, or from `model_type` if the class is absent.
fn architecture(config: &Value) -> Result<Architecture, ConfigError> {
    const FIELD: &str = "architectures";
    let class = config.get(FIELD).and_then(|list| list.get(0)).and_then(Value::as_str);
    let model_type = config.get("model_type").and_then(Value::as_str);

    match (class, model_type) {
        (Some("Qwen3_5ForCausalLM" | "Qwen3_5ForConditionalGeneration"), _)
        | (None, Some("qwen3_5" | "qwen3_5_text")) => Ok(Architecture::Qwen3Hybrid),
        (Some("Qwen3_5MoeForCausalLM" | "Qwen3_5MoeForConditionalGeneration"), _)
        | (None, Some("qwen3_5_moe" | "qwen3_5_moe_text")) => Ok(Architecture::Qwen3HybridMoe),
        (Some("Qwen3ForCausalLM"), _) | (None, Some("qwen3")) => Ok(Architecture::Qwen3),
        (Some("Qwen3MoeForCausalLM"), _) | (None, Some("qwen3_moe")) => Ok(Architecture::Qwen3Moe),
        (Some("Qwen2ForCausalLM"), _) | (None, Some("qwen2")) => Ok(Architecture::Qwen2),
        (Some("LlamaForCausalLM"), _) | (None, Some("llama")) => Ok(Architecture::Llama),
        (Some(other), _) => Err(ConfigError::unsupported(FIELD, other, ARCHITECTURES)),
        (None, Some(other)) => Err(ConfigError::unsupported("model_type", other, MODEL_TYPES)),
        (None, None) => Err(ConfigError::Missing { field: FIELD }),
    }
}

/// Refuses fields that would change the result and that the forward pass does not implement.
fn refuse_unsupported(config: &Value) -> Result<(), ConfigError> {
    // `swish` is another name of `silu`.
    let activation = config.get("hidden_act").filter(|value| !value.is_null());
    if let Some(other) = activation.filter(|name| *name != "silu" && *name != "swish") {
        return Err(ConfigError::unsupported("hidden_act", plain_text(other), "`silu`"));
    }
    if flag(config, "mlp_bias")?.unwrap_or(false) {
        return Err(ConfigError::unsupported("mlp_bias", "true", "`false`"));
    }

    for field in ["quantization_config", "compression_config"] {
        match config.get(field) {
            None | Some(Value::Null) => {}
            Some(found) => {
                let method = found.get("quant_method").map_or("set".into(), plain_text);
                return Err(ConfigError::unsupported(field, method, "no quantization"));
            }
        }
    }
    Ok(())
}

/// Refuses sliding-window attention. A window that no layer uses is accepted: most of these models
/// name one.
fn refuse_windows(config: &Value, architecture: Architecture) -> Result<(), ConfigError> {
    if let Some(kinds) = config.get("layer_types").and_then(Value::as_array) {
        return match kinds.iter().find(|kind| *kind != "full_attention") {
            None => Ok(()),
            Some(kind) => {
                let found = plain_text(kind);
                Err(ConfigError::unsupported("layer_types", found, "`full_attention`"))
            }
        };
    }

    let used = flag(config, "use_sliding_window")?.unwrap_or(architecture == Architecture::Llama);
    let Some(window) = number(config, "sliding_window")?.filter(|_| used) else { return Ok(()) };

    // The first `max_window_layers` layers have full attention.
    let layers = count(config, "num_hidden_layers")?;
    let full_layers = match number(config, "max_window_layers")? {
        Some(full_layers) => full_layers,
        None if architecture == Architecture::Llama => 0.0,
        None => DEFAULT_FULL_LAYERS,
    };
    if full_layers >= layers as f64 {
        return Ok(());
    }
    let supported = "`null`, or `use_sliding_window` = `false`";
    Err(ConfigError::unsupported("sliding_window", window.to_string(), supported))
}

/// The number that norms add to a mean of squares.
fn norm_eps(config: &Value) -> Result<f32, ConfigError> {
    const FIELD: &str = "rms_norm_eps";
    let eps = number(config, FIELD)?.unwrap_or(1e-6);
    match (0.0..=1.0).contains(&eps) {
        true => Ok(eps as f32),
        false => Err(ConfigError::field(FIELD, format!("is {eps}, which is not from 0 to 1"))),
    }
}

fn heads(config: &Value, hidden: usize, architecture: Architecture) -> Result<Heads, ConfigError> {
    let query = count(config, "num_attention_heads")?;
    let kv = optional_count(config, "num_key_value_heads")?.unwrap_or(query);
    if !query.is_multiple_of(kv) {
        let reason = format!("is {kv}, which does not divide `num_attention_heads` = {query}");
        return Err(ConfigError::field("num_key_value_heads", reason));
    }

    let dim = match optional_count(config, "head_dim")? {
        Some(dim) => dim,
        None if architecture == Architecture::Qwen3 => QWEN3_HEAD_DIM,
        None if hidden.is_multiple_of(query) => hidden / query,
        None => {
            let reason = format!("is {hidden}, not a multiple of `num_attention_heads` = {query}");
            return Err(ConfigError::field("hidden_size", reason));
        }
    };
    // A rotation turns pairs of elements.
    if !dim.is_multiple_of(2) {
        let reason = format!("is {dim}, which is not an even number");
        return Err(ConfigError::field("head_dim", reason));
    }
    Ok(Heads { query, kv, dim })
}

#[cfg(test)]
mod tests;
