//! The messages of a call, read out of its recorded bytes.

use episode::Route;
use serde_json::Value;

/// What an agent sent: its history and its tools, in OpenAI's chat form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Value>,
    /// The tools offered.
    pub tools: Vec<Value>,
}

/// One choice of a reply, as a message in OpenAI's chat form.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The server's index of the choice.
    pub index: u32,
    /// The assistant's message.
    pub message: Value,
}

/// The messages and tools of a request body; `None` when it is not one that has any.
pub fn conversation(_route: Route, _request: &[u8]) -> Option<Conversation> {
    None
}

/// The answers of a reply body, whether one JSON document or a stream of events.
pub fn answers(_route: Route, _reply: &[u8]) -> Vec<Answer> {
    Vec::new()
}
