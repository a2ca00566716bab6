//! Errors in Anthropic's form.

use serde_json::{Value, json};

use super::text;
use crate::error::error_text;
use crate::json::tree;

/// Longer messages of an upstream, such as a page of HTML, are cut: agents print them.
const MESSAGE_CHARS_MAX: usize = 4000;
/// Words by which servers say that a prompt does not fit the model.
const OVERFLOW_WORDS: [&str; 7] = [
    "context length",
    "context size",
    "context window",
    "maximum model length",
    "max_model_len",
    "context_length_exceeded",
    "exceed_context_size",
];
/// The words that Claude Code looks for before it compacts a conversation.
const TOO_LONG: &str = "prompt is too long";

/// An upstream's refusal of a chat request, given its body, in Anthropic's form.
pub(crate) fn error_document(status: u16, body: &[u8]) -> Value {
    let parsed = tree(body).unwrap_or_default();
    let message = match error_text(body) {
        text if text.is_empty() => format!("the upstream answered {status}"),
        text => text.chars().take(MESSAGE_CHARS_MAX).collect(),
    };
    let error = parsed.get("error").unwrap_or(&Value::Null);
    let codes = [text(error, "code"), text(error, "type")];
    if status == 400 && codes.into_iter().any(is_overflow) {
        return error_event(status, &too_long(&message));
    }
    error_event(status, &message)
}

/// An error with `message`, and with the type that Anthropic has for `status`.
pub(super) fn error_event(status: u16, message: &str) -> Value {
    let shown = match status {
        400 if is_overflow(message) => too_long(message),
        _ => message.to_owned(),
    };
    json!({ "type": "error", "error": { "type": error_type(status), "message": shown } })
}

fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

fn is_overflow(words: &str) -> bool {
    let lowercase = words.to_lowercase();
    OVERFLOW_WORDS.iter().any(|sign| lowercase.contains(sign))
}

/// The message with the words that Claude Code looks for.
fn too_long(message: &str) -> String {
    match message.to_lowercase().contains(TOO_LONG) {
        true => message.to_owned(),
        false => format!("{TOO_LONG}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, body: &str) -> (String, String) {
        let error = error_document(status, body.as_bytes());
        assert_eq!(error["type"], "error");
        let part = |key: &str| error["error"][key].as_str().unwrap().to_owned();
        (part("type"), part("message"))
    }

    #[test]
    fn an_error_keeps_its_words_and_gets_its_kind() {
        for (status, body, kind, message) in [
            (400, r#"{"error":{"message":"bad","code":400}}"#, "invalid_request_error", "bad"),
            (401, r#"{"error":"Unauthorized"}"#, "authentication_error", "Unauthorized"),
            (403, r#"{"detail":"no"}"#, "permission_error", "no"),
            (404, r#"{"object":"error","message":"what"}"#, "not_found_error", "what"),
            (413, "", "request_too_large", "the upstream answered 413"),
            (422, r#"{"detail":[{"loc":1}]}"#, "invalid_request_error", r#"[{"loc":1}]"#),
            (429, "slow\n", "rate_limit_error", "slow"),
            (500, "[]", "api_error", "[]"),
            (502, "<html>", "api_error", "<html>"),
            (503, r#"{"error":{"message":null}}"#, "overloaded_error", r#"{"message":null}"#),
        ] {
            assert_eq!(of(status, body), (kind.to_owned(), message.to_owned()), "{body}");
        }
    }

    #[test]
    fn an_overflow_says_so_in_the_words_that_make_agents_compact() {
        for message in [
            "This model's maximum context length is 4096 tokens. However, you requested 9000.",
            "The input (9 tokens) is longer than the model's context length (8 tokens).",
            "the request exceeds the available context size, try increasing it",
        ] {
            let body = json!({ "error": { "message": message } }).to_string();
            assert_eq!(of(400, &body).1, format!("prompt is too long: {message}"));
            assert_eq!(of(500, &body).1, message);
        }
        let coded = r#"{"error":{"message":"no","code":"context_length_exceeded"}}"#;
        assert_eq!(of(400, coded).1, "prompt is too long: no");
        let body = r#"{"error":{"message":"Prompt is too long: 9 > 8 of context length"}}"#;
        assert_eq!(of(400, body).1, "Prompt is too long: 9 > 8 of context length");
    }
}
