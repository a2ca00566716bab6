//! `openai`, `openai-preference`: lines of OpenAI's fine-tuning files.

use serde_json::{Map, Value, json};

use crate::formats::chat_json::{chat, functions, functions_if_any, part_text};
use crate::formats::conversations::preference::PreferencePair;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::dialogue::Dialogue;
use crate::rows::messages::RowMessage;

/// Columns of a conversation. An answer has the weight 1 in the one line that trains it and 0 in
/// all others. What the agent wrote itself has the weight 0.
pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("messages", Getter::Jsons(|s| Some(weighted(s)))),
    RecordColumn::optional("tools", Getter::Jsons(|s| functions_if_any(&s.row.dialogue.tools))),
    RecordColumn::optional("parallel_tool_calls", Getter::Bool(|s| of_row(&s.row.dialogue))),
];

/// Columns of a preference, whose sides are one message of the assistant each.
pub(crate) const PREFERENCE: &[RecordColumn<PreferencePair>] = &[
    RecordColumn::new("input", Getter::Json(|p| Some(input(p)))),
    RecordColumn::new("preferred_output", Getter::Jsons(|p| Some(side(&p.chosen.messages)))),
    RecordColumn::new("non_preferred_output", Getter::Jsons(|p| Some(side(&p.rejected.messages)))),
];

fn weighted(sample: &Sample) -> Vec<String> {
    let written = lines(&sample.messages()).into_iter().enumerate().map(|(at, mut object)| {
        if object["role"] == "assistant" {
            let weight = u8::from(sample.trained_messages.contains(&at));
            object.insert("weight".to_owned(), json!(weight));
        }
        Value::Object(object).to_string()
    });
    written.collect()
}

fn side(messages: &[RowMessage]) -> Vec<String> {
    lines(messages).into_iter().map(|line| Value::Object(line).to_string()).collect()
}

fn input(pair: &PreferencePair) -> String {
    let mut input = json!({ "messages": lines(&pair.prompt) });
    let functions = functions(&pair.tools);
    if let Some(parallel) = parallel(&functions, pair.parallel_tool_calls) {
        let functions = functions.iter();
        input["tools"] =
            functions.map(|text| serde_json::from_str(text).unwrap_or(Value::Null)).collect();
        input["parallel_tool_calls"] = json!(parallel);
    }
    input.to_string()
}

/// Writes messages for a fine-tuning file. Its schema has no role `developer` and no role
/// `function`, and a tool's result has no name.
fn lines(messages: &[RowMessage]) -> Vec<Map<String, Value>> {
    let mut written = Vec::with_capacity(messages.len());
    let mut called = Vec::new();
    for message in messages {
        let mut object = chat(message);
        match message.role.as_str() {
            "assistant" => called = calls(&object),
            "developer" => drop(object.insert("role".to_owned(), json!("system"))),
            "function" => {
                let name = object.get("name").and_then(Value::as_str);
                let call = called.iter().find(|(_, function)| Some(function.as_str()) == name);
                let id = call.or(called.first()).map_or("", |(id, _)| id);
                object.insert("tool_call_id".to_owned(), json!(id));
                object.insert("role".to_owned(), json!("tool"));
            }
            _ => {}
        }

        if object["role"] == "tool" {
            object.remove("name");
        }
        if let Some(Value::Array(parts)) = object.get_mut("content") {
            let takes_pictures = message.role == "user";
            parts.iter_mut().for_each(|part| make_allowed(part, takes_pictures));
        }
        written.push(object);
    }
    written
}

/// Returns the ids and names of the calls of a message.
fn calls(message: &Map<String, Value>) -> Vec<(String, String)> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let text = |call: &Value, at: &str| {
        call.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    calls.map(|call| (text(call, "/id"), text(call, "/function/name"))).collect()
}

/// Makes a part that the schema does not have a text of its JSON.
fn make_allowed(part: &mut Value, takes_pictures: bool) {
    if !(takes_pictures && part["type"] == "image_url") {
        *part = json!({ "type": "text", "text": part_text(part) });
    }
}

fn of_row(dialogue: &Dialogue) -> Option<bool> {
    parallel(&functions(&dialogue.tools), dialogue.parallel_tool_calls)
}

/// Returns true where one answer may make several calls; none where there are no tools. That is
/// the API's default.
fn parallel(functions: &[String], asked: Option<bool>) -> Option<bool> {
    (!functions.is_empty()).then_some(asked.unwrap_or(true))
}
