//! Output items as they grow, and the events that report their growth.

use serde_json::{Map, Value, json};

use super::sealed::seal;
use super::tools::{Tool, custom_input};
use crate::json::Nesting;
use crate::json::json_text;

/// Events of one stream, numbered from 0 without gaps.
#[derive(Debug, Default)]
pub(super) struct EventWriter {
    next_number: u64,
    bytes: Vec<u8>,
}

impl EventWriter {
    /// Writes an event of a type with its fields.
    pub(super) fn write(&mut self, kind: &str, fields: Value) {
        let mut event = Map::from_iter([
            ("type".to_owned(), json!(kind)),
            ("sequence_number".to_owned(), json!(self.next_number)),
        ]);
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.next_number += 1;
        let data = json_text(&Value::Object(event));
        self.bytes.extend_from_slice(format!("event: {kind}\ndata: {data}\n\n").as_bytes());
    }

    /// The bytes of the events since the last call.
    pub(super) fn drain(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// The kind of a text. Each has its own part and its own events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    Reasoning,
    ReplyAnswer,
    Refusal,
}

impl TextKind {
    /// The type of the part.
    fn part_type(self) -> &'static str {
        match self {
            Self::Reasoning => "reasoning_text",
            Self::ReplyAnswer => "output_text",
            Self::Refusal => "refusal",
        }
    }

    /// The key of the part's text.
    fn text_key(self) -> &'static str {
        match self {
            Self::Reasoning | Self::ReplyAnswer => "text",
            Self::Refusal => "refusal",
        }
    }
}

/// The next piece of a text.
#[derive(Debug)]
pub(super) struct TextPiece<'a> {
    pub(super) kind: TextKind,
    pub(super) text: &'a str,
    pub(super) logprobs: Vec<Value>,
}

#[derive(Debug)]
struct TextPart {
    kind: TextKind,
    text: String,
    logprobs: Vec<Value>,
}

impl TextPart {
    fn value(&self) -> Value {
        let mut part = json!({ "type": self.kind.part_type(), self.kind.text_key(): self.text });
        if self.kind == TextKind::ReplyAnswer {
            part["annotations"] = json!([]);
            part["logprobs"] = json!(self.logprobs);
        }
        part
    }
}

/// A tool call. Its name comes once, its arguments in pieces.
#[derive(Debug, Default)]
pub(super) struct CallDraft {
    pub(super) tool: Tool,
    pub(super) call_id: String,
    pub(super) arguments: String,
    nesting: Nesting,
}

#[derive(Debug)]
enum ItemBody {
    /// Reasoning (one part), or a message (a new part at each change between text and refusal).
    Parts(Vec<TextPart>),
    Call(CallDraft),
}

/// One item of the output.
#[derive(Debug)]
pub(super) struct OutputItem {
    id: String,
    /// Its index in the output.
    index: usize,
    body: ItemBody,
    is_reasoning: bool,
    /// Reasoning is also given in a form that can be sent back.
    is_sealed: bool,
    /// An event has announced the item.
    is_announced: bool,
    status: &'static str,
}

impl OutputItem {
    /// A reasoning item or a message, as `kind` says, at `index`; `id_stem` makes its id unique.
    /// Reasoning that is sealed can be sent back without its text.
    pub(super) fn text(kind: TextKind, id_stem: &str, index: usize, is_sealed: bool) -> Self {
        let is_reasoning = kind == TextKind::Reasoning;
        let prefix = if is_reasoning { "rs" } else { "msg" };
        Self {
            id: format!("{prefix}_{id_stem}_{index}"),
            index,
            body: ItemBody::Parts(Vec::new()),
            is_reasoning,
            is_sealed,
            is_announced: false,
            status: "in_progress",
        }
    }

    /// A tool call whose name and id may still come.
    pub(super) fn call(index: usize) -> Self {
        Self {
            id: String::new(),
            index,
            body: ItemBody::Call(CallDraft::default()),
            is_reasoning: false,
            is_sealed: false,
            is_announced: false,
            status: "in_progress",
        }
    }

    /// Returns true if a piece of `kind` belongs to this item.
    pub(super) fn takes_text(&self, kind: TextKind) -> bool {
        let is_of_kind = self.is_reasoning == (kind == TextKind::Reasoning);
        self.is_open() && self.as_call().is_none() && is_of_kind
    }

    pub(super) fn is_open(&self) -> bool {
        self.status == "in_progress"
    }

    pub(super) fn is_announced(&self) -> bool {
        self.is_announced
    }

    pub(super) fn as_call(&self) -> Option<&CallDraft> {
        match &self.body {
            ItemBody::Call(call) => Some(call),
            ItemBody::Parts(_) => None,
        }
    }

    /// Returns true if this item can end before the next one begins: a text, or a call whose
    /// arguments, one JSON object, are complete.
    pub(super) fn can_close(&self) -> bool {
        let is_complete = |call: &CallDraft| self.is_announced && call.nesting.is_closed();
        self.is_open() && self.as_call().is_none_or(is_complete)
    }

    /// Announces the item as it is now.
    pub(super) fn announce(&mut self, events: &mut EventWriter) {
        self.is_announced = true;
        events.write(
            "response.output_item.added",
            json!({ "output_index": self.index, "item": self.value() }),
        );
    }

    /// Names a call and announces it, with the arguments that came before the name.
    pub(super) fn name_call(
        &mut self,
        tool: Tool,
        call_id: String,
        id_stem: &str,
        events: &mut EventWriter,
    ) {
        let prefix = if tool.is_custom { "ctc" } else { "fc" };
        self.id = format!("{prefix}_{id_stem}_{}", self.index);
        let ItemBody::Call(call) = &mut self.body else { return };
        call.tool = tool;
        call.call_id = call_id;
        let early = std::mem::take(&mut call.arguments);
        call.nesting = Nesting::default();
        self.announce(events);
        self.push_arguments(&early, events);
    }

    /// Adds to a call's arguments. A call that has ended takes nothing more. The input of a custom
    /// tool is only sent once it is complete: before, it is half of the JSON around it.
    pub(super) fn push_arguments(&mut self, piece: &str, events: &mut EventWriter) {
        let is_open = self.is_open();
        let ItemBody::Call(call) = &mut self.body else { return };
        if !is_open {
            return;
        }
        call.arguments.push_str(piece);
        call.nesting.push(piece);
        if self.is_announced && !call.tool.is_custom && !piece.is_empty() {
            let event = json!({ "delta": piece });
            self.write_event(events, "response.function_call_arguments.delta", event);
        }
    }

    /// Adds to the text, in a new part if its kind differs from the last part's.
    pub(super) fn push_text(&mut self, piece: TextPiece<'_>, events: &mut EventWriter) {
        let ItemBody::Parts(parts) = &mut self.body else { return };
        if parts.last().is_none_or(|last| last.kind != piece.kind) {
            self.end_part(events);
            self.begin_part(piece.kind, events);
        }

        let ItemBody::Parts(parts) = &mut self.body else { return };
        let index = parts.len().saturating_sub(1);
        let Some(part) = parts.last_mut() else { return };
        part.text.push_str(piece.text);
        let mut event = json!({ "content_index": index, "delta": piece.text });
        if piece.kind == TextKind::ReplyAnswer {
            event["logprobs"] = json!(piece.logprobs);
        }
        part.logprobs.extend(piece.logprobs);
        self.write_event(events, &format!("response.{}.delta", piece.kind.part_type()), event);
    }

    fn begin_part(&mut self, kind: TextKind, events: &mut EventWriter) {
        let ItemBody::Parts(parts) = &mut self.body else { return };
        let part = TextPart { kind, text: String::new(), logprobs: Vec::new() };
        let event = json!({ "content_index": parts.len(), "part": part.value() });
        parts.push(part);
        self.write_event(events, "response.content_part.added", event);
    }

    fn end_part(&self, events: &mut EventWriter) {
        let ItemBody::Parts(parts) = &self.body else { return };
        let Some(part) = parts.last() else { return };
        let index = parts.len() - 1;
        let mut done = json!({ "content_index": index, part.kind.text_key(): part.text });
        if part.kind == TextKind::ReplyAnswer {
            done["logprobs"] = json!(part.logprobs);
        }
        let whole = json!({ "content_index": index, "part": part.value() });
        self.write_event(events, &format!("response.{}.done", part.kind.part_type()), done);
        self.write_event(events, "response.content_part.done", whole);
    }

    /// Ends the item, `completed` or `incomplete`.
    pub(super) fn close(&mut self, status: &'static str, events: &mut EventWriter) {
        match &self.body {
            ItemBody::Parts(_) => self.end_part(events),
            ItemBody::Call(call) if call.tool.is_custom => {
                self.write_custom_input(&custom_input(&call.arguments), events);
            }
            ItemBody::Call(call) => {
                // Older clients want the name here too.
                let done = json!({ "name": call.tool.name, "arguments": call.arguments });
                self.write_event(events, "response.function_call_arguments.done", done);
            }
        }

        self.status = status;
        events.write(
            "response.output_item.done",
            json!({ "output_index": self.index, "item": self.value() }),
        );
    }

    fn write_custom_input(&self, input: &str, events: &mut EventWriter) {
        let kind = "response.custom_tool_call_input";
        if !input.is_empty() {
            self.write_event(events, &format!("{kind}.delta"), json!({ "delta": input }));
        }
        self.write_event(events, &format!("{kind}.done"), json!({ "input": input }));
    }

    /// Marks an item that a failed stream left open, without an event.
    pub(super) fn abandon(&mut self) {
        if self.is_open() {
            self.status = "incomplete";
        }
    }

    /// Writes an event of this item.
    fn write_event(&self, events: &mut EventWriter, kind: &str, fields: Value) {
        let mut event = Map::from_iter([
            ("item_id".to_owned(), json!(self.id)),
            ("output_index".to_owned(), json!(self.index)),
        ]);
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        events.write(kind, Value::Object(event));
    }

    /// The item as it is now.
    pub(super) fn value(&self) -> Value {
        match &self.body {
            ItemBody::Parts(parts) if self.is_reasoning => {
                json!({
                    "id": self.id, "type": "reasoning", "status": self.status, "summary": [],
                    "content": part_values(parts), "encrypted_content": self.sealed_text(parts),
                })
            }
            ItemBody::Parts(parts) => {
                json!({
                    "id": self.id, "type": "message", "status": self.status,
                    "role": "assistant", "content": part_values(parts),
                })
            }
            ItemBody::Call(call) => self.call_value(call),
        }
    }

    /// The form in which reasoning can be sent back, once all of it is there.
    fn sealed_text(&self, parts: &[TextPart]) -> Option<String> {
        let is_asked = self.is_sealed && !self.is_open();
        is_asked.then(|| seal(&parts.iter().map(|part| part.text.as_str()).collect::<String>()))
    }

    fn call_value(&self, call: &CallDraft) -> Value {
        let (kind, key, text) = if call.tool.is_custom {
            // Half a JSON text is not half an input, so an open call shows none.
            let input = if self.is_open() { String::new() } else { custom_input(&call.arguments) };
            ("custom_tool_call", "input", input)
        } else {
            ("function_call", "arguments", call.arguments.clone())
        };
        let mut item = json!({
            "id": self.id, "type": kind, "status": self.status, "call_id": call.call_id,
            "name": call.tool.name, key: text,
        });
        if let Some(namespace) = &call.tool.namespace {
            item["namespace"] = json!(namespace);
        }
        item
    }
}

fn part_values(parts: &[TextPart]) -> Vec<Value> {
    parts.iter().map(TextPart::value).collect()
}
