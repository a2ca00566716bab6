//! The messages of a trajectory, in one fixed shape.

use serde_json::{Value, json};
use wire::Conversation;

use crate::graph::node::Node;

/// One message of a conversation, as exported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RowMessage {
    pub(crate) role: String,
    /// Plain text, or the JSON text of the parts where they are not all plain text.
    pub(crate) content: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) reasoning: Option<String>,
    /// One JSON document each. None, not an empty list, where the message makes no call: chat
    /// templates ask whether a message has tool calls, and loaders leave out nulls.
    pub(crate) tool_calls: Option<Vec<String>>,
}

/// The messages of a path, and the tools of its first call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Dialogue {
    /// Messages of the first call.
    pub(crate) prompt: Vec<RowMessage>,
    /// Messages behind those, the last answer included.
    pub(crate) completion: Vec<RowMessage>,
    /// One JSON document each.
    pub(crate) tools: Vec<String>,
    /// Number of parts of these messages that were left out, by type, as a JSON document.
    pub(crate) unread_parts: String,
}

impl Dialogue {
    /// Returns true where parts of the messages were left out.
    pub(crate) fn lacks_parts(&self) -> bool {
        self.unread_parts != "{}"
    }
}

/// Reads the messages of the path from `root` to `leaf` from the recorded bodies.
pub(crate) fn dialogue(root: &Node<'_>, leaf: &Node<'_>) -> Dialogue {
    let Conversation { messages: prompt, tools } = sent_conversation(root);
    let history = sent_conversation(leaf).messages;
    let answer = answer(leaf);
    let added = history.iter().skip(prompt.len());
    // What stands in both is counted once.
    let mut unread = wire::unread_counts(history.iter().chain(&answer));
    for (kind, count) in wire::unread_counts(&prompt) {
        let known = unread.entry(kind).or_default();
        *known = count.max(*known);
    }
    Dialogue {
        completion: added.chain(&answer).map(message).collect(),
        prompt: prompt.iter().map(message).collect(),
        tools: tools.iter().map(wire::json_text).collect(),
        unread_parts: json!(unread).to_string(),
    }
}

/// Finds the message of each choice of a path, root first.
///
/// Positions count the messages that the last call sent; its own answer is behind them. The answer
/// to a call is where the next call has it, else the next message that says the same. Gives none
/// where the agent did not send it back as a message of its own.
pub(crate) fn answer_positions(path: &[&Node<'_>]) -> Vec<Option<usize>> {
    let Some((leaf, before)) = path.split_last() else { return Vec::new() };
    let history = sent_conversation(leaf).messages;

    let mut next = 0;
    let mut positions: Vec<Option<usize>> = Vec::with_capacity(path.len());
    for node in before {
        let position = answer_position(&history, next, node);
        next = position.map_or(next, |at| at + 1);
        positions.push(position);
    }

    // The completion begins behind the messages of the first call, however short the last one is.
    let prompt_len = sent_len(path[0]);
    positions.push(answer(leaf).map(|_| history.len().max(prompt_len)));
    positions
}

/// Returns the position in `history`, from `from` on, of the answer of `node`.
fn answer_position(history: &[Value], from: usize, node: &Node<'_>) -> Option<usize> {
    let is_assistant = |at: usize| history.get(at).is_some_and(is_assistant);
    let usual = sent_len(node);
    if usual >= from && is_assistant(usual) {
        return Some(usual);
    }
    let text = wire::canonical(&answer(node)?);
    (from..history.len()).find(|at| is_assistant(*at) && wire::canonical(&history[*at]) == text)
}

fn is_assistant(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

/// Returns the message that a choice answered.
pub(crate) fn answer(node: &Node<'_>) -> Option<Value> {
    let answers = wire::answers(node.call.begun.route, &node.ended.reply);
    answers.into_iter().find(|answer| answer.index == node.index).map(|answer| answer.message)
}

/// Counts the messages that a call sent.
fn sent_len(node: &Node<'_>) -> usize {
    match wire::raw_conversation(node.call.begun.route, &node.request) {
        Some(written) => written.messages.len(),
        None => sent_conversation(node).messages.len(),
    }
}

/// A whole conversation, as it was sent and answered.
pub(crate) struct FullConversation {
    /// Messages that were sent, then the answer.
    pub(crate) messages: Vec<Value>,
    /// Number of messages that were sent, which is the position of the answer.
    pub(crate) sent: usize,
    pub(crate) tools: Vec<Value>,
}

/// Returns the conversation that ends with a choice.
pub(crate) fn full_conversation(leaf: &Node<'_>) -> FullConversation {
    let Conversation { mut messages, tools } = sent_conversation(leaf);
    let sent = messages.len();
    messages.extend(answer(leaf));
    FullConversation { messages, sent, tools }
}

/// Returns the conversation that a call sent. A batch of prompts has one message for each of them,
/// and a choice continues one.
pub(crate) fn sent_conversation(node: &Node<'_>) -> Conversation {
    let begun = &node.call.begun;
    let mut sent = wire::conversation(begun.route, &node.request).unwrap_or_default();
    if begun.route == episode::Route::Completions && sent.messages.len() > 1 {
        let only = sent.messages.into_iter().nth(node.prompt_index as usize);
        sent.messages = only.into_iter().collect();
    }
    sent
}

fn message(value: &Value) -> RowMessage {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let calls = value.get("tool_calls").and_then(Value::as_array).filter(|c| !c.is_empty());
    RowMessage {
        role: text("role").unwrap_or_default(),
        // A refusal is what the model said in place of an answer.
        content: wire::content_text(value.get("content")).or_else(|| text("refusal")),
        name: text("name"),
        tool_call_id: text("tool_call_id"),
        reasoning: text("reasoning").or_else(|| text("reasoning_content")),
        tool_calls: calls.map(|calls| calls.iter().map(tool_call).collect()),
    }
}

/// Writes a tool call with its arguments as an object. Chat templates print an object once, but
/// would quote a string of JSON a second time.
fn tool_call(call: &Value) -> String {
    let mut call = call.clone();
    if let Some(arguments) = call.pointer_mut("/function/arguments") {
        *arguments = wire::parsed_arguments(arguments.take());
    }
    wire::json_text(&call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_its_parts() {
        let image = json!([{ "type": "image_url", "image_url": { "url": "x" } }]);
        let found = message(&json!({ "role": "user", "content": image, "name": "n" }));
        assert_eq!(found.content, Some(image.to_string()));
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        let found = message(&json!({ "role": "user", "content": parts }));
        assert_eq!(found.content.as_deref(), Some("ab"));
        let call = json!({ "id": "c", "function": { "name": "f", "arguments": "{\"n\":1}" } });
        let found = message(&json!({
            "role": "assistant", "reasoning_content": "hm", "tool_calls": [call] }));
        assert_eq!(found.reasoning.as_deref(), Some("hm"));
        let call = r#"{"id":"c","function":{"name":"f","arguments":{"n":1}}}"#;
        assert_eq!(found.tool_calls, Some(vec![call.to_owned()]));
    }
}
