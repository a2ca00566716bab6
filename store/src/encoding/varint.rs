//! Numbers in as few bytes as they need: LEB128, seven bits a byte, the lowest first.

/// Appends `value`.
pub(crate) fn push(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front of `bytes`; `None` when there is none.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        value |= bits.checked_shl(7 * at as u32).filter(|v| v >> (7 * at) == bits)?;
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

/// Maps numbers of small magnitude and either sign to small numbers.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, signed: i64, rest: Vec<u8>) {
            let mut out = Vec::new();
            push(&mut out, value);
            out.extend(&rest);
            let mut left = out.as_slice();
            prop_assert_eq!(take(&mut left), Some(value));
            prop_assert_eq!(left, rest.as_slice());
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }

        #[test]
        fn any_bytes_are_a_number_or_none(bytes: Vec<u8>) {
            take(&mut bytes.as_slice());
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_no_number() {
        for bad in [
            &[][..],
            &[0x80],
            &[0xff; 11],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert_eq!(take(&mut &*bad), None, "{bad:?}");
        }
    }
}
