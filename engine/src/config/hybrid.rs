//! The configuration of hybrids (Qwen3.5): layers with a gated delta rule among layers with
//! attention.

use kernels::DeltaHeads;
use serde_json::Value;

use super::fields::{count, flag, number, optional_count, plain_text};
use crate::error::ConfigError;

/// The layers of a hybrid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HybridConfig {
    pub(crate) heads: DeltaHeads,
    /// For each layer, true if it has a gated delta rule in the place of attention.
    pub(crate) is_linear: Vec<bool>,
}

/// The distance of layers with attention, if no list says which they are.
const DEFAULT_INTERVAL: usize = 4;

/// The part of a head that is rotated, if the configuration does not say.
const DEFAULT_ROTARY_PART: f64 = 0.25;

/// Columns of a state that the kernels compute together.
const COLUMNS: usize = 16;

/// The key under which a model that also sees has the fields of its language model.
const TEXT_CONFIG: &str = "text_config";

/// The object of `config.json` with the fields of the language model.
pub(super) fn text_config(config: &Value) -> &Value {
    config.get(TEXT_CONFIG).filter(|text| text.is_object()).unwrap_or(config)
}

/// True if the embedding serves as the output head: what the outer object says counts.
pub(super) fn is_tied(config: &Value) -> Result<bool, ConfigError> {
    const FIELD: &str = "tie_word_embeddings";
    Ok(flag(config, FIELD)?.or(flag(text_config(config), FIELD)?).unwrap_or(false))
}

impl HybridConfig {
    /// Reads the fields of the language model.
    pub(super) fn parse(config: &Value) -> Result<HybridConfig, ConfigError> {
        if flag(config, "attn_output_gate")? == Some(false) {
            return Err(ConfigError::unsupported("attn_output_gate", "false", "`true`"));
        }
        // The forward pass adds no biases to gated attention.
        if flag(config, "attention_bias")? == Some(true) {
            return Err(ConfigError::unsupported("attention_bias", "true", "`false`"));
        }

        let heads = DeltaHeads {
            key: count(config, "linear_num_key_heads")?,
            value: count(config, "linear_num_value_heads")?,
            key_dim: count(config, "linear_key_head_dim")?,
            value_dim: count(config, "linear_value_head_dim")?,
            taps: count(config, "linear_conv_kernel_dim")?,
        };

        if !heads.value.is_multiple_of(heads.key) {
            let reason = format!(
                "is {}, not a multiple of `linear_num_key_heads` = {}",
                heads.value, heads.key
            );
            return Err(ConfigError::field("linear_num_value_heads", reason));
        }
        if !heads.value_dim.is_multiple_of(COLUMNS) {
            let reason = format!("is {}, not a multiple of {COLUMNS}", heads.value_dim);
            return Err(ConfigError::field("linear_value_head_dim", reason));
        }
        Ok(HybridConfig { heads, is_linear: linear_layers(config)? })
    }

    /// The number of layers with a gated delta rule.
    pub(crate) fn linear_layers(&self) -> usize {
        self.is_linear.iter().filter(|is_linear| **is_linear).count()
    }

    /// The index of a layer among those of its kind.
    pub(crate) fn index_of_kind(&self, layer: usize) -> usize {
        let kind = self.is_linear[layer];
        self.is_linear[..layer].iter().filter(|other| **other == kind).count()
    }
}

/// The layers with a gated delta rule: those of `layer_types`, or all but every
/// `full_attention_interval`th.
fn linear_layers(config: &Value) -> Result<Vec<bool>, ConfigError> {
    const FIELD: &str = "layer_types";
    let layers = count(config, "num_hidden_layers")?;
    let Some(kinds) = config.get(FIELD).and_then(Value::as_array) else {
        let interval = optional_count(config, "full_attention_interval")?;
        let interval = interval.unwrap_or(DEFAULT_INTERVAL);
        return Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect());
    };

    if kinds.len() != layers {
        let reason = format!("has {} entries, but `num_hidden_layers` is {layers}", kinds.len());
        return Err(ConfigError::field(FIELD, reason));
    }
    let mut is_linear = Vec::with_capacity(layers);
    for kind in kinds {
        is_linear.push(match kind.as_str() {
            Some("linear_attention") => true,
            Some("full_attention") => false,
            _ => {
                let supported = "`linear_attention`, `full_attention`";
                return Err(ConfigError::unsupported(FIELD, plain_text(kind), supported));
            }
        });
    }
    Ok(is_linear)
}

/// The elements of a head of `dim` elements that are rotated. `default` is the part if the
/// configuration does not say; a whole head for models that are no hybrids.
pub(super) fn rotary_width(
    config: &Value,
    dim: usize,
    is_hybrid: bool,
) -> Result<usize, ConfigError> {
    const FIELD: &str = "partial_rotary_factor";
    let mut part = None;
    for holder in ["rope_parameters", "rope_scaling"] {
        let fields = config.get(holder).unwrap_or(&Value::Null);
        part = part.or(number(fields, FIELD)?);
    }
    let part = part.or(number(config, FIELD)?);
    if !is_hybrid {
        return match part.filter(|part| *part != 1.0) {
            Some(part) => Err(ConfigError::unsupported(FIELD, part.to_string(), "`1`")),
            None => Ok(dim),
        };
    }

    let part = part.unwrap_or(DEFAULT_ROTARY_PART);
    let width = (dim as f64 * part) as usize;
    if part > 0.0 && part <= 1.0 && width > 0 && width.is_multiple_of(2) {
        return Ok(width);
    }
    let reason = format!("is {part}, which is not an even number of the {dim} elements of a head");
    Err(ConfigError::field(FIELD, reason))
}

#[cfg(test)]
mod tests;
