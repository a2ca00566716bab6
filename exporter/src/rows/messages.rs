//! The messages of calls, and their one fixed shape in a row.

use serde_json::Value;
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

/// Returns the message that a choice answered.
pub(crate) fn answer(node: &Node<'_>) -> Option<Value> {
    let answers = wire::answers(node.call.begun.route, &node.ended.reply.read());
    answers.into_iter().find(|answer| answer.index == node.index).map(|answer| answer.message)
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
    let Conversation { mut messages, tools, .. } = sent_conversation(leaf);
    let sent = messages.len();
    messages.extend(answer(leaf));
    FullConversation { messages, sent, tools }
}

/// Returns the conversation that a call sent.
pub(crate) fn sent_conversation(node: &Node<'_>) -> Conversation {
    wire::conversation(node.call.begun.route, &node.request.read()).unwrap_or_default()
}

/// Returns a message in the shape of a row.
pub(crate) fn message(value: &Value) -> RowMessage {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let calls = value.get("tool_calls").and_then(Value::as_array).filter(|c| !c.is_empty());
    RowMessage {
        role: text("role").unwrap_or_default(),
        // A refusal is what the model said in place of an answer.
        content: wire::content_text(value.get("content")).or_else(|| text("refusal")),
        name: text("name"),
        tool_call_id: text("tool_call_id"),
        reasoning: wire::reasoning(value).map(str::to_owned),
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
    use serde_json::json;

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
