//! The configuration of mixtures of experts.

use kernels::{EXPERTS_MAX, ExpertChoice};
use serde_json::Value;

use super::fields::{count, flag, number, optional_count};
use crate::error::ConfigError;

/// The mixtures of experts of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertConfig {
    pub(crate) choice: ExpertChoice,
    /// The width of an expert.
    pub(crate) intermediate: usize,
    /// The width of the expert that every row has beside those that are chosen for it, with a gate
    /// of its own.
    pub(crate) shared: Option<usize>,
    /// For each layer, true if it is a mixture of experts.
    pub(crate) is_mixture: Vec<bool>,
}

/// Names of the number of experts: that of transformers 4, that of transformers 5.
const COUNTS: [&str; 2] = ["num_experts", "num_local_experts"];

/// The number of experts in configurations of other families.
const OTHER_COUNTS: [&str; 1] = ["n_routed_experts"];

/// Numbers of experts that every token uses, beside those that are chosen.
const SHARED: [&str; 2] = ["n_shared_experts", "num_shared_experts"];

/// The width of the one expert that every token uses.
const SHARED_WIDTH: &str = "shared_expert_intermediate_size";

impl ExpertConfig {
    /// Reads the fields of `config.json`; `None` if no layer is a mixture. A hybrid has a mixture
    /// in every layer, with a shared expert, and weights of the chosen ones that add up to one.
    pub(super) fn parse(
        config: &Value,
        is_hybrid: bool,
    ) -> Result<Option<ExpertConfig>, ConfigError> {
        refuse_nonzero(config, &SHARED, "no shared experts")?;
        if !is_hybrid {
            refuse_nonzero(config, &[SHARED_WIDTH], "no shared experts")?;
        }
        refuse_nonzero(config, &OTHER_COUNTS, "`num_experts`")?;
        let layers = count(config, "num_hidden_layers")?;
        let Some((field, experts)) = expert_count(config)? else {
            return Err(ConfigError::Missing { field: COUNTS[0] });
        };
        if experts > EXPERTS_MAX {
            let reason = format!("is {experts}, but at most {EXPERTS_MAX} are supported");
            return Err(ConfigError::field(field, reason));
        }
        let chosen = count(config, "num_experts_per_tok")?;
        if chosen > experts {
            let reason = format!("is {chosen}, more than `{field}` = {experts}");
            return Err(ConfigError::field("num_experts_per_tok", reason));
        }

        let normed = is_hybrid || flag(config, "norm_topk_prob")?.unwrap_or(false);
        let is_mixture = match is_hybrid {
            true => vec![true; layers],
            false => mixture_layers(config, layers)?,
        };
        if !is_mixture.contains(&true) {
            return Ok(None);
        }
        Ok(Some(ExpertConfig {
            choice: ExpertChoice { experts, chosen, normed },
            intermediate: count(config, "moe_intermediate_size")?,
            shared: if is_hybrid { Some(count(config, SHARED_WIDTH)?) } else { None },
            is_mixture,
        }))
    }

    /// Refuses a configuration of a family without experts that has some.
    pub(super) fn refuse(config: &Value) -> Result<(), ConfigError> {
        refuse_nonzero(config, &COUNTS, "no mixture of experts in this architecture")?;
        refuse_nonzero(config, &OTHER_COUNTS, "no mixture of experts in this architecture")
    }
}

fn refuse_nonzero(
    config: &Value,
    fields: &[&'static str],
    supported: &'static str,
) -> Result<(), ConfigError> {
    for field in fields {
        if let Some(found) = number(config, field)?.filter(|found| *found != 0.0) {
            return Err(ConfigError::unsupported(field, found.to_string(), supported));
        }
    }
    Ok(())
}

/// The number of experts under either of its names, with that name.
fn expert_count(config: &Value) -> Result<Option<(&'static str, usize)>, ConfigError> {
    let mut found: Option<(&'static str, usize)> = None;
    for field in COUNTS {
        let Some(experts) = optional_count(config, field)? else { continue };
        match found {
            Some((other, before)) if before != experts => {
                let reason = format!("is {experts}, but `{other}` is {before}");
                return Err(ConfigError::field(field, reason));
            }
            _ => found = Some((field, experts)),
        }
    }
    Ok(found)
}

/// The layers that are mixtures: every `decoder_sparse_step`th, without those of `mlp_only_layers`.
fn mixture_layers(config: &Value, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let step = optional_count(config, "decoder_sparse_step")?.unwrap_or(1);
    let dense: Vec<u64> = match config.get("mlp_only_layers") {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => serde_json::from_value(list.clone()).map_err(|_| {
            ConfigError::field("mlp_only_layers", "is not a list of numbers of layers")
        })?,
    };
    let is_mixture =
        |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as u64));
    Ok((0..layers).map(is_mixture).collect())
}

#[cfg(test)]
mod tests;
