//! Documents that serde refuses for a thing that need not cost the rest of them.

use std::collections::HashSet;
use std::ops::Range;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::{Brackets, Ends, Malformed, Outline, each_element, members, root};

/// Levels that are looked into. What lies deeper is kept if it is JSON.
const LEVELS: u8 = 16;

/// Stands for an object or a list that cannot be read: no field that is read is a false one.
const UNREADABLE: &[u8] = b"false";

/// Bytes that a backslash may stand before.
const ESCAPED: &[u8] = b"\"\\/bfnrt";

/// The document as serde reads it, for one that it refuses: half a pair of surrogates and a byte
/// that is no UTF-8 become U+FFFD, a number without measure becomes null, and of members with one
/// name the last one stays. `None` if its outermost brackets do not match.
pub(crate) fn mended(doc: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(doc);
    let doc = text.as_bytes();
    let brackets = Brackets::of(doc).ok()?;
    let outline = brackets.outline(doc);
    let mut out = Vec::with_capacity(doc.len());
    write_value(&outline, root(&outline).ok()?, 0, &mut out);
    Some(out)
}

fn write_value(document: &Outline<'_>, place: Range<usize>, level: u8, out: &mut Vec<u8>) {
    let json = &document.bytes()[place.clone()];
    let start = out.len();

    let written = match json.first() {
        Some(b'{') if level < LEVELS => write_object(document, &place, level, out),
        Some(b'[') if level < LEVELS => write_list(document, &place, level, out),
        Some(b'"') => {
            write_text(json, out);
            Ok(())
        }
        Some(b'{' | b'[') => match serde_json::from_slice::<IgnoredAny>(json) {
            Ok(IgnoredAny) => {
                out.extend_from_slice(json);
                Ok(())
            }
            Err(_) => Err(Malformed),
        },
        _ => {
            let is_read = serde_json::from_slice::<Value>(json).is_ok();
            out.extend_from_slice(if is_read { json } else { b"null" });
            Ok(())
        }
    };

    if written.is_err() {
        out.truncate(start);
        out.extend_from_slice(UNREADABLE);
    }
}

fn write_object(
    document: &Outline<'_>,
    place: &Range<usize>,
    level: u8,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let doc = document.bytes();
    let all = members(document, place)?;
    let mut names = HashSet::new();
    let mut kept: Vec<_> =
        all.iter().rev().filter(|member| names.insert(member.name(doc))).collect();
    kept.reverse();

    for (at, member) in kept.into_iter().enumerate() {
        out.push(if at == 0 { b'{' } else { b',' });
        write_text(&doc[member.start()..member.key.end + 1], out);
        out.push(b':');
        write_value(document, member.value.clone(), level + 1, out);
    }
    if all.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
    Ok(())
}

fn write_list(
    document: &Outline<'_>,
    place: &Range<usize>,
    level: u8,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    out.push(b'[');
    let start = out.len();
    each_element(document, place, |element| {
        if out.len() > start {
            out.push(b',');
        }
        write_value(document, element, level + 1, out);
        Ok(())
    })?;
    out.push(b']');
    Ok(())
}

/// Writes a text between its quotes.
fn write_text(spelled: &[u8], out: &mut Vec<u8>) {
    const REPLACEMENT: &[u8] = b"\\ufffd";
    let mut at = 0;
    while let Some(byte) = spelled.get(at) {
        let (kept, replaced) = match (byte, unit(spelled, at)) {
            (0..b' ', _) => {
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                (0, 1)
            }
            (b'\\', Some(0xd800..0xdc00)) if is_second_half(unit(spelled, at + 6)) => (12, 0),
            (b'\\', Some(0xd800..0xe000)) => (0, 6),
            (b'\\', Some(_)) => (6, 0),
            (b'\\', None) if spelled.get(at + 1).is_some_and(|byte| ESCAPED.contains(byte)) => {
                (2, 0)
            }
            (b'\\', None) => (0, 1),
            _ => (1, 0),
        };

        out.extend_from_slice(&spelled[at..at + kept]);
        if replaced > 0 && *byte == b'\\' {
            out.extend_from_slice(REPLACEMENT);
        }
        at += kept + replaced;
    }
}

fn is_second_half(unit: Option<u32>) -> bool {
    matches!(unit, Some(0xdc00..0xe000))
}

/// The code of the escape of four hexadecimal digits at `at`.
pub(super) fn unit(spelled: &[u8], at: usize) -> Option<u32> {
    let digits = spelled.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let are_digits = digits.iter().all(u8::is_ascii_hexdigit);
    u32::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| are_digits)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_thing_costs_only_itself() {
        for (doc, whole) in [
            (r#"{"a":"x\ud83dy","b":1}"#, r#"{"a":"x\ufffdy","b":1}"#),
            (
                r#"["\ud83d\ude00","\ude00\ud83d","\\ud83d"]"#,
                r#"["\ud83d\ude00","\ufffd\ufffd","\\ud83d"]"#,
            ),
            (r#"{"k\ud800":[ {} , [] ]}"#, r#"{"k\ufffd":[{},[]]}"#),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"b":2,"a":3}"#),
            (r#"[NaN,-Infinity,1e999,01,1]"#, "[null,null,null,null,1]"),
            (r#"{"a":[1 2],"b":{"c" 1},"d":1}"#, r#"{"a":false,"b":false,"d":1}"#),
            ("{\"a\":\"\\x\n\\u00g0\"}", r#"{"a":"\ufffdx\u000a\ufffdu00g0"}"#),
        ] {
            let found = mended(doc.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), whole, "{doc}");
        }
        assert_eq!(mended(b"{\"a\":\"\xff\"}").unwrap(), "{\"a\":\"\u{fffd}\"}".as_bytes());
        for broken in ["", "{", "{}}", "{\"a\":[}"] {
            assert_eq!(mended(broken.as_bytes()), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn what_is_mended_is_json(parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\ud83d\"", "\"\\u12\"", "1e999", "NaN",
                "1", "null", "\"a\":", "\"\\", " ", "\"a\":{\"b\":[1,NaN]},",
            ]),
            0..12,
        )) {
            for doc in [format!("[{}]", parts.concat()), format!("{{{}}}", parts.concat())] {
                if let Some(found) = mended(doc.as_bytes()) {
                    prop_assert!(serde_json::from_slice::<Value>(&found).is_ok(), "{doc}");
                }
            }
        }
    }
}
