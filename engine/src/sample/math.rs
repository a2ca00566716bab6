//! Loops over rows of logits. They compile to vector instructions on any machine, and give the same
//! bits on all of them.

/// Ids in a block. Within a block sums are of 32-bit floats, each of which takes part in a dozen
/// additions at most; over blocks they are of 64-bit floats.
pub(super) const BLOCK: usize = 128;

/// Values that are computed side by side.
const LANES: usize = 16;

/// The argument below which the exponential counts as zero.
const LOWEST: f32 = -87.0;

/// Returns the highest value, or minus infinity if there is none. NaN is ignored.
pub(super) fn highest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = higher(*lane, *value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, higher)
}

/// Returns true if logits are those of a distribution: none is NaN or plus infinity, and not all
/// are minus infinity.
pub(crate) fn is_distribution(logits: &[f32]) -> bool {
    // Without an early end, the loop becomes vector instructions.
    let has_nan = logits.iter().fold(false, |found, logit| found | logit.is_nan());
    !has_nan && highest(logits).is_finite()
}

#[inline]
fn higher(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Counts the values that are at least `floor`.
pub(super) fn count_at_least(values: &[f32], floor: f32) -> usize {
    let mut count = 0;
    for block in values.chunks(BLOCK) {
        // A 32-bit sum of a block fills twice as many lanes as a `usize`.
        count += block.iter().map(|value| u32::from(*value >= floor)).sum::<u32>() as usize;
    }
    count
}

/// Sums `exp(value - highest)` over the values of a block that are at least `floor`.
pub(super) fn sum_of_weights(values: &[f32], highest: f32, floor: f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane += weight_above(*value, highest, floor);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += weight_above(*value, highest, floor);
    }

    // Add the lanes in a fixed order, half to half.
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

/// Returns the weight of a value that is at least `floor`, and zero for any other.
#[inline]
fn weight_above(value: f32, highest: f32, floor: f32) -> f32 {
    if value >= floor { weight(value - highest) } else { 0.0 }
}

/// The number of bins by distance from the highest logit.
pub(super) const BINS: usize = 2048;

/// Bins for a distance of one. The last bin has everything that is farther away.
const BINS_PER_UNIT: f32 = 32.0;

/// Returns the bin of a logit. A lower logit has the same bin or a later one.
pub(super) fn bin(highest: f32, logit: f32) -> usize {
    let bin = (highest - logit) * BINS_PER_UNIT;
    // NaN does not occur: the logit is at least some floor.
    if bin < (BINS - 1) as f32 { bin as usize } else { BINS - 1 }
}

/// Adds the weights of the logits of a block that are at least `floor` to their bins.
pub(super) fn add_to_bins(bins: &mut [f64], block: &[f32], highest: f32, floor: f32) {
    let mut weights = [0.0_f32; BLOCK];
    for (weight_of, logit) in weights.iter_mut().zip(block) {
        *weight_of = weight_above(*logit, highest, floor);
    }
    for (weight, logit) in weights.iter().zip(block) {
        bins[bin(highest, *logit)] += f64::from(*weight);
    }
}

/// Returns `exp(x)` for `x` of at most zero, to about one unit in the last place. Returns zero if
/// the result is smaller than the smallest normal number, and for NaN.
///
/// Adding and subtracting a large number rounds to an integer without an instruction that some
/// machines lack. No operation can be fused with another.
pub(super) fn weight(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    // x = whole * ln 2 + rest.
    let bounded = if x > LOWEST { x } else { LOWEST };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = (bounded - whole * LN_2_HIGH) - whole * LN_2_LOW;

    // A polynomial for the exponential of the rest.
    let mut power = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        power = power * rest + coefficient;
    }
    let fraction = power * (rest * rest) + rest + 1.0;

    // The integer is in the low bits of the shifted number; it becomes the exponent.
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
