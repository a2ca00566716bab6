//! The messages of a trajectory, in one fixed shape.

use serde_json::Value;
use wire::Conversation;

use crate::graph::node::Node;

/// One message of a conversation, as exported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) role: String,
    /// Plain text; the JSON text of the parts where they are not all plain text.
    pub(crate) content: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) reasoning: Option<String>,
    /// One JSON document each; none, not an empty list, where the message makes no call: chat
    /// templates ask whether a message has tool calls, and loaders leave out what is null.
    pub(crate) tool_calls: Option<Vec<String>>,
}

/// What the first call was asked, what came after that, and the tools offered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Dialogue {
    pub(crate) prompt: Vec<Message>,
    pub(crate) completion: Vec<Message>,
    /// One JSON document each.
    pub(crate) tools: Vec<String>,
}

/// Reads the messages of the path from `root` to `leaf` out of the recorded bodies.
pub(crate) fn dialogue(root: &Node<'_>, leaf: &Node<'_>) -> Dialogue {
    let Conversation { messages: prompt, tools } = asked(root);
    let history = asked(leaf).messages;
    let answer = answer(leaf);
    let added = history.iter().skip(prompt.len());
    Dialogue {
        completion: added.chain(&answer).map(message).collect(),
        prompt: prompt.iter().map(message).collect(),
        tools: tools.iter().map(Value::to_string).collect(),
    }
}

/// For each choice of a path, root first, its message in the history of the last one and, behind
/// that, the last answer: where the next call has it, else the next message that says the same.
/// None where the agent did not send it back as a message of its own.
pub(crate) fn places_of_answers(path: &[&Node<'_>]) -> Vec<Option<usize>> {
    let Some((leaf, before)) = path.split_last() else { return Vec::new() };
    let history = asked(leaf).messages;
    let mut next = 0;
    let mut places: Vec<Option<usize>> = Vec::with_capacity(path.len());
    for node in before {
        let is_answer = |at: &usize| *at >= next && is_assistant(history.get(*at));
        let found = Some(asked_len(node)).filter(is_answer).or_else(|| {
            let text = wire::canonical(&answer(node)?);
            let says_it = |at: &usize| {
                is_assistant(history.get(*at)) && wire::canonical(&history[*at]) == text
            };
            (next..history.len()).find(says_it)
        });
        next = found.map_or(next, |at| at + 1);
        places.push(found);
    }
    let given = path.first().map_or(0, |root| asked_len(root));
    places.push(answer(leaf).map(|_| history.len().max(given)));
    places
}

fn is_assistant(message: Option<&Value>) -> bool {
    message.and_then(|m| m.get("role")).and_then(Value::as_str) == Some("assistant")
}

/// The message of a choice.
fn answer(node: &Node<'_>) -> Option<Value> {
    let answers = wire::answers(node.call.begun.route, &node.ended.reply);
    answers.into_iter().find(|a| a.index == node.index).map(|a| a.message)
}

/// How many messages a call sent.
fn asked_len(node: &Node<'_>) -> usize {
    let written = wire::written(node.call.begun.route, &node.request);
    written.map_or_else(|| asked(node).messages.len(), |written| written.messages.len())
}

/// A whole conversation, as it was sent and answered.
pub(crate) struct Whole {
    /// What was sent, then the answer.
    pub(crate) messages: Vec<Value>,
    /// How many of them were sent: where the answer stands.
    pub(crate) asked: usize,
    pub(crate) tools: Vec<Value>,
}

/// The conversation that ends with a choice.
pub(crate) fn whole(leaf: &Node<'_>) -> Whole {
    let Conversation { mut messages, tools } = asked(leaf);
    let asked = messages.len();
    messages.extend(answer(leaf));
    Whole { messages, asked, tools }
}

/// A batch of prompts is one message each; a choice continues one of them.
pub(crate) fn asked(node: &Node<'_>) -> Conversation {
    let begun = &node.call.begun;
    let mut asked = wire::conversation(begun.route, &node.request).unwrap_or_default();
    if begun.route == episode::Route::Completions && asked.messages.len() > 1 {
        let one = node.prompt_index as usize;
        asked.messages = asked.messages.into_iter().skip(one).take(1).collect();
    }
    asked
}

fn message(value: &Value) -> Message {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let calls = value.get("tool_calls").and_then(Value::as_array).filter(|c| !c.is_empty());
    Message {
        role: text("role").unwrap_or_default(),
        content: wire::content_text(value.get("content")),
        name: text("name"),
        tool_call_id: text("tool_call_id"),
        reasoning: text("reasoning").or_else(|| text("reasoning_content")),
        tool_calls: calls.map(|calls| calls.iter().map(tool_call).collect()),
    }
}

/// A tool call with its arguments as an object: chat templates print an object once, but would
/// quote a string of JSON a second time.
fn tool_call(call: &Value) -> String {
    let mut call = call.clone();
    if let Some(arguments) = call.pointer_mut("/function/arguments") {
        *arguments = wire::parsed_arguments(arguments.take());
    }
    call.to_string()
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
