//! Chat messages as clients send them, in the form that chat templates expect.
//!
//! The form is vLLM's. Absent content is an empty string. A content that is a list stays one for
//! templates that go through its parts, and for others its texts are joined by line breaks. The
//! arguments of a tool call become an object.

use serde_json::{Map, Value, json};

use crate::json::exact;

/// Error of a message that no template could take.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// A field has a wrong type or value.
    #[error("`messages[{index}]{field}` {reason}")]
    Field {
        /// Position of the message.
        index: usize,
        /// The path below the message, such as `.content[0].type`; empty for the message itself.
        field: String,
        /// The reason, as the end of a sentence.
        reason: String,
    },
}

/// Prepares messages: each gets `role`, `content` and the further fields of its role, in that
/// order. With `keeps_parts`, a content that is a list stays one.
///
/// # Errors
/// If a message is not an object, has no role or has parts that are not text.
pub fn prepare(messages: &[Value], keeps_parts: bool) -> Result<Vec<Value>, MessageError> {
    let mut prepared = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let message =
            prepare_one(message, keeps_parts).map_err(|InvalidField { field, reason }| {
                MessageError::Field { index, field, reason }
            })?;
        prepared.push(message);
    }
    Ok(prepared)
}

/// A field of a message that is wrong, and the reason.
struct InvalidField {
    field: String,
    reason: String,
}

fn invalid<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T, InvalidField> {
    Err(InvalidField { field: field.into(), reason: reason.into() })
}

fn prepare_one(message: &Value, keeps_parts: bool) -> Result<Value, InvalidField> {
    let Value::Object(message) = message else { return invalid("", "must be an object") };
    let Some(Value::String(role)) = message.get("role") else {
        return invalid(".role", "must be a string");
    };

    let mut out = Map::new();
    out.insert("role".into(), Value::String(role.clone()));
    out.insert("content".into(), content(message.get("content"), keeps_parts)?);
    // Templates read these two as well. Other fields are dropped.
    for key in ["name", "tool_call_id"] {
        if let Some(value @ Value::String(_)) = message.get(key) {
            out.insert(key.into(), value.clone());
        }
    }

    // Clients send reasoning under either name, and templates read either.
    let reasoning = ["reasoning", "reasoning_content"].map(|key| message.get(key));
    if let Some(Value::String(text)) = reasoning.into_iter().flatten().find(|v| v.is_string()) {
        out.insert("reasoning".into(), text.as_str().into());
        out.insert("reasoning_content".into(), text.as_str().into());
    }

    if let Some(calls) = tool_calls(message.get("tool_calls"))? {
        out.insert("tool_calls".into(), calls);
    }
    Ok(Value::Object(out))
}

fn content(content: Option<&Value>, keeps_parts: bool) -> Result<Value, InvalidField> {
    match content {
        None | Some(Value::Null) => Ok(Value::from("")),
        Some(Value::String(text)) => Ok(Value::from(text.as_str())),
        Some(Value::Array(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (index, part) in parts.iter().enumerate() {
                texts.push(part_text(index, part)?);
            }
            let part = |text: &&str| json!({"type": "text", "text": text});
            Ok(match keeps_parts {
                true => texts.iter().map(part).collect(),
                false => texts.join("\n").into(),
            })
        }
        Some(_) => invalid(".content", "must be a string or a list of parts"),
    }
}

/// The text of one part of a message's content.
fn part_text(index: usize, part: &Value) -> Result<&str, InvalidField> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let path = format!(".content[{index}]");
    let key = match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            let reason = format!("`{other}` is not supported, only `text` is");
            return invalid(format!("{path}.type"), reason);
        }
        None => return invalid(format!("{path}.type"), "must be a string"),
    };
    match part.get(key) {
        Some(Value::String(text)) => Ok(text),
        _ => invalid(format!("{path}.{key}"), "must be a string"),
    }
}

fn tool_calls(calls: Option<&Value>) -> Result<Option<Value>, InvalidField> {
    let calls = match calls {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) => calls,
        Some(_) => return invalid(".tool_calls", "must be a list"),
    };
    let mut parsed = Vec::with_capacity(calls.len());
    for (index, call) in calls.iter().enumerate() {
        parsed.push(tool_call(index, call)?);
    }
    Ok(Some(Value::Array(parsed)))
}

/// A tool call whose arguments are an object, or whatever JSON the client sent.
fn tool_call(index: usize, call: &Value) -> Result<Value, InvalidField> {
    let path = format!(".tool_calls[{index}].function");
    let mut call = call.clone();
    let Some(Value::Object(function)) = call.get_mut("function") else {
        return invalid(path, "must be an object");
    };
    if !matches!(function.get("name"), Some(Value::String(_))) {
        return invalid(format!("{path}.name"), "must be a string");
    }

    // Clients send arguments as JSON in a string, and templates read them as an object.
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        // A model may have written anything, or its reply was cut. An error here would be one of
        // every later turn, too.
        Some(Value::String(text)) => {
            exact::parse(text).unwrap_or_else(|_| Value::Object(Map::new()))
        }
        Some(other) => other.clone(),
    };
    function.insert("arguments".into(), arguments);
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn content_becomes_one_string() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        for (content, expected) in [(parts, "a\nb"), (Value::Null, ""), (json!("x"), "x")] {
            let message = json!({"content": content, "role": "user", "other": 1});
            let found = prepare(&[message], false);
            assert_eq!(found.unwrap(), [json!({"role": "user", "content": expected})]);
        }
    }

    #[test]
    fn reasoning_stands_under_both_names() {
        for key in ["reasoning", "reasoning_content"] {
            let message = json!({"role": "assistant", "content": null, key: "hm"});
            let found = prepare(&[message], false);
            let expected = json!({"role": "assistant", "content": "", "reasoning": "hm",
                                  "reasoning_content": "hm"});
            assert_eq!(found.unwrap(), [expected]);
        }
    }

    #[test]
    fn arguments_become_an_object_in_their_own_order() {
        let call = |arguments| {
            json!({"id": "1", "type": "function",
                   "function": {"name": "f", "arguments": arguments}})
        };
        let message = json!({"role": "assistant", "content": null,
                             "tool_calls": [call(json!("{\"b\": 1, \"a\": 2}")), call(json!(""))]});
        let found = prepare(&[message], false).unwrap();
        let calls = found[0]["tool_calls"].to_string();
        assert!(calls.contains(r#""arguments":{"b":1,"a":2}"#), "{calls}");
        assert!(calls.contains(r#""arguments":{}"#), "{calls}");
    }

    #[test]
    fn parts_stay_parts_for_templates_that_go_through_them() {
        let content = json!(["a", {"type": "input_text", "text": "b", "cache_control": {}}]);
        for (content, expected) in [
            (content, json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
            (json!([]), json!([])),
            (json!("x"), json!("x")),
            (Value::Null, json!("")),
        ] {
            let found = prepare(&[json!({"content": content, "role": "user"})], true).unwrap();
            assert_eq!(found[0]["content"], expected);
        }
    }

    #[test]
    fn arguments_that_are_no_json_are_empty() {
        for text in ["{\"a\": \"b", "{\"a\": ", "no", "  ", "{} x", "{'a': 1}", "{\"a\": \"\n\"}"] {
            let call = json!({"function": {"name": "f", "arguments": text}});
            let message = json!({"role": "assistant", "tool_calls": [call]});
            let found = prepare(&[message], false).unwrap();
            assert_eq!(found[0]["tool_calls"][0]["function"]["arguments"], json!({}), "{text}");
        }
    }

    #[test]
    fn a_bad_message_is_named() {
        let image = json!({"role": "user", "content": [{"type": "image_url"}]});
        let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": 1}}]});
        let cases = [
            (json!(1), "`messages[0]` must be an object"),
            (json!({"content": ""}), "`messages[0].role` must be a string"),
            (image, "`messages[0].content[0].type` `image_url` is not supported, only `text` is"),
            (call, "`messages[0].tool_calls[0].function.name` must be a string"),
        ];
        for (message, expected) in cases {
            let error = prepare(&[message], false).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
