//! The truth of a value, as servers in Python read it where they expect true or false.
//!
//! They take words and numbers as well: see "Booleans" in
//! <https://docs.pydantic.dev/latest/concepts/conversion_table/>.

use serde_json::Value;

const TRUE: [&str; 6] = ["1", "t", "y", "on", "yes", "true"];
const FALSE: [&str; 6] = ["0", "f", "n", "off", "no", "false"];

/// The truth of a value; `None` for one that no server takes for true or false. Null is false: it
/// is either refused or the default.
pub(crate) fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Null => Some(false),
        Value::Bool(truth) => Some(*truth),
        Value::Number(number) => match number.as_f64()? {
            0.0 => Some(false),
            1.0 => Some(true),
            _ => None,
        },
        Value::String(word) => {
            let is_one_of = |words: [&str; 6]| words.iter().any(|w| w.eq_ignore_ascii_case(word));
            match (is_one_of(TRUE), is_one_of(FALSE)) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The truth of a value that is JSON text.
pub(crate) fn truth_of(raw: &[u8]) -> Option<bool> {
    match raw {
        b"true" => Some(true),
        b"false" | b"null" => Some(false),
        // Lists and objects may be long.
        [b'[' | b'{', ..] => None,
        _ => truth(&serde_json::from_slice(raw).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_are_true_or_false_as_python_reads_them() {
        let yes = ["true", "1", "1.0", "10e-1", "\"1\"", "\"T\"", "\"y\"", "\"ON\"", "\"Yes\""];
        for raw in yes.into_iter().chain(["\"true\"", r#""\u0079es""#]) {
            assert_eq!(truth_of(raw.as_bytes()), Some(true), "{raw}");
        }
        let no = ["false", "null", "0", "-0", "0.0", "0e5", "\"F\"", "\"no\"", "\"oFF\"", "\"0\""];
        for raw in no {
            assert_eq!(truth_of(raw.as_bytes()), Some(false), "{raw}");
        }
        let neither = ["2", "-1", "0.5", "\"\"", "\" yes\"", "\"maybe\"", "[true]", "{}", "NaN"];
        for raw in neither {
            assert_eq!(truth_of(raw.as_bytes()), None, "{raw}");
        }
    }
}
