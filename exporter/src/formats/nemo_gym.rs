//! `nemo-gym`: a rollout of NeMo Gym (read in nemo-gym 0.4.0): what its agents give back, in the
//! items of the Responses API.
//!
//! An item with ids is trained whole, and its prompt must begin with all that came before. So the
//! ids of an item are what the loss mask lets through of a turn.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::attempts::plain_tool;
use super::sample::Sample;
use super::table::{Column, Of};
use crate::rows::messages::Message;
use crate::rows::row::TurnRow;

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("_ng_task_index", Of::Int(|s| Some(s.place.group))),
    Column::new("_ng_rollout_index", Of::Int(|s| Some(s.index))),
    Column::new("agent_ref", Of::Json(|_| Some(AGENT.to_owned()))),
    Column::new("responses_create_params", Of::Json(|s| Some(asked(s)))),
    Column::new("response", Of::Json(|s| Some(response(s)))),
    Column::new("reward", Of::Float(|s| s.row.reward)),
    Column::new("info", Of::Json(|s| Some(s.about().to_string()))),
];

/// The recorder does not know the agent's name.
const AGENT: &str = r#"{"type":"responses_api_agents","name":"unknown"}"#;

fn asked(sample: &Sample) -> String {
    let mut input = Items::new(sample);
    sample.row.dialogue.prompt.iter().for_each(|message| input.add(message));
    let mut asked = json!({ "input": input.made, "tools": tools(sample) });
    if !sample.row.model.is_empty() {
        asked["model"] = json!(sample.row.model);
    }
    if let Some(temperature) = sample.row.turns.first().and_then(|turn| turn.temperature) {
        asked["temperature"] = json!(temperature);
    }
    asked.to_string()
}

fn tools(sample: &Sample) -> Vec<Value> {
    let tool = |text: &String| {
        let mut tool = plain_tool(text);
        tool.insert("type".to_owned(), json!("function"));
        tool.entry("parameters").or_insert(Value::Null);
        tool.entry("strict").or_insert(Value::Null);
        Value::Object(tool)
    };
    sample.row.dialogue.tools.iter().map(tool).collect()
}

fn response(sample: &Sample) -> String {
    let began = sample.row.turns.first().map_or(0, |turn| milliseconds(&turn.call_id));
    json!({
        "id": sample.row.trajectory_id,
        "object": "response",
        "created_at": began as f64 / 1e3,
        "model": sample.row.model,
        "output": output(sample),
        "parallel_tool_calls": true,
        "tool_choice": "auto",
        "tools": tools(sample),
    })
    .to_string()
}

/// When a call began: its id is a UUID that begins with that.
fn milliseconds(call_id: &str) -> u64 {
    let digits: String = call_id.chars().filter(|c| *c != '-').take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// All that was said, with the ids of a turn at the last item of its answer. Those of turns whose
/// answer is not known, and all but the last of an answer that is trained in parts, stand in items
/// without words before it.
fn output(sample: &Sample) -> Vec<Value> {
    let mut items = Items::new(sample);
    let mut runs: Vec<(&TurnRow, Range<usize>)> = sample.runs().collect();
    let said = sample.row.dialogue.completion.iter().zip(sample.turns_of_completion());
    for (message, turn) in said {
        let end = turn.map_or(0, |turn| turn.end);
        let here = runs.iter().take_while(|(of, _)| of.end <= end).count();
        let mut here: Vec<_> = runs.drain(..here).collect();
        let last = here.pop_if(|(of, _)| Some(*of) == turn);
        here.into_iter().for_each(|(_, run)| items.without_words(run));
        items.add(message);
        match last {
            Some((_, run)) if message_has_items(message) => items.train(run),
            Some((_, run)) => items.without_words(run),
            None => {}
        }
    }
    runs.into_iter().for_each(|(_, run)| items.without_words(run));
    items.made
}

fn message_has_items(message: &Message) -> bool {
    message.role == "assistant"
        && (message.content.is_some()
            || message.reasoning.is_some()
            || message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()))
}

/// Items of the Responses API, as they are made.
struct Items<'a> {
    sample: &'a Sample,
    made: Vec<Value>,
}

impl<'a> Items<'a> {
    fn new(sample: &'a Sample) -> Self {
        Self { sample, made: Vec::new() }
    }

    fn add(&mut self, message: &Message) {
        match message.role.as_str() {
            "assistant" => self.answer(message),
            "tool" | "function" => self.made.push(json!({
                "type": "function_call_output",
                "call_id": message.tool_call_id.clone().unwrap_or_default(),
                "output": message.content.clone().unwrap_or_default(),
            })),
            role => {
                let role = if ["system", "developer"].contains(&role) { role } else { "user" };
                let content = content(message.content.as_deref().unwrap_or_default());
                self.made.push(json!({ "type": "message", "role": role, "content": content }));
            }
        }
    }

    fn answer(&mut self, message: &Message) {
        if let Some(reasoning) = &message.reasoning {
            let summary = [json!({ "type": "summary_text", "text": reasoning })];
            let id = self.id();
            self.made.push(json!({ "type": "reasoning", "id": id, "summary": summary }));
        }
        if let Some(text) = &message.content {
            self.text(text);
        }
        for call in message.tool_calls.iter().flatten() {
            let call: Value = serde_json::from_str(call).unwrap_or(Value::Null);
            let function = &call["function"];
            let arguments = match &function["arguments"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            self.made.push(json!({
                "type": "function_call",
                "call_id": call["id"].as_str().unwrap_or_default(),
                "name": function["name"].as_str().unwrap_or_default(),
                "arguments": arguments,
            }));
        }
    }

    fn text(&mut self, text: &str) {
        let content = [json!({ "type": "output_text", "text": text, "annotations": [] })];
        let (id, status) = (self.id(), "completed");
        self.made.push(json!({ "type": "message", "role": "assistant", "id": id,
            "content": content, "status": status }));
    }

    fn id(&self) -> String {
        format!("{}/{}", self.sample.row.trajectory_id, self.made.len())
    }

    fn without_words(&mut self, run: Range<usize>) {
        self.text("");
        self.train(run);
    }

    /// Gives ids to the last item.
    fn train(&mut self, run: Range<usize>) {
        let tokens = &self.sample.row.tokens;
        let ids: Map<String, Value> = [
            ("prompt_token_ids", json!(tokens.input_ids[..run.start])),
            ("generation_token_ids", json!(tokens.input_ids[run.clone()])),
            ("generation_log_probs", json!(tokens.logprobs[run])),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect();
        if let Some(item) = self.made.last_mut().and_then(Value::as_object_mut) {
            item.extend(ids);
        }
    }
}

/// Content of images and the like is the JSON text of its parts, in the words of the chat API.
fn content(text: &str) -> Value {
    let parts = || serde_json::from_str::<Vec<Value>>(text).ok();
    match text.starts_with("[{").then(parts).flatten() {
        Some(parts) => parts.iter().map(part).collect(),
        None => json!(text),
    }
}

fn part(part: &Value) -> Value {
    match (part["type"].as_str(), part.pointer("/image_url/url")) {
        (_, Some(url)) => json!({ "type": "input_image", "image_url": url, "detail": "auto" }),
        (Some("text"), _) => json!({ "type": "input_text", "text": part["text"] }),
        _ => json!({ "type": "input_text", "text": part.to_string() }),
    }
}
