//! What JSON text can spell and a tree of its values cannot hold: half of a pair of surrogates, and
//! a number beyond 64 bits. In the tree they stand as texts with marks, private characters that no
//! model writes, until they are written again. The numbers that Python writes and JSON does not
//! have are null.

use std::borrow::Cow;
use std::fmt::Write;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::mended::unit;
use super::{Malformed, scalar, string};

/// Added to the code of a half: a private character for each.
const HALF_MARK: u32 = 0x10_0000;
/// Begins the text that stands for a number.
const NUMBER_MARK: char = '\u{10fffd}';
/// Stands before a character that looks like a mark and is none.
const NO_MARK: char = '\u{10fffc}';
/// The first byte of all of them.
const MARK_BYTE: u8 = 0xf4;
/// The digits of the longest integer that a tree holds.
const DIGITS: usize = 20;
/// Numbers that Python's JSON has.
const WORDS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];

/// The document with marks in place of what a tree cannot hold; `None` if it has nothing of the
/// kind, or is no JSON.
pub(super) fn marked(doc: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(doc.len() + 16);

    let (mut at, mut is_changed) = (0, std::str::from_utf8(doc).is_err());
    while let Some(byte) = doc.get(at) {
        let end = match byte {
            b'"' => {
                let end = string(doc, at).ok().filter(|end| *end <= doc.len())?;
                is_changed |= push_text(&mut out, &doc[at..end]);
                end
            }
            b'{' | b'}' | b'[' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => {
                out.push(*byte);
                at + 1
            }
            _ => {
                let end = scalar(doc, at);
                is_changed |= push_scalar(&mut out, &doc[at..end]).ok()?;
                end
            }
        };
        at = end;
    }

    is_changed.then(|| String::from_utf8_lossy(&out).into_owned())
}

/// Returns true if the document is to be looked at, although a tree can be made of it: it may hold
/// an integer that is too long, or a character that looks like a mark.
pub(super) fn may_need_marks(doc: &[u8]) -> bool {
    may_hold_long_integer(doc) || doc.contains(&MARK_BYTE) || may_escape_mark(doc)
}

/// Returns true if an escape in the document is the first half of a character that looks like a
/// mark.
fn may_escape_mark(doc: &[u8]) -> bool {
    memchr::memchr_iter(b'\\', doc).any(|at| unit(doc, at).is_some_and(|unit| unit >= 0xdbf6))
}

/// Returns true for as many digits in a row, in a text or not.
fn may_hold_long_integer(doc: &[u8]) -> bool {
    // Of so many digits one stands at a multiple of their number.
    (0..doc.len()).step_by(DIGITS).any(|at| {
        let is_digit = |byte: &&u8| byte.is_ascii_digit();
        doc[at].is_ascii_digit() && {
            let before = doc[..at].iter().rev().take_while(is_digit).take(DIGITS).count();
            before + doc[at..].iter().take_while(is_digit).take(DIGITS).count() >= DIGITS
        }
    })
}

/// Adds a text between its quotes. Returns true if it holds a mark, or a control character that
/// should have been escaped.
fn push_text(out: &mut Vec<u8>, spelled: &[u8]) -> bool {
    let (mut at, mut is_changed) = (0, false);
    while let Some(byte) = spelled.get(at) {
        let piece = Piece::at(spelled, at, *byte);
        match &piece.respelled {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => out.extend_from_slice(&spelled[at..(at + piece.length).min(spelled.len())]),
        }
        is_changed |= piece.respelled.is_some();
        at += piece.length;
    }
    is_changed
}

/// A byte, a character or an escape of a text.
struct Piece {
    length: usize,
    /// What stands in its place.
    respelled: Option<String>,
}

impl Piece {
    fn at(spelled: &[u8], at: usize, byte: u8) -> Self {
        let character = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        let (length, respelled) = match (byte, unit(spelled, at)) {
            (0..0x20, _) => (1, Some(format!("\\u{byte:04x}"))),

            // Escapes: of half a pair, of a whole one, of anything else.
            (b'\\', Some(high @ 0xd800..0xdc00)) => match unit(spelled, at + 6) {
                Some(low @ 0xdc00..0xe000) => {
                    let whole = character(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
                    (12, looks_like_mark(whole).then(|| format!("{NO_MARK}{whole}")))
                }
                _ => (6, Some(character(HALF_MARK + high).to_string())),
            },
            (b'\\', Some(low @ 0xdc00..0xe000)) => {
                (6, Some(character(HALF_MARK + low).to_string()))
            }
            (b'\\', _) => (2, None),

            (MARK_BYTE, _) => {
                let bytes = &spelled[at..(at + 4).min(spelled.len())];
                let found = std::str::from_utf8(bytes).ok().and_then(|text| text.chars().next());
                let found = found.filter(|found| looks_like_mark(*found));
                (found.map_or(1, char::len_utf8), found.map(|found| format!("{NO_MARK}{found}")))
            }
            _ => (1, None),
        };
        Self { length, respelled }
    }
}

fn looks_like_mark(letter: char) -> bool {
    half(letter).is_some() || [NUMBER_MARK, NO_MARK].contains(&letter)
}

/// Adds a scalar. Returns true if a mark stands in its place.
fn push_scalar(out: &mut Vec<u8>, spelled: &[u8]) -> Result<bool, Malformed> {
    let is_held = match serde_json::from_slice::<Value>(spelled) {
        Ok(Value::Number(number)) => !number.is_f64() || spelled.iter().any(|b| b".eE".contains(b)),
        Ok(_) => true,
        Err(_) => false,
    };
    if is_held {
        out.extend_from_slice(spelled);
        return Ok(false);
    }
    if WORDS.contains(&spelled) {
        out.extend_from_slice(b"null");
        return Ok(true);
    }
    if !is_number(spelled) {
        return Err(Malformed);
    }
    let text = std::str::from_utf8(spelled).map_err(|_| Malformed)?;
    out.extend_from_slice(format!("\"{NUMBER_MARK}{text}\"").as_bytes());
    Ok(true)
}

/// Returns true for a number as JSON spells it, however large.
fn is_number(spelled: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(spelled).is_ok()
        && spelled.first().is_some_and(|byte| *byte == b'-' || byte.is_ascii_digit())
}

/// The JSON text of a value, with all spelled again as it was: what goes to an agent or a server.
pub fn json_text(value: &Value) -> String {
    let text = value.to_string();
    if !text.as_bytes().contains(&MARK_BYTE) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();

    while let Some(at) = rest.find(looks_like_mark) {
        let (before, marked) = rest.split_at(at);
        out.push_str(before);
        let mut letters = marked.chars();
        let mark = letters.next().unwrap_or_default();
        if mark == NO_MARK {
            out.extend(letters.next());
        }
        rest = letters.as_str();

        if let Some(half) = half(mark) {
            let _ = write!(out, "\\u{half:04x}");
        } else if mark == NUMBER_MARK
            && out.ends_with('"')
            && let Some((number, after)) = rest.split_once('"')
        {
            out.pop();
            out.push_str(number);
            rest = after;
        }
    }
    out + rest
}

/// The tree of JSON text that is itself a text of a tree, such as the arguments of a call: marks in
/// it are escapes of the inner text.
pub(crate) fn inner_tree(text: &str) -> Option<Value> {
    if !text.as_bytes().contains(&MARK_BYTE) || !text.contains(looks_like_mark) {
        return super::tree(text.as_bytes());
    }
    let mut spelled = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match half(letter) {
            Some(half) => drop(write!(spelled, "\\u{half:04x}")),
            None if letter == NO_MARK => spelled.extend(letters.next()),
            None => spelled.push(letter),
        }
    }
    super::tree(spelled.as_bytes())
}

/// The number that a marked text stands for, as it was spelled.
pub(crate) fn marked_number(text: &str) -> Option<&str> {
    text.strip_prefix(NUMBER_MARK)
}

/// The code of a half that a mark stands for.
pub(crate) fn half(mark: char) -> Option<u32> {
    u32::from(mark).checked_sub(HALF_MARK).filter(|code| (0xd800..0xe000).contains(code))
}

/// A text to read: two halves that belong together are one character, a lone one is U+FFFD.
fn readable(text: &str) -> Cow<'_, str> {
    if !text.as_bytes().contains(&MARK_BYTE) || !text.contains(looks_like_mark) {
        return Cow::Borrowed(text);
    }
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match half(letter) {
            Some(code) => units.push(code as u16),
            None => {
                let letter =
                    if letter == NO_MARK { letters.next().unwrap_or(letter) } else { letter };
                units.extend_from_slice(letter.encode_utf16(&mut [0; 2]));
            }
        }
    }
    Cow::Owned(String::from_utf16_lossy(&units))
}

/// Makes all texts of a value readable. Numbers keep their marks.
pub(crate) fn make_readable(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(read) = readable(text) {
                *text = read;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_readable),
        Value::Object(fields) => fields.values_mut().for_each(make_readable),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::tree;
    use super::*;

    #[test]
    fn half_a_pair_and_a_long_number_are_written_as_they_came() {
        for doc in [
            r#"{"a":"x\ud83dy","b":123456789012345678901234567890}"#,
            r#"["\ude00\ud83d",-99999999999999999999,1e999]"#,
            r#"{"k\ud800":["\\ud83d","12345678901234567890123"]}"#,
            r#"[18446744073709551615,-9223372036854775808,0.5,1e3]"#,
        ] {
            let value = tree(doc.as_bytes()).unwrap();
            let exact = doc.replace("1e3]", "1000.0]");
            assert_eq!(json_text(&value), exact, "{value:?}");
        }
        assert_eq!(tree(b"[NaN,-Infinity,1]"), Some(json!([null, null, 1])));
        for broken in [
            "{\"a\":\"\\ud83d\"",
            "[Inf]",
            "[1.2.3]",
            "[01]",
            "[-]",
            "[1e]",
            "data: \"\\ud83d\"",
            "[12x]",
            "\"\\ud83",
        ] {
            assert_eq!(tree(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn marks_in_an_inner_text_are_its_escapes() {
        let outer = tree(br#"{"arguments":"{\"input\": \"x\ud83dy\"}"}"#).unwrap();
        let inner = inner_tree(outer["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(json_text(&inner), r#"{"input":"x\ud83dy"}"#);
    }

    #[test]
    fn halves_that_meet_are_one_character() {
        let halves = [r#""\ud83d""#, r#""\ude00""#].map(|half| tree(half.as_bytes()).unwrap());
        let joined: String = halves.iter().filter_map(Value::as_str).collect();
        assert_eq!(readable(&joined), "\u{1f600}");
        let mut lone = json!({ "a": [halves[0].clone(), "b"] });
        make_readable(&mut lone);
        assert_eq!(lone, json!({ "a": ["\u{fffd}", "b"] }));
    }

    #[test]
    fn raw_control_characters_and_bytes_cost_only_themselves() {
        assert_eq!(tree(b"{\"a\":\"x\ny\xff\"}").unwrap(), json!({ "a": "x\ny\u{fffd}" }));
    }

    proptest! {
        #[test]
        fn what_a_tree_holds_stays_as_it_is(
            text in prop_oneof![".*", "[a\u{10d800}-\u{10d802}\u{10fffc}\u{10fffd}]*"],
            number: i64,
        ) {
            let value = json!({ "k": [number, &text, null, true], &text: 1 });
            let spelled = value.to_string();
            let mut read = tree(spelled.as_bytes()).unwrap();
            prop_assert_eq!(json_text(&read), spelled);
            make_readable(&mut read);
            prop_assert_eq!(&read["k"], &value["k"]);
        }

        #[test]
        fn long_numbers_are_found_wherever_they_stand(
            before in "[a-z]{0,45}",
            digits in "[1-9]{20,30}",
        ) {
            let doc = before + &digits;
            prop_assert!(may_hold_long_integer(doc.as_bytes()));
        }
    }
}
