//! A chat reply as a response object, or chunk by chunk as the events of one.
//!
//! An item ends when the next one begins, so that a client has all of it early and can act on it.
//! A tool call whose arguments are not complete stays open: the deltas of parallel calls may come
//! interleaved.

use serde_json::{Map, Value, json};

use super::error::failure;
use super::object;
use super::output::{EventWriter, OutputItem, TextKind, TextPiece};
use super::tools::Tools;
use crate::translate::{chunk_error, id_stem, is_first_choice};

/// Builds the Responses reply out of a chat reply, which a `ChatReader` has put into one form.
#[derive(Debug)]
pub(crate) struct ResponseBuilder {
    /// The response object without its output.
    object: Map<String, Value>,
    tools: Tools,
    wants_logprobs: bool,
    wants_sealed: bool,
    /// The chat id without its prefix; all ids are made of it.
    id_stem: String,
    stage: Stage,
    output: Vec<OutputItem>,
    /// The item of each call, in the order of the calls in the chat reply.
    calls: Vec<usize>,
    finish_reason: Option<String>,
    events: EventWriter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Streaming,
    Ended,
}

/// The end of a response: its last event, its status, and the reason for an incomplete one.
struct Ending {
    event: &'static str,
    status: &'static str,
    reason: Option<&'static str>,
}

impl Ending {
    fn of(finish_reason: Option<&str>) -> Self {
        let reason = match finish_reason {
            Some("length") => "max_output_tokens",
            Some("content_filter") => "content_filter",
            _ => return Self { event: "response.completed", status: "completed", reason: None },
        };
        Self { event: "response.incomplete", status: "incomplete", reason: Some(reason) }
    }
}

impl ResponseBuilder {
    /// A builder for the reply to `request`, the agent's own body. The response repeats its fields.
    pub(crate) fn new(request: &Value) -> Self {
        let none = Map::new();
        let fields = request.as_object().unwrap_or(&none);
        Self {
            object: object::template(fields),
            tools: Tools::of(fields),
            wants_logprobs: object::wants_logprobs(fields),
            wants_sealed: object::wants_sealed(fields),
            id_stem: String::new(),
            stage: Stage::Waiting,
            output: Vec::new(),
            calls: Vec::new(),
            finish_reason: None,
            events: EventWriter::default(),
        }
    }

    /// Names the response that the request goes on from.
    pub(crate) fn set_previous_response(&mut self, id: &str) {
        self.set("previous_response_id", json!(id));
    }

    /// The whole reply.
    pub(crate) fn document(mut self, chat: &Value) -> Value {
        self.begin(chat);
        self.take(chat);
        self.finish_items();
        self.response()
    }

    /// The events for a chunk of the chat reply.
    pub(crate) fn chunk(&mut self, chat: &Value) -> Vec<u8> {
        if self.stage == Stage::Ended {
            return Vec::new();
        }
        if let Some((message, status)) = chunk_error(chat) {
            return self.error(&message, status);
        }
        self.begin(chat);
        self.take(chat);
        self.events.drain()
    }

    /// The last events, after a chat stream that ended well.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        if self.stage == Stage::Ended {
            return Vec::new();
        }
        self.begin(&Value::Null);
        let event = self.finish_items();
        self.write_last(event)
    }

    /// The last events of a stream that failed. Open items get no event that says they are done, so
    /// that no client acts on half a call.
    pub(crate) fn error(&mut self, message: &str, status: u16) -> Vec<u8> {
        if self.stage == Stage::Ended {
            return Vec::new();
        }
        self.begin(&Value::Null);
        self.output.iter_mut().for_each(OutputItem::abandon);
        self.set("status", json!("failed"));
        self.set("error", failure(message, status));
        self.write_last("response.failed")
    }

    fn write_last(&mut self, event: &str) -> Vec<u8> {
        let response = self.response();
        self.events.write(event, json!({ "response": response }));
        self.stage = Stage::Ended;
        self.events.drain()
    }

    fn set(&mut self, key: &str, value: Value) {
        self.object.insert(key.to_owned(), value);
    }

    fn response(&self) -> Value {
        let mut object = self.object.clone();
        let output = self.output.iter().map(OutputItem::value).collect();
        object.insert("output".to_owned(), Value::Array(output));
        Value::Object(object)
    }

    /// Writes the first events, once, with the fields that the first chunk has. The id must not
    /// change after that.
    fn begin(&mut self, chat: &Value) {
        if self.stage != Stage::Waiting {
            return;
        }
        self.stage = Stage::Streaming;

        let stem = id_stem(chat);
        self.id_stem = if stem.is_empty() { "0" } else { stem }.to_owned();
        self.set("id", json!(format!("resp_{}", self.id_stem)));
        if let Some(created) = chat.get("created").filter(|value| value.is_number()) {
            self.set("created_at", created.clone());
        }
        for key in ["model", "service_tier"] {
            if let Some(text) = filled_text(chat, key) {
                self.set(key, json!(text));
            }
        }

        for event in ["response.created", "response.in_progress"] {
            let response = self.response();
            self.events.write(event, json!({ "response": response }));
        }
    }

    /// Takes a chunk or a whole chat reply. This wire has only the first choice.
    fn take(&mut self, chat: &Value) {
        if let Some(usage) = chat.get("usage").filter(|usage| usage.is_object()) {
            self.set("usage", object::usage(usage));
        }
        let choices = chat.get("choices").and_then(Value::as_array).into_iter().flatten();
        for choice in choices.filter(|choice| is_first_choice(choice)) {
            if let Some(message) = choice.get("message").or_else(|| choice.get("delta")) {
                self.take_texts(message, choice);
                let calls = message.get("tool_calls").and_then(Value::as_array);
                calls.into_iter().flatten().for_each(|call| self.take_call(call));
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.finish_reason = Some(reason.to_owned());
            }
        }
    }

    fn take_texts(&mut self, message: &Value, choice: &Value) {
        let texts = [
            (TextKind::Reasoning, filled_text(message, "reasoning")),
            (TextKind::ReplyAnswer, filled_text(message, "content")),
            (TextKind::Refusal, filled_text(message, "refusal")),
        ];
        for (kind, text) in texts {
            let Some(text) = text else { continue };
            let has_logprobs = self.wants_logprobs && kind == TextKind::ReplyAnswer;
            let logprobs = if has_logprobs { object::logprobs(choice) } else { Vec::new() };
            self.take_text(TextPiece { kind, text, logprobs });
        }
    }

    fn take_text(&mut self, piece: TextPiece<'_>) {
        if !self.output.last().is_some_and(|last| last.takes_text(piece.kind)) {
            self.close_finished();
            let index = self.output.len();
            let mut item = OutputItem::text(piece.kind, &self.id_stem, index, self.wants_sealed);
            item.announce(&mut self.events);
            self.output.push(item);
        }
        if let Some(item) = self.output.last_mut() {
            item.push_text(piece, &mut self.events);
        }
    }

    /// Ends the open items before the next one begins, apart from calls that are not complete.
    fn close_finished(&mut self) {
        for item in self.output.iter_mut().filter(|item| item.can_close()) {
            item.close("completed", &mut self.events);
        }
    }

    /// Takes a delta of a tool call, or a whole one. Calls are numbered as they appear.
    fn take_call(&mut self, delta: &Value) {
        let function = delta.get("function").unwrap_or(&Value::Null);
        let id = filled_text(delta, "id").unwrap_or_default();
        let name = filled_text(function, "name").unwrap_or_default();
        let arguments = filled_text(function, "arguments").unwrap_or_default();

        let number = delta.get("index").and_then(Value::as_u64).unwrap_or(0);
        let at = self.call_item(usize::try_from(number).unwrap_or(usize::MAX));
        if !name.is_empty() && !self.output[at].is_announced() {
            self.name_call(at, id, name);
        }
        self.output[at].push_arguments(arguments, &mut self.events);
    }

    /// The index of the item of a call; a new item if need be.
    fn call_item(&mut self, number: usize) -> usize {
        if let Some(at) = self.calls.get(number) {
            return *at;
        }
        self.close_finished();
        let at = self.output.len();
        self.calls.push(at);
        self.output.push(OutputItem::call(at));
        at
    }

    fn name_call(&mut self, at: usize, id: &str, name: &str) {
        let call_id =
            if id.is_empty() { format!("call_{}_{at}", self.id_stem) } else { id.to_owned() };
        let tool = self.tools.called(name);
        self.output[at].name_call(tool, call_id, &self.id_stem, &mut self.events);
    }

    /// Ends all items and sets the status. Returns the type of the last event.
    fn finish_items(&mut self) -> &'static str {
        let ending = Ending::of(self.finish_reason.as_deref());
        let last = self.output.len().saturating_sub(1);

        for at in 0..self.output.len() {
            if !self.output[at].is_open() {
                continue;
            }
            if self.output[at].as_call().is_some() && !self.output[at].is_announced() {
                self.name_call(at, "", "");
            }
            // Only the last item was cut short.
            let status = if at == last { ending.status } else { "completed" };
            self.output[at].close(status, &mut self.events);
        }

        self.set("status", json!(ending.status));
        if let Some(reason) = ending.reason {
            self.set("incomplete_details", json!({ "reason": reason }));
        }
        ending.event
    }
}

/// The text under `key`, if it is not empty.
fn filled_text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
