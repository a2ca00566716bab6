//! The Messages route, as an upstream speaks it itself. It never names tokens.

use serde::Deserialize;
use serde_json::Value;

use super::Collector;

/// A message, or an event that may hold one.
#[derive(Deserialize)]
struct Reply {
    message: Option<Value>,
    model: Option<String>,
    usage: Option<Usage>,
    delta: Option<Delta>,
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
    error: Option<Value>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl Collector {
    pub(super) fn take_messages(&mut self, json: &[u8]) -> Option<()> {
        self.message(serde_json::from_slice(json).ok()?);
        Some(())
    }

    fn message(&mut self, reply: Reply) {
        if let Some(inner) = reply.message.filter(Value::is_object)
            && let Ok(inner) = serde_json::from_value(inner)
        {
            self.message(inner);
        }
        self.model = reply.model.or(self.model.take());
        if let Some(usage) = reply.usage {
            let parts = [
                usage.input_tokens,
                usage.cache_creation_input_tokens,
                usage.cache_read_input_tokens,
            ];
            // What came out of a cache is counted apart.
            let prompt = usage
                .input_tokens
                .map(|_| parts.iter().flatten().fold(0, |sum: u64, n| sum.saturating_add(*n)));
            self.counts(prompt, usage.output_tokens);
        }
        if let Some(error) = reply.error.filter(|e| !e.is_null()) {
            self.failed_with(&error);
        }
        let stops = |r: Option<String>, s: Option<String>| (r, s.map(Value::String));
        let (reason, stop) = match reply.delta {
            Some(delta) => stops(delta.stop_reason, delta.stop_sequence),
            None => stops(reply.stop_reason, reply.stop_sequence),
        };
        if reason.is_some() || reply.kind.as_deref() == Some("message") {
            self.draft(0, 0).finish(reason.map(in_chat), stop);
        }
    }
}

/// The word that the chat route has for it.
fn in_chat(reason: String) -> String {
    match reason.as_str() {
        "end_turn" | "stop_sequence" => "stop".to_owned(),
        "max_tokens" => "length".to_owned(),
        "tool_use" => "tool_calls".to_owned(),
        "refusal" => "content_filter".to_owned(),
        _ => reason,
    }
}
