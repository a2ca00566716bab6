//! The input of a tool call, which is JSON text in chat and an object in Messages.

use serde_json::{Number, Value, json};

use crate::json::{half, inner_tree, marked_number};

/// `value` as Python's `json.dumps` writes it. vLLM hands an agent's tool inputs to the chat
/// template in this spelling, so it is part of the prompt if a template shows the text.
pub(super) fn python_json(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// The input object for a call's `arguments`. Text that is not an object is wrapped.
///
/// vLLM answers 500 to such text, which costs the agent its turn. An empty object in its place
/// could run a tool whose parameters are all optional. The wrapper is the one that Anthropic's
/// documentation names: the tool's own check refuses it, and the model sees what it wrote.
pub(super) fn tool_input(arguments: &str) -> Value {
    match inner_tree(arguments) {
        Some(object @ Value::Object(_)) => object,
        Some(Value::Null) => json!({}),
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({ "INVALID_JSON": arguments }),
    }
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => match marked_number(text) {
            Some(number) => out.push_str(number),
            None => write_text(out, text),
        },

        // Python puts a space behind commas and colons.
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                write_separator(out, position);
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (position, (key, member)) in members.iter().enumerate() {
                write_separator(out, position);
                write_text(out, key);
                out.push_str(": ");
                write_value(out, member);
            }
            out.push('}');
        }
    }
}

fn write_separator(out: &mut String, position: usize) {
    if position > 0 {
        out.push_str(", ");
    }
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(letter),
            _ => write_escape(out, letter),
        }
    }
    out.push('"');
}

fn write_escape(out: &mut String, letter: char) {
    let mut units = [0; 2];
    let units: Vec<u32> = match half(letter) {
        Some(code) => vec![code],
        None => letter.encode_utf16(&mut units).iter().map(|unit| u32::from(*unit)).collect(),
    };
    units.into_iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
}

fn write_number(out: &mut String, number: &Number) {
    match number.as_f64() {
        Some(value) if number.is_f64() => out.push_str(&python_float(value)),
        _ => out.push_str(&number.to_string()),
    }
}

/// Python's `repr` of a float. Both languages print the shortest digits that read back, but
/// Python uses exponents below 1e-4 and from 1e16 on, and marks whole numbers with `.0`.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_spelled_as_python_spells_them() {
        // Each right side was printed by Python 3's json.dumps(json.loads(left)).
        for (json, python) in [
            (r#"{"a":1,"b":[true,null,{}],"c":[]}"#, r#"{"a": 1, "b": [true, null, {}], "c": []}"#),
            (
                "{\"\u{e9}\":\"\u{1f600}\u{7f}/\\b\\f\\u0001\"}",
                r#"{"\u00e9": "\ud83d\ude00\u007f/\b\f\u0001"}"#,
            ),
            (
                "[1.0,1e5,1E16,123456789012345680.0,0.0001,1e-5,1.5e-7,-0.0,1e300]",
                "[1.0, 100000.0, 1e+16, 1.2345678901234568e+17, 0.0001, 1e-05, 1.5e-07, -0.0, 1e+300]",
            ),
            (
                "[18446744073709551615,-9223372036854775808]",
                "[18446744073709551615, -9223372036854775808]",
            ),
        ] {
            assert_eq!(python_json(&serde_json::from_str(json).unwrap()), python);
        }
    }

    #[test]
    fn arguments_that_are_no_object_are_kept_in_words() {
        assert_eq!(tool_input(" {\"n\": 1} "), json!({ "n": 1 }));
        for nothing in ["", " \n", "null", "{}"] {
            assert_eq!(tool_input(nothing), json!({}));
        }
        for text in ["{\"n\": ", "[1]", "\"{}\"", "ls -l"] {
            assert_eq!(tool_input(text), json!({ "INVALID_JSON": text }));
        }
    }
}
