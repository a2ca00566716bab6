//! Errors in the words of the Responses route.

use serde_json::{Value, json};

/// A body that is not JSON is quoted up to here.
const QUOTE_CHARS_MAX: usize = 2000;

/// How servers say that the prompt is too long for the model.
const TOO_LONG: [&str; 9] = [
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

/// An upstream's refusal of a chat request as the Responses route would give it.
pub(crate) fn error_document(status: u16, body: &[u8]) -> Value {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = parsed.get("error").filter(|error| !error.is_null()).unwrap_or(&parsed);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let message = ["message", "detail"]
        .into_iter()
        .find_map(|key| error.get(key).filter(|value| !value.is_null()))
        .or(Some(error).filter(|error| error.is_string()));
    let message = message.map_or_else(|| quote(status, body), text);
    let field = |key: &str| error.get(key).filter(|value| !value.is_null()).cloned();
    let kind = field("type").filter(Value::is_string).unwrap_or_else(|| json!(kind(status)));
    let said = format!("{message} {kind} {}", field("code").unwrap_or_default());
    let code =
        if overflows(status, &said) { json!(OVERFLOW) } else { field("code").unwrap_or_default() };
    json!({
        "error": {
            "message": message, "type": kind, "param": field("param"), "code": code,
        }
    })
}

/// The `error` of a response that failed after it had begun.
pub(super) fn failure(message: &str, status: u16) -> Value {
    let code = match status {
        _ if overflows(status, message) => OVERFLOW,
        429 => "rate_limit_exceeded",
        // Clients do not try again what is wrong in itself.
        400 | 413 | 422 => "invalid_prompt",
        _ => "server_error",
    };
    json!({ "code": code, "message": message })
}

/// Whether an error is about the length of the prompt. A limit of rates may speak of tokens too,
/// and a broken server of anything.
fn overflows(status: u16, said: &str) -> bool {
    let said = said.to_lowercase();
    (400..500).contains(&status)
        && status != 429
        && TOO_LONG.iter().any(|phrase| said.contains(phrase))
}

fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    }
}

fn quote(status: u16, body: &[u8]) -> String {
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
        let told = |status, body: &[u8]| error_document(status, body)["error"]["message"].clone();
        assert_eq!(told(400, br#"{"object":"error","message":"flat"}"#), "flat");
        assert_eq!(told(400, br#"{"error":"bare"}"#), "bare");
        assert_eq!(told(422, br#"{"detail":[{"loc":["a"]}]}"#), r#"[{"loc":["a"]}]"#);
        assert_eq!(told(502, b"<html>bad</html>"), "<html>bad</html>");
        assert_eq!(told(503, b""), "the upstream answered 503");
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
