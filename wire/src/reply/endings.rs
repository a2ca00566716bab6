//! How a reply tells that it failed, and what a part that cannot be read may have held.

use serde_json::Value;
use serde_json::value::RawValue;

use super::list::short;
use crate::bounds::ERROR_BYTES_MAX;
use crate::json::{Brackets, mended};

/// Parts of the words with which servers end an answer that is not the model's own. vLLM and SGLang
/// say `abort`, OpenRouter `error`, servers behind it `network_error` and the like.
const FAILURES: [&str; 6] =
    ["abort", "cancel", "error", "fail", "insufficient_system_resource", "overload"];

/// Values in the place of an error that are none.
const NO_ERRORS: [&str; 6] = ["null", "false", "0", "\"\"", "{}", "[]"];

/// Names of the fields that hold tokens, and of the lists of these.
const TOKEN_FIELDS: [&[u8]; 5] = [b"choices", b"token", b"_ids", b"logprobs", b"__verbose"];

/// Returns true if an answer with this finish reason broke off.
pub(crate) fn is_failure(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    FAILURES.iter().any(|part| reason.contains(part))
}

/// The error at a place for one, if there is one.
pub(super) fn error_of(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| !NO_ERRORS.contains(&raw.get()))
}

/// The text of an error: its message, or all of it as it came. Of a long one the beginning is kept.
pub(super) fn error_text(error: &RawValue) -> String {
    let text = error.get();
    let parsed = (text.len() <= ERROR_BYTES_MAX).then(|| parsed(text)).flatten();
    let message = parsed.as_ref().and_then(|error| match error {
        Value::String(message) => Some(message),
        _ => match error.get("message") {
            Some(Value::String(message)) if !message.is_empty() => Some(message),
            _ => None,
        },
    });
    short(message.map_or(text, String::as_str).to_owned(), ERROR_BYTES_MAX)
}

fn parsed(text: &str) -> Option<Value> {
    let read = serde_json::from_str(text).ok();
    read.or_else(|| serde_json::from_slice(&mended(text.as_bytes())?).ok())
}

/// Returns true if tokens may be lost with a part of a reply that cannot be read. A text that is no
/// JSON holds none, and no more does JSON that names no field for them; a part that broke off may
/// have gone on to one.
pub(super) fn may_hold_tokens(part: &[u8]) -> bool {
    let part = part.trim_ascii();
    let is_json = match part.split_first() {
        Some((b'{', rest)) => matches!(rest.trim_ascii_start().first(), Some(b'"') | None),
        Some((b'[', rest)) => matches!(rest.trim_ascii_start().first(), Some(b'{' | b'[') | None),
        _ => false,
    };
    let names = |field: &&[u8]| memchr::memmem::find(part, field).is_some();
    is_json && (Brackets::of(part).is_err() || TOKEN_FIELDS.iter().any(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_breaks_off_with_words_of_a_failure() {
        for word in ["error", "abort", "network_error", "SERVER_ERROR", "cancelled", "failed"] {
            assert!(is_failure(word), "{word}");
        }
        for word in ["stop", "length", "tool_calls", "content_filter", "end_turn", "eos", ""] {
            assert!(!is_failure(word), "{word}");
        }
    }

    #[test]
    fn what_is_no_json_and_what_names_no_field_of_tokens_holds_none() {
        for none in [
            "",
            " ",
            "ping",
            "null",
            "7",
            "\"choices\"",
            "[]",
            "{}",
            "{ping}",
            "{\"ts\" 1}",
            "{broken",
            "{choices",
            "[DONE",
            "[7, 8",
        ] {
            assert!(!may_hold_tokens(none.as_bytes()), "{none}");
        }
        for some in [
            "{",
            "[",
            "{ \"",
            "{\"cho",
            "{\"choices\":[1 2]}",
            "[{\"output_ids\" [1]}]",
            "{\"id\":\"a",
        ] {
            assert!(may_hold_tokens(some.as_bytes()), "{some}");
        }
    }

    #[test]
    fn an_error_is_told_by_its_message_or_as_it_came() {
        let text = |json: &str| error_of(serde_json::from_str(json).unwrap()).map(error_text);
        for (json, told) in [
            (r#""down""#, "down"),
            (r#"{"message":"down","code":5}"#, "down"),
            (r#"{"message":"x\ud83d"}"#, "x\u{fffd}"),
            (r#"{"code": 123456789012345678901234}"#, r#"{"code": 123456789012345678901234}"#),
            (r#"{"message":""}"#, r#"{"message":""}"#),
            ("502", "502"),
        ] {
            assert_eq!(text(json).as_deref(), Some(told), "{json}");
        }
        for none in NO_ERRORS {
            assert_eq!(text(none), None, "{none}");
        }
    }
}
