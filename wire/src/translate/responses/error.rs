//! Errors in the form of the Responses route.

use serde_json::{Value, json};

use crate::json::tree;

/// A body that is not JSON is quoted up to this length.
const QUOTE_CHARS_MAX: usize = 2000;

/// Words by which servers say that the prompt is too long for the model.
const OVERFLOW_WORDS: [&str; 9] = [
    "context length",
    "context_length",
    "context window",
    "context size",
    "context_size",
    "maximum allowed length",
    "maximum model length",
    "max_model_len",
    "prompt is too long",
];

/// The code on which clients shorten their history and try again.
const OVERFLOW: &str = "context_length_exceeded";

/// An upstream's refusal of a chat request as the Responses route would send it.
pub(crate) fn error_document(status: u16, body: &[u8]) -> Value {
    let parsed = tree(body).unwrap_or_default();
    let error = parsed.get("error").filter(|error| !error.is_null()).unwrap_or(&parsed);
    let message = message_of(error).unwrap_or_else(|| quoted(status, body));
    let kind =
        filled(error, "type").filter(Value::is_string).unwrap_or_else(|| json!(type_of(status)));
    let code = filled(error, "code").unwrap_or_default();

    let is_overflow = is_overflow(status, &format!("{message} {kind} {code}"));
    json!({
        "error": {
            "message": message,
            "type": kind,
            "param": filled(error, "param"),
            "code": if is_overflow { json!(OVERFLOW) } else { code },
        }
    })
}

/// The message of an error, which may itself be a text.
fn message_of(error: &Value) -> Option<String> {
    let message = filled(error, "message")
        .or_else(|| filled(error, "detail"))
        .or_else(|| error.is_string().then(|| error.clone()))?;
    Some(message.as_str().map_or_else(|| message.to_string(), str::to_owned))
}

/// The value under `key`, if it is not null.
fn filled(error: &Value, key: &str) -> Option<Value> {
    error.get(key).filter(|value| !value.is_null()).cloned()
}

/// The `error` of a response that failed after it had started.
pub(super) fn failure(message: &str, status: u16) -> Value {
    let code = match status {
        _ if is_overflow(status, message) => OVERFLOW,
        429 => "rate_limit_exceeded",
        // Clients do not repeat a request that is wrong in itself.
        400 | 413 | 422 => "invalid_prompt",
        _ => "server_error",
    };
    json!({ "code": code, "message": message })
}

/// Returns true if an error is about the length of the prompt. A rate limit may mention tokens too,
/// and a broken server anything.
fn is_overflow(status: u16, words: &str) -> bool {
    let lowercase = words.to_lowercase();
    (400..500).contains(&status)
        && status != 429
        && OVERFLOW_WORDS.iter().any(|phrase| lowercase.contains(phrase))
}

fn type_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    }
}

fn quoted(status: u16, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    match text.trim() {
        "" => format!("the upstream answered {status}"),
        text => text.chars().take(QUOTE_CHARS_MAX).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_what_they_say() {
        let vllm = br#"{"error":{"message":"no such model","type":"NotFoundError",
            "param":"model","code":404}}"#;
        assert_eq!(
            error_document(404, vllm),
            json!({ "error": { "message": "no such model", "type": "NotFoundError",
                "param": "model", "code": 404 } })
        );
        let message_of =
            |status, body: &[u8]| error_document(status, body)["error"]["message"].clone();
        assert_eq!(message_of(400, br#"{"object":"error","message":"flat"}"#), "flat");
        assert_eq!(message_of(400, br#"{"error":"bare"}"#), "bare");
        assert_eq!(message_of(422, br#"{"detail":[{"loc":["a"]}]}"#), r#"[{"loc":["a"]}]"#);
        assert_eq!(message_of(502, b"<html>bad</html>"), "<html>bad</html>");
        assert_eq!(message_of(503, b""), "the upstream answered 503");
        let gateway = error_document(502, b"\xff");
        assert_eq!(gateway["error"]["type"], "server_error");
        assert_eq!(gateway["error"]["code"], Value::Null);
    }

    #[test]
    fn a_prompt_that_is_too_long_has_the_code_that_clients_look_for() {
        let bodies: [&[u8]; 3] = [
            br#"{"error":{"message":"This model's maximum context length is 64 tokens.",
                "type":"BadRequestError","param":null,"code":400}}"#,
            br#"{"object":"error","message":"The input is longer than the context length.",
                "code":400}"#,
            br#"{"error":{"code":400,"message":"too big","type":"exceed_context_size_error"}}"#,
        ];
        for body in bodies {
            assert_eq!(error_document(400, body)["error"]["code"], OVERFLOW);
        }
        assert_eq!(error_document(429, bodies[0])["error"]["code"], 400);
        assert_eq!(failure("the maximum context length is 4", 400)["code"], OVERFLOW);
        assert_eq!(failure("wait", 429)["code"], "rate_limit_exceeded");
        assert_eq!(failure("no", 400)["code"], "invalid_prompt");
        assert_eq!(failure("oops", 500)["code"], "server_error");
    }
}
