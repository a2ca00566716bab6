//! Numbers for draws: a function of the seed and a counter, without state.

/// A number in [0, 1) for each seed and counter.
pub(crate) fn uniform(seed: u64, counter: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(counter.wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads a number over all bits (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let mean = (0..10_000).map(|i| uniform(3, i)).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
