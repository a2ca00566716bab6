//! Chat messages as clients send them, in the form that chat templates expect.
//!
//! What is done is what vLLM does with its "string" content format: text parts are joined by line
//! breaks, absent content is an empty string, and the arguments of a tool call become an object.

use serde_json::{Map, Value};

/// Why a message cannot be put before a template.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// A field has a type or a value that no template could take.
    #[error("`messages[{index}]{field}` {reason}")]
    Field {
        /// Position of the message.
        index: usize,
        /// The path below the message, such as `.content[0].type`; empty for the message itself.
        field: String,
        /// What is wrong.
        reason: String,
    },
}

/// The messages with `role`, `content` and what their role may add, in that order.
///
/// # Errors
/// A message that is not an object, has no role, holds parts that are not text, or calls a tool
/// with arguments that are not JSON.
pub fn prepare(messages: &[Value]) -> Result<Vec<Value>, MessageError> {
    let prepared = messages.iter().enumerate().map(|(index, message)| {
        prepare_one(message).map_err(|(field, reason)| MessageError::Field { index, field, reason })
    });
    prepared.collect()
}

type Fault = (String, String);

fn fault<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T, Fault> {
    Err((field.into(), reason.into()))
}

fn prepare_one(message: &Value) -> Result<Value, Fault> {
    let Value::Object(message) = message else { return fault("", "must be an object") };
    let Some(Value::String(role)) = message.get("role") else {
        return fault(".role", "must be a string");
    };
    let mut out = Map::new();
    out.insert("role".into(), Value::String(role.clone()));
    out.insert("content".into(), Value::String(content(message.get("content"))?));
    for key in ["name", "tool_call_id"] {
        if let Some(value @ Value::String(_)) = message.get(key) {
            out.insert(key.into(), value.clone());
        }
    }
    // Clients send back either name, and templates read either.
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

fn content(content: Option<&Value>) -> Result<String, Fault> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<_>, _> = parts.iter().enumerate().map(part).collect();
            Ok(texts?.join("\n"))
        }
        Some(_) => fault(".content", "must be a string or a list of parts"),
    }
}

fn part((index, part): (usize, &Value)) -> Result<&str, Fault> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let field = |name: &str| format!(".content[{index}]{name}");
    match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => match part.get("text") {
            Some(Value::String(text)) => Ok(text),
            _ => fault(field(".text"), "must be a string"),
        },
        Some("refusal") => match part.get("refusal") {
            Some(Value::String(text)) => Ok(text),
            _ => fault(field(".refusal"), "must be a string"),
        },
        Some(other) => fault(field(".type"), format!("`{other}` is not supported, only `text` is")),
        None => fault(field(".type"), "must be a string"),
    }
}

fn tool_calls(calls: Option<&Value>) -> Result<Option<Value>, Fault> {
    let calls = match calls {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) => calls,
        Some(_) => return fault(".tool_calls", "must be a list"),
    };
    let parsed: Result<Vec<_>, _> = calls.iter().enumerate().map(tool_call).collect();
    Ok(Some(Value::Array(parsed?)))
}

fn tool_call((index, call): (usize, &Value)) -> Result<Value, Fault> {
    let field = |name: &str| format!(".tool_calls[{index}]{name}");
    let mut call = call.clone();
    let Some(Value::Object(function)) = call.get_mut("function") else {
        return fault(field(".function"), "must be an object");
    };
    if !matches!(function.get("name"), Some(Value::String(_))) {
        return fault(field(".function.name"), "must be a string");
    }
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(arguments) => arguments,
            Err(error) => {
                return fault(field(".function.arguments"), format!("is not JSON: {error}"));
            }
        },
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
            let found = prepare(&[json!({"content": content, "role": "user", "other": 1})]);
            assert_eq!(found.unwrap(), [json!({"role": "user", "content": expected})]);
        }
    }

    #[test]
    fn reasoning_stands_under_both_names() {
        for key in ["reasoning", "reasoning_content"] {
            let found = prepare(&[json!({"role": "assistant", "content": null, key: "hm"})]);
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
        let found = prepare(&[message]).unwrap();
        let calls = found[0]["tool_calls"].to_string();
        assert!(calls.contains(r#""arguments":{"b":1,"a":2}"#), "{calls}");
        assert!(calls.contains(r#""arguments":{}"#), "{calls}");
    }

    #[test]
    fn a_bad_message_is_named() {
        let image = json!({"role": "user", "content": [{"type": "image_url"}]});
        let call = json!({"role": "assistant",
                          "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]});
        let cases = [
            (json!(1), "`messages[0]` must be an object"),
            (json!({"content": ""}), "`messages[0].role` must be a string"),
            (image, "`messages[0].content[0].type` `image_url` is not supported, only `text` is"),
            (call, "`messages[0].tool_calls[0].function.arguments` is not JSON: "),
        ];
        for (message, expected) in cases {
            let error = prepare(&[message]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
