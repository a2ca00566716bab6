//! Numbers read by their digits, eight at a time.

/// Digits that are read at once.
pub(crate) const DIGITS_MAX: usize = 8;

/// The number that `text` begins with, and how many digits it has: at most [`DIGITS_MAX`], though
/// more may follow, and none if `text` begins with something else.
#[inline]
pub(crate) fn leading(text: &[u8]) -> (u32, usize) {
    let mut word = [0; DIGITS_MAX];
    match text.first_chunk() {
        Some(first) => word = *first,
        None => word[..text.len()].copy_from_slice(text),
    }
    // The value of each digit. Whatever is no digit is above nine.
    let values = u64::from_le_bytes(word) ^ splat(b'0');
    // Sets the highest bit of the first byte above nine. A carry reaches later bytes only.
    let others = (values.wrapping_add(splat(0x7f - 9)) | values) & splat(0x80);
    let count = others.trailing_zeros() as usize / 8;
    if count == 0 {
        return (0, 0);
    }
    // The first byte is the lowest: zeros come before it.
    (number(values << (64 - 8 * count)), count)
}

/// The number of eight digits, whose first is the lowest byte.
fn number(values: u64) -> u32 {
    const EVERY_FOURTH: u64 = 0x0000_00ff_0000_00ff;
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let upper = (pairs & EVERY_FOURTH).wrapping_mul(100 + (1_000_000 << 32));
    let lower = ((pairs >> 16) & EVERY_FOURTH).wrapping_mul(1 + (10_000 << 32));
    (upper.wrapping_add(lower) >> 32) as u32
}

/// A word of eight equal bytes.
const fn splat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_the_library_reads_them(
            digits in "[0-9]{0,12}", rest in "[^0-9]?.{0,9}",
        ) {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let text = format!("{digits}{rest}");
            let count = digits.len().min(DIGITS_MAX);
            let expected = digits[..count].parse().unwrap_or(0);
            prop_assert_eq!(leading(text.as_bytes()), (expected, count), "{}", text);
        }

        #[test]
        fn what_is_no_digit_ends_the_number(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let count = bytes.iter().take(DIGITS_MAX).take_while(|byte| byte.is_ascii_digit()).count();
            prop_assert_eq!(leading(&bytes).1, count);
        }
    }
}
