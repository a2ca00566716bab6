//! The Anthropic reply out of a chat reply, whole or as it streams.

use serde_json::{Map, Value, json};

use super::arguments::input;
use super::blocks::{Blocks, Kind, arguments, call_id, event, signature};
use super::error::error_value;
use super::usage::Usage;
use super::{list, text};
use crate::translate::id_core;

/// The fields that hold reasoning: vLLM's name, then everyone else's.
const REASONING: [&str; 2] = ["reasoning", "reasoning_content"];
/// The fields that hold what is said aloud; a refusal is said instead of an answer.
const SAID: [&str; 2] = ["content", "refusal"];

/// Builds the Anthropic reply out of a chat reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The chat reply's id without its prefix; all ids of the message grow from it.
    stem: String,
    model: String,
    /// The stop sequences that the agent asked for.
    stops: Vec<String>,
    finish_reason: String,
    /// The one of them that was met.
    stop: Option<String>,
    usage: Usage,
    blocks: Blocks,
    started: bool,
    over: bool,
}

impl Reply {
    /// For the reply to `request`, the agent's Messages body.
    pub(crate) fn new(request: &Value) -> Self {
        let stops = list(request, "stop_sequences").iter().filter_map(Value::as_str);
        Self {
            stem: String::new(),
            model: text(request, "model").to_owned(),
            stops: stops.map(str::to_owned).collect(),
            finish_reason: String::new(),
            stop: None,
            usage: Usage::default(),
            blocks: Blocks::default(),
            started: false,
            over: false,
        }
    }

    /// The whole reply, out of a whole chat reply that is not an error.
    pub(crate) fn document(mut self, chat: &Value) -> Value {
        self.note(chat);
        let message = choice(chat).and_then(|choice| choice.get("message")).unwrap_or(&Value::Null);
        let content = self.content(message);
        let reason = self.stop_reason(!list(message, "tool_calls").is_empty());
        let mut document = self.message(content, self.usage.so_far());
        document.insert("stop_reason".to_owned(), json!(reason));
        document.insert("stop_sequence".to_owned(), json!(self.stop));
        Value::Object(document)
    }

    /// The events that one chunk of a chat stream brings, if any. An error among the chunks ends
    /// the stream.
    pub(crate) fn chunk(&mut self, chat: &Value) -> Vec<u8> {
        if let Some(error) = chat.get("error").filter(|error| !error.is_null()) {
            let code = error.get("code").and_then(Value::as_u64);
            let status = code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            let message = error.get("message").unwrap_or(error);
            let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
            return self.error(&message, status);
        }
        let mut out = Vec::new();
        if self.over {
            return out;
        }
        self.note(chat);
        let Some(choice) = choice(chat) else { return out };
        let delta = choice.get("delta").unwrap_or(&Value::Null);
        // The first event tells how long the prompt is, and some servers' first chunk does not.
        if self.usage.knows_prompt() || !self.finish_reason.is_empty() || says(delta) {
            self.start(&mut out);
        }
        for (kind, keys) in [(Kind::Thinking, REASONING), (Kind::Text, SAID)] {
            self.blocks.say(&mut out, kind, either(delta, keys));
        }
        for (position, call) in (0..).zip(list(delta, "tool_calls")) {
            self.blocks.call(&mut out, position, call);
        }
        out
    }

    /// The events after the last chunk of a chat stream that ended well.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if std::mem::replace(&mut self.over, true) {
            return out;
        }
        self.start(&mut out);
        self.blocks.finish(&mut out);
        let reason = self.stop_reason(self.blocks.called());
        event(
            &mut out,
            &json!({
                "type": "message_delta",
                "delta": { "stop_reason": reason, "stop_sequence": self.stop },
                "usage": self.usage.so_far(),
            }),
        );
        event(&mut out, &json!({ "type": "message_stop" }));
        out
    }

    /// The events of an error inside the stream, which end it.
    pub(crate) fn error(&mut self, message: &str, status: u16) -> Vec<u8> {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.over, true) {
            self.blocks.close(&mut out);
            event(&mut out, &error_value(status, message));
        }
        out
    }

    /// Takes what a chat document or chunk says about the reply as a whole.
    fn note(&mut self, chat: &Value) {
        if self.stem.is_empty() {
            id_core(chat).clone_into(&mut self.stem);
        }
        // Once the message has begun, its model has been told.
        if !self.started && !text(chat, "model").is_empty() {
            text(chat, "model").clone_into(&mut self.model);
        }
        self.usage.note(chat);
        let Some(choice) = choice(chat) else { return };
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            reason.clone_into(&mut self.finish_reason);
            // vLLM's name, then SGLang's; a number there is a token and not a sequence.
            let met = [text(choice, "stop_reason"), text(choice, "matched_stop")];
            self.stop = self.stops.iter().find(|stop| met.contains(&stop.as_str())).cloned();
        }
    }

    /// Why the model stopped. Servers that were told which tool to call answer `stop` beside a
    /// call; an agent that reads `end_turn` there would not run it.
    fn stop_reason(&mut self, called: bool) -> &'static str {
        if self.finish_reason != "stop" {
            self.stop = None;
        }
        match self.finish_reason.as_str() {
            "length" => "max_tokens",
            "tool_calls" => "tool_use",
            "content_filter" => "refusal",
            _ if self.stop.is_some() => "stop_sequence",
            _ if called => "tool_use",
            _ => "end_turn",
        }
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        self.stem.clone_into(&mut self.blocks.stem);
        let mut message = self.message(Vec::new(), self.usage.at_start());
        message.insert("stop_reason".to_owned(), Value::Null);
        message.insert("stop_sequence".to_owned(), Value::Null);
        event(out, &json!({ "type": "message_start", "message": message }));
    }

    fn message(&self, content: Vec<Value>, usage: Value) -> Map<String, Value> {
        let mut message = Map::new();
        message.insert("id".to_owned(), json!(format!("msg_{}", self.stem)));
        message.insert("type".to_owned(), json!("message"));
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("model".to_owned(), json!(self.model));
        message.insert("content".to_owned(), Value::Array(content));
        message.insert("usage".to_owned(), usage);
        message
    }

    /// The blocks of a whole message; an empty one has an empty text, which clients count on.
    fn content(&self, message: &Value) -> Vec<Value> {
        let mut content = Vec::new();
        let (thought, said) = (either(message, REASONING), either(message, SAID));
        if !thought.is_empty() {
            let signature = signature(&self.stem);
            content
                .push(json!({ "type": "thinking", "thinking": thought, "signature": signature }));
        }
        if !said.is_empty() {
            content.push(json!({ "type": "text", "text": said }));
        }
        for (position, call) in list(message, "tool_calls").iter().enumerate() {
            let id = match text(call, "id") {
                "" => call_id(&self.stem, position),
                id => id.to_owned(),
            };
            let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
            let input = input(&arguments(call));
            content.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
        }
        if content.is_empty() {
            content.push(json!({ "type": "text", "text": "" }));
        }
        content
    }
}

/// Whether a chunk says anything.
fn says(delta: &Value) -> bool {
    let texts = [either(delta, REASONING), either(delta, SAID)];
    texts.iter().any(|text| !text.is_empty()) || !list(delta, "tool_calls").is_empty()
}

/// The one choice that this wire knows.
fn choice(chat: &Value) -> Option<&Value> {
    let first = |choice: &&Value| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
    list(chat, "choices").iter().find(first)
}

/// The first of two fields that holds text; some servers send both with the same text.
fn either<'a>(message: &'a Value, keys: [&str; 2]) -> &'a str {
    keys.map(|key| text(message, key)).into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Reply {
        Reply::new(&json!({ "model": "asked", "stop_sequences": ["END", "###"] }))
    }

    fn chunk(delta: Value, finish: Value) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        json!({ "id": "chatcmpl-7", "model": "m", "choices": [choice] })
    }

    fn stream(chunks: &[Value]) -> String {
        let mut reply = reply();
        let mut out: Vec<u8> = chunks.iter().flat_map(|chunk| reply.chunk(chunk)).collect();
        out.extend(reply.end());
        assert!(reply.end().is_empty() && reply.error("late", 500).is_empty());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_document_has_anthropics_form() {
        let chat = json!({
            "id": "chatcmpl-7", "model": "m",
            "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
                "role": "assistant", "content": "so", "reasoning": "hm", "tool_calls": [
                    { "id": "c1", "type": "function",
                      "function": { "name": "f", "arguments": "{\"q\":1}" } },
                    { "function": { "name": "g", "arguments": { "r": 2 } } },
                ] } }],
            "usage": { "prompt_tokens": 5, "completion_tokens": 2 },
        });
        assert_eq!(
            reply().document(&chat),
            json!({
                "id": "msg_7", "type": "message", "role": "assistant", "model": "m",
                "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "sig_7" },
                    { "type": "text", "text": "so" },
                    { "type": "tool_use", "id": "c1", "name": "f", "input": { "q": 1 } },
                    { "type": "tool_use", "id": "toolu_7_1", "name": "g", "input": { "r": 2 } },
                ],
                "stop_reason": "tool_use", "stop_sequence": null,
                "usage": { "input_tokens": 5, "output_tokens": 2 },
            })
        );
        let empty = reply().document(&json!({ "choices": [{ "message": { "content": null } }] }));
        assert_eq!(empty["content"], json!([{ "type": "text", "text": "" }]));
        assert_eq!(empty["model"], "asked");
    }

    #[test]
    fn a_stream_has_anthropics_events() {
        let usage = json!({ "choices": [], "usage": {
            "prompt_tokens": 9, "completion_tokens": 4,
            "prompt_tokens_details": { "cached_tokens": 8 } } });
        let mut first = chunk(json!({ "role": "assistant", "content": "" }), Value::Null);
        first["prompt_token_ids"] = json!([1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let said = stream(&[
            first,
            chunk(json!({ "reasoning_content": "hm" }), Value::Null),
            chunk(json!({ "content": "so" }), Value::Null),
            chunk(json!({}), json!("stop")),
            usage,
        ]);
        let expected = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_7","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":9,"output_tokens":0},"stop_reason":null,"stop_sequence":null}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig_7"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"so"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":1,"cache_read_input_tokens":8,"output_tokens":4}}

event: message_stop
data: {"type":"message_stop"}

"#;
        assert_eq!(said, expected);
    }

    #[test]
    fn why_it_stopped_is_told_alike_in_both_forms() {
        let call = json!([{ "id": "c", "function": { "name": "f", "arguments": "{}" } }]);
        for (choice, called, reason, sequence) in [
            (json!({ "finish_reason": "stop", "stop_reason": null }), false, "end_turn", None),
            (json!({ "finish_reason": "stop", "stop_reason": 7 }), false, "end_turn", None),
            (json!({ "finish_reason": "stop", "stop_reason": "x" }), false, "end_turn", None),
            (json!({ "finish_reason": "stop" }), true, "tool_use", None),
            (json!({ "finish_reason": "tool_calls" }), true, "tool_use", None),
            (json!({ "finish_reason": "length", "stop_reason": "END" }), true, "max_tokens", None),
            (json!({ "finish_reason": "content_filter" }), false, "refusal", None),
            (json!({ "finish_reason": "abort" }), false, "end_turn", None),
            (
                json!({ "finish_reason": "stop", "stop_reason": "END" }),
                false,
                "stop_sequence",
                Some("END"),
            ),
            (
                json!({ "finish_reason": "stop", "matched_stop": "###" }),
                false,
                "stop_sequence",
                Some("###"),
            ),
        ] {
            let said = if called { json!({ "tool_calls": call }) } else { json!({}) };
            let mut whole = choice.clone();
            whole["message"] = said.clone();
            let document = reply().document(&json!({ "choices": [whole] }));
            assert_eq!(document["stop_reason"], reason, "{choice}");
            assert_eq!(document["stop_sequence"], json!(sequence), "{choice}");
            let mut part = choice.clone();
            part["delta"] = said;
            let events = stream(&[json!({ "choices": [part] })]);
            let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
            assert!(events.contains(&format!("\"delta\":{delta},\"usage\"")), "{events}");
        }
    }

    #[test]
    fn an_error_closes_the_open_block_and_ends_the_stream() {
        let mut reply = reply();
        reply.chunk(&chunk(json!({ "content": "so" }), Value::Null));
        let fault = json!({ "error": { "message": "down", "code": 503 } });
        let said = String::from_utf8(reply.chunk(&fault)).unwrap();
        assert_eq!(
            said,
            concat!(
                "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
                "event: error\ndata: {\"type\":\"error\",\"error\":",
                "{\"type\":\"overloaded_error\",\"message\":\"down\"}}\n\n",
            )
        );
        assert!(reply.chunk(&chunk(json!({ "content": "!" }), Value::Null)).is_empty());
        assert!(reply.end().is_empty());
    }
}
