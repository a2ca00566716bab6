//! The content blocks of a stream, one after the other.
//!
//! Chat sends text, reasoning and several tool calls in any mixture, each delta naming what it
//! belongs to. Anthropic's stream has one open block at a time, which never opens again. So what
//! belongs to the open block leaves at once, and anything else closes it, with one exception: an
//! open tool call whose JSON is not complete yet stays open, and what comes between waits.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::super::nesting::Nesting;
use super::arguments::dumps;
use super::text;

/// What a block is. Calls are numbered as they appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Thinking,
    Text,
    Tool(usize),
}

/// A tool call as the chat stream names it.
#[derive(Debug)]
struct Call {
    index: u64,
    id: String,
    name: String,
    opened: bool,
}

/// Writes blocks as events. All of its methods append whole events to `out`.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// What the ids of the message grow from; set once it begins.
    pub(super) stem: String,
    /// The index of the open block, or of the next one.
    index: u64,
    open: Option<(Kind, Nesting)>,
    waiting: VecDeque<(Kind, String)>,
    calls: Vec<Call>,
}

/// One event, named in its first line and in its data.
pub(super) fn event(out: &mut Vec<u8>, data: &Value) {
    out.extend_from_slice(format!("event: {}\ndata: {data}\n\n", text(data, "type")).as_bytes());
}

/// The signature of a thinking block in the message `stem`. Clients want some text there and
/// send it back unread; nobody here can sign.
pub(super) fn signature(stem: &str) -> String {
    format!("sig_{stem}")
}

/// The id of a tool call that came without one.
pub(super) fn call_id(stem: &str, position: usize) -> String {
    format!("toolu_{stem}_{position}")
}

/// A call's arguments; some servers send them as an object instead of text.
pub(super) fn arguments(call: &Value) -> String {
    match call.pointer("/function/arguments") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => dumps(other),
    }
}

impl Blocks {
    /// Takes a piece of text or of reasoning.
    pub(super) fn say(&mut self, out: &mut Vec<u8>, kind: Kind, piece: &str) {
        if !piece.is_empty() {
            self.add(out, kind, piece);
        }
    }

    /// Takes one entry of a delta's `tool_calls`, which stands at `position` in it.
    pub(super) fn call(&mut self, out: &mut Vec<u8>, position: u64, call: &Value) {
        let index = call.get("index").and_then(Value::as_u64).unwrap_or(position);
        let function = call.get("function").unwrap_or(&Value::Null);
        let number = self.number(index, text(call, "id"), text(function, "name"));
        self.add(out, Kind::Tool(number), &arguments(call));
    }

    /// Writes what still waits and closes the last block. A message has at least one block.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.advance(out, true);
        if self.index == 0 && self.open.is_none() {
            self.start(out, Kind::Text);
        }
        self.close(out);
    }

    /// Closes the open block, if there is one.
    pub(super) fn close(&mut self, out: &mut Vec<u8>) {
        let Some((kind, _)) = self.open.take() else { return };
        if kind == Kind::Thinking {
            let delta = json!({ "type": "signature_delta", "signature": signature(&self.stem) });
            self.delta(out, &delta);
        }
        event(out, &json!({ "type": "content_block_stop", "index": self.index }));
        self.index += 1;
    }

    /// Whether the model called a tool.
    pub(super) fn called(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Which call a delta belongs to. Another id and a name under a known index begin a new call:
    /// some servers send every call whole and under index 0. Others repeat the name, or make up
    /// a new id for every delta, so neither alone says anything.
    fn number(&mut self, index: u64, id: &str, name: &str) -> usize {
        let known = self.calls.iter().rposition(|call| call.index == index);
        let same = |call: &Call| {
            let other = !call.id.is_empty() && !id.is_empty() && call.id != id;
            !other || call.name.is_empty() || name.is_empty()
        };
        let Some(number) = known.filter(|number| same(&self.calls[*number])) else {
            let (id, name) = (id.to_owned(), name.to_owned());
            self.calls.push(Call { index, id, name, opened: false });
            return self.calls.len() - 1;
        };
        let call = &mut self.calls[number];
        for (held, given) in [(&mut call.id, id), (&mut call.name, name)] {
            if held.is_empty() {
                given.clone_into(held);
            }
        }
        number
    }

    fn add(&mut self, out: &mut Vec<u8>, kind: Kind, piece: &str) {
        if self.open.as_ref().is_some_and(|(open, _)| *open == kind) {
            self.write(out, piece);
        } else {
            self.wait(kind, piece);
        }
        self.advance(out, false);
    }

    /// Keeps a piece for a later block. A call that was closed takes nothing more: its JSON was
    /// complete, and what follows is white space.
    fn wait(&mut self, kind: Kind, piece: &str) {
        let held = match kind {
            Kind::Tool(number) if self.calls[number].opened => return,
            Kind::Tool(_) => self.waiting.iter_mut().find(|(waits, _)| *waits == kind),
            _ => self.waiting.back_mut().filter(|(waits, _)| *waits == kind),
        };
        match held {
            Some((_, text)) => text.push_str(piece),
            None => self.waiting.push_back((kind, piece.to_owned())),
        }
    }

    /// Moves on to the blocks that wait, as far as the open one lets it; past it if `forced`.
    fn advance(&mut self, out: &mut Vec<u8>, forced: bool) {
        while let Some((kind, _)) = self.waiting.front() {
            let named = match kind {
                Kind::Tool(number) => !self.calls[*number].name.is_empty(),
                _ => true,
            };
            let held = match &self.open {
                Some((Kind::Tool(_), nesting)) => !nesting.closed(),
                _ => false,
            };
            if !forced && (held || !named) {
                return;
            }
            self.close(out);
            if let Some((kind, text)) = self.waiting.pop_front() {
                self.start(out, kind);
                self.write(out, &text);
            }
        }
    }

    fn start(&mut self, out: &mut Vec<u8>, kind: Kind) {
        let block = match kind {
            Kind::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Kind::Text => json!({ "type": "text", "text": "" }),
            Kind::Tool(number) => {
                let call = &mut self.calls[number];
                call.opened = true;
                if call.id.is_empty() {
                    call.id = call_id(&self.stem, number);
                }
                json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} })
            }
        };
        let index = self.index;
        event(
            out,
            &json!({ "type": "content_block_start", "index": index, "content_block": block }),
        );
        self.open = Some((kind, Nesting::default()));
    }

    /// Writes `piece` into the open block.
    fn write(&mut self, out: &mut Vec<u8>, piece: &str) {
        let Some((kind, nesting)) = self.open.as_mut().filter(|_| !piece.is_empty()) else {
            return;
        };
        let delta = match kind {
            Kind::Thinking => json!({ "type": "thinking_delta", "thinking": piece }),
            Kind::Text => json!({ "type": "text_delta", "text": piece }),
            Kind::Tool(_) => {
                nesting.push(piece);
                json!({ "type": "input_json_delta", "partial_json": piece })
            }
        };
        self.delta(out, &delta);
    }

    fn delta(&self, out: &mut Vec<u8>, delta: &Value) {
        let index = self.index;
        event(out, &json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of the calls in `deltas`, each on one line as its type, index and content.
    fn told(deltas: &[Value]) -> Vec<String> {
        let mut blocks = Blocks { stem: "1".to_owned(), ..Blocks::default() };
        let mut out = Vec::new();
        for delta in deltas {
            match delta.as_str() {
                Some(said) => blocks.say(&mut out, Kind::Text, said),
                None => blocks.call(&mut out, 0, delta),
            }
        }
        out.extend_from_slice(b"event: end\n");
        blocks.finish(&mut out);
        let out = String::from_utf8(out).unwrap();
        let short = |line: &str| match line.strip_prefix("data: ") {
            None => line.strip_prefix("event: end").map(|_| "end".to_owned()),
            Some(data) => {
                let event: Value = serde_json::from_str(data).unwrap();
                let parts = [
                    "/index",
                    "/content_block/text",
                    "/content_block/id",
                    "/content_block/name",
                    "/delta/text",
                    "/delta/partial_json",
                ];
                let parts = parts.iter().filter_map(|part| event.pointer(part));
                let parts: Vec<String> = parts.map(Value::to_string).collect();
                Some(parts.join(" ").replace('"', "").replace('\\', "'"))
            }
        };
        out.lines().filter_map(short).collect()
    }

    fn delta(index: u64, id: &str, name: &str, arguments: &str) -> Value {
        json!({ "index": index, "id": id, "function": { "name": name, "arguments": arguments } })
    }

    #[test]
    fn a_complete_call_closes_when_something_else_begins() {
        let deltas = [
            json!("a"),
            delta(0, "c0", "f", ""),
            delta(0, "", "", "{}"),
            delta(1, "c1", "g", "{"),
            delta(1, "", "", "}"),
            json!("b"),
        ];
        let expected = [
            "0 ", "0 a", "0", "1 c0 f", "1 {}", "1", "2 c1 g", "2 {", "2 }", "2", "3 ", "3 b",
            "end", "3",
        ];
        assert_eq!(told(&deltas), expected);
    }

    #[test]
    fn what_comes_between_two_halves_of_a_call_waits() {
        let deltas = [
            delta(0, "c0", "f", "{"),
            delta(1, "c1", "g", "{"),
            json!("a"),
            delta(1, "", "", "}"),
            delta(0, "", "", "}"),
            delta(0, "", "", "  "),
        ];
        let expected =
            ["0 c0 f", "0 {", "0 }", "0", "1 c1 g", "1 {}", "1", "2 ", "2 a", "end", "2"];
        assert_eq!(told(&deltas), expected);
        // One that is never completed lets the others out at the end.
        let expected = ["0 c0 f", "0 {", "end", "0", "1 c1 g", "1 {}", "1", "2 ", "2 a", "2"];
        assert_eq!(told(&deltas[..4]), expected);
    }

    #[test]
    fn calls_are_told_apart_by_index_or_by_id_and_name() {
        let whole = [delta(0, "c0", "f", "{}"), delta(0, "c1", "f", "{}")];
        assert_eq!(told(&whole), ["0 c0 f", "0 {}", "0", "1 c1 f", "1 {}", "end", "1"]);
        let restless = [delta(0, "c0", "f", "{"), delta(0, "x", "", "}"), delta(0, "c0", "f", "")];
        assert_eq!(told(&restless), ["0 c0 f", "0 {", "0 }", "end", "0"]);
        // A call begins with its name, and one without an id gets one.
        let nameless = [delta(0, "", "", "{"), delta(0, "", "f", "}")];
        assert_eq!(told(&nameless), ["0 toolu_1_0 f", "0 {}", "end", "0"]);
    }

    #[test]
    fn a_message_without_content_has_an_empty_text() {
        assert_eq!(told(&[]), ["end", "0 ", "0"]);
    }
}
