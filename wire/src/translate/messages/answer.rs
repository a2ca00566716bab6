//! A recorded Messages reply, read back as a message in chat's form.

use serde_json::{Value, json};

use super::history;
use super::spelling::tool_input;
use super::text;
use crate::chat::whole_number;
use crate::json::tree;
use crate::sse::events;

/// The assistant's message in a recorded reply, a document or a stream of events; `None` if it
/// holds no message.
///
/// A tool call's arguments are spelled as the next request will spell them, so that an answer
/// and the history that repeats it are equal.
pub(crate) fn answer(reply: &[u8]) -> Option<Value> {
    match tree(reply) {
        Some(document) => match document.get("content")? {
            Value::Array(blocks) => Some(history::answer(blocks)),
            text @ Value::String(_) => Some(history::answer(std::slice::from_ref(text))),
            _ => None,
        },
        None => Some(history::answer(&streamed_blocks(reply)?)),
    }
}

/// A content block of a stream: its start, and its deltas joined.
#[derive(Debug, Default)]
struct BlockDraft {
    index: u64,
    block: Value,
    text: String,
    /// The arguments of a call, which are JSON text.
    input: String,
}

/// The content blocks of a stream; `None` if no message starts in it.
fn streamed_blocks(reply: &[u8]) -> Option<Vec<Value>> {
    let mut drafts = Vec::<BlockDraft>::new();
    let mut has_started = false;

    for event in events(reply) {
        let Some(event) = event.data().and_then(|data| tree(&data)) else { continue };
        let index = whole_number(event.get("index")).unwrap_or(0);
        match text(&event, "type") {
            "message_start" => has_started = true,
            "content_block_start" => {
                let block = event.get("content_block").cloned().unwrap_or_default();
                drafts.push(BlockDraft { index, block, ..BlockDraft::default() });
            }
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                // A server that numbers no blocks means the last one.
                match drafts.iter().rposition(|draft| draft.index == index) {
                    Some(at) => drafts[at].add(delta),
                    None => {
                        let mut draft = BlockDraft { index, ..BlockDraft::default() };
                        draft.add(delta);
                        drafts.push(draft);
                    }
                }
            }
            _ => {}
        }
    }

    (has_started || !drafts.is_empty())
        .then(|| drafts.into_iter().map(BlockDraft::finish).collect())
}

impl BlockDraft {
    fn add(&mut self, delta: &Value) {
        // A block whose start was lost is what its deltas say.
        if !self.block.is_object() {
            let kind = if delta.get("thinking").is_some() { "thinking" } else { "text" };
            self.block = json!({ "type": kind });
        }
        self.input.push_str(text(delta, "partial_json"));
        // A delta has one of them, as its block's type says.
        ["text", "thinking", "content"].iter().for_each(|key| self.text.push_str(text(delta, key)));
    }

    /// The block as a document has it.
    fn finish(mut self) -> Value {
        if !self.input.is_empty() {
            self.block["input"] = tool_input(&self.input);
        }
        let key = match text(&self.block, "type") {
            "thinking" => "thinking",
            "text" => "text",
            "compaction" => "content",
            _ => return self.block,
        };
        self.block[key] = json!(text(&self.block, key).to_owned() + &self.text);
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reads_as_a_chat_message() {
        let reply = json!({ "type": "message", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "redacted_thinking", "data": "x" },
            { "type": "text", "text": "a" },
            { "type": "tool_use", "id": "t", "name": "f", "input": { "q": "\u{fc}", "n": 1 } },
            { "type": "text", "text": "b" },
        ] });
        let call = json!({ "id": "t", "type": "function", "function": {
            "name": "f", "arguments": r#"{"q": "\u00fc", "n": 1}"#,
        } });
        assert_eq!(
            answer(reply.to_string().as_bytes()),
            Some(json!({
                "role": "assistant", "content": "ab", "reasoning": "hm", "tool_calls": [call],
                "unread_parts": [{ "type": "redacted_thinking", "data": "x" }],
            }))
        );
    }

    #[test]
    fn what_a_server_ran_costs_only_itself() {
        let event = |event: Value| format!("data: {event}\n\n");
        let stream: String = [
            json!({ "type": "message_start", "message": {} }),
            json!({ "type": "content_block_start", "index": 0, "content_block": {
                "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": {
                "type": "input_json_delta", "partial_json": "{\"query\":\"x\"}" } }),
            json!({ "type": "content_block_start", "index": 1, "content_block": 3 }),
            json!({ "type": "content_block_delta", "index": 2, "delta": {
                "type": "text_delta", "text": "so" } }),
            json!({ "type": "content_block_start", "index": 3, "content_block": {
                "type": "compaction", "content": "" } }),
            json!({ "type": "content_block_delta", "index": 3, "delta": {
                "type": "compaction_delta", "content": "sum" } }),
        ]
        .map(event)
        .concat();
        let message = answer(stream.as_bytes()).unwrap();
        assert_eq!(message["content"], "so");
        assert_eq!(
            message["unread_parts"],
            json!([
                { "type": "server_tool_use", "id": "s", "name": "web_search",
                    "input": { "query": "x" } },
                3,
                { "type": "compaction", "content": "sum" },
            ])
        );
    }

    #[test]
    fn blocks_without_numbers_are_told_apart() {
        let started = |kind: &str| {
            let block = json!({ "type": kind, kind: "" });
            json!({ "type": "content_block_start", "content_block": block })
        };
        let delta = |kind: &str, text: &str| {
            let delta = json!({ "type": format!("{kind}_delta"), kind: text });
            json!({ "type": "content_block_delta", "delta": delta })
        };
        let stream: String = [
            started("thinking"),
            delta("thinking", "hm"),
            started("text"),
            delta("text", "s"),
            delta("text", "o"),
        ]
        .map(|event| format!("data: {event}\n\n"))
        .concat();
        let message = answer(stream.as_bytes()).unwrap();
        assert_eq!((&message["reasoning"], &message["content"]), (&json!("hm"), &json!("so")));
    }

    #[test]
    fn a_stream_that_was_cut_reads_as_far_as_it_goes() {
        let stream = concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
            "data: {\"type\":\"content_block_start\",\"index\":0,",
            "\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}}\n\n",
            "data: {\"type\":\"content_block_delta\",\"index\":0,",
            "\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"q\"}}\n\n",
            "data: {\"type\":\"content_blo",
        );
        let message = answer(stream.as_bytes()).unwrap();
        assert_eq!(message["content"], Value::Null);
        let arguments = &message["tool_calls"][0]["function"]["arguments"];
        assert_eq!(arguments, r#"{"INVALID_JSON": "{\"q"}"#);
    }

    #[test]
    fn what_is_no_message_has_no_answer() {
        for reply in ["", "null", r#"{"type":"error","error":{}}"#, "event: error\ndata: {}\n\n"] {
            assert_eq!(answer(reply.as_bytes()), None, "{reply}");
        }
    }
}
