//! The assistant's message of a recorded reply.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value, json};

use super::items::Messages;
use crate::chat::{PartReader, keep_unread, whole_number};
use crate::json::tree;
use crate::sse::events;

/// Real replies have fewer parts. A larger index would only make the item grow.
const PARTS_MAX: usize = 1024;

/// The assistant's message, in OpenAI's chat form, of a recorded Responses reply, a document or a
/// stream; `None` if it is neither, or holds nothing at all.
pub(crate) fn answer(reply: &[u8]) -> Option<Value> {
    let mut messages = Messages::new(PartReader::lenient());
    for item in &output_items(reply)? {
        // A lenient reader refuses nothing.
        let _ = messages.push_item(item);
    }
    Some(joined(&messages.into_raw()))
}

/// The items of a recorded Responses reply, a document or a stream; `None` if it is neither, or
/// holds nothing at all.
pub(crate) fn output_items(reply: &[u8]) -> Option<Vec<Value>> {
    match tree(reply) {
        Some(document) => document.get("output")?.as_array().cloned(),
        None => streamed_items(reply),
    }
}

/// The items of a stream: those of its last event, else those that its deltas add up to.
fn streamed_items(reply: &[u8]) -> Option<Vec<Value>> {
    let mut items = BTreeMap::new();
    let (mut final_output, mut has_failed) = (None, false);
    for event in events(reply) {
        let Some(event) = event.data().and_then(|data| tree(&data)) else { continue };
        match event.get("type").and_then(Value::as_str) {
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                final_output = event.pointer("/response/output").and_then(Value::as_array).cloned();
                has_failed = event["type"] == "response.failed";
            }
            Some(kind) => add_event(&mut items, kind, &event),
            None => {}
        }
    }

    let from_deltas: Vec<Value> = items.into_values().collect();
    match final_output {
        Some(output) if !output.is_empty() => Some(output),
        // A model may finish without a word. After a failure, no output is no reply.
        Some(_) if from_deltas.is_empty() && !has_failed => Some(from_deltas),
        _ => (!from_deltas.is_empty()).then_some(from_deltas),
    }
}

/// The place of a text in an item: a list, the type of the parts in it, and the key of the text.
struct TextPlace {
    list: &'static str,
    part_type: &'static str,
    key: &'static str,
}

/// The place that the delta of an event of type `kind` belongs to.
fn text_place(kind: &str) -> Option<TextPlace> {
    let (list, part_type, key) = match kind {
        "response.output_text.delta" => ("content", "output_text", "text"),
        "response.refusal.delta" => ("content", "refusal", "refusal"),
        "response.reasoning_text.delta" => ("content", "reasoning_text", "text"),
        "response.reasoning_summary_text.delta" => ("summary", "summary_text", "text"),
        _ => return None,
    };
    Some(TextPlace { list, part_type, key })
}

/// Adds an event to its item.
fn add_event(items: &mut BTreeMap<u64, Value>, kind: &str, event: &Value) {
    let index = whole_number(event.get("output_index")).unwrap_or(0);
    if let ("response.output_item.added" | "response.output_item.done", Some(item)) =
        (kind, event.get("item"))
    {
        items.insert(index, item.clone());
        return;
    }

    let Some(delta) = event.get("delta").and_then(Value::as_str) else { return };
    // An item whose start was lost is what its deltas say.
    let item = match (items.entry(index), item_of_delta(kind)) {
        (Entry::Occupied(known), _) => known.into_mut(),
        (Entry::Vacant(place), Some(item)) => place.insert(item),
        (Entry::Vacant(_), None) => return,
    };
    match kind {
        "response.function_call_arguments.delta" => push_text(item, "arguments", delta),
        "response.custom_tool_call_input.delta" => push_text(item, "input", delta),
        _ => {
            if let (Some(place), Some(index)) = (text_place(kind), part_index(event)) {
                push_part_text(item, &place, index, delta);
            }
        }
    }
}

/// The item that a delta of type `kind` is of, as it begins.
fn item_of_delta(kind: &str) -> Option<Value> {
    Some(match kind {
        "response.output_text.delta" | "response.refusal.delta" => {
            json!({ "type": "message", "role": "assistant", "content": [] })
        }
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            json!({ "type": "reasoning" })
        }
        "response.function_call_arguments.delta" => json!({ "type": "function_call" }),
        "response.custom_tool_call_input.delta" => json!({ "type": "custom_tool_call" }),
        _ => return None,
    })
}

/// The index of the part that an event belongs to, the first if it names none.
fn part_index(event: &Value) -> Option<usize> {
    let index = ["content_index", "summary_index"].into_iter().find_map(|key| event.get(key));
    let index = whole_number(index).unwrap_or(0);
    usize::try_from(index).ok().filter(|index| *index < PARTS_MAX)
}

/// Adds a delta to a part of an item; new parts are made up to its index.
fn push_part_text(item: &mut Value, place: &TextPlace, index: usize, delta: &str) {
    let Some(fields) = item.as_object_mut() else { return };
    let list = fields.entry(place.list).or_insert(Value::Null);
    if !list.is_array() {
        *list = json!([]);
    }
    let Value::Array(parts) = list else { return };
    while parts.len() <= index {
        parts.push(json!({ "type": place.part_type, place.key: "" }));
    }
    push_text(&mut parts[index], place.key, delta);
}

fn push_text(object: &mut Value, key: &str, delta: &str) {
    let Some(fields) = object.as_object_mut() else { return };
    match fields.get_mut(key) {
        Some(Value::String(text)) => text.push_str(delta),
        _ => {
            fields.insert(key.to_owned(), json!(delta));
        }
    }
}

/// All messages of the assistant as one: a reply is one turn, however many items it has.
fn joined(messages: &[Map<String, Value>]) -> Value {
    let mut message = Map::from_iter([
        ("role".to_owned(), json!("assistant")),
        ("content".to_owned(), joined_text(messages, "content").unwrap_or_default()),
    ]);
    for key in ["reasoning", "refusal"] {
        if let Some(text) = joined_text(messages, key) {
            message.insert(key.to_owned(), text);
        }
    }

    let calls: Vec<Value> = messages
        .iter()
        .filter_map(|message| message.get("tool_calls")?.as_array())
        .flatten()
        .cloned()
        .collect();
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    messages.iter().for_each(|part| keep_unread(&mut message, part));
    Value::Object(message)
}

fn joined_text(messages: &[Map<String, Value>], key: &str) -> Option<Value> {
    let texts: Vec<&str> =
        messages.iter().filter_map(|message| message.get(key)?.as_str()).collect();
    (!texts.is_empty()).then(|| json!(texts.concat()))
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
                "tool_calls": [call], "unread_items": [
                    { "type": "web_search_call", "id": "w" }, { "type": "new_thing" }] }))
        );
    }
}
