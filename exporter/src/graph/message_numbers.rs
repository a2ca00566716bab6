//! Assigns one number to each distinct message of an episode.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::Value;

/// A message that has a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberedMessage {
    pub(crate) number: u32,
    pub(crate) is_instruction: bool,
    /// True for a message of the assistant.
    pub(crate) is_answer: bool,
    /// True where it is marked as the beginning of the answer.
    pub(crate) is_begun: bool,
}

/// Stands for a text: the messages of a long episode are large.
type TextHash = [u8; 16];

/// Numbers of the messages and tool lists of one episode.
#[derive(Debug, Default)]
pub(crate) struct MessageNumbers {
    /// By canonical text.
    by_content: HashMap<TextHash, u32>,
    /// Messages by their JSON text, so that one sent again is not parsed again.
    by_text: HashMap<TextHash, NumberedMessage>,
    /// Tool lists by their JSON text.
    tools_by_text: HashMap<TextHash, Option<u32>>,
}

impl MessageNumbers {
    /// Returns the message of a JSON text; none where the text is not JSON.
    pub(crate) fn of_json(&mut self, text: &str) -> Option<NumberedMessage> {
        // One look for both, since hashing a long text takes a while.
        let place = match self.by_text.entry(hash(text)) {
            Entry::Occupied(known) => return Some(*known.get()),
            Entry::Vacant(place) => place,
        };
        let message: Value = serde_json::from_str(text).ok()?;
        let number = number_in(&mut self.by_content, &wire::canonical(&message));
        Some(*place.insert(NumberedMessage {
            number,
            is_instruction: is_instruction(&message),
            is_answer: wire::is_answer(&message),
            is_begun: wire::is_begun_answer(&message),
        }))
    }

    /// Returns the number of a JSON list of tools; none where it lists none.
    pub(crate) fn of_json_tools(&mut self, text: &str) -> Option<u32> {
        let text_hash = hash(text);
        if let Some(known) = self.tools_by_text.get(&text_hash) {
            return *known;
        }
        let parsed: Value = serde_json::from_str(text).unwrap_or_default();
        let tools = parsed.as_array().cloned().unwrap_or_default();
        let number = self.of_tools(tools);
        self.tools_by_text.insert(text_hash, number);
        number
    }

    pub(super) fn number(&mut self, message: &Value) -> u32 {
        number_in(&mut self.by_content, &wire::canonical(message))
    }

    /// Returns the number of what a server sealed in messages, or beside them.
    pub(super) fn of_sealed(&mut self, messages: &[Value]) -> Option<u32> {
        let sealed: Vec<&str> = messages.iter().flat_map(wire::sealed_texts).collect();
        (!sealed.is_empty()).then(|| number_in(&mut self.by_content, &sealed.join("\n")))
    }

    /// Returns the number of the tools that a call offers; none for an empty list.
    pub(super) fn of_tools(&mut self, tools: Vec<Value>) -> Option<u32> {
        (!tools.is_empty())
            .then(|| number_in(&mut self.by_content, &Value::Array(tools).to_string()))
    }
}

/// Returns the first half of a text's BLAKE3 hash.
fn hash(text: &str) -> TextHash {
    let whole = blake3::hash(text.as_bytes());
    std::array::from_fn(|at| whole.as_bytes()[at])
}

/// Returns the number of a text, the next one for a text that has none.
fn number_in(by_content: &mut HashMap<TextHash, u32>, content: &str) -> u32 {
    // An episode's messages are in memory, so there are fewer of them than u32 can count.
    let next = by_content.len() as u32;
    *by_content.entry(hash(content)).or_insert(next)
}

/// Returns true for a message of the system or the developer.
pub(crate) fn is_instruction(message: &Value) -> bool {
    let role = message.get("role").and_then(Value::as_str);
    role.is_some_and(|role| ["system", "developer"].contains(&role))
}
