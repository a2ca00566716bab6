//! The Messages route of an upstream that has one itself. It never reports ids.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Collector;
use super::endings::error_of;
use super::lenient::{Held, Lenient};
use super::list::{each, short};
use crate::bounds::STOP_BYTES_MAX;
use crate::json::mended;

/// A message, or an event that may hold one.
#[derive(Default, Deserialize)]
struct MessagesReply<'a> {
    /// The message with which a stream begins.
    #[serde(borrow)]
    message: Held<Box<MessagesReply<'a>>>,
    model: Lenient<String>,
    usage: Held<MessagesUsage>,
    delta: Held<StopDelta>,
    stop_reason: Lenient<String>,
    stop_sequence: Lenient<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    r#type: Lenient<String>,
    /// A list of [`Block`], read one by one.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    content_block: Held<Block>,
}

#[derive(Default, Deserialize)]
struct StopDelta {
    stop_reason: Lenient<String>,
    stop_sequence: Lenient<String>,
}

#[derive(Default, Deserialize)]
struct Block {
    r#type: Lenient<String>,
}

/// The usage of a reply. A stream sends it in pieces.
#[derive(Debug, Default, Deserialize)]
pub(super) struct MessagesUsage {
    input_tokens: Lenient<u64>,
    cache_creation_input_tokens: Lenient<u64>,
    cache_read_input_tokens: Lenient<u64>,
    output_tokens: Lenient<u64>,
}

impl MessagesUsage {
    /// Takes what a later event says, as Anthropic's SDKs do: field by field, and what it does not
    /// say stays.
    fn update(&mut self, later: &Self) {
        let fields = [
            (&mut self.input_tokens, later.input_tokens),
            (&mut self.cache_creation_input_tokens, later.cache_creation_input_tokens),
            (&mut self.cache_read_input_tokens, later.cache_read_input_tokens),
            (&mut self.output_tokens, later.output_tokens),
        ];
        for (field, later) in fields {
            if let Lenient::Value(count) = later {
                *field = Lenient::Value(count);
            }
        }
    }

    /// Number of tokens of the whole prompt: cached ones are counted apart.
    fn prompt_tokens(&self) -> Option<u64> {
        let cached = [self.cache_creation_input_tokens, self.cache_read_input_tokens];
        let uncached = self.input_tokens.value()?;
        let counts = cached.into_iter().filter_map(Lenient::value);
        Some(counts.fold(uncached, u64::saturating_add))
    }
}

impl Block {
    fn is_call(&self) -> bool {
        self.r#type.as_value().is_some_and(|kind| kind == "tool_use")
    }
}

impl Collector {
    pub(super) fn take_messages(&mut self, json: &[u8]) -> Option<()> {
        match serde_json::from_slice(json) {
            Ok(reply) => self.take_message(reply),
            Err(_) => self.take_message(serde_json::from_slice(&mended(json)?).ok()?),
        }
        Some(())
    }

    fn take_message(&mut self, reply: MessagesReply<'_>) {
        if let Some(message) = reply.message.members() {
            // It holds no further one.
            self.take_message(MessagesReply { message: Lenient::Absent, ..*message });
        }

        self.set_model(reply.model.value());
        if let Some(usage) = reply.usage.members() {
            self.messages_usage.update(&usage);
            let usage = &self.messages_usage;
            self.set_usage(usage.prompt_tokens(), usage.output_tokens.value());
        }
        if let Some(error) = error_of(reply.error) {
            self.set_raw_error(error);
        }
        self.note_blocks(reply.content_block.members(), reply.content);

        // An event has the reason in its delta, a document at its root.
        let (reason, sequence) = match reply.delta.members() {
            Some(delta) => (delta.stop_reason, delta.stop_sequence),
            None => (reply.stop_reason, reply.stop_sequence),
        };
        let (reason, sequence) = (reason.value(), sequence.value());
        if reason.is_some() || reply.r#type.value().as_deref() == Some("message") {
            self.note_ending(reason.as_deref());
            let reason = reason.map(|reason| finish_reason(reason, self.has_call));
            let stop = sequence.map(|text| Value::String(short(text, STOP_BYTES_MAX)));
            self.change(0, |choice| choice.set_finish(reason, stop));
        }
    }

    /// Notes whether one of these blocks is a call of a tool.
    fn note_blocks(&mut self, block: Option<Block>, list: Option<&RawValue>) {
        self.has_call |= block.is_some_and(|block| block.is_call());
        if let Some(list) = list {
            // What is no list holds no block.
            let _walked = each(list, |block: Held<Block>| {
                self.has_call |= block.members().is_some_and(|block| block.is_call());
                true
            });
        }
    }
}

/// The chat route's word for a stop reason. Some servers do not say that a tool was called.
fn finish_reason(stop_reason: String, has_call: bool) -> String {
    match stop_reason.as_str() {
        "end_turn" | "stop_sequence" if has_call => "tool_calls".to_owned(),
        "end_turn" | "stop_sequence" => "stop".to_owned(),
        "max_tokens" => "length".to_owned(),
        "tool_use" => "tool_calls".to_owned(),
        "refusal" => "content_filter".to_owned(),
        _ => stop_reason,
    }
}

#[cfg(test)]
mod tests {
    use episode::{Route, TokenCounts};

    use super::super::Facts;
    use super::*;

    fn facts(parts: &[&str]) -> Facts {
        let mut collector = Collector::new(Route::Messages, None, None);
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    fn reason(parts: &[&str]) -> Option<String> {
        facts(parts).choices.into_iter().next().and_then(|choice| choice.finish_reason)
    }

    #[test]
    fn usage_is_merged_field_by_field() {
        let usage = |start: &str, delta: &str| {
            let start = format!(
                r#"{{"type":"message_start","message":{{"type":"message","usage":{start}}}}}"#
            );
            let delta = format!(r#"{{"type":"message_delta","delta":{{}},"usage":{delta}}}"#);
            facts(&[&start, &delta]).usage
        };
        let whole = r#"{"input_tokens":10,"cache_creation_input_tokens":5,"cache_read_input_tokens":1000,"output_tokens":1}"#;
        for (start, delta, prompt, completion) in [
            (whole, r#"{"output_tokens":7}"#, 1015, 7),
            (whole, r#"{"input_tokens":10,"output_tokens":7}"#, 1015, 7),
            (
                whole,
                r#"{"input_tokens":10.0,"cache_read_input_tokens":null,"output_tokens":"7"}"#,
                1015,
                7,
            ),
            (
                whole,
                r#"{"input_tokens":-1,"cache_read_input_tokens":[],"output_tokens":7}"#,
                1015,
                7,
            ),
            (whole, "null", 1015, 1),
            (whole, "[]", 1015, 1),
            ("null", whole, 1015, 1),
            (
                r#"{"input_tokens":10}"#,
                r#"{"cache_read_input_tokens":1000,"output_tokens":7}"#,
                1010,
                7,
            ),
            (
                r#"{"cache_read_input_tokens":1000}"#,
                r#"{"input_tokens":10,"output_tokens":7}"#,
                1010,
                7,
            ),
            (r#"{"input_tokens":0,"output_tokens":0}"#, whole, 1015, 1),
        ] {
            let expected = TokenCounts { prompt: Some(prompt), completion: Some(completion) };
            assert_eq!(usage(start, delta), expected, "{start} {delta}");
        }
    }

    #[test]
    fn a_call_of_a_tool_ends_an_answer_with_tool_calls() {
        let start = |kind: &str| {
            format!(r#"{{"type":"content_block_start","content_block":{{"type":"{kind}"}}}}"#)
        };
        let end = |word: &str| {
            format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{word}"}}}}"#)
        };
        for (kind, word, told) in [
            ("tool_use", "tool_use", "tool_calls"),
            ("tool_use", "end_turn", "tool_calls"),
            ("tool_use", "max_tokens", "length"),
            ("server_tool_use", "end_turn", "stop"),
            ("text", "stop_sequence", "stop"),
        ] {
            assert_eq!(reason(&[&start(kind), &end(word)]).as_deref(), Some(told), "{kind} {word}");
            let document = format!(
                r#"{{"type":"message","content":[7,{{"type":"{kind}"}}],"stop_reason":"{word}"}}"#
            );
            assert_eq!(reason(&[&document]).as_deref(), Some(told), "{kind} {word}");
        }
    }

    #[test]
    fn a_foreign_member_costs_only_itself() {
        let stream = [
            r#"{"type":"message_start","message":{"type":"message","model":"m","usage":{"input_tokens":3}}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"hi"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#,
        ];
        let whole = facts(&stream);
        assert!(whole.is_finished && whole.unread == 0);
        for value in ["7", "[1]", "\"\\ud83d\"", "1e999", "{\"a\":1}", "null", "false"] {
            for (at, event) in stream.iter().enumerate() {
                for name in ["id", "content", "content_block", "message", "stop_sequence", "extra"]
                {
                    let event = event.replacen('{', &format!(r#"{{"{name}":{value},"#), 1);
                    let mut changed = stream;
                    changed[at] = &event;
                    assert_eq!(facts(&changed), whole, "{name}: {value}");
                }
            }
        }
        for event in ["", "ping", "null", "[]", "{}", "7", r#"{"type":"ping"}"#] {
            assert_eq!(facts(&[stream[0], event, stream[1], stream[2]]), whole, "{event}");
        }
    }

    #[test]
    fn an_answer_that_broke_off_has_an_error() {
        let overloaded =
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        assert_eq!(facts(&[overloaded]).error.as_deref(), Some("Overloaded"));
        let aborted = facts(&[r#"{"type":"message_delta","delta":{"stop_reason":"abort"}}"#]);
        assert_eq!(aborted.error.as_deref(), Some("the engine ended the answer with `abort`"));
        assert!(!facts(&[r#"{"type":"message","content":[],"stop_reason":null}"#]).is_finished);
    }
}
