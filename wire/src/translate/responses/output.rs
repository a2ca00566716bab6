//! Items of the output as they grow, and the events that tell of it.

use serde_json::{Map, Value, json};

use super::super::nesting::Nesting;
use super::sealed::seal;
use super::tools::{Tool, custom_input};

/// Events of one stream, numbered from 0 without gaps.
#[derive(Debug, Default)]
pub(super) struct Events {
    next: u64,
    bytes: Vec<u8>,
}

impl Events {
    /// Adds an event of a type with its fields.
    pub(super) fn send(&mut self, kind: &str, fields: Value) {
        let mut event = Map::from_iter([
            ("type".to_owned(), json!(kind)),
            ("sequence_number".to_owned(), json!(self.next)),
        ]);
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.next += 1;
        let event = Value::Object(event);
        self.bytes.extend_from_slice(format!("event: {kind}\ndata: {event}\n\n").as_bytes());
    }

    /// The bytes of the events since the last time.
    pub(super) fn drain(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// What a text is: each kind has its own part and its own events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Text,
    Refusal,
}

impl Kind {
    /// The type of the part, and the key of its text.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Reasoning => ("reasoning_text", "text"),
            Self::Text => ("output_text", "text"),
            Self::Refusal => ("refusal", "refusal"),
        }
    }
}

/// Some more of a text.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) logprobs: Vec<Value>,
}

#[derive(Debug)]
struct Part {
    kind: Kind,
    text: String,
    logprobs: Vec<Value>,
}

impl Part {
    fn value(&self) -> Value {
        let (name, key) = self.kind.names();
        let mut part = json!({ "type": name, key: self.text });
        if self.kind == Kind::Text {
            part["annotations"] = json!([]);
            part["logprobs"] = json!(self.logprobs);
        }
        part
    }
}

/// A tool call; its name comes once, its arguments in pieces.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) tool: Tool,
    pub(super) call_id: String,
    pub(super) arguments: String,
    nesting: Nesting,
}

#[derive(Debug)]
enum Body {
    /// A thought (one part) or a message (a part for each turn between text and refusal).
    Parts(Vec<Part>),
    Call(Call),
}

/// One item of the output.
#[derive(Debug)]
pub(super) struct Item {
    id: String,
    /// Its place in the output.
    place: usize,
    body: Body,
    reasoning: bool,
    /// Whether a thought is given in a form that can be sent back.
    sealed: bool,
    /// Whether the stream has told of it.
    announced: bool,
    status: &'static str,
}

impl Item {
    /// A thought or a message, as `kind` says, at `place`; `core` makes its id unique. A thought
    /// that is `sealed` can be sent back without its words.
    pub(super) fn text(kind: Kind, core: &str, place: usize, sealed: bool) -> Self {
        let reasoning = kind == Kind::Reasoning;
        let prefix = if reasoning { "rs" } else { "msg" };
        Self {
            id: format!("{prefix}_{core}_{place}"),
            place,
            body: Body::Parts(Vec::new()),
            reasoning,
            sealed,
            announced: false,
            status: "in_progress",
        }
    }

    /// A tool call, whose name and id may be still to come.
    pub(super) fn call(place: usize) -> Self {
        Self {
            id: String::new(),
            place,
            body: Body::Call(Call::default()),
            reasoning: false,
            sealed: false,
            announced: false,
            status: "in_progress",
        }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.reasoning
    }

    pub(super) fn is_open(&self) -> bool {
        self.status == "in_progress"
    }

    pub(super) fn is_announced(&self) -> bool {
        self.announced
    }

    pub(super) fn as_call(&self) -> Option<&Call> {
        match &self.body {
            Body::Call(call) => Some(call),
            Body::Parts(_) => None,
        }
    }

    /// Whether this is an open call whose arguments, one JSON object, have come to their end.
    pub(super) fn is_whole_call(&self) -> bool {
        let whole = |call: &Call| self.announced && call.nesting.closed();
        self.is_open() && self.as_call().is_some_and(whole)
    }

    /// Tells of the item; a call by what it is now known to be.
    pub(super) fn announce(&mut self, to: &mut Events) {
        self.announced = true;
        to.send(
            "response.output_item.added",
            json!({ "output_index": self.place, "item": self.value() }),
        );
    }

    /// Tells of a call whose name is known, with the arguments that came before the name.
    pub(super) fn name(&mut self, tool: Tool, call_id: String, core: &str, to: &mut Events) {
        let prefix = if tool.custom { "ctc" } else { "fc" };
        self.id = format!("{prefix}_{core}_{}", self.place);
        let Body::Call(call) = &mut self.body else { return };
        call.tool = tool;
        call.call_id = call_id;
        let early = std::mem::take(&mut call.arguments);
        call.nesting = Nesting::default();
        self.announce(to);
        self.argue(&early, to);
    }

    /// Adds to a call's arguments. The input of a custom tool is shown when it is whole: until
    /// then it is a torn piece of the JSON around it. A call that has ended takes nothing more.
    pub(super) fn argue(&mut self, piece: &str, to: &mut Events) {
        let open = self.is_open();
        let Body::Call(call) = &mut self.body else { return };
        if !open {
            return;
        }
        call.arguments.push_str(piece);
        call.nesting.push(piece);
        if self.announced && !call.tool.custom && !piece.is_empty() {
            self.send(to, "response.function_call_arguments.delta", json!({ "delta": piece }));
        }
    }

    /// Adds to the text, in a new part when it is of another kind than the last.
    pub(super) fn grow(&mut self, piece: Piece<'_>, to: &mut Events) {
        let Body::Parts(parts) = &mut self.body else { return };
        if parts.last().is_none_or(|last| last.kind != piece.kind) {
            self.end_part(to);
            self.begin_part(piece.kind, to);
        }
        let Body::Parts(parts) = &mut self.body else { return };
        let index = parts.len().saturating_sub(1);
        let Some(part) = parts.last_mut() else { return };
        part.text.push_str(piece.text);
        let mut event = json!({ "content_index": index, "delta": piece.text });
        if piece.kind == Kind::Text {
            event["logprobs"] = json!(piece.logprobs);
        }
        part.logprobs.extend(piece.logprobs);
        self.send(to, &format!("response.{}.delta", piece.kind.names().0), event);
    }

    fn begin_part(&mut self, kind: Kind, to: &mut Events) {
        let Body::Parts(parts) = &mut self.body else { return };
        let part = Part { kind, text: String::new(), logprobs: Vec::new() };
        let event = json!({ "content_index": parts.len(), "part": part.value() });
        parts.push(part);
        self.send(to, "response.content_part.added", event);
    }

    fn end_part(&mut self, to: &mut Events) {
        let Body::Parts(parts) = &self.body else { return };
        let Some(part) = parts.last() else { return };
        let index = parts.len() - 1;
        let (name, key) = part.kind.names();
        let mut done = json!({ "content_index": index, key: part.text });
        if part.kind == Kind::Text {
            done["logprobs"] = json!(part.logprobs);
        }
        let whole = json!({ "content_index": index, "part": part.value() });
        self.send(to, &format!("response.{name}.done"), done);
        self.send(to, "response.content_part.done", whole);
    }

    /// Ends the item, `completed` or `incomplete`.
    pub(super) fn close(&mut self, status: &'static str, to: &mut Events) {
        match &self.body {
            Body::Parts(_) => self.end_part(to),
            Body::Call(call) if call.tool.custom => {
                let input = custom_input(&call.arguments);
                let event = "response.custom_tool_call_input";
                if !input.is_empty() {
                    self.send(to, &format!("{event}.delta"), json!({ "delta": input }));
                }
                self.send(to, &format!("{event}.done"), json!({ "input": input }));
            }
            Body::Call(call) => {
                // Older clients want the name here too.
                let done = json!({ "name": call.tool.name, "arguments": call.arguments });
                self.send(to, "response.function_call_arguments.done", done);
            }
        }
        self.status = status;
        to.send(
            "response.output_item.done",
            json!({ "output_index": self.place, "item": self.value() }),
        );
    }

    /// Marks what a broken stream left open, of which no event tells.
    pub(super) fn abandon(&mut self) {
        if self.is_open() {
            self.status = "incomplete";
        }
    }

    /// Sends an event of this item.
    fn send(&self, to: &mut Events, kind: &str, fields: Value) {
        let mut event = Map::from_iter([
            ("item_id".to_owned(), json!(self.id)),
            ("output_index".to_owned(), json!(self.place)),
        ]);
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        to.send(kind, Value::Object(event));
    }

    /// The item as it stands.
    pub(super) fn value(&self) -> Value {
        match &self.body {
            Body::Parts(parts) => {
                let content: Vec<Value> = parts.iter().map(Part::value).collect();
                if self.reasoning {
                    json!({
                        "id": self.id, "type": "reasoning", "status": self.status, "summary": [],
                        "content": content, "encrypted_content": self.thoughts(parts),
                    })
                } else {
                    json!({
                        "id": self.id, "type": "message", "status": self.status,
                        "role": "assistant", "content": content,
                    })
                }
            }
            Body::Call(call) => self.call_value(call),
        }
    }

    /// What is sent back in place of a thought's words, once they are all there.
    fn thoughts(&self, parts: &[Part]) -> Option<String> {
        let is_asked = self.sealed && !self.is_open();
        is_asked.then(|| seal(&parts.iter().map(|part| part.text.as_str()).collect::<String>()))
    }

    fn call_value(&self, call: &Call) -> Value {
        let (kind, key, said) = if call.tool.custom {
            // Half a JSON text is not half an input, so an open call shows none.
            let input = if self.is_open() { String::new() } else { custom_input(&call.arguments) };
            ("custom_tool_call", "input", input)
        } else {
            ("function_call", "arguments", call.arguments.clone())
        };
        let mut item = json!({
            "id": self.id, "type": kind, "status": self.status, "call_id": call.call_id,
            "name": call.tool.name, key: said,
        });
        if let Some(namespace) = &call.tool.namespace {
            item["namespace"] = json!(namespace);
        }
        item
    }
}
