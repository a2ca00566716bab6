//! Random numbers as a function of a seed and a counter, without state.

/// Returns a number in [0, 1) for a seed and a counter.
pub(crate) fn uniform(seed: u64, counter: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(counter.wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// 2^64 divided by the golden ratio, the increment of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes a number: the finalizer of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let mut bits = value.wrapping_add(GOLDEN);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
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
