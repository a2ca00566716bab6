//! The content blocks of a stream, one after the other.
//!
//! Chat sends text, reasoning and several tool calls in any mixture, and each delta names the block
//! that it belongs to. Anthropic's stream has one open block at a time, which never opens again. So
//! a delta of the open block is sent at once, and any other delta closes that block. There is one
//! exception: an open tool call stays open until its JSON is complete, and other deltas wait.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::{arguments, text};
use crate::json::Nesting;
use crate::json::json_text;

/// The kind of a block. Calls are numbered as they appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Thinking,
    Text,
    Tool(usize),
}

/// A tool call as the chat stream names it.
#[derive(Debug, Default)]
struct StreamedCall {
    id: String,
    name: String,
    has_block: bool,
}

/// Writes blocks as events. All of its methods append whole events to `out`.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The part that all ids of the message share; set when the message starts.
    pub(super) id_stem: String,
    /// The index of the open block, or of the next one.
    index: u64,
    open: Option<(BlockKind, Nesting)>,
    waiting: VecDeque<(BlockKind, String)>,
    calls: Vec<StreamedCall>,
}

/// Writes one event, named in its first line and in its data.
pub(super) fn write_event(out: &mut Vec<u8>, data: &Value) {
    let (name, data) = (text(data, "type"), json_text(data));
    out.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
}

/// The signature of a thinking block. Clients want some text there and send it back unread; only
/// Anthropic could sign.
pub(super) fn signature(id_stem: &str) -> String {
    format!("sig_{id_stem}")
}

/// The id of a tool call that came without one.
pub(super) fn made_up_call_id(id_stem: &str, position: usize) -> String {
    format!("toolu_{id_stem}_{position}")
}

impl Blocks {
    /// Takes a piece of text or of reasoning.
    pub(super) fn take_text(&mut self, out: &mut Vec<u8>, kind: BlockKind, piece: &str) {
        if !piece.is_empty() {
            self.take(out, kind, piece);
        }
    }

    /// Takes one entry of a delta's `tool_calls`. Calls are numbered as they appear.
    pub(super) fn take_call(&mut self, out: &mut Vec<u8>, call: &Value) {
        let number = call.get("index").and_then(Value::as_u64).unwrap_or(0);
        let number = usize::try_from(number).unwrap_or(usize::MAX).min(self.calls.len());
        if number == self.calls.len() {
            self.calls.push(StreamedCall::default());
        }
        // An id or a name may come later than the first delta.
        let known = &mut self.calls[number];
        if known.id.is_empty() {
            text(call, "id").clone_into(&mut known.id);
        }
        if known.name.is_empty() {
            text(call.get("function").unwrap_or(&Value::Null), "name").clone_into(&mut known.name);
        }
        self.take(out, BlockKind::Tool(number), arguments(call));
    }

    /// Writes the pieces that still wait and closes the last block. A message has at least one
    /// block.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.write_waiting(out, true);
        if self.index == 0 && self.open.is_none() {
            self.start(out, BlockKind::Text);
        }
        self.close(out);
    }

    /// Closes the open block, if there is one.
    pub(super) fn close(&mut self, out: &mut Vec<u8>) {
        let Some((kind, _)) = self.open.take() else { return };
        if kind == BlockKind::Thinking {
            let delta = json!({ "type": "signature_delta", "signature": signature(&self.id_stem) });
            self.write_delta(out, &delta);
        }
        write_event(out, &json!({ "type": "content_block_stop", "index": self.index }));
        self.index += 1;
    }

    /// Returns true if the model called a tool.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    fn take(&mut self, out: &mut Vec<u8>, kind: BlockKind, piece: &str) {
        if self.open.as_ref().is_some_and(|(open, _)| *open == kind) {
            self.write_piece(out, piece);
        } else {
            self.keep(kind, piece);
        }
        self.write_waiting(out, false);
    }

    /// Keeps a piece for a later block. A call whose block was closed takes nothing more: its JSON
    /// was complete, and the rest is white space.
    fn keep(&mut self, kind: BlockKind, piece: &str) {
        let waiting = match kind {
            BlockKind::Tool(number) if self.calls[number].has_block => return,
            BlockKind::Tool(_) => self.waiting.iter_mut().find(|(waits, _)| *waits == kind),
            _ => self.waiting.back_mut().filter(|(waits, _)| *waits == kind),
        };
        match waiting {
            Some((_, text)) => text.push_str(piece),
            None => self.waiting.push_back((kind, piece.to_owned())),
        }
    }

    /// Writes the blocks that wait until one must wait longer; all of them if `is_end`.
    fn write_waiting(&mut self, out: &mut Vec<u8>, is_end: bool) {
        while let Some((kind, _)) = self.waiting.front() {
            if !is_end && (self.has_open_call() || !self.is_named(*kind)) {
                return;
            }
            self.close(out);
            if let Some((kind, text)) = self.waiting.pop_front() {
                self.start(out, kind);
                self.write_piece(out, &text);
            }
        }
    }

    /// Returns true if the open block is a call whose JSON is not complete.
    fn has_open_call(&self) -> bool {
        matches!(&self.open, Some((BlockKind::Tool(_), nesting)) if !nesting.is_closed())
    }

    /// Returns true if the start of a block of this kind can be written.
    fn is_named(&self, kind: BlockKind) -> bool {
        match kind {
            BlockKind::Tool(number) => !self.calls[number].name.is_empty(),
            _ => true,
        }
    }

    fn start(&mut self, out: &mut Vec<u8>, kind: BlockKind) {
        let block = match kind {
            BlockKind::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            BlockKind::Text => json!({ "type": "text", "text": "" }),
            BlockKind::Tool(number) => {
                let call = &mut self.calls[number];
                call.has_block = true;
                if call.id.is_empty() {
                    call.id = made_up_call_id(&self.id_stem, number);
                }
                json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} })
            }
        };

        let index = self.index;
        write_event(
            out,
            &json!({ "type": "content_block_start", "index": index, "content_block": block }),
        );
        self.open = Some((kind, Nesting::default()));
    }

    /// Writes `piece` into the open block.
    fn write_piece(&mut self, out: &mut Vec<u8>, piece: &str) {
        let Some((kind, nesting)) = self.open.as_mut().filter(|_| !piece.is_empty()) else {
            return;
        };
        let delta = match kind {
            BlockKind::Thinking => json!({ "type": "thinking_delta", "thinking": piece }),
            BlockKind::Text => json!({ "type": "text_delta", "text": piece }),
            BlockKind::Tool(_) => {
                nesting.push(piece);
                json!({ "type": "input_json_delta", "partial_json": piece })
            }
        };
        self.write_delta(out, &delta);
    }

    fn write_delta(&self, out: &mut Vec<u8>, delta: &Value) {
        let index = self.index;
        write_event(out, &json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of the calls in `deltas`, each on one line as its type, index and content.
    fn lines_of(deltas: &[Value]) -> Vec<String> {
        let mut blocks = Blocks { id_stem: "1".to_owned(), ..Blocks::default() };
        let mut out = Vec::new();
        for delta in deltas {
            match delta.as_str() {
                Some(piece) => blocks.take_text(&mut out, BlockKind::Text, piece),
                None => blocks.take_call(&mut out, delta),
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
        assert_eq!(lines_of(&deltas), expected);
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
        assert_eq!(lines_of(&deltas), expected);
        // One that is never completed lets the others out at the end.
        let expected = ["0 c0 f", "0 {", "end", "0", "1 c1 g", "1 {}", "1", "2 ", "2 a", "2"];
        assert_eq!(lines_of(&deltas[..4]), expected);
    }

    #[test]
    fn a_call_begins_with_its_name() {
        // One without an id gets one.
        let nameless = [delta(0, "", "", "{"), delta(0, "", "f", "}")];
        assert_eq!(lines_of(&nameless), ["0 toolu_1_0 f", "0 {}", "end", "0"]);
    }

    #[test]
    fn a_message_without_content_has_an_empty_text() {
        assert_eq!(lines_of(&[]), ["end", "0 ", "0"]);
    }
}
