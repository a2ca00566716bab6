//! JSON whose numbers are as exact as those of Python: integers of any length, and the infinite and
//! missing numbers that `json.loads` reads beside JSON.
//!
//! [`Value`] has no place for such a number. It is kept as a string of a mark and the number.

use std::borrow::Cow;

use serde::ser::{Serialize, Serializer};
use serde_json::Value;

/// Stands before a number that is kept as a string: two letters that no text has, because they are
/// of a private plane and mean nothing.
const MARK: &str = "\u{10FFFD}\u{10FFFC}";

/// The numbers of Python that JSON does not have.
const BEYOND_JSON: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses JSON, and keeps the digits of every integer.
///
/// # Errors
/// If it is not what `json.loads` of Python reads.
pub fn parse(json: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(&marked(json, beyond_value))
}

/// Returns JSON with the integers that [`Value`] would round as marked strings. A text that has
/// none is returned as it is, also if it is not JSON.
pub fn with_marked_integers(json: &str) -> Cow<'_, str> {
    marked(json, |word| beyond_value(word).filter(|_| is_integer(word)))
}

/// Makes marked strings the numbers that [`Value`] has for them.
pub fn round(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(number) = number_of(text).and_then(|number| number.parse::<f64>().ok()) {
                *value = number.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(members) => members.values_mut().for_each(round),
        _ => {}
    }
}

/// Returns the text with the numbers of which `beyond` gives a form as marked strings.
fn marked(json: &str, beyond: impl Fn(&str) -> Option<String>) -> Cow<'_, str> {
    let mut out = String::new();
    let mut written = 0;
    let bytes = json.as_bytes();
    let mut at = 0;

    while at < bytes.len() {
        let end = match bytes[at] {
            b'"' => end_of_string(bytes, at),
            b'-' | b'0'..=b'9' | b'I' | b'N' => {
                let end = end_of_word(bytes, at);
                let word = &json[at..end];
                if let Some(number) = beyond(word) {
                    out.push_str(&json[written..at]);
                    out.extend(["\"", MARK, &number, "\""]);
                    written = end;
                }
                end
            }
            _ => at + 1,
        };
        at = end;
    }

    if written == 0 {
        return Cow::Borrowed(json);
    }
    out.push_str(&json[written..]);
    Cow::Owned(out)
}

/// Returns the byte behind the string that starts at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the byte behind the number or name that starts at `start`.
fn end_of_word(bytes: &[u8], start: usize) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let rest = &bytes[start + 1..];
    start + 1 + rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len())
}

/// The form of a number that a [`Value`] cannot hold; none for others, and for what is no number.
fn beyond_value(word: &str) -> Option<String> {
    if BEYOND_JSON.contains(&word) {
        return Some(word.to_owned());
    }
    let digits = word.strip_prefix('-').unwrap_or(word);
    if is_integer(word) {
        let fits = word.parse::<i64>().is_ok() || word.parse::<u64>().is_ok();
        return (!fits).then(|| word.to_owned());
    }
    // Python's `float` reads what is too large as infinite. It has no other word of these letters.
    let is_number = digits.starts_with(|letter: char| letter.is_ascii_digit())
        && serde_json::from_str::<Value>(word).is_err()
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
    let number = word.parse::<f64>().ok().filter(|number| is_number && number.is_infinite())?;
    Some(if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned())
}

/// True for an integer as JSON spells it.
fn is_integer(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let is_spelled = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_spelled && (digits.len() == 1 || !digits.starts_with('0'))
}

/// The number of a marked string, as JSON or Python's `json` spells it.
pub(crate) fn number_of(text: &str) -> Option<&str> {
    let number = text.strip_prefix(MARK)?;
    (is_integer(number) || BEYOND_JSON.contains(&number)).then_some(number)
}

/// A value that is written with its integers of up to 128 bits as integers. Other numbers stay
/// marked, until [`shown`].
pub struct Exact<'a>(pub &'a Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::String(text) => {
                let digits = number_of(text).unwrap_or_default();
                match (digits.parse(), digits.parse()) {
                    (Ok(number), _) => out.serialize_i128(number),
                    (_, Ok(number)) => out.serialize_u128(number),
                    _ => out.serialize_str(text),
                }
            }
            Value::Array(items) => out.collect_seq(items.iter().map(Exact)),
            Value::Object(members) => {
                out.collect_map(members.iter().map(|(name, value)| (name, Exact(value))))
            }
            other => other.serialize(out),
        }
    }
}

/// Returns a rendered text with its marked strings as the numbers that they stand for, be they in
/// quotes or not.
pub fn shown(text: String) -> String {
    let mut parts = text.split(MARK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number = BEYOND_JSON.into_iter().find(|number| part.starts_with(number));
        let digits =
            part.trim_start_matches(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        let len = number.map_or(part.len() - digits.len(), str::len);
        let is_quoted = out.ends_with('"') && part[len..].starts_with('"');
        if is_quoted {
            out.pop();
        }
        out.push_str(&part[..len]);
        out.push_str(&part[len + usize::from(is_quoted)..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let json = "{\"a\": 123456789012345678901234567890, \"b\": [-9223372036854775809, 5, \
                    1e400, -0.0, 18446744073709551615], \"1e999\": \"12345678901234567890123\"}";
        let value = parse(json).unwrap();
        assert_eq!(value["b"][1], 5);
        assert_eq!(value["1e999"], "12345678901234567890123");
        let shown = shown(serde_json::to_string(&Exact(&value)).unwrap());
        let expected = "{\"a\":123456789012345678901234567890,\"b\":[-9223372036854775809,5,\
                        Infinity,-0.0,18446744073709551615],\"1e999\":\"12345678901234567890123\"}";
        assert_eq!(shown, expected);
        let long = "9".repeat(60);
        assert_eq!(
            super::shown(format!("{MARK}{long} \"{MARK}{long}\"")),
            format!("{long} {long}")
        );
    }

    #[test]
    fn texts_that_are_no_json_stay_so() {
        for json in
            ["", "{", "\"a", "\"a\\", "-", "- 1", "00000000000000000000000", "Nan", "1e", "+1"]
        {
            assert!(parse(json).is_err(), "{json}");
        }
        let plain = "{\"a\": 1.5e3, \"b\": \"NaN\"}";
        assert_eq!(marked(plain, beyond_value), plain);
        assert_eq!(with_marked_integers("[NaN, 1e999]"), "[NaN, 1e999]");
        let mut long = serde_json::from_str(&with_marked_integers("[[-18446744073709551616]]"));
        round(long.as_mut().unwrap());
        assert_eq!(long.unwrap(), serde_json::json!([[-18446744073709551616.0]]));
        assert!(parse("[NaN, -Infinity]").is_ok());
    }
}
