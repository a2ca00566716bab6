//! `openai`, `openai-preference`: lines of OpenAI's fine-tuning files.

use serde_json::{Map, Value, json};

use super::preference::Pair;
use super::sample::Sample;
use super::table::{Column, Of};
use crate::rows::messages::Message;

/// An answer has the weight 1 in the one line that trains it and 0 in all others; so has what the
/// agent wrote itself.
pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("messages", Of::Jsons(|s| Some(weighed(s)))),
    Column::optional("tools", Of::Jsons(|s| some(&s.row.dialogue.tools))),
    Column::optional("parallel_tool_calls", Of::Bool(|s| parallel(&s.row.dialogue.tools))),
];

/// Both sides are one message of the assistant.
pub(crate) const PREFERENCE: &[Column<Pair>] = &[
    Column::new("input", Of::Json(|p| Some(input(p)))),
    Column::new("preferred_output", Of::Jsons(|p| Some(plain(&p.chosen)))),
    Column::new("non_preferred_output", Of::Jsons(|p| Some(plain(&p.rejected)))),
];

fn weighed(sample: &Sample) -> Vec<String> {
    let written = |(at, message): (usize, &Message)| {
        let mut object = line(message);
        if message.role == "assistant" {
            let weight = u8::from(sample.taught.contains(&at));
            object.insert("weight".to_owned(), json!(weight));
        }
        Value::Object(object).to_string()
    };
    sample.messages().iter().enumerate().map(written).collect()
}

fn plain(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|m| Value::Object(line(m)).to_string()).collect()
}

fn input(pair: &Pair) -> String {
    let read = |text: &String| serde_json::from_str(text).unwrap_or(Value::Null);
    let messages: Vec<Value> = pair.prompt.iter().map(|m| Value::Object(line(m))).collect();
    let mut input = json!({ "messages": messages });
    if let Some(parallel) = parallel(&pair.tools) {
        input["tools"] = pair.tools.iter().map(read).collect();
        input["parallel_tool_calls"] = json!(parallel);
    }
    input.to_string()
}

/// A message as files for fine-tuning take it, whose schema has no developer.
fn line(message: &Message) -> Map<String, Value> {
    let mut object = chat(message);
    if message.role == "developer" {
        object.insert("role".to_owned(), json!("system"));
    }
    object
}

/// The form that OpenAI's API takes: no key without a value, and arguments of tools as text.
pub(crate) fn chat(message: &Message) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("role".to_owned(), json!(message.role));
    let keys = [
        ("content", &message.content),
        ("name", &message.name),
        ("tool_call_id", &message.tool_call_id),
    ];
    for (key, value) in keys {
        if let Some(text) = value {
            object.insert(key.to_owned(), parts(key, text));
        }
    }
    if let Some(calls) = &message.tool_calls {
        let calls: Vec<Value> = calls.iter().map(|call| tool_call(call)).collect();
        object.insert("tool_calls".to_owned(), json!(calls));
    }
    object
}

/// Content of images and the like is the JSON text of its parts.
fn parts(key: &str, text: &str) -> Value {
    let list = || serde_json::from_str::<Value>(text).ok().filter(is_parts);
    if key == "content" && text.starts_with("[{") {
        list().unwrap_or(json!(text))
    } else {
        json!(text)
    }
}

fn is_parts(value: &Value) -> bool {
    let typed = |part: &Value| part.get("type").is_some_and(Value::is_string);
    value.as_array().is_some_and(|parts| parts.iter().all(typed))
}

fn tool_call(text: &str) -> Value {
    let mut call: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|a| !a.is_string()) {
        *arguments = Value::String(arguments.to_string());
    }
    call
}

fn some(tools: &[String]) -> Option<Vec<String>> {
    (!tools.is_empty()).then(|| tools.to_vec())
}

fn parallel(tools: &[String]) -> Option<bool> {
    (!tools.is_empty()).then_some(true)
}
