//! One text for all spellings of one message.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::chat::{pieces, unread_parts, words_of};
use crate::json::{inner_tree, json_text, make_readable};

/// One text for all spellings of one message in chat's form. Agents rename tool calls, write
/// `null` for an empty text, reorder keys and drop reasoning when they send a history back. They
/// also drop, or change, what a server put into an answer beside words and calls.
pub fn canonical(message: &Value) -> String {
    let role = text(message, "role").unwrap_or_default();
    let is_answer = role == "assistant";
    let content = match message.get("content") {
        Some(Value::Array(_) | Value::Object(_)) if is_answer => words_of(message).map(Cow::Owned),
        _ if is_answer && message.get("audio").is_some() => words_of(message).map(Cow::Owned),
        Some(parts @ Value::Array(_)) if joined_parts(parts).is_none() => {
            Some(json_text(&comparable(parts)).into())
        }
        other => content(other),
    };

    let calls: Vec<Value> = pieces(message)
        .iter()
        .map(|call| {
            // A call without arguments comes back with an empty object.
            let arguments = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
            sorted(json!([call.name, parsed_arguments(json!(arguments))]))
        })
        .collect();

    let unread = if is_answer { &[] } else { unread_parts(message) };
    let unread: Vec<Value> = unread.iter().map(comparable).collect();
    serde_json::to_string(&(
        role,
        content.unwrap_or_default(),
        text(message, "name"),
        calls,
        unread,
    ))
    .expect("every key of a value is a text")
}

/// A part as it is compared: agents move their marks for the cache, write nulls or leave them out,
/// and reorder keys.
fn comparable(part: &Value) -> Value {
    match part {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, v)| *key != "cache_control" && !v.is_null());
            let kept = kept.map(|(key, value)| (key.clone(), comparable(value)));
            sorted(Value::Object(kept.collect()))
        }
        Value::Array(items) => items.iter().map(comparable).collect(),
        other => other.clone(),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// A message's content as text: a string as it is, text parts joined, anything else as JSON.
pub fn content_text(value: Option<&Value>) -> Option<String> {
    content(value).map(Cow::into_owned)
}

fn content(value: Option<&Value>) -> Option<Cow<'_, str>> {
    match value? {
        Value::Null => None,
        Value::String(text) => Some(Cow::Borrowed(text)),
        other => Some(joined_parts(other).unwrap_or_else(|| json_text(other)).into()),
    }
}

/// The text of a list of text parts; `None` if one of them is not text.
fn joined_parts(parts: &Value) -> Option<String> {
    parts.as_array()?.iter().map(part_text).collect()
}

fn part_text(part: &Value) -> Option<String> {
    match text(part, "type") {
        Some("text") => text(part, "text").map(str::to_owned),
        _ => None,
    }
}

/// The reasoning of a message, if it has any.
pub fn reasoning(message: &Value) -> Option<&str> {
    ["reasoning", "reasoning_content"]
        .into_iter()
        .filter_map(|key| text(message, key))
        .find(|text| !text.is_empty())
}

/// A tool call's arguments as an object, if their text is one; else as they are.
pub fn parsed_arguments(arguments: Value) -> Value {
    let object = arguments.as_str().and_then(inner_tree);
    let mut parsed = object.filter(Value::is_object).unwrap_or(arguments);
    make_readable(&mut parsed);
    parsed
}

/// The same value with the keys of every object in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect::<Map<_, _>>())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_message_are_one_text() {
        let sent = json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "a",
            "type": "function",
            "function": { "name": "f", "arguments": "{\"x\": 1, \"y\":2}" } }] });
        let quoted = json!({ "role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [{
            "id": "b", "function": { "arguments": "{\"y\":2,\"x\":1}", "name": "f" } }] });
        assert_eq!(canonical(&sent), canonical(&quoted));
        let other = json!({ "role": "assistant", "content": "no" });
        assert_ne!(canonical(&sent), canonical(&other));
    }
}
