//! bf16 numbers, which are the upper halves of 32-bit floats.

/// Converts a bf16 number to a 32-bit float, exactly.
#[inline]
pub(crate) fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds a number to the nearest bf16; ties go to the even one. Not for NaN.
pub(crate) fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// Rounds a number to bf16 and widens it again.
pub(crate) fn round(value: f32) -> f32 {
    widen(narrow(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let value = random.signed() * f32::powi(2.0, random.below(80) as i32 - 40);
            assert_eq!(narrow(value), half::bf16::from_f32(value).to_bits(), "{value}");
        }
    }
}
