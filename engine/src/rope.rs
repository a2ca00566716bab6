//! Rotary positions: what a configuration says of them, and the table of rotations.

use serde_json::Value;

use crate::config::{ConfigError, ModelConfig, count, flag, number, unsupported};

const KINDS: &str = "`default`, `linear`, `llama3`, `yarn`";

/// How frequencies are scaled so that positions reach further than the model was trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
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
        /// Turns over the original context above which a frequency is kept.
        fast: f64,
        /// Turns below which it is divided by the whole factor.
        slow: f64,
        /// Whether the ramp between the two begins and ends at whole dimensions.
        truncate: bool,
        /// What cosines and sines are multiplied by.
        amplitude: f64,
    },
}

/// The rotations of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rope {
    pub(crate) theta: f64,
    pub(crate) scaling: Scaling,
}

impl Rope {
    /// Reads the fields of `config`. Transformers 4 has `rope_theta` and `rope_scaling`,
    /// transformers 5 both in `rope_parameters`.
    pub(crate) fn parse(config: &Value) -> Result<Rope, ConfigError> {
        let fields = fields(config)?;
        let theta = match number(fields, "rope_theta")? {
            Some(theta) => Some(theta),
            None => number(config, "rope_theta")?,
        };
        let theta = theta.unwrap_or(10_000.0);
        if theta <= 0.0 {
            return Err(above_zero("rope_theta", theta));
        }
        for holder in [fields, config] {
            let part = number(holder, "partial_rotary_factor")?;
            if let Some(part) = part.filter(|part| *part != 1.0) {
                return unsupported("partial_rotary_factor", &part.to_string(), "`1`");
            }
        }
        let kind = fields.get("rope_type").or_else(|| fields.get("type"));
        let scaling = match kind {
            None | Some(Value::Null) => Scaling::None,
            Some(kind) => match kind.as_str().unwrap_or_default() {
                "default" => Scaling::None,
                "linear" => Scaling::Linear { factor: factor(fields)? },
                "llama3" => llama3(config, fields)?,
                "yarn" => yarn(config, fields)?,
                _ => return unsupported("rope_type", &shown(kind), KINDS),
            },
        };
        Ok(Rope { theta, scaling })
    }

    /// Positions that a model of `positions` has with this scaling, counted as vLLM counts them:
    /// `max_position_embeddings` of a scaled model may be that of the model before scaling.
    pub(crate) fn positions(&self, positions: usize) -> usize {
        let scaled = match self.scaling {
            Scaling::None | Scaling::Llama3 { .. } => 0.0,
            Scaling::Linear { factor } => positions as f64 * factor,
            Scaling::Yarn { factor, original, .. } => original * factor,
        };
        positions.max(scaled as usize)
    }

    /// What cosines and sines are multiplied by.
    fn amplitude(&self) -> f32 {
        match self.scaling {
            Scaling::Yarn { amplitude, .. } => amplitude as f32,
            _ => 1.0,
        }
    }
}

/// The object that scaling is described in; transformers 5 prefers the older one of two.
fn fields(config: &Value) -> Result<&Value, ConfigError> {
    for field in ["rope_scaling", "rope_parameters"] {
        match config.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) if map.values().any(Value::is_object) => {
                return unsupported(field, "one object for each kind of layer", "one for all");
            }
            Some(fields @ Value::Object(map)) if !map.is_empty() => return Ok(fields),
            Some(Value::Object(_)) => {}
            Some(other) => {
                let reason = format!("is {other}, not an object");
                return Err(ConfigError::Field { field, reason });
            }
        }
    }
    Ok(&Value::Null)
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn above_zero(field: &'static str, found: f64) -> ConfigError {
    ConfigError::Field { field, reason: format!("is {found}, not above zero") }
}

/// A number above zero that must be there.
fn positive(fields: &Value, field: &'static str) -> Result<f64, ConfigError> {
    match number(fields, field)? {
        None => Err(ConfigError::Missing { field }),
        Some(found) if found > 0.0 => Ok(found),
        Some(found) => Err(above_zero(field, found)),
    }
}

fn factor(fields: &Value) -> Result<f64, ConfigError> {
    positive(fields, "factor")
}

/// Positions before scaling: beside the other fields, in them, or those that the model has.
fn original(config: &Value, fields: &Value) -> Result<f64, ConfigError> {
    const FIELD: &str = "original_max_position_embeddings";
    for holder in [config, fields] {
        if number(holder, FIELD)?.is_some() {
            return positive(holder, FIELD);
        }
    }
    Ok(count(config, "max_position_embeddings")? as f64)
}

fn llama3(config: &Value, fields: &Value) -> Result<Scaling, ConfigError> {
    let (low, high) = (positive(fields, "low_freq_factor")?, positive(fields, "high_freq_factor")?);
    if high <= low {
        let reason = format!("is {high}, not above `low_freq_factor` = {low}");
        return Err(ConfigError::Field { field: "high_freq_factor", reason });
    }
    Ok(Scaling::Llama3 { factor: factor(fields)?, low, high, original: original(config, fields)? })
}

fn yarn(config: &Value, fields: &Value) -> Result<Scaling, ConfigError> {
    let factor = factor(fields)?;
    let truthy = |field| Ok::<_, ConfigError>(number(fields, field)?.filter(|n| *n != 0.0));
    let scale =
        |strength: f64| if factor <= 1.0 { 1.0 } else { 0.1 * strength * factor.ln() + 1.0 };
    let amplitude = match number(fields, "attention_factor")? {
        Some(given) => given,
        None => match (truthy("mscale")?, truthy("mscale_all_dim")?) {
            (Some(mscale), Some(all)) => scale(mscale) / scale(all),
            _ => scale(1.0),
        },
    };
    Ok(Scaling::Yarn {
        factor,
        original: original(config, fields)?,
        fast: truthy("beta_fast")?.unwrap_or(32.0),
        slow: truthy("beta_slow")?.unwrap_or(1.0),
        truncate: flag(fields, "truncate")?.unwrap_or(true),
        amplitude,
    })
}

/// `[positions, dim]`: of each position `dim / 2` cosines, then as many sines.
///
/// Frequencies, angles and results are rounded to `f32` where `transformers` rounds them.
pub(crate) fn table(config: &ModelConfig, positions: usize) -> Vec<f32> {
    let (frequencies, amplitude) =
        (config.rope.frequencies(config.heads.dim), config.rope.amplitude());
    let mut table = Vec::with_capacity(positions * config.heads.dim);
    for position in 0..positions {
        let angle = |frequency: &f32| f64::from(position as f32 * frequency);
        table.extend(frequencies.iter().map(|f| angle(f).cos() as f32 * amplitude));
        table.extend(frequencies.iter().map(|f| angle(f).sin() as f32 * amplitude));
    }
    table
}

impl Rope {
    /// The angle of one position for each pair of elements of a head.
    fn frequencies(&self, dim: usize) -> Vec<f32> {
        let power = |i: usize| (self.theta as f32).powf((2 * i) as f32 / dim as f32);
        let scaled = |(i, power): (usize, f32)| match self.scaling {
            Scaling::None => 1.0 / power,
            Scaling::Linear { factor } => 1.0 / power / factor as f32,
            Scaling::Llama3 { .. } => self.llama3(1.0 / power),
            Scaling::Yarn { factor, .. } => {
                let keep = 1.0 - self.ramp(i, dim);
                1.0 / (factor as f32 * power) * (1.0 - keep) + 1.0 / power * keep
            }
        };
        (0..dim / 2).map(power).enumerate().map(scaled).collect()
    }

    /// Slow frequencies are divided, fast ones kept, and between the two the scale moves from one
    /// to the other with the number of turns.
    fn llama3(&self, frequency: f32) -> f32 {
        let Scaling::Llama3 { factor, low, high, original } = self.scaling else {
            return frequency;
        };
        let (factor, low, high) = (factor as f32, low as f32, high as f32);
        let original = original as f32;
        let wavelength = 2.0 * std::f32::consts::PI / frequency;
        if wavelength < original / high {
            return frequency;
        }
        if wavelength > original / low {
            return frequency / factor;
        }
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }

    /// How far the frequency of pair `i` is moved: zero is kept, one is divided.
    fn ramp(&self, i: usize, dim: usize) -> f32 {
        let Scaling::Yarn { original, fast, slow, truncate, .. } = self.scaling else { return 0.0 };
        // The pair, as a real index, that makes so many turns over the original context.
        let pair = |turns: f64| {
            dim as f64 * (original / (turns * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (pair(fast), pair(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests;
