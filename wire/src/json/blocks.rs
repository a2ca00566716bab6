//! The brackets of a JSON document, found sixty-four bytes at a time.
//!
//! Each block becomes a few masks with a bit a byte, as in "Parsing Gigabytes of JSON per Second"
//! (<https://arxiv.org/abs/1902.08318>). Between two quotes is a string, so that the bytes in
//! strings are the running parity of the quotes.

use wide::u8x16;

use super::Malformed;

const BLOCK: usize = 64;
const LANES: usize = 16;

/// Calls `take` with each bracket and brace outside strings and its place, in order, until it
/// fails. A document that ends in a string is malformed.
pub(super) fn each_bracket(
    doc: &[u8],
    mut take: impl FnMut(usize, u8) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut strings = Strings::default();
    let mut at = 0;
    let mut next = |block: &[u8; BLOCK]| {
        let masks = Masks::of(block);
        let mut found = masks.brackets & !strings.next(&masks);
        while found != 0 {
            let offset = found.trailing_zeros() as usize;
            take(at + offset, block[offset])?;
            found &= found - 1;
        }
        at += BLOCK;
        Ok(())
    };

    let (blocks, tail) = doc.as_chunks::<BLOCK>();
    blocks.iter().try_for_each(&mut next)?;
    let mut last = [b' '; BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    next(&last)?;

    if strings.are_closed() { Ok(()) } else { Err(Malformed) }
}

/// The places of the marks in a block: bit `n` is for byte `n`.
struct Masks {
    quotes: u64,
    backslashes: u64,
    brackets: u64,
}

impl Masks {
    fn of(block: &[u8; BLOCK]) -> Self {
        let mut masks = Self { quotes: 0, backslashes: 0, brackets: 0 };
        // The two brackets differ from the two braces by this bit only.
        let fold = u8x16::splat(b'[' ^ b'{');
        let equal = |bytes: u8x16, byte: u8| bytes.simd_eq(u8x16::splat(byte));

        let (lanes, _) = block.as_chunks::<LANES>();
        for (number, lane) in lanes.iter().enumerate() {
            let bytes = u8x16::new(*lane);
            let folded = bytes | fold;
            let bits = |found: u8x16| u64::from(found.to_bitmask()) << (LANES * number);
            masks.quotes |= bits(equal(bytes, b'"'));
            masks.backslashes |= bits(equal(bytes, b'\\'));
            masks.brackets |= bits(equal(folded, b'{') | equal(folded, b'}'));
        }
        masks
    }
}

/// The strings of a document that is read block by block.
#[derive(Debug, Default)]
struct Strings {
    /// True if the last block ended in a string.
    is_inside: bool,
    /// True if the last byte was a backslash that escapes the next one.
    is_escaped: bool,
}

impl Strings {
    /// The bytes of the next block that are in a string, its opening quote included.
    fn next(&mut self, masks: &Masks) -> u64 {
        let has_escapes = masks.backslashes != 0 || self.is_escaped;
        let quotes = if has_escapes { self.unescaped(masks) } else { masks.quotes };
        let carried = if self.is_inside { u64::MAX } else { 0 };
        let inside = parity(quotes) ^ carried;
        self.is_inside = inside >> (BLOCK - 1) == 1;
        inside
    }

    /// The quotes that no backslash escapes. Outside a string a backslash escapes nothing.
    fn unescaped(&mut self, masks: &Masks) -> u64 {
        let (mut quotes, mut is_inside) = (0, self.is_inside);
        let mut left = masks.quotes | masks.backslashes;
        if std::mem::take(&mut self.is_escaped) {
            left &= !1;
        }
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left &= !bit;
            if masks.quotes & bit != 0 {
                quotes |= bit;
                is_inside = !is_inside;
            } else if is_inside {
                left &= !(bit << 1);
                self.is_escaped = bit == 1 << (BLOCK - 1);
            }
        }
        quotes
    }

    fn are_closed(&self) -> bool {
        !self.is_inside
    }
}

/// The mask whose bit `n` says whether the bits 0 to `n` of `bits` are odd in number.
fn parity(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{scan, string};
    use super::*;

    /// The same, string by string.
    fn one_by_one(doc: &[u8]) -> Result<Vec<(usize, u8)>, Malformed> {
        let (mut found, mut at) = (Vec::new(), scan::structure(doc, 0));
        while let Some(byte) = doc.get(at) {
            at = match byte {
                b'"' => string(doc, at)?,
                _ => {
                    found.push((at, *byte));
                    at + 1
                }
            };
            at = scan::structure(doc, at);
        }
        Ok(found)
    }

    fn in_blocks(doc: &[u8]) -> Result<Vec<(usize, u8)>, Malformed> {
        let mut found = Vec::new();
        each_bracket(doc, |at, byte| {
            found.push((at, byte));
            Ok(())
        })?;
        Ok(found)
    }

    proptest! {
        #[test]
        fn brackets_are_found_as_string_by_string(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "{", "}", "[", "]", ",1:", "\"a\"", "\"\\\"]\"", "\"\\\\\"", "\"\\\\\\\"}{\"",
                    "\"", "\\", "          ", "\"éé[éé\"",
                ]),
                0..64,
            ),
        ) {
            let text = parts.concat();
            prop_assert_eq!(in_blocks(text.as_bytes()), one_by_one(text.as_bytes()), "{}", text);
        }
    }
}
