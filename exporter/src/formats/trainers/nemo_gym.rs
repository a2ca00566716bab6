//! `nemo-gym`: a rollout of NeMo Gym (nemo-gym 0.7.0) as its agents return it, in the items of the
//! Responses API.
//!
//! An item with ids is trained whole, and its prompt must begin with all that came before. So the
//! ids of an item are the trained tokens of a turn.

use std::ops::Range;

use episode::INFRASTRUCTURE_FAILED;
use serde_json::{Value, json};

use super::call_time::seconds;
use crate::formats::chat_json::plain_tool;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::messages::RowMessage;
use crate::rows::row::{Row, TurnRow};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("_ng_task_index", Getter::Int(|s| Some(s.numbers.group))),
    RecordColumn::new("_ng_rollout_index", Getter::Int(|s| Some(s.index))),
    RecordColumn::new("agent_ref", Getter::Json(|_| Some(AGENT.to_owned()))),
    RecordColumn::new("responses_create_params", Getter::Json(|s| Some(create_params(s)))),
    RecordColumn::new("response", Getter::Json(|s| Some(response(s)))),
    RecordColumn::new("reward", Getter::Float(|s| s.row.score())),
    RecordColumn::new("mask_sample", Getter::Bool(|s| Some(failure(&s.row).is_some()))),
    RecordColumn::optional(
        "failure_kind",
        Getter::Text(|s| failure(&s.row).map(|kind| format!("rolltape:{kind}"))),
    ),
    RecordColumn::new("info", Getter::Json(|s| Some(s.metadata().to_string()))),
];

/// Returns what failed where it was not the policy, so that a reward does not measure it. The names
/// are rolltape's: those of NeMo Gym say which of its own servers failed.
fn failure(row: &Row) -> Option<&'static str> {
    match row.status.as_str() {
        INFRASTRUCTURE_FAILED => Some(INFRASTRUCTURE_FAILED),
        _ if row.is_aborted() => Some("aborted"),
        _ => None,
    }
}

/// Agent of all rollouts, whose name is not recorded.
const AGENT: &str = r#"{"type":"responses_api_agents","name":"unknown"}"#;

fn create_params(sample: &Sample) -> String {
    let mut input = Items::new(sample);
    sample.row.dialogue.prompt.iter().for_each(|message| input.add(message));
    let mut params = json!({ "input": input.list, "tools": tools(sample) });
    if !sample.row.model.is_empty() {
        params["model"] = json!(sample.row.model);
    }
    if let Some(temperature) = sample.row.turns.first().and_then(|turn| turn.temperature) {
        params["temperature"] = json!(temperature);
    }
    params.to_string()
}

fn tools(sample: &Sample) -> Vec<Value> {
    let tools = sample.row.dialogue.tools.iter().map(|text| {
        let mut tool = plain_tool(text);
        let kind = tool.entry("type").or_insert_with(|| json!("function"));
        if kind == "function" {
            tool.entry("parameters").or_insert(Value::Null);
            tool.entry("strict").or_insert(Value::Null);
        }
        Value::Object(tool)
    });
    tools.collect()
}

fn response(sample: &Sample) -> String {
    let began = sample.row.turns.first().map_or(0.0, |turn| seconds(&turn.call_id));
    json!({
        "id": sample.row.trajectory_id,
        "object": "response",
        "created_at": began,
        "model": sample.row.model,
        "output": output(sample),
        "parallel_tool_calls": sample.row.dialogue.parallel_tool_calls.unwrap_or(true),
        "tool_choice": "auto",
        "tools": tools(sample),
    })
    .to_string()
}

/// Makes the items of the completion, with the ids of each turn at the last item of its answer.
///
/// Other trained ids stand in items without text before that: those of turns whose answer is not
/// known, and all but the last part of an answer that is trained in parts.
fn output(sample: &Sample) -> Vec<Value> {
    let mut items = Items::new(sample);
    let mut runs: Vec<(&TurnRow, Range<usize>)> = sample.trained_runs().collect();
    for (message, turn) in sample.row.dialogue.completion.iter().zip(sample.turns_of_completion()) {
        // All runs up to the end of this message's turn.
        let end = turn.map_or(0, |turn| turn.end);
        let count = runs.iter().take_while(|(run_turn, _)| run_turn.end <= end).count();
        let mut until_here: Vec<_> = runs.drain(..count).collect();
        let own = until_here.pop_if(|(run_turn, _)| Some(*run_turn) == turn);

        until_here.into_iter().for_each(|(_, run)| items.add_without_text(run));
        items.add(message);
        match own {
            Some((_, run)) if has_items(message) => items.train(run),
            Some((_, run)) => items.add_without_text(run),
            None => {}
        }
    }
    runs.into_iter().for_each(|(_, run)| items.add_without_text(run));
    items.list
}

/// Returns true for an answer that makes an item.
fn has_items(message: &RowMessage) -> bool {
    message.role == "assistant"
        && (message.content.is_some()
            || message.reasoning.is_some()
            || message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()))
}

/// Items of the Responses API.
struct Items<'a> {
    sample: &'a Sample,
    list: Vec<Value>,
}

impl<'a> Items<'a> {
    fn new(sample: &'a Sample) -> Self {
        Self { sample, list: Vec::new() }
    }

    fn add(&mut self, message: &RowMessage) {
        match message.role.as_str() {
            "assistant" => self.add_answer(message),
            "tool" | "function" => self.list.push(json!({
                "type": "function_call_output",
                "call_id": message.tool_call_id.clone().unwrap_or_default(),
                "output": message.content.clone().unwrap_or_default(),
            })),
            other => {
                let role = if ["system", "developer"].contains(&other) { other } else { "user" };
                let content = content(message.content.as_deref().unwrap_or_default());
                self.list.push(json!({ "type": "message", "role": role, "content": content }));
            }
        }
    }

    fn add_answer(&mut self, message: &RowMessage) {
        if let Some(reasoning) = &message.reasoning {
            let summary = [json!({ "type": "summary_text", "text": reasoning })];
            let id = self.next_id();
            self.list.push(json!({ "type": "reasoning", "id": id, "summary": summary }));
        }
        if let Some(text) = &message.content {
            self.add_text(text);
        }
        self.list.extend(message.tool_calls.iter().flatten().map(|call| function_call(call)));
    }

    fn add_text(&mut self, text: &str) {
        let content = [json!({ "type": "output_text", "text": text, "annotations": [] })];
        let id = self.next_id();
        self.list.push(json!({ "type": "message", "role": "assistant", "id": id,
            "content": content, "status": "completed" }));
    }

    fn next_id(&self) -> String {
        format!("{}/{}", self.sample.row.trajectory_id, self.list.len())
    }

    /// Adds an item that trains ids and has no text.
    fn add_without_text(&mut self, run: Range<usize>) {
        self.add_text("");
        self.train(run);
    }

    /// Adds ids to the last item.
    fn train(&mut self, run: Range<usize>) {
        let tokens = &self.sample.row.tokens;
        let ids = [
            ("prompt_token_ids", json!(tokens.input_ids[..run.start])),
            ("generation_token_ids", json!(tokens.input_ids[run.clone()])),
            ("generation_log_probs", json!(tokens.logprobs[run])),
        ];
        if let Some(item) = self.list.last_mut().and_then(Value::as_object_mut) {
            item.extend(ids.map(|(name, value)| (name.to_owned(), value)));
        }
    }
}

fn function_call(text: &str) -> Value {
    let call: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    json!({
        "type": "function_call",
        "call_id": call["id"].as_str().unwrap_or_default(),
        "name": function["name"].as_str().unwrap_or_default(),
        "arguments": arguments,
    })
}

/// Converts content. Content with images and the like is the JSON text of its parts in the form of
/// the chat API.
fn content(text: &str) -> Value {
    if !text.starts_with("[{") {
        return json!(text);
    }
    match serde_json::from_str::<Vec<Value>>(text) {
        Ok(parts) => parts.iter().map(part).collect(),
        Err(_) => json!(text),
    }
}

fn part(part: &Value) -> Value {
    match (part["type"].as_str(), part.pointer("/image_url/url")) {
        (_, Some(url)) => json!({ "type": "input_image", "image_url": url, "detail": "auto" }),
        (Some("text"), _) => json!({ "type": "input_text", "text": part["text"] }),
        _ => json!({ "type": "input_text", "text": part.to_string() }),
    }
}
