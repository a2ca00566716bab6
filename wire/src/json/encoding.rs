//! JSON in other encodings than UTF-8, which servers in Python read by its first bytes.

/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The form of the units of a text.
struct Units {
    bytes: usize,
    is_big_endian: bool,
    /// The length of the byte order mark.
    mark: usize,
}

impl Units {
    /// The units of a text in UTF-16 or UTF-32, by its byte order mark or the zeros of its first
    /// characters, which are ASCII in JSON. `None` for any other text.
    fn of(text: &[u8]) -> Option<Self> {
        let (bytes, is_big_endian, mark) = match text {
            [0, 0, 0xfe, 0xff, ..] => (4, true, 4),
            [0xff, 0xfe, 0, 0, ..] => (4, false, 4),
            [0xfe, 0xff, ..] => (2, true, 2),
            [0xff, 0xfe, ..] => (2, false, 2),
            [0, 0, ..] => (4, true, 0),
            [0, ..] => (2, true, 0),
            [_, 0, 0, 0, ..] => (4, false, 0),
            [_, 0, ..] => (2, false, 0),
            _ => return None,
        };
        Some(Self { bytes, is_big_endian, mark })
    }

    /// The character that a unit is, if it is ASCII.
    fn ascii(&self, unit: &[u8]) -> Option<u8> {
        let (last, zeros) = match self.is_big_endian {
            true => unit.split_last()?,
            false => unit.split_first()?,
        };
        zeros.iter().all(|byte| *byte == 0).then_some(*last)
    }
}

/// True if `text` begins as a JSON object in UTF-16 or UTF-32, or in UTF-8 after a byte order mark.
pub(crate) fn is_object_elsewhere(text: &[u8]) -> bool {
    let mut plain = text;
    while let Some(rest) = plain.strip_prefix(MARK) {
        plain = rest;
    }
    if plain.len() < text.len() {
        return begins_object(plain.iter().copied().map(Some));
    }

    let Some(units) = Units::of(text) else { return false };
    begins_object(text[units.mark..].chunks_exact(units.bytes).map(|unit| units.ascii(unit)))
}

fn begins_object(mut characters: impl Iterator<Item = Option<u8>>) -> bool {
    let is_space = |character: &Option<u8>| matches!(character, Some(b' ' | b'\t' | b'\n' | b'\r'));
    characters.find(|character| !is_space(character)) == Some(Some(b'{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` in UTF-16 or UTF-32.
    fn encoded(text: &str, bytes: usize, is_big_endian: bool) -> Vec<u8> {
        let wide = text.chars().flat_map(|character| {
            let unit = u32::from(character).to_be_bytes();
            let mut unit = unit[4 - bytes..].to_vec();
            if !is_big_endian {
                unit.reverse();
            }
            unit
        });
        wide.collect()
    }

    #[test]
    fn an_object_is_known_in_every_encoding_that_python_detects() {
        for text in ["{\"a\":1}", " \t\r\n{}", "{}"] {
            assert!(!is_object_elsewhere(text.as_bytes()), "{text}");
            let marked = format!("\u{feff}{text}");
            assert!(is_object_elsewhere(marked.as_bytes()), "{text}");
            for bytes in [2, 4] {
                for is_big_endian in [false, true] {
                    for text in [text, &marked] {
                        let body = encoded(text, bytes, is_big_endian);
                        assert!(is_object_elsewhere(&body), "{body:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_object_is_none_in_any_encoding() {
        for body in [
            &b""[..],
            b"\0",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"\xef\xbb\xbf[1]",
            b"[\0]\0",
            b"--boundary\r\n{",
            b"\0\0\0\x18ftypmp42{",
            b"RIFF\0\0\0\0WAVE",
            b"{\"a\":\"\0\"}",
        ] {
            assert!(!is_object_elsewhere(body), "{body:?}");
        }
    }
}
