//! `adapter_config.json`, as PEFT writes it. What would change the result and is not computed here
//! is refused by field.

use serde_json::Value;

use crate::config::{ConfigError, count, flag, number, unsupported};

/// Fields that say nothing of interest here only while they are absent, null, false or empty.
const UNSET: [&str; 11] = [
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

/// Ways to begin that leave the model's own weights as they are.
const PLAIN_STARTS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// What the products of an adapter are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scaling {
    /// The rank of all additions; absent if they differ.
    pub(super) rank: Option<usize>,
    alpha: f64,
    /// Whether the square root of the rank divides, and not the rank.
    root: bool,
}

impl Scaling {
    /// Reads `adapter_config.json`.
    pub(super) fn parse(config: &Value) -> Result<Scaling, ConfigError> {
        refuse_unsupported(config)?;
        let rank = count(config, "r")?;
        let alpha = number(config, "lora_alpha")?;
        let alpha = alpha.ok_or(ConfigError::Missing { field: "lora_alpha" })?;
        Ok(Scaling {
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
    let text = |field| config.get(field).and_then(Value::as_str);
    match text("peft_type") {
        Some("LORA") => {}
        Some(other) => return unsupported("peft_type", other, "`LORA`"),
        None => return Err(ConfigError::Missing { field: "peft_type" }),
    }
    if let Some(other) = text("bias").filter(|bias| *bias != "none") {
        return unsupported("bias", other, "`none`");
    }
    if let Some(start) = text("init_lora_weights").filter(|start| !PLAIN_STARTS.contains(start)) {
        let plain = "starts that leave the model's own weights as they are";
        return unsupported("init_lora_weights", start, plain);
    }
    for field in UNSET {
        if let Some(found) = config.get(field).filter(|value| !is_unset(Some(value))) {
            return unsupported(field, &found.to_string(), "nothing");
        }
    }
    // What has no place in the list above because it is newer.
    let variant = |(name, value): &(&String, &Value)| {
        name.starts_with("use_") && *name != "use_rslora" && !is_unset(Some(value))
    };
    match config.as_object().and_then(|fields| fields.iter().find(variant)) {
        Some((name, value)) => {
            Err(ConfigError::Variant { field: name.clone(), found: value.to_string() })
        }
        None => Ok(()),
    }
}

fn is_unset(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}
