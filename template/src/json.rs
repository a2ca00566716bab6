//! JSON as `json.dumps(value, ensure_ascii=False)` of Python writes it.

pub mod exact;

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// The arguments of `json.dumps`.
#[derive(Clone, Debug)]
pub struct JsonLayout<'a> {
    /// Spaces of each level; all on one line if absent.
    pub indent: Option<usize>,
    /// Separator of items; if absent Python's own: `", "` on one line, else `","`.
    pub item_separator: Option<Cow<'a, str>>,
    /// Separator after keys.
    pub key_separator: Cow<'a, str>,
    /// Writes characters beyond ASCII as `\uXXXX`.
    pub ascii: bool,
    /// Sorts keys.
    pub sorted: bool,
}

impl Default for JsonLayout<'_> {
    fn default() -> Self {
        JsonLayout {
            indent: None,
            item_separator: None,
            key_separator: Cow::Borrowed(": "),
            ascii: false,
            sorted: false,
        }
    }
}

/// Writes a value on one line, with `", "` between items and `": "` after keys.
///
/// # Errors
/// If JSON cannot hold the value, such as a map whose keys are not strings.
pub fn dumps<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    dumps_as(value, &JsonLayout::default())
}

/// Writes a value as `json.dumps` with these arguments.
///
/// # Errors
/// As [`dumps`].
pub fn dumps_as<T>(value: &T, layout: &JsonLayout<'_>) -> Result<String, serde_json::Error>
where
    T: Serialize + ?Sized,
{
    let default_separator = if layout.indent.is_some() { "," } else { ", " };
    let item_separator = layout.item_separator.as_deref().unwrap_or(default_separator);
    let formatter = PythonFormatter { layout, item_separator, level: 0, has_items: false };
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, formatter);
    if layout.sorted {
        let mut value = serde_json::to_value(value)?;
        sort(&mut value);
        value.serialize(&mut serializer)?;
    } else {
        value.serialize(&mut serializer)?;
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn sort(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(sort),
        Value::Object(map) => {
            map.sort_keys();
            map.values_mut().for_each(sort);
        }
        _ => {}
    }
}

/// A formatter of `serde_json` that writes as Python does.
struct PythonFormatter<'a> {
    layout: &'a JsonLayout<'a>,
    item_separator: &'a str,
    level: usize,
    /// True if the innermost open list or map has items.
    has_items: bool,
}

impl PythonFormatter<'_> {
    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.has_items = false;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.has_items {
            self.line(out)?;
        }
        out.write_all(bracket)
    }

    fn separate<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item_separator.as_bytes())?;
        }
        self.line(out)
    }

    /// Starts a new line, if items are indented.
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = self.layout.indent else { return Ok(()) };
        write!(out, "\n{:1$}", "", indent * self.level)
    }
}

impl Formatter for PythonFormatter<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.layout.key_separator.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W>(&mut self, out: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        if !self.layout.ascii {
            return out.write_all(fragment.as_bytes());
        }
        for letter in fragment.chars() {
            if letter.is_ascii() && letter != '\u{7F}' {
                out.write_all(&[letter as u8])?;
                continue;
            }
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        match escape {
            CharEscape::Quote => out.write_all(b"\\\""),
            CharEscape::ReverseSolidus => out.write_all(b"\\\\"),
            CharEscape::Solidus => out.write_all(b"/"),
            CharEscape::Backspace => out.write_all(b"\\b"),
            CharEscape::FormFeed => out.write_all(b"\\f"),
            CharEscape::LineFeed => out.write_all(b"\\n"),
            CharEscape::CarriageReturn => out.write_all(b"\\r"),
            CharEscape::Tab => out.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(out, "\\u{byte:04x}"),
        }
    }
}

/// Writes a float as Python does: with an exponent below 1e-4 and from 1e16 on, which has a sign
/// and at least two digits.
pub(crate) fn float(value: f64) -> String {
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
    }

    /// Each expectation is what CPython 3.11 printed.
    #[test]
    fn every_argument_is_that_of_python() {
        let value = json!({"b": [1, {"z": [], "a": {}}], "a": "ü😀\u{1}\u{7f}"});
        let show = |layout: JsonLayout<'_>| dumps_as(&value, &layout).unwrap();
        let indented = JsonLayout { indent: Some(2), ..JsonLayout::default() };
        assert_eq!(
            show(indented.clone()),
            "{\n  \"b\": [\n    1,\n    {\n      \"z\": [],\n      \"a\": {}\n    }\n  ],\n  \
             \"a\": \"ü😀\\u0001\u{7f}\"\n}"
        );
        let compact = JsonLayout {
            item_separator: Some(",".into()),
            key_separator: ":".into(),
            sorted: true,
            ascii: true,
            ..JsonLayout::default()
        };
        assert_eq!(
            show(compact),
            "{\"a\":\"\\u00fc\\ud83d\\ude00\\u0001\\u007f\",\"b\":[1,{\"a\":{},\"z\":[]}]}"
        );
        let flat = JsonLayout { indent: Some(0), ..JsonLayout::default() };
        assert_eq!(dumps_as(&json!([1, []]), &flat).unwrap(), "[\n1,\n[]\n]");
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
