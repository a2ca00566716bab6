//! rolltape's own errors in the form of each wire, and the message of an upstream's error.

use episode::Route;
use serde_json::{Value, json};

use crate::json::tree;

/// The body of an error that rolltape itself answers with. `kind` is OpenAI's word for it.
pub fn error_body(route: Route, status: u16, kind: &str, message: &str) -> String {
    error_value(route, status, kind, message).to_string()
}

/// The message of an upstream's error, given its body; empty if it has none.
pub fn error_text(body: &[u8]) -> String {
    let parsed = tree(body).unwrap_or_default();
    let places = ["/error/message", "/error", "/message", "/detail"];
    if let Some(message) = places.iter().find_map(|place| parsed.pointer(place)?.as_str()) {
        return message.to_owned();
    }
    match parsed.pointer("/error").or_else(|| parsed.pointer("/detail")) {
        Some(details) => details.to_string(),
        None => String::from_utf8_lossy(body).trim().to_owned(),
    }
}

/// Returns true for an error in the form of Anthropic's API.
pub fn is_anthropic_error(body: &[u8]) -> bool {
    let parsed = tree(body).unwrap_or_default();
    let has_text = |place| parsed.pointer(place).is_some_and(Value::is_string);
    parsed["type"] == "error" && has_text("/error/type") && has_text("/error/message")
}

/// The event that ends a stream which cannot end well.
pub fn error_event(route: Route, status: u16, kind: &str, message: &str) -> String {
    let error = error_value(route, status, kind, message);
    match route {
        Route::Messages => format!("event: error\ndata: {error}\n\n"),
        Route::Responses => {
            let event = json!({
                "type": "error", "code": kind, "message": message, "param": null,
            });
            format!("event: error\ndata: {event}\n\n")
        }
        _ => format!("data: {error}\n\n"),
    }
}

fn error_value(route: Route, status: u16, kind: &str, message: &str) -> Value {
    if !matches!(route, Route::Messages | Route::CountTokens) {
        return json!({
            "error": { "message": message, "type": kind, "param": null, "code": status }
        });
    }
    let anthropic_kind = match status {
        400 | 409 | 426 => "invalid_request_error",
        401 => "authentication_error",
        413 => "request_too_large",
        503 => "overloaded_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": anthropic_kind, "message": message } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anthropics_errors_are_told_from_others() {
        let own = error_body(Route::Messages, 401, "authentication_error", "invalid x-api-key");
        assert!(is_anthropic_error(own.as_bytes()));
        let openai = error_body(Route::Chat, 401, "invalid_api_key", "no");
        for other in [openai.as_str(), "", "<html>", r#"{"type":"error"}"#, r#"{"error":"no"}"#] {
            assert!(!is_anthropic_error(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn each_wire_gets_its_own_form() {
        let body = |route| error_body(route, 503, "recorder_error", "no");
        assert_eq!(
            body(Route::Chat),
            r#"{"error":{"message":"no","type":"recorder_error","param":null,"code":503}}"#
        );
        assert_eq!(
            body(Route::Messages),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"no"}}"#
        );
        let event = error_event(Route::Responses, 503, "recorder_error", "no");
        assert!(event.starts_with("event: error\ndata: {\"type\":\"error\","), "{event}");
    }
}
