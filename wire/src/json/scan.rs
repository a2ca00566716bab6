//! The scan for the bytes that give a JSON document its structure, eight bytes at a time.
//!
//! A word is compared with a byte by the test for a zero byte of
//! <https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord>. Of the bytes that it marks
//! the first is always right, and only the first is used.

/// A word of eight equal bytes.
const fn splat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The position from `at` on of the first quote or backslash; the length of `doc` without one.
pub(super) fn end_of_text(doc: &[u8], at: usize) -> usize {
    let quote = |word: u64| zero_bytes(word ^ splat(b'"')) | zero_bytes(word ^ splat(b'\\'));
    find(doc, at, quote, |byte| matches!(byte, b'"' | b'\\'))
}

/// The position from `at` on of the first quote, backslash or control character; the length of
/// `doc` without one.
pub(crate) fn end_of_plain_text(doc: &[u8], at: usize) -> usize {
    let mark = |word: u64| {
        zero_bytes(word ^ splat(b'"')) | zero_bytes(word ^ splat(b'\\')) | control_bytes(word)
    };
    find(doc, at, mark, |byte| matches!(byte, b'"' | b'\\' | 0..b' '))
}

/// The position from `at` on of the first quote, bracket or brace; the length of `doc` without one.
pub(super) fn structure(doc: &[u8], at: usize) -> usize {
    let mark = |word: u64| {
        // The two brackets differ from the two braces by this bit only.
        let folded = word | splat(b'[' ^ b'{');
        zero_bytes(word ^ splat(b'"'))
            | zero_bytes(folded ^ splat(b'{'))
            | zero_bytes(folded ^ splat(b'}'))
    };
    find(doc, at, mark, |byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))
}

/// Sets the highest bit of the first byte that is zero, and perhaps of later ones.
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(splat(0x01)) & !word & splat(0x80)
}

/// Sets the highest bit of the first byte below a space, and perhaps of later ones.
fn control_bytes(word: u64) -> u64 {
    word.wrapping_sub(splat(b' ')) & !word & splat(0x80)
}

/// The position from `at` on of the first byte that is marked in its word. The rest of the document
/// that fills no word is looked at by `is_marked`.
#[inline]
fn find(doc: &[u8], at: usize, mark: impl Fn(u64) -> u64, is_marked: impl Fn(u8) -> bool) -> usize {
    let rest = doc.get(at..).unwrap_or_default();
    // Most texts of a reply end in the first word.
    if let Some(first) = rest.first_chunk() {
        let marks = mark(u64::from_le_bytes(*first));
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
    }
    let (words, tail) = rest.as_chunks::<8>();
    for (number, bytes) in words.iter().enumerate() {
        let marks = mark(u64::from_le_bytes(*bytes));
        if marks != 0 {
            return at + 8 * number + marks.trailing_zeros() as usize / 8;
        }
    }

    let before_tail = doc.len() - tail.len();
    let found = tail.iter().position(|byte| is_marked(*byte));
    found.map_or(doc.len(), |position| before_tail + position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_marked_byte_is_found(
            doc in proptest::collection::vec(
                prop_oneof![any::<u8>(), proptest::sample::select(b"\"\\[]{},:!#\x02\x82\xa2".to_vec())],
                0..80,
            ),
            at in 0_usize..90,
        ) {
            let first = |marks: &[u8]| {
                let found = (at..doc.len()).find(|at| marks.contains(&doc[*at]));
                found.unwrap_or(doc.len())
            };
            prop_assert_eq!(end_of_text(&doc, at), first(b"\"\\"));
            let controls: Vec<u8> = (0..b' ').chain(*b"\"\\").collect();
            prop_assert_eq!(end_of_plain_text(&doc, at), first(&controls));
            prop_assert_eq!(structure(&doc, at), first(b"\"[]{}"));
        }
    }
}
