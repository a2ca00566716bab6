//! A call as spans and log records say it, and the ids by which they are joined.

use blake3::Hasher;
use uuid::Uuid;
use viewer::CallEvent;

use super::attributes::Attributes;

/// The ids of an attempt's trace.
pub(super) struct Trace {
    pub(super) id: Vec<u8>,
    /// The span of the attempt itself.
    pub(super) root: Vec<u8>,
}

impl Trace {
    /// The trace of an attempt in `store`, the same whenever and wherever it is asked for.
    pub(super) fn of(store: &str, episode: &str, attempt: u32) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(store.as_bytes()).update(b"\0").update(episode.as_bytes());
        let hash = hasher.update(b"\0").update(&attempt.to_le_bytes()).finalize();
        let bytes = hash.as_bytes();
        Self { id: bytes[..16].to_vec(), root: bytes[16..24].to_vec() }
    }
}

/// The span of a call. Half of a call's id is random.
pub(super) fn call_span(call_id: &str) -> Vec<u8> {
    let id = Uuid::parse_str(call_id).unwrap_or_default();
    id.as_bytes()[8..].to_vec()
}

/// The operation that a route asks of the model; `None` if it asks for none.
pub(super) fn operation(route: &str) -> Option<&'static str> {
    match route {
        "chat" | "responses" | "messages" => Some("chat"),
        "completions" | "generate" => Some("text_completion"),
        "embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// The provider whose API the agent speaks, which need not be the one that answered.
fn provider(route: &str) -> &'static str {
    if route == "messages" { "anthropic" } else { "openai" }
}

/// The reason for which a call is a failure.
pub(super) fn fault(call: &CallEvent, outcome: &str) -> Option<String> {
    match call.status {
        Some(status) if status >= 400 => Some(status.to_string()),
        _ => (outcome != "complete").then(|| outcome.to_owned()),
    }
}

/// A call as far as it is known, without what was said.
pub(super) fn attributes(call: &CallEvent, outcome: &str) -> Attributes {
    let operation = operation(&call.route);
    let named = Attributes::default()
        .text("gen_ai.operation.name", operation)
        .text("gen_ai.provider.name", operation.map(|_| provider(&call.route)))
        .text("gen_ai.conversation.id", call.episode_id.as_str())
        .text("gen_ai.agent.name", call.agent.as_deref())
        .text("gen_ai.request.model", call.model.as_deref())
        .count("gen_ai.usage.input_tokens", call.prompt_tokens)
        .count("gen_ai.usage.output_tokens", call.completion_tokens)
        .list("gen_ai.response.finish_reasons", call.finish_reason.as_deref());

    named
        .text("http.request.method", call.method.as_str())
        .text("url.path", call.path.split('?').next())
        .count("http.response.status_code", call.status.map(u64::from))
        .text("error.type", fault(call, outcome).as_deref())
        .text("user_agent.name", call.client.as_deref())
        .text("rolltape.call_id", call.call_id.as_str())
        .count("rolltape.attempt", u64::from(call.attempt))
        .text("rolltape.group_id", call.group_id.as_deref())
        .text("rolltape.kind", call.kind.as_str())
        .text("rolltape.outcome", outcome)
        .text("rolltape.version", call.version_start.as_deref())
        .number("rolltape.first_byte_ms", call.first_byte_ms)
}
