//! Values as text: Python's `str` and `repr`.

use minijinja::Error;
use minijinja::value::{Value as Jinja, ValueKind};

use crate::json;

/// The filter `string`: Python's `str`.
pub(super) fn string(value: &Jinja) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => repr(value),
    }
}

/// Writes values of JSON as Python's `repr` does, and other values as `minijinja` does.
pub(super) fn repr(value: &Jinja) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => json::float(number),
            Err(_) => value.to_string(),
        },
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            match json::exact::number_of(text) {
                Some("Infinity") => "inf".to_owned(),
                Some("-Infinity") => "-inf".to_owned(),
                Some("NaN") => "nan".to_owned(),
                Some(digits) => digits.to_owned(),
                None => quoted(text),
            }
        }

        // Lists and maps print their items by `repr`, too.
        ValueKind::Seq => {
            let items: Result<Vec<String>, Error> = value.try_iter()?.map(|v| repr(&v)).collect();
            format!("[{}]", items?.join(", "))
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                entries.push(format!("{}: {}", repr(&key)?, repr(&item)?));
            }
            format!("{{{}}}", entries.join(", "))
        }
        _ => value.to_string(),
    })
}

/// Writes a string in single quotes, or in double quotes if it has single ones only.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            letter if letter == quote => out.extend(['\\', letter]),
            letter if is_printable(letter) => out.push(letter),
            letter => match u32::from(letter) {
                code @ 0..0x100 => out.push_str(&format!("\\x{code:02x}")),
                code @ 0x100..0x1_0000 => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
    out
}

/// Returns `str.isprintable`, except for unassigned characters: false for control, format and
/// private characters, and for all spaces but the usual one.
fn is_printable(letter: char) -> bool {
    let hidden = letter.is_control()
        || (letter.is_whitespace() && letter != ' ')
        || matches!(letter,
            '\u{AD}' | '\u{600}'..='\u{605}' | '\u{61C}' | '\u{6DD}' | '\u{70F}' | '\u{180E}'
            | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
            | '\u{E000}'..='\u{F8FF}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}'
            | '\u{E0001}'..='\u{E007F}' | '\u{F0000}'..='\u{10FFFF}');
    !hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_as_in_python() {
        let value = serde_json::json!({"a": [1, 2.0, null, true, "x'y", "\"'\n"], "b": {}});
        let shown = repr(&Jinja::from_serialize(&value)).unwrap();
        assert_eq!(quoted("\u{1}\u{a0}\u{2028}\u{e0001}é"), r"'\x01\xa0\u2028\U000e0001é'");
        assert_eq!(shown, r#"{'a': [1, 2.0, None, True, "x'y", '"\'\n'], 'b': {}}"#);
    }
}
