//! A chat reply as a response object, or chunk by chunk as the events of one.
//!
//! An item ends when something else begins, so that a client sees it whole early and can act on
//! it. A tool call whose arguments have not closed stays open: the deltas of parallel ones may
//! come interleaved.

use serde_json::{Map, Value, json};

use super::error::failure;
use super::object;
use super::output::{Events, Item, Kind, Piece};
use super::tools::Tools;
use crate::translate::id_core;

/// Builds the Responses reply out of a chat reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The response object; its output is filled in when it is sent.
    object: Map<String, Value>,
    tools: Tools,
    wants_logprobs: bool,
    wants_sealed: bool,
    /// What is left of the chat id without its prefix; all ids are made of it.
    core: String,
    stage: Stage,
    output: Vec<Item>,
    /// Which item the chat's calls are, by their index there.
    calls: Vec<(u64, usize)>,
    finish: Option<String>,
    to: Events,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Begun,
    Ended,
}

impl Reply {
    /// A reply to `request`, the agent's own body, whose fields the response repeats.
    pub(crate) fn new(request: &Value) -> Self {
        let none = Map::new();
        let request = request.as_object().unwrap_or(&none);
        Self {
            object: object::template(request),
            tools: Tools::of(request),
            wants_logprobs: object::wants_logprobs(request),
            wants_sealed: object::wants_sealed(request),
            core: String::new(),
            stage: Stage::Waiting,
            output: Vec::new(),
            calls: Vec::new(),
            finish: None,
            to: Events::default(),
        }
    }

    /// Names the response that the request goes on from.
    pub(crate) fn goes_on_from(&mut self, id: &str) {
        self.set("previous_response_id", json!(id));
    }

    /// The whole reply.
    pub(crate) fn document(mut self, chat: &Value) -> Value {
        self.begin(chat);
        self.take(chat);
        self.settle();
        self.response()
    }

    /// The events that a chunk of the chat reply amounts to.
    pub(crate) fn chunk(&mut self, chat: &Value) -> Vec<u8> {
        if self.stage == Stage::Ended {
            return Vec::new();
        }
        if let Some(error) = chat.get("error").filter(|error| !error.is_null()) {
            let message = error.get("message").unwrap_or(error);
            let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
            let code = error.get("code").and_then(Value::as_u64);
            return self.error(&message, code.and_then(|c| u16::try_from(c).ok()).unwrap_or(500));
        }
        self.begin(chat);
        self.take(chat);
        self.to.drain()
    }

    /// The last events, after the end of the chat stream.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        if self.stage == Stage::Ended {
            return Vec::new();
        }
        self.begin(&Value::Null);
        let event = self.settle();
        self.stop(event)
    }

    /// The last events of a stream that failed. Nothing is sent as done that is not, so that no
    /// client acts on half a call.
    pub(crate) fn error(&mut self, message: &str, status: u16) -> Vec<u8> {
        if self.stage == Stage::Ended {
            return Vec::new();
        }
        self.begin(&Value::Null);
        self.output.iter_mut().for_each(Item::abandon);
        self.set("status", json!("failed"));
        self.set("error", failure(message, status));
        self.stop("response.failed")
    }

    fn stop(&mut self, event: &str) -> Vec<u8> {
        let response = self.response();
        self.to.send(event, json!({ "response": response }));
        self.stage = Stage::Ended;
        self.to.drain()
    }

    fn set(&mut self, key: &str, value: Value) {
        self.object.insert(key.to_owned(), value);
    }

    fn response(&self) -> Value {
        let mut object = self.object.clone();
        let output = self.output.iter().map(Item::value).collect();
        object.insert("output".to_owned(), Value::Array(output));
        Value::Object(object)
    }

    /// Tells of the response once, with what the first chunk says of it: from then on its id
    /// must not change.
    fn begin(&mut self, chat: &Value) {
        if self.stage != Stage::Waiting {
            return;
        }
        self.stage = Stage::Begun;
        let core = id_core(chat);
        self.core = if core.is_empty() { "0" } else { core }.to_owned();
        self.set("id", json!(format!("resp_{}", self.core)));
        let text = |value: &&Value| value.as_str().is_some_and(|text| !text.is_empty());
        for (key, value) in [
            ("created_at", chat.get("created").filter(|value| value.is_number())),
            ("model", chat.get("model").filter(text)),
            ("service_tier", chat.get("service_tier").filter(text)),
        ] {
            if let Some(value) = value {
                self.set(key, value.clone());
            }
        }
        for event in ["response.created", "response.in_progress"] {
            let response = self.response();
            self.to.send(event, json!({ "response": response }));
        }
    }

    /// Takes a chunk or a whole chat reply. This wire has no choices but the first.
    fn take(&mut self, chat: &Value) {
        if let Some(usage) = chat.get("usage").filter(|usage| usage.is_object()) {
            self.set("usage", object::usage(usage));
        }
        let first = |choice: &&Value| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
        let choices = chat.get("choices").and_then(Value::as_array);
        for choice in choices.into_iter().flatten().filter(first) {
            if let Some(said) = choice.get("message").or_else(|| choice.get("delta")) {
                self.texts(said, choice);
                let calls = said.get("tool_calls").and_then(Value::as_array);
                for (place, call) in calls.into_iter().flatten().enumerate() {
                    self.call(call, place);
                }
            }
            if let Some(finish) = choice.get("finish_reason").and_then(Value::as_str) {
                self.finish = Some(finish.to_owned());
            }
        }
    }

    fn texts(&mut self, said: &Value, choice: &Value) {
        let text = |key: &str| said.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
        // Two names of one thing: some servers send both.
        let reasoning = text("reasoning").or_else(|| text("reasoning_content"));
        let kinds = [
            (Kind::Reasoning, reasoning),
            (Kind::Text, text("content")),
            (Kind::Refusal, text("refusal")),
        ];
        for (kind, text) in kinds {
            let Some(text) = text else { continue };
            let wanted = self.wants_logprobs && kind == Kind::Text;
            let logprobs = if wanted { object::logprobs(choice) } else { Vec::new() };
            self.grow(Piece { kind, text, logprobs });
        }
    }

    fn grow(&mut self, piece: Piece<'_>) {
        let reasoning = piece.kind == Kind::Reasoning;
        let fits = |item: &Item| {
            item.is_open() && item.as_call().is_none() && item.is_reasoning() == reasoning
        };
        if !self.output.last().is_some_and(fits) {
            self.close_whole();
            let place = self.output.len();
            let mut item = Item::text(piece.kind, &self.core, place, self.wants_sealed);
            item.announce(&mut self.to);
            self.output.push(item);
        }
        if let Some(item) = self.output.last_mut() {
            item.grow(piece, &mut self.to);
        }
    }

    /// Ends what is open before something else begins: a thought, a message, and each call whose
    /// arguments are whole.
    fn close_whole(&mut self) {
        for item in &mut self.output {
            if item.is_open() && (item.as_call().is_none() || item.is_whole_call()) {
                item.close("completed", &mut self.to);
            }
        }
    }

    /// Takes a delta of a tool call, or a whole one; `place` is where it stands in its list.
    fn call(&mut self, delta: &Value, place: usize) {
        let function = delta.get("function").unwrap_or(&Value::Null);
        let text = |of: &Value, key: &str| {
            of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (id, name) = (text(delta, "id"), text(function, "name"));
        let index = delta.get("index").and_then(Value::as_u64).unwrap_or(place as u64);
        let at = self.call_at(index, &id, &name);
        if !name.is_empty() && !self.output[at].is_announced() {
            self.name_call(at, id, &name);
        }
        self.output[at].argue(&text(function, "arguments"), &mut self.to);
    }

    /// The place of the call that a delta is of. Some servers give every call the index 0: a
    /// second name under a second id is a second call.
    fn call_at(&mut self, index: u64, id: &str, name: &str) -> usize {
        let known = self.calls.iter().rev().find(|(known, _)| *known == index);
        if let Some((_, at)) = known {
            let call = self.output[*at].as_call();
            let another = call.is_some_and(|call| !call.call_id.is_empty() && call.call_id != id);
            if !(another && !id.is_empty() && !name.is_empty()) {
                return *at;
            }
        }
        self.close_whole();
        self.calls.push((index, self.output.len()));
        self.output.push(Item::call(self.output.len()));
        self.output.len() - 1
    }

    fn name_call(&mut self, at: usize, id: String, name: &str) {
        let id = if id.is_empty() { format!("call_{}_{at}", self.core) } else { id };
        let tool = self.tools.called(name);
        self.output[at].name(tool, id, &self.core, &mut self.to);
    }

    /// Ends all items and sets how it went; gives the event that says so.
    fn settle(&mut self) -> &'static str {
        let (event, status, reason) = match self.finish.as_deref() {
            Some("length") => ("response.incomplete", "incomplete", Some("max_output_tokens")),
            Some("content_filter") => ("response.incomplete", "incomplete", Some("content_filter")),
            _ => ("response.completed", "completed", None),
        };
        let last = self.output.len().saturating_sub(1);
        for at in 0..self.output.len() {
            if !self.output[at].is_open() {
                continue;
            }
            if self.output[at].as_call().is_some() && !self.output[at].is_announced() {
                self.name_call(at, String::new(), "");
            }
            // Only what the model was saying last was cut short.
            let status = if at == last { status } else { "completed" };
            self.output[at].close(status, &mut self.to);
        }
        self.set("status", json!(status));
        if let Some(reason) = reason {
            self.set("incomplete_details", json!({ "reason": reason }));
        }
        event
    }
}

#[cfg(test)]
mod tests;
