//! Loops over rows of logits, written so that they become vector code on any machine and give the
//! same bits on all.

/// Ids whose weights are added up as one. Within a block sums are of 32-bit floats, of which each
/// takes part in a dozen additions at most; over blocks they are of 64-bit ones.
pub(super) const BLOCK: usize = 128;

/// Values side by side.
const LANES: usize = 16;

/// Below this the exponential is taken to be zero.
const LOWEST: f32 = -87.0;

/// The highest value; minus infinity if there is none. Not-a-number does not count.
pub(super) fn highest(values: &[f32]) -> f32 {
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = higher(*lane, *value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, higher)
}

/// How many values are at least `floor`.
pub(super) fn count_at_least(values: &[f32], floor: f32) -> usize {
    let count = |block: &[f32]| block.iter().map(|value| u32::from(*value >= floor)).sum::<u32>();
    values.chunks(BLOCK).map(|block| count(block) as usize).sum()
}

/// The sum of `exp(value - highest)` over the values of a block that are at least `floor`.
pub(super) fn sum_of_weights(values: &[f32], highest: f32, floor: f32) -> f32 {
    let term = |value: f32| if value >= floor { weight(value - highest) } else { 0.0 };
    let mut lanes = [0.0_f32; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane += term(*value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += term(*value);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    lanes[0]
}

/// Bins by distance from the highest logit.
pub(super) const BINS: usize = 2048;

/// Bins to a distance of one; the last bin has whatever is farther away than all.
const BINS_PER_UNIT: f32 = 32.0;

/// The bin of a logit. A lower logit has the same bin or a later one.
pub(super) fn bin(highest: f32, logit: f32) -> usize {
    let bin = (highest - logit) * BINS_PER_UNIT;
    // Not a number cannot be: the logit has reached a floor.
    if bin < (BINS - 1) as f32 { bin as usize } else { BINS - 1 }
}

/// Adds the weights of the logits of a block that are at least `floor` to their bins.
pub(super) fn add_to_bins(bins: &mut [f64], block: &[f32], highest: f32, floor: f32) {
    let mut weights = [0.0_f32; BLOCK];
    for (weight_of, logit) in weights.iter_mut().zip(block) {
        *weight_of = if *logit >= floor { weight(*logit - highest) } else { 0.0 };
    }
    for (weight, logit) in weights.iter().zip(block) {
        bins[bin(highest, *logit)] += f64::from(*weight);
    }
}

/// `exp(x)` for `x` of at most zero, to about one unit in the last place; zero for what is smaller
/// than the smallest normal number, and for what is not a number.
///
/// Adding and subtracting a large number rounds to an integer without the instruction for it, which
/// not every machine has; no step can be fused with another.
pub(super) fn weight(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let bounded = if x > LOWEST { x } else { LOWEST };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = (bounded - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let mut power = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        power = power * rest + coefficient;
    }
    let fraction = power * (rest * rest) + rest + 1.0;
    // The integer stands in the low bits of the shifted number; it becomes the exponent.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x > LOWEST { fraction * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_exact_to_the_last_place_or_so() {
        let mut worst = 0.0_f64;
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(weight(x)) - expected).abs() / expected);
        }
        assert!(worst < 1.5e-7, "off by {worst:e}");
        assert_eq!((weight(0.0), weight(f32::NEG_INFINITY), weight(f32::NAN)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn loops_agree_with_plain_ones_at_any_length() {
        for len in [1, 5, 15, 16, 17, 100, 128] {
            let values: Vec<f32> = (0..len).map(|i| ((i * 37) % 101) as f32 * 0.13 - 6.0).collect();
            let top = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(highest(&values), top);
            let floor = -3.0;
            let kept = || values.iter().filter(|value| **value >= floor);
            assert_eq!(count_at_least(&values, floor), kept().count());
            let sum: f64 = kept().map(|value| f64::from(value - top).exp()).sum();
            let found = f64::from(sum_of_weights(&values, top, floor));
            assert!((found - sum).abs() <= sum * 5e-7, "{len}: {found} for {sum}");
        }
    }
}
