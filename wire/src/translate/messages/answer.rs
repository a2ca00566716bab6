//! A recorded Messages reply, read back as a message in chat's form.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::arguments::{python_json, tool_input};
use super::text;
use crate::json::tree;
use crate::sse::events;

/// The assistant's message in a recorded reply, a document or a stream of events; `None` if it
/// holds no message.
///
/// A tool call's arguments are spelled as the next request will spell them, so that an answer
/// and the history that repeats it are equal.
pub(crate) fn answer(reply: &[u8]) -> Option<Value> {
    match tree(reply) {
        Some(document) => Some(message_of(document.get("content")?.as_array()?)),
        None => Some(message_of(&streamed_blocks(reply)?)),
    }
}

/// A content block of a stream: its start, and its deltas joined.
#[derive(Debug, Default)]
struct BlockDraft {
    block: Value,
    text: String,
}

/// The content blocks of a stream; `None` if no message starts in it.
fn streamed_blocks(reply: &[u8]) -> Option<Vec<Value>> {
    let mut drafts = BTreeMap::<u64, BlockDraft>::new();
    let mut has_started = false;

    for event in events(reply) {
        let Some(event) = event.data().and_then(|data| tree(&data)) else { continue };
        let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        match text(&event, "type") {
            "message_start" => has_started = true,
            "content_block_start" => {
                let block = event.get("content_block").cloned().unwrap_or_default();
                drafts.insert(index, BlockDraft { block, text: String::new() });
            }
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                let draft = drafts.entry(index).or_default();
                // A delta has one of them, as its block's type says.
                ["text", "thinking", "partial_json"]
                    .iter()
                    .for_each(|key| draft.text.push_str(text(delta, key)));
            }
            _ => {}
        }
    }

    has_started.then(|| drafts.into_values().map(BlockDraft::finish).collect())
}

impl BlockDraft {
    /// The block as a document has it.
    fn finish(mut self) -> Value {
        let key = match text(&self.block, "type") {
            "tool_use" if self.text.is_empty() => return self.block,
            "tool_use" => {
                self.block["input"] = tool_input(&self.text);
                return self.block;
            }
            "thinking" => "thinking",
            "text" => "text",
            _ => return self.block,
        };
        self.block[key] = json!(text(&self.block, key).to_owned() + &self.text);
        self.block
    }
}

fn message_of(content: &[Value]) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    message.insert("content".to_owned(), json!(joined(content, "text")));
    if let Some(thinking) = joined(content, "thinking") {
        message.insert("reasoning".to_owned(), json!(thinking));
    }
    let calls: Vec<Value> =
        content.iter().filter(|block| text(block, "type") == "tool_use").map(tool_call).collect();
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(message)
}

/// The texts of all blocks of a type, joined; `None` if there are no such blocks. The type is also
/// the key of the text.
fn joined(content: &[Value], kind: &str) -> Option<String> {
    let mut blocks = content.iter().filter(|block| text(block, "type") == kind).peekable();
    blocks.peek()?;
    Some(blocks.map(|block| text(block, kind)).collect())
}

fn tool_call(block: &Value) -> Value {
    let arguments = block.get("input").map_or_else(|| "{}".to_owned(), python_json);
    json!({
        "id": text(block, "id"),
        "type": "function",
        "function": { "name": text(block, "name"), "arguments": arguments },
    })
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
            }))
        );
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
