//! Messages and tools in the form of OpenAI's chat API.

use serde_json::{Map, Value, json};

use crate::rows::messages::RowMessage;

/// Writes a message with no key for an absent value, and with arguments of tools as text.
pub(crate) fn chat(message: &RowMessage) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("role".to_owned(), json!(message.role));
    if let Some(text) = &message.content {
        object.insert("content".to_owned(), content_value(text));
    }
    for (key, value) in [("name", &message.name), ("tool_call_id", &message.tool_call_id)] {
        if let Some(text) = value {
            object.insert(key.to_owned(), json!(text));
        }
    }
    if let Some(calls) = &message.tool_calls {
        let calls: Vec<Value> = calls.iter().map(|call| tool_call(call)).collect();
        object.insert("tool_calls".to_owned(), json!(calls));
    }
    object
}

/// Writes a message with its reasoning.
pub(crate) fn chat_with_reasoning(message: &RowMessage) -> Value {
    let mut object = chat(message);
    if let Some(reasoning) = &message.reasoning {
        object.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    Value::Object(object)
}

/// Reads content. Content with images and the like is the JSON text of its parts.
pub(crate) fn content_value(text: &str) -> Value {
    let parts = || serde_json::from_str::<Value>(text).ok().filter(are_parts);
    text.starts_with("[{").then(parts).flatten().unwrap_or_else(|| json!(text))
}

/// Returns the text of a part of a content; of one that is no text, its JSON.
pub(crate) fn part_text(part: &Value) -> String {
    match part.get("text").and_then(Value::as_str).filter(|_| part["type"] == "text") {
        Some(text) => text.to_owned(),
        None => wire::json_text(part),
    }
}

fn are_parts(value: &Value) -> bool {
    let parts = value.as_array();
    parts.is_some_and(|parts| parts.iter().all(|part| part["type"].is_string()))
}

fn tool_call(text: &str) -> Value {
    let mut call: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|a| !a.is_string()) {
        *arguments = Value::String(arguments.to_string());
    }
    call
}

/// Returns a tool without the envelope of the chat API, and without nulls, which readers refuse.
pub(crate) fn plain_tool(text: &str) -> Map<String, Value> {
    let tool: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let inner = tool.get("function").or_else(|| tool.get("custom")).unwrap_or(&tool);
    let mut plain = inner.as_object().cloned().unwrap_or_default();
    if tool.get("custom").is_some() {
        plain.insert("type".to_owned(), json!("custom"));
    }
    plain.retain(|_, value| !value.is_null());
    plain
}

/// Returns the tools that are functions, without nulls: the schema of fine-tuning has no others.
pub(crate) fn functions(tools: &[String]) -> Vec<String> {
    let function = |text: &String| {
        let mut tool: Value = serde_json::from_str(text).ok()?;
        tool.get_mut("function")?.as_object_mut()?.retain(|_, value| !value.is_null());
        Some(tool.to_string())
    };
    tools.iter().filter_map(function).collect()
}

/// Returns the functions; none where there are none, which the API takes as no key.
pub(crate) fn functions_if_any(tools: &[String]) -> Option<Vec<String>> {
    Some(functions(tools)).filter(|functions| !functions.is_empty())
}
