//! The Messages route of an upstream that has one itself. It never reports ids.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Collector;
use super::list::{filled, short};
use crate::bounds::STOP_BYTES_MAX;

/// A message, or an event that may hold one.
#[derive(Deserialize)]
struct MessagesReply<'a> {
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    model: Option<String>,
    usage: Option<MessagesUsage>,
    delta: Option<StopDelta>,
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct StopDelta {
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
}

#[derive(Deserialize)]
struct MessagesUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl MessagesUsage {
    /// Number of tokens of the whole prompt: cached ones are counted apart.
    fn prompt_tokens(&self) -> Option<u64> {
        let cached = [self.cache_creation_input_tokens, self.cache_read_input_tokens];
        let uncached = self.input_tokens?;
        Some(cached.iter().flatten().fold(uncached, |sum, count| sum.saturating_add(*count)))
    }
}

impl Collector {
    pub(super) fn take_messages(&mut self, json: &[u8]) -> Option<()> {
        self.take_message(serde_json::from_slice(json).ok()?);
        Some(())
    }

    fn take_message(&mut self, mut reply: MessagesReply<'_>) {
        // `message_start` holds a whole message, which holds no further one.
        if let Some(inner) = reply.message.take().filter(|inner| inner.get().starts_with('{'))
            && let Ok(message) = serde_json::from_str::<MessagesReply<'_>>(inner.get())
        {
            self.take_message(MessagesReply { message: None, ..message });
        }

        self.set_model(reply.model);
        if let Some(usage) = reply.usage {
            self.set_usage(usage.prompt_tokens(), usage.output_tokens);
        }
        if let Some(error) = filled(reply.error) {
            self.set_raw_error(error);
        }

        // An event has the reason in its delta, a document at its root.
        let (reason, sequence) = match reply.delta {
            Some(delta) => (delta.stop_reason, delta.stop_sequence),
            None => (reply.stop_reason, reply.stop_sequence),
        };
        if reason.is_some() || reply.kind.as_deref() == Some("message") {
            let stop = sequence.map(|text| Value::String(short(text, STOP_BYTES_MAX)));
            self.change(0, |choice| choice.set_finish(reason.map(finish_reason), stop));
        }
    }
}

/// The chat route's word for a stop reason.
fn finish_reason(stop_reason: String) -> String {
    match stop_reason.as_str() {
        "end_turn" | "stop_sequence" => "stop".to_owned(),
        "max_tokens" => "length".to_owned(),
        "tool_use" => "tool_calls".to_owned(),
        "refusal" => "content_filter".to_owned(),
        _ => stop_reason,
    }
}
