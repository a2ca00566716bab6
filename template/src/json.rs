//! JSON as `json.dumps(value, ensure_ascii=False)` of Python writes it.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// One line, `", "` between items and `": "` after keys.
///
/// # Errors
/// A value that JSON cannot hold, such as a map whose keys are not strings.
pub fn dumps<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    write(value, OneLine)
}

/// Indented by `indent` spaces a level; otherwise as [`dumps`].
///
/// # Errors
/// As [`dumps`].
pub fn dumps_indented<T>(value: &T, indent: usize) -> Result<String, serde_json::Error>
where
    T: Serialize + ?Sized,
{
    write(value, PrettyFormatter::with_indent(" ".repeat(indent).as_bytes()))
}

fn write<T, F>(value: &T, formatter: F) -> Result<String, serde_json::Error>
where
    T: Serialize + ?Sized,
    F: Formatter,
{
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }
}

/// A float as Python prints it: an exponent below 1e-4 and from 1e16 on, with a sign and two
/// digits.
fn float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn writes_as_python_does() {
        let value = json!({"b": [1, 2.0, "ü<\u{2028}\n"], "a": {}, "c": null, "d": true});
        let expected = "{\"b\": [1, 2.0, \"ü<\u{2028}\\n\"], \"a\": {}, \"c\": null, \"d\": true}";
        assert_eq!(dumps(&value).unwrap(), expected);
        let indented = "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}";
        assert_eq!(dumps_indented(&json!({"a": [1], "b": []}), 2).unwrap(), indented);
    }

    #[test]
    fn floats_are_those_of_python() {
        let cases = [
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
    }
}
