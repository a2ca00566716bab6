//! The assistant's message of a recorded reply.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::items::Messages;
use crate::sse::{Event, events};

/// Indices beyond this are not of a real reply, and would only make it grow.
const PARTS_MAX: usize = 1024;

/// The assistant's message in OpenAI's chat form out of a recorded Responses reply, a document
/// or a stream; `None` when it is neither or says nothing at all.
pub(crate) fn answer(reply: &[u8]) -> Option<Value> {
    let mut messages = Messages::default();
    for item in &output(reply)? {
        // What has no form in chat was not said by the model, or not in words.
        let _ = messages.item(item);
    }
    Some(join(messages.raw()))
}

/// The items of a recorded Responses reply, a document or a stream; `None` when it is neither or
/// says nothing at all.
pub(crate) fn output(reply: &[u8]) -> Option<Vec<Value>> {
    match serde_json::from_slice::<Value>(reply) {
        Ok(document) => document.get("output")?.as_array().cloned(),
        Err(_) => streamed(reply),
    }
}

/// The output of a stream: what its last event says, else what its items grew to.
fn streamed(reply: &[u8]) -> Option<Vec<Value>> {
    let mut items = BTreeMap::new();
    let (mut ended, mut failed) = (None, false);
    for data in events(&[reply]).iter().filter_map(Event::data) {
        let Ok(event) = serde_json::from_slice::<Value>(&data) else { continue };
        match event.get("type").and_then(Value::as_str) {
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                ended = event.pointer("/response/output").and_then(Value::as_array).cloned();
                failed = event["type"] == "response.failed";
            }
            Some(kind) => grow(&mut items, kind, &event),
            None => {}
        }
    }
    let grown: Vec<Value> = items.into_values().collect();
    match ended {
        Some(output) if !output.is_empty() => Some(output),
        // The model may say nothing; a server that failed has not let it.
        Some(_) if grown.is_empty() && !failed => Some(grown),
        _ => (!grown.is_empty()).then_some(grown),
    }
}

/// Adds an event to the item that it is of.
fn grow(items: &mut BTreeMap<u64, Value>, kind: &str, event: &Value) {
    let Some(index) = event.get("output_index").and_then(Value::as_u64) else { return };
    if let ("response.output_item.added" | "response.output_item.done", Some(item)) =
        (kind, event.get("item"))
    {
        items.insert(index, item.clone());
        return;
    }
    let (Some(item), Some(delta)) =
        (items.get_mut(&index), event.get("delta").and_then(Value::as_str))
    else {
        return;
    };
    match kind {
        "response.output_text.delta" => part(item, "content", event, ("output_text", "text")),
        "response.refusal.delta" => part(item, "content", event, ("refusal", "refusal")),
        "response.reasoning_text.delta" => part(item, "content", event, ("reasoning_text", "text")),
        "response.reasoning_summary_text.delta" => {
            part(item, "summary", event, ("summary_text", "text"));
        }
        "response.function_call_arguments.delta" => push(item, "arguments", delta),
        "response.custom_tool_call_input.delta" => push(item, "input", delta),
        _ => {}
    }
}

/// Adds a delta to a part of an item, which is made when it is not there yet.
fn part(item: &mut Value, list: &str, event: &Value, (kind, key): (&str, &str)) {
    let index = ["content_index", "summary_index"].into_iter().find_map(|key| event.get(key));
    let index = index.and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
    let (Some(index), Some(item)) = (index.filter(|at| *at < PARTS_MAX), item.as_object_mut())
    else {
        return;
    };
    let parts = item.entry(list).or_insert(Value::Null);
    if !parts.is_array() {
        *parts = json!([]);
    }
    let Value::Array(parts) = parts else { return };
    while parts.len() <= index {
        parts.push(json!({ "type": kind, key: "" }));
    }
    if let Some(delta) = event.get("delta").and_then(Value::as_str) {
        push(&mut parts[index], key, delta);
    }
}

fn push(item: &mut Value, key: &str, delta: &str) {
    let Some(item) = item.as_object_mut() else { return };
    match item.get_mut(key) {
        Some(Value::String(text)) => text.push_str(delta),
        _ => {
            item.insert(key.to_owned(), json!(delta));
        }
    }
}

/// All that the assistant said as one message: a reply is one turn, however many items it has.
fn join(messages: Vec<Map<String, Value>>) -> Value {
    let text = |key: &str| {
        let texts: Vec<&str> =
            messages.iter().filter_map(|message| message.get(key)?.as_str()).collect();
        (!texts.is_empty()).then(|| json!(texts.concat()))
    };
    let mut joined = Map::from_iter([
        ("role".to_owned(), json!("assistant")),
        ("content".to_owned(), text("content").unwrap_or_default()),
    ]);
    for key in ["reasoning", "refusal"] {
        if let Some(text) = text(key) {
            joined.insert(key.to_owned(), text);
        }
    }
    let calls: Vec<Value> = messages
        .iter()
        .filter_map(|m| m.get("tool_calls")?.as_array())
        .flatten()
        .cloned()
        .collect();
    if !calls.is_empty() {
        joined.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(events: &[Value]) -> String {
        events.iter().map(|event| format!("data: {event}\n\n")).collect()
    }

    fn added(place: u64, item: Value) -> Value {
        json!({ "type": "response.output_item.added", "output_index": place, "item": item })
    }

    fn delta(kind: &str, place: u64, delta: &str) -> Value {
        json!({ "type": format!("response.{kind}.delta"), "output_index": place,
            "content_index": 0, "delta": delta })
    }

    #[test]
    fn a_stream_without_an_end_is_read_from_its_deltas() {
        let call = json!({ "id": "c", "type": "function",
            "function": { "name": "f", "arguments": "{}" } });
        let cut = stream(&[
            json!({ "type": "response.created", "response": {} }),
            added(0, json!({ "type": "reasoning", "summary": [] })),
            delta("reasoning_summary_text", 0, "hm"),
            added(1, json!({ "type": "message", "role": "assistant", "content": [] })),
            delta("output_text", 1, "a"),
            delta("output_text", 1, "b"),
            added(2, json!({ "type": "function_call", "call_id": "c", "name": "f" })),
            delta("function_call_arguments", 2, "{}"),
        ]);
        assert_eq!(
            answer(cut.as_bytes()),
            Some(json!({ "role": "assistant", "content": "ab", "reasoning": "hm",
                "tool_calls": [call] }))
        );
    }

    #[test]
    fn what_is_no_response_has_no_answer() {
        for reply in ["", "{}", "[1]", "data: [DONE]\n\n", "<html>", r#"{"error":{}}"#] {
            assert_eq!(answer(reply.as_bytes()), None, "{reply}");
        }
        let failed = stream(&[json!({ "type": "response.failed", "response": { "output": [] } })]);
        assert_eq!(answer(failed.as_bytes()), None);
        let silent = json!({ "role": "assistant", "content": null });
        assert_eq!(answer(br#"{"object":"response","output":[]}"#), Some(silent));
    }

    #[test]
    fn items_that_are_not_words_are_passed_over() {
        let reply = br#"{"output":[{"type":"web_search_call","id":"w"},{"type":"new_thing"},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"x"},
            {"type":"refusal","refusal":"no"}]},
            {"type":"custom_tool_call","call_id":"c","name":"patch","input":"a\"b"}]}"#;
        let call = json!({ "id": "c", "type": "function",
            "function": { "name": "patch", "arguments": "{\"input\":\"a\\\"b\"}" } });
        assert_eq!(
            answer(reply),
            Some(json!({ "role": "assistant", "content": "x", "refusal": "no",
                "tool_calls": [call] }))
        );
    }
}
