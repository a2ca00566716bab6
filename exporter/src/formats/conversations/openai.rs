//! `openai`, `openai-preference`: lines of OpenAI's fine-tuning files.

use serde_json::{Map, Value, json};

use crate::formats::chat_json::{chat, tools_if_any};
use crate::formats::conversations::preference::PreferencePair;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::messages::RowMessage;

/// Columns of a conversation. An answer has the weight 1 in the one line that trains it and 0 in
/// all others. What the agent wrote itself has the weight 0.
pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("messages", Getter::Jsons(|s| Some(weighted(s)))),
    RecordColumn::optional("tools", Getter::Jsons(|s| tools_if_any(&s.row.dialogue.tools))),
    RecordColumn::optional(
        "parallel_tool_calls",
        Getter::Bool(|s| parallel(&s.row.dialogue.tools)),
    ),
];

/// Columns of a preference, whose sides are one message of the assistant each.
pub(crate) const PREFERENCE: &[RecordColumn<PreferencePair>] = &[
    RecordColumn::new("input", Getter::Json(|p| Some(input(p)))),
    RecordColumn::new("preferred_output", Getter::Jsons(|p| Some(lines(&p.chosen.messages)))),
    RecordColumn::new("non_preferred_output", Getter::Jsons(|p| Some(lines(&p.rejected.messages)))),
];

fn weighted(sample: &Sample) -> Vec<String> {
    let messages = sample.messages();
    let written = messages.iter().enumerate().map(|(at, message)| {
        let mut object = line(message);
        if message.role == "assistant" {
            let weight = u8::from(sample.trained_messages.contains(&at));
            object.insert("weight".to_owned(), json!(weight));
        }
        Value::Object(object).to_string()
    });
    written.collect()
}

fn lines(messages: &[RowMessage]) -> Vec<String> {
    messages.iter().map(|message| Value::Object(line(message)).to_string()).collect()
}

fn input(pair: &PreferencePair) -> String {
    let messages: Vec<Value> = pair.prompt.iter().map(|m| Value::Object(line(m))).collect();
    let mut input = json!({ "messages": messages });
    if let Some(parallel) = parallel(&pair.tools) {
        let tools = pair.tools.iter();
        input["tools"] =
            tools.map(|text| serde_json::from_str(text).unwrap_or(Value::Null)).collect();
        input["parallel_tool_calls"] = json!(parallel);
    }
    input.to_string()
}

/// Writes a message for a fine-tuning file, whose schema has no developer.
fn line(message: &RowMessage) -> Map<String, Value> {
    let mut object = chat(message);
    if message.role == "developer" {
        object.insert("role".to_owned(), json!("system"));
    }
    object
}

fn parallel(tools: &[String]) -> Option<bool> {
    (!tools.is_empty()).then_some(true)
}
