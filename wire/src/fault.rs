//! rolltape's own errors in OpenAI's form.

use serde_json::json;

/// The body of an error that rolltape itself answers with.
pub fn error_body(status: u16, kind: &str, message: &str) -> String {
    json!({
        "error": { "message": message, "type": kind, "param": null, "code": status }
    })
    .to_string()
}

/// The event that ends a stream which cannot end well.
pub fn error_event(status: u16, kind: &str, message: &str) -> String {
    format!("data: {}\n\n", error_body(status, kind, message))
}
