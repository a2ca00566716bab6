//! The table of rotations.

use crate::config::{ModelConfig, RopeScaling};

/// `[positions, dim]`: of each position `dim / 2` cosines, then as many sines.
///
/// Frequencies and angles are rounded to `f32` where the reference implementation rounds them.
pub(crate) fn table(config: &ModelConfig, positions: usize) -> Vec<f32> {
    let frequencies = frequencies(config);
    let mut table = Vec::with_capacity(positions * config.heads.dim);
    for position in 0..positions {
        let angle = |frequency: &f32| f64::from(position as f32 * frequency);
        table.extend(frequencies.iter().map(|frequency| angle(frequency).cos() as f32));
        table.extend(frequencies.iter().map(|frequency| angle(frequency).sin() as f32));
    }
    table
}

fn frequencies(config: &ModelConfig) -> Vec<f32> {
    let dim = config.heads.dim;
    let exponent = |i: usize| (2 * i) as f32 / dim as f32;
    let plain = (0..dim / 2).map(|i| 1.0 / config.rope_theta.powf(exponent(i)));
    plain.map(|frequency| scaled(frequency, config.rope_scaling)).collect()
}

fn scaled(frequency: f32, scaling: RopeScaling) -> f32 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low, high, original } => {
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            if wavelength < original / high {
                return frequency;
            }
            if wavelength > original / low {
                return frequency / factor;
            }
            // Between the two, the scale moves from one to the other.
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    }
}
