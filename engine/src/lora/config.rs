//! `adapter_config.json`, as PEFT writes it. A field that would change the result and is not
//! implemented is refused by name.

use serde_json::Value;

use crate::config::fields::{count, flag, number};
use crate::error::ConfigError;

/// Fields that are accepted only while they are absent, null, false or empty.
const MUST_BE_UNSET: [&str; 11] = [
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "alpha_pattern",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "lora_bias",
    "fan_in_fan_out",
];

/// Values of `init_lora_weights` that leave the model's own weights unchanged.
const UNCHANGED_STARTS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// The factor of an adapter's products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LoraScaling {
    /// The rank of all additions; absent if they differ.
    pub(super) rank: Option<usize>,
    alpha: f64,
    /// True if alpha is divided by the square root of the rank (`use_rslora`).
    root: bool,
}

impl LoraScaling {
    /// Reads `adapter_config.json`.
    pub(super) fn parse(config: &Value) -> Result<LoraScaling, ConfigError> {
        refuse_unsupported(config)?;
        let rank = count(config, "r")?;
        let alpha =
            number(config, "lora_alpha")?.ok_or(ConfigError::Missing { field: "lora_alpha" })?;
        Ok(LoraScaling {
            rank: is_unset(config.get("rank_pattern")).then_some(rank),
            alpha,
            root: flag(config, "use_rslora")?.unwrap_or(false),
        })
    }

    /// The factor of an addition of a rank.
    pub(super) fn of(&self, rank: usize) -> f32 {
        let rank = rank as f64;
        (self.alpha / if self.root { rank.sqrt() } else { rank }) as f32
    }
}

fn refuse_unsupported(config: &Value) -> Result<(), ConfigError> {
    match text(config, "peft_type") {
        Some("LORA") => {}
        Some(other) => return Err(ConfigError::unsupported("peft_type", other, "`LORA`")),
        None => return Err(ConfigError::Missing { field: "peft_type" }),
    }
    if let Some(other) = text(config, "bias").filter(|bias| *bias != "none") {
        return Err(ConfigError::unsupported("bias", other, "`none`"));
    }
    let start = text(config, "init_lora_weights");
    if let Some(other) = start.filter(|start| !UNCHANGED_STARTS.contains(start)) {
        let supported = "starts that leave the model's own weights as they are";
        return Err(ConfigError::unsupported("init_lora_weights", other, supported));
    }

    for field in MUST_BE_UNSET {
        if let Some(found) = config.get(field).filter(|value| !is_unset(Some(value))) {
            return Err(ConfigError::unsupported(field, found.to_string(), "nothing"));
        }
    }
    refuse_unknown_variants(config)
}

/// Refuses every `use_...` field that is set, as newer versions of PEFT name their variants.
fn refuse_unknown_variants(config: &Value) -> Result<(), ConfigError> {
    for (name, value) in config.as_object().into_iter().flatten() {
        let is_variant = name.starts_with("use_") && name != "use_rslora";
        if is_variant && !is_unset(Some(value)) {
            return Err(ConfigError::Variant { field: name.clone(), found: value.to_string() });
        }
    }
    Ok(())
}

fn text<'a>(config: &'a Value, field: &str) -> Option<&'a str> {
    config.get(field).and_then(Value::as_str)
}

fn is_unset(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}
