//! The Anthropic reply made of a chat reply, whole or as it streams.

use serde_json::{Map, Value, json};

use super::blocks::{BlockKind, Blocks, made_up_call_id, signature, write_event};
use super::error::error_event;
use super::spelling::tool_input;
use super::usage::UsageCounter;
use super::{arguments, list, text};
use crate::translate::{chunk_error, id_stem, is_first_choice};

/// Builds the Anthropic reply out of a chat reply, which a `ChatReader` has put into one form.
#[derive(Debug)]
pub(crate) struct MessageBuilder {
    /// The chat reply's id without its prefix; all ids of the message are made of it.
    id_stem: String,
    model: String,
    /// The stop sequences that the agent asked for.
    stop_sequences: Vec<String>,
    finish_reason: String,
    /// The stop sequence that ended the reply.
    met_sequence: Option<String>,
    usage: UsageCounter,
    blocks: Blocks,
    has_started: bool,
    has_ended: bool,
}

impl MessageBuilder {
    /// A builder for the reply to `request`, the agent's Messages body. With `counts_reasoning` the
    /// usage says how many tokens were reasoning.
    pub(crate) fn new(request: &Value, counts_reasoning: bool) -> Self {
        let stops = list(request, "stop_sequences").iter().filter_map(Value::as_str);
        Self {
            id_stem: String::new(),
            model: text(request, "model").to_owned(),
            stop_sequences: stops.map(str::to_owned).collect(),
            finish_reason: String::new(),
            met_sequence: None,
            usage: UsageCounter::new(counts_reasoning),
            blocks: Blocks::default(),
            has_started: false,
            has_ended: false,
        }
    }

    /// The whole reply, made of a whole chat reply that is not an error.
    pub(crate) fn document(mut self, chat: &Value) -> Value {
        self.take(chat);
        let message =
            first_choice(chat).and_then(|choice| choice.get("message")).unwrap_or(&Value::Null);
        let content = self.content_of(message);
        let reason = self.stop_reason(!list(message, "tool_calls").is_empty());

        let mut document = self.message(content, self.usage.so_far());
        document.insert("stop_reason".to_owned(), json!(reason));
        document.insert("stop_sequence".to_owned(), json!(self.met_sequence));
        Value::Object(document)
    }

    /// The events for one chunk of a chat stream, if any. An error among the chunks ends the
    /// stream.
    pub(crate) fn chunk(&mut self, chat: &Value) -> Vec<u8> {
        if let Some((message, status)) = chunk_error(chat) {
            return self.error(&message, status);
        }
        let mut out = Vec::new();
        if self.has_ended {
            return out;
        }

        self.take(chat);
        let Some(choice) = first_choice(chat) else { return out };
        let delta = choice.get("delta").or(choice.get("message")).unwrap_or(&Value::Null);
        // The first event holds the length of the prompt. Some servers' first chunk does not, so
        // the start waits for it as long as there is nothing else to send.
        if self.usage.knows_prompt() || !self.finish_reason.is_empty() || is_filled(delta) {
            self.start(&mut out);
        }

        self.blocks.take_text(&mut out, BlockKind::Thinking, text(delta, "reasoning"));
        self.blocks.take_text(&mut out, BlockKind::Text, answer(delta));
        for call in list(delta, "tool_calls") {
            self.blocks.take_call(&mut out, call);
        }
        out
    }

    /// The events after the last chunk of a chat stream that ended well.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if std::mem::replace(&mut self.has_ended, true) {
            return out;
        }
        self.start(&mut out);
        self.blocks.finish(&mut out);

        let reason = self.stop_reason(self.blocks.has_calls());
        write_event(
            &mut out,
            &json!({
                "type": "message_delta",
                "delta": { "stop_reason": reason, "stop_sequence": self.met_sequence },
                "usage": self.usage.so_far(),
            }),
        );
        write_event(&mut out, &json!({ "type": "message_stop" }));
        out
    }

    /// The events of an error inside the stream, which end it.
    pub(crate) fn error(&mut self, message: &str, status: u16) -> Vec<u8> {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.has_ended, true) {
            self.blocks.close(&mut out);
            write_event(&mut out, &error_event(status, message));
        }
        out
    }

    /// Takes the facts of the whole reply from a chat document or chunk.
    fn take(&mut self, chat: &Value) {
        if self.id_stem.is_empty() {
            id_stem(chat).clone_into(&mut self.id_stem);
        }
        // The first event names the model, which must not change after that.
        if !self.has_started && !text(chat, "model").is_empty() {
            text(chat, "model").clone_into(&mut self.model);
        }
        self.usage.take(chat);

        let Some(choice) = first_choice(chat) else { return };
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            reason.clone_into(&mut self.finish_reason);
            // vLLM's name, then SGLang's; a number there is a token and not a sequence.
            let met = [text(choice, "stop_reason"), text(choice, "matched_stop")];
            self.met_sequence =
                self.stop_sequences.iter().find(|stop| met.contains(&stop.as_str())).cloned();
        }
    }

    /// Anthropic's stop reason. A server that must call a certain tool says `stop` beside the
    /// call; an agent that reads `end_turn` there would not run the tool.
    fn stop_reason(&mut self, has_calls: bool) -> &'static str {
        if self.finish_reason != "stop" {
            self.met_sequence = None;
        }
        match self.finish_reason.as_str() {
            "length" => "max_tokens",
            "tool_calls" => "tool_use",
            "content_filter" => "refusal",
            _ if self.met_sequence.is_some() => "stop_sequence",
            _ if has_calls => "tool_use",
            _ => "end_turn",
        }
    }

    /// Writes the start of the message, once.
    fn start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        self.id_stem.clone_into(&mut self.blocks.id_stem);
        let mut message = self.message(Vec::new(), self.usage.at_start());
        message.insert("stop_reason".to_owned(), Value::Null);
        message.insert("stop_sequence".to_owned(), Value::Null);
        write_event(out, &json!({ "type": "message_start", "message": message }));
    }

    fn message(&self, content: Vec<Value>, usage: Value) -> Map<String, Value> {
        Map::from_iter([
            ("id".to_owned(), json!(format!("msg_{}", self.id_stem))),
            ("type".to_owned(), json!("message")),
            ("role".to_owned(), json!("assistant")),
            ("model".to_owned(), json!(self.model)),
            ("content".to_owned(), Value::Array(content)),
            ("usage".to_owned(), usage),
        ])
    }

    /// The blocks of a whole message. Clients count on a block, so an empty message has an empty
    /// text.
    fn content_of(&self, message: &Value) -> Vec<Value> {
        let mut content = Vec::new();
        let thinking = text(message, "reasoning");
        if !thinking.is_empty() {
            let signature = signature(&self.id_stem);
            content
                .push(json!({ "type": "thinking", "thinking": thinking, "signature": signature }));
        }
        let answer = answer(message);
        if !answer.is_empty() {
            content.push(json!({ "type": "text", "text": answer }));
        }

        let calls = list(message, "tool_calls").iter().enumerate();
        content.extend(calls.map(|(position, call)| self.tool_use(position, call)));
        if content.is_empty() {
            content.push(json!({ "type": "text", "text": "" }));
        }
        content
    }

    fn tool_use(&self, position: usize, call: &Value) -> Value {
        let id = match text(call, "id") {
            "" => made_up_call_id(&self.id_stem, position),
            id => id.to_owned(),
        };
        let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
        let input = tool_input(arguments(call));
        json!({ "type": "tool_use", "id": id, "name": name, "input": input })
    }
}

/// Returns true if a delta holds any text or call.
fn is_filled(delta: &Value) -> bool {
    let texts = [text(delta, "reasoning"), answer(delta)];
    texts.iter().any(|text| !text.is_empty()) || !list(delta, "tool_calls").is_empty()
}

/// The only choice that this wire has.
fn first_choice(chat: &Value) -> Option<&Value> {
    list(chat, "choices").iter().find(|choice| is_first_choice(choice))
}

/// The answer, or the refusal in its place.
fn answer(message: &Value) -> &str {
    let texts = ["content", "refusal"].map(|key| text(message, key));
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ChatReader, in_one_form};

    fn reply() -> MessageBuilder {
        MessageBuilder::new(&json!({ "model": "asked", "stop_sequences": ["END", "###"] }), true)
    }

    fn chunk(delta: Value, finish: Value) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        json!({ "id": "chatcmpl-7", "model": "m", "choices": [choice] })
    }

    fn stream(chunks: &[Value]) -> String {
        let (mut reply, mut reader) = (reply(), ChatReader::default());
        let mut out = Vec::new();
        for mut chunk in chunks.iter().cloned() {
            reader.take(&mut chunk, true);
            out.extend(reply.chunk(&chunk));
        }
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
        let [chat] = in_one_form([chat]);
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
        let events = stream(&[
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
        assert_eq!(events, expected);
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
            let message = if called { json!({ "tool_calls": call }) } else { json!({}) };
            let mut whole = choice.clone();
            whole["message"] = message.clone();
            let document = reply().document(&json!({ "choices": [whole] }));
            assert_eq!(document["stop_reason"], reason, "{choice}");
            assert_eq!(document["stop_sequence"], json!(sequence), "{choice}");
            let mut part = choice.clone();
            part["delta"] = message;
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
        let events = String::from_utf8(reply.chunk(&fault)).unwrap();
        assert_eq!(
            events,
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
