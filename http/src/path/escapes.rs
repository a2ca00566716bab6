//! Percent escapes in paths and queries.

use percent_encoding::{percent_decode, percent_decode_str};

/// Number of times that escapes within escapes are decoded.
const ESCAPE_LEVELS_MAX: usize = 4;
/// Bytes of an escape.
const ESCAPE_BYTES: usize = 3;

/// The bytes of a text without its escapes, each with whether it was escaped. A percent sign that
/// begins no escape stands for itself.
pub fn decoded(text: &str) -> impl Iterator<Item = (u8, bool)> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let escaped = rest.get(..ESCAPE_BYTES).and_then(escaped_byte);
        let (byte, length) = match escaped {
            Some(byte) => (byte, ESCAPE_BYTES),
            None => (*rest.first()?, 1),
        };
        rest = &rest[length..];
        Some((byte, escaped.is_some()))
    })
}

/// The byte of an escape. `None` if the bytes are more than one.
fn escaped_byte(escape: &[u8]) -> Option<u8> {
    let mut bytes = percent_decode(escape);
    bytes.next().filter(|_| bytes.next().is_none())
}

/// A text without its escapes. Bytes that are not UTF-8 are replaced.
pub fn unescaped(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The path as a server behind the upstream's load balancer may see it: escapes are decoded, and
/// `.`, `..` and empty segments are resolved. `path` may have a query, which is left out.
pub fn normalized(path: &str) -> String {
    let mut path = path.split('?').next().unwrap_or(path).to_owned();
    for _ in 0..ESCAPE_LEVELS_MAX {
        let decoded = unescaped(&path);
        if decoded == path {
            break;
        }
        path = decoded;
    }

    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments.into_iter().flat_map(|segment| ["/", segment]).collect()
}

/// A name or a value as a form writes it: a plus sign stands for a space. A text that is not UTF-8
/// then stays as it is.
pub fn form_decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    match percent_decode_str(&spaced).decode_utf8() {
        Ok(decoded) => decoded.into_owned(),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_once_and_what_is_none_stays() {
        for (text, expected) in [
            ("", ""),
            ("a/b", "a/b"),
            ("%61%2Fb%2f", "a/b/"),
            ("%2541", "%41"),
            ("%", "%"),
            ("%4", "%4"),
            ("%zz%+1", "%zz%+1"),
            ("%c3%bc", "\u{fc}"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
        let told: Vec<_> = decoded("%%25").collect();
        assert_eq!(told, [(b'%', false), (b'%', true)]);
    }

    #[test]
    fn a_form_writes_spaces_as_plus_signs() {
        for (text, expected) in
            [("a+b%2Bc", "a b+c"), ("%zz%4%+1", "%zz%4% 1"), ("a+%ff", "a+%ff"), ("", "")]
        {
            assert_eq!(form_decoded(text), expected, "{text}");
        }
    }
}
