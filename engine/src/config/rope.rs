//! Rotary position embeddings: their configuration, and the table of rotations.

use std::f32::consts::PI as PI_F32;
use std::f64::consts::PI as PI_F64;

use serde_json::Value;

use super::fields::{count, flag, number, plain_text};
use crate::error::ConfigError;

const SUPPORTED_TYPES: &str = "`default`, `linear`, `llama3`, `yarn`";

/// A scaling of frequencies that reaches beyond the context of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    Yarn {
        factor: f64,
        original: f64,
        /// Turns over the original context above which a frequency is kept (`beta_fast`).
        fast: f64,
        /// Turns below which it is divided by the whole factor (`beta_slow`).
        slow: f64,
        /// True if the ramp between the two begins and ends at whole dimensions.
        truncate: bool,
        /// The factor of cosines and sines.
        amplitude: f64,
    },
}

/// The rotary embedding of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rope {
    pub(crate) theta: f64,
    pub(crate) scaling: RopeScaling,
}

impl Rope {
    /// Reads the fields of `config`. Transformers 4 has `rope_theta` and `rope_scaling`,
    /// transformers 5 both in `rope_parameters`.
    pub(crate) fn parse(config: &Value) -> Result<Rope, ConfigError> {
        let fields = scaling_fields(config)?;
        let theta = match number(fields, "rope_theta")? {
            Some(theta) => theta,
            None => number(config, "rope_theta")?.unwrap_or(10_000.0),
        };
        if theta <= 0.0 {
            return Err(not_above_zero("rope_theta", theta));
        }

        // Older files call the field `type`.
        let rope_type = fields.get("rope_type").or_else(|| fields.get("type"));
        let scaling = match rope_type {
            None | Some(Value::Null) => RopeScaling::None,
            Some(name) => match name.as_str().unwrap_or_default() {
                "default" => RopeScaling::None,
                "linear" => RopeScaling::Linear { factor: positive(fields, "factor")? },
                "llama3" => llama3_scaling(config, fields)?,
                "yarn" => yarn_scaling(config, fields)?,
                _ => {
                    let found = plain_text(name);
                    return Err(ConfigError::unsupported("rope_type", found, SUPPORTED_TYPES));
                }
            },
        };
        Ok(Rope { theta, scaling })
    }

    /// The positions of a model with `positions` in its configuration, counted as vLLM counts them:
    /// `max_position_embeddings` of a scaled model may be that of the model before scaling.
    pub(crate) fn positions(&self, positions: usize) -> usize {
        let scaled = match self.scaling {
            RopeScaling::None | RopeScaling::Llama3 { .. } => 0.0,
            RopeScaling::Linear { factor } => positions as f64 * factor,
            RopeScaling::Yarn { factor, original, .. } => original * factor,
        };
        positions.max(scaled as usize)
    }

    /// The table of rotations `[positions, dim]` of heads of `dim` elements: of each position
    /// `dim / 2` cosines, then as many sines.
    ///
    /// Frequencies, angles and results are rounded to `f32` where `transformers` rounds them.
    pub(crate) fn table(&self, dim: usize, positions: usize) -> Vec<f32> {
        let (frequencies, amplitude) = (self.frequencies(dim), self.amplitude());
        let mut table = Vec::with_capacity(positions * dim);
        for position in 0..positions {
            for frequency in &frequencies {
                table.push(angle(position, *frequency).cos() as f32 * amplitude);
            }
            for frequency in &frequencies {
                table.push(angle(position, *frequency).sin() as f32 * amplitude);
            }
        }
        table
    }

    /// The factor of cosines and sines.
    fn amplitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { amplitude, .. } => amplitude as f32,
            _ => 1.0,
        }
    }

    /// The angle of one position for each pair of elements of a head.
    fn frequencies(&self, dim: usize) -> Vec<f32> {
        (0..dim / 2).map(|pair| self.frequency(pair, dim)).collect()
    }

    fn frequency(&self, pair: usize, dim: usize) -> f32 {
        let power = (self.theta as f32).powf((2 * pair) as f32 / dim as f32);
        match self.scaling {
            RopeScaling::None => 1.0 / power,
            RopeScaling::Linear { factor } => 1.0 / power / factor as f32,
            RopeScaling::Llama3 { .. } => self.llama3_frequency(1.0 / power),
            RopeScaling::Yarn { factor, .. } => {
                let keep = 1.0 - self.yarn_ramp(pair, dim);
                1.0 / (factor as f32 * power) * (1.0 - keep) + 1.0 / power * keep
            }
        }
    }

    /// Divides slow frequencies, keeps fast ones, and interpolates between the two by the number of
    /// turns over the original context.
    fn llama3_frequency(&self, frequency: f32) -> f32 {
        let RopeScaling::Llama3 { factor, low, high, original } = self.scaling else {
            return frequency;
        };
        let (factor, low, high) = (factor as f32, low as f32, high as f32);
        let original = original as f32;

        let wavelength = 2.0 * PI_F32 / frequency;
        if wavelength < original / high {
            return frequency;
        }
        if wavelength > original / low {
            return frequency / factor;
        }
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }

    /// The share of the division that the frequency of `pair` gets: zero keeps it, one divides it.
    fn yarn_ramp(&self, pair: usize, dim: usize) -> f32 {
        let RopeScaling::Yarn { original, fast, slow, truncate, .. } = self.scaling else {
            return 0.0;
        };
        let mut low = self.pair_of_turns(fast, original, dim);
        let mut high = self.pair_of_turns(slow, original, dim);
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        low = low.max(0.0);
        high = high.min(dim as f64 - 1.0);

        // A ramp without a width would divide by zero.
        if low == high {
            high += 0.001;
        }
        ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0)
    }

    /// The pair, as a real index, that makes `turns` turns over the original context.
    fn pair_of_turns(&self, turns: f64, original: f64, dim: usize) -> f64 {
        dim as f64 * (original / (turns * 2.0 * PI_F64)).ln() / (2.0 * self.theta.ln())
    }
}

fn angle(position: usize, frequency: f32) -> f64 {
    f64::from(position as f32 * frequency)
}

/// The object that describes the scaling. Transformers 5 prefers the older name of the two.
fn scaling_fields(config: &Value) -> Result<&Value, ConfigError> {
    for field in ["rope_scaling", "rope_parameters"] {
        match config.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) if map.values().any(Value::is_object) => {
                let found = "one object for each kind of layer";
                return Err(ConfigError::unsupported(field, found, "one for all"));
            }
            Some(fields @ Value::Object(map)) if !map.is_empty() => return Ok(fields),
            Some(Value::Object(_)) => {}
            Some(other) => {
                return Err(ConfigError::field(field, format!("is {other}, not an object")));
            }
        }
    }
    Ok(&Value::Null)
}

fn not_above_zero(field: &'static str, found: f64) -> ConfigError {
    ConfigError::field(field, format!("is {found}, not above zero"))
}

/// Returns a required number above zero.
fn positive(fields: &Value, field: &'static str) -> Result<f64, ConfigError> {
    match number(fields, field)? {
        None => Err(ConfigError::Missing { field }),
        Some(found) if found > 0.0 => Ok(found),
        Some(found) => Err(not_above_zero(field, found)),
    }
}

/// Returns a number, or none if it is absent or zero, as Python's `or` has it.
fn nonzero(fields: &Value, field: &'static str) -> Result<Option<f64>, ConfigError> {
    Ok(number(fields, field)?.filter(|found| *found != 0.0))
}

/// The positions before scaling: beside the other fields, among them, or those of the model.
fn original_positions(config: &Value, fields: &Value) -> Result<f64, ConfigError> {
    const FIELD: &str = "original_max_position_embeddings";
    for holder in [config, fields] {
        if number(holder, FIELD)?.is_some() {
            return positive(holder, FIELD);
        }
    }
    Ok(count(config, "max_position_embeddings")? as f64)
}

fn llama3_scaling(config: &Value, fields: &Value) -> Result<RopeScaling, ConfigError> {
    let low = positive(fields, "low_freq_factor")?;
    let high = positive(fields, "high_freq_factor")?;
    if high <= low {
        let reason = format!("is {high}, not above `low_freq_factor` = {low}");
        return Err(ConfigError::field("high_freq_factor", reason));
    }
    Ok(RopeScaling::Llama3 {
        factor: positive(fields, "factor")?,
        low,
        high,
        original: original_positions(config, fields)?,
    })
}

fn yarn_scaling(config: &Value, fields: &Value) -> Result<RopeScaling, ConfigError> {
    let factor = positive(fields, "factor")?;
    let amplitude = match number(fields, "attention_factor")? {
        Some(given) => given,
        None => match (nonzero(fields, "mscale")?, nonzero(fields, "mscale_all_dim")?) {
            (Some(mscale), Some(all)) => yarn_mscale(factor, mscale) / yarn_mscale(factor, all),
            _ => yarn_mscale(factor, 1.0),
        },
    };

    Ok(RopeScaling::Yarn {
        factor,
        original: original_positions(config, fields)?,
        fast: nonzero(fields, "beta_fast")?.unwrap_or(32.0),
        slow: nonzero(fields, "beta_slow")?.unwrap_or(1.0),
        truncate: flag(fields, "truncate")?.unwrap_or(true),
        amplitude,
    })
}

/// The amplitude of YaRN for a scaling factor.
fn yarn_mscale(factor: f64, strength: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * strength * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests;
