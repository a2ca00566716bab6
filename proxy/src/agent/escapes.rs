//! Percent escapes in paths and queries.

/// Number of times that escapes within escapes are decoded.
const ESCAPE_LEVELS_MAX: usize = 4;

/// The bytes of a text without its escapes, each with whether it was escaped. A percent sign that
/// begins no escape stands for itself.
pub(crate) fn decoded(text: &str) -> impl Iterator<Item = (u8, bool)> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        let escaped = escaped_byte(after).filter(|_| *first == b'%');
        rest = if escaped.is_some() { &after[2..] } else { after };
        Some((escaped.unwrap_or(*first), escaped.is_some()))
    })
}

/// A text without its escapes. Bytes that are not UTF-8 are replaced.
pub fn unescaped(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes: Vec<u8> = decoded(text).map(|(byte, _)| byte).collect();
    String::from_utf8_lossy(&bytes).into_owned()
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

/// The byte of the escape whose digits `rest` begins with.
fn escaped_byte(rest: &[u8]) -> Option<u8> {
    let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
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
}
