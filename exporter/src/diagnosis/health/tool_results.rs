//! Results of tools, and whether they tell of a failure.

use serde_json::Value;

use crate::diagnosis::health::thresholds::Thresholds;

/// Bytes of a result that are read, at its beginning and at its end.
const READ_BYTES: usize = 4096;
/// Words in front of the exit code of a command, in small letters.
const EXIT_WORDS: [&str; 6] =
    ["exit code", "exit status", "exited with code", "return code", "<returncode>", "exit_code"];
/// Fields of a JSON result with the exit code of a command.
const EXIT_FIELDS: [&str; 5] =
    ["exit_code", "exitCode", "returncode", "return_code", "exit_status"];

/// Returns true where a message with the result of a tool tells that the tool failed.
pub(crate) fn has_failed(message: &Value, thresholds: &Thresholds) -> bool {
    if message.get("is_error") == Some(&Value::Bool(true)) {
        return true;
    }
    let Some(text) = wire::content_text(message.get("content")) else { return false };
    let text = text.trim();
    if let Some(Value::Object(fields)) = object(text) {
        return fields_tell_failure(&Value::Object(fields));
    }

    let (begin, end) = (head(text).to_lowercase(), tail(text).to_lowercase());
    thresholds.tool_error_words.iter().any(|word| begin.starts_with(word.as_str()))
        || [&begin, &end].into_iter().any(|part| has_exit_code(part) || is_trace(part))
}

fn object(text: &str) -> Option<Value> {
    text.starts_with('{').then(|| serde_json::from_str(text).ok()).flatten()
}

fn fields_tell_failure(fields: &Value) -> bool {
    let code = |key: &&str| fields.get(*key).and_then(Value::as_i64).is_some_and(|code| code != 0);
    let error = match fields.get("error") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    };
    error
        || fields.get("is_error") == Some(&Value::Bool(true))
        || fields.get("success") == Some(&Value::Bool(false))
        || EXIT_FIELDS.iter().any(code)
}

/// Returns true where an exit code other than 0 stands in a text.
fn has_exit_code(text: &str) -> bool {
    EXIT_WORDS.iter().any(|words| {
        text.match_indices(words).any(|(at, _)| {
            let rest = text[at + words.len()..].trim_start_matches([' ', ':', '=', '-', '"']);
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            digits.parse::<u32>().is_ok_and(|code| code != 0)
        })
    })
}

fn is_trace(text: &str) -> bool {
    text.contains("traceback (most recent call last)")
}

fn head(text: &str) -> &str {
    &text[..text.floor_char_boundary(READ_BYTES)]
}

fn tail(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(READ_BYTES))..]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_are_told_in_words_codes_and_fields() {
        let failed = |content: Value| {
            has_failed(&json!({ "role": "tool", "content": content }), &Thresholds::default())
        };
        for text in [
            "Error: no such file",
            "  Traceback (most recent call last):\n  File",
            "ls: x\nexit code: 2",
            "<returncode>1</returncode>",
            "Process exited with code 127",
            r#"{"error": "no such tool"}"#,
            r#"{"output": "", "exit_code": 1}"#,
            r#"{"success": false}"#,
        ] {
            assert!(failed(json!(text)), "{text}");
        }
        for text in [
            "",
            "12 passed",
            "exit code: 0",
            "<returncode>0</returncode>",
            r#"{"error": null, "exit_code": 0}"#,
            "def error(code): return code",
            "the exit code is checked in line 40",
        ] {
            assert!(!failed(json!(text)), "{text}");
        }
        let parts = json!([{ "type": "text", "text": "error: parts" }]);
        assert!(failed(parts) && !failed(Value::Null));
        assert!(has_failed(&json!({ "is_error": true, "content": "x" }), &Thresholds::default()));
        let long = format!("{}\u{e4}\nexit code 3", "\u{e4}".repeat(9000));
        assert!(failed(json!(long)), "the end of a long result is read");
    }
}
