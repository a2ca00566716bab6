//! Message numbers: one for each distinct message of an episode.

use std::collections::HashMap;

use serde_json::Value;

/// A message that was read before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) number: u32,
    pub(crate) is_instruction: bool,
}

/// One number for each distinct message of an episode.
#[derive(Debug, Default)]
pub(crate) struct Words<'a> {
    numbers: HashMap<String, u32>,
    written: HashMap<&'a str, Known>,
    tools: HashMap<&'a str, Option<u32>>,
}

impl<'a> Words<'a> {
    /// A message as it was written; none where that is no message.
    pub(crate) fn of_written(&mut self, written: &'a str) -> Option<Known> {
        if let Some(known) = self.written.get(written) {
            return Some(*known);
        }
        let message: Value = serde_json::from_str(written).ok()?;
        let is_instruction = is_instruction(&message);
        let known = Known { number: self.number(&message), is_instruction };
        self.written.insert(written, known);
        Some(known)
    }

    pub(crate) fn of_written_tools(&mut self, written: &'a str) -> Option<u32> {
        if let Some(known) = self.tools.get(written) {
            return *known;
        }
        let tools = serde_json::from_str::<Value>(written).ok();
        let tools = tools.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        let number = self.of_tools(tools);
        self.tools.insert(written, number);
        number
    }

    /// The number of a message.
    pub(super) fn number(&mut self, message: &Value) -> u32 {
        self.of_text(wire::canonical(message))
    }

    /// The number of the tools that a call offers; none without any.
    pub(super) fn of_tools(&mut self, tools: Vec<Value>) -> Option<u32> {
        (!tools.is_empty()).then(|| self.of_text(Value::Array(tools).to_string()))
    }

    fn of_text(&mut self, text: String) -> u32 {
        // An episode's messages are in memory, so there are fewer of them than u32 can count.
        let next = self.numbers.len() as u32;
        *self.numbers.entry(text).or_insert(next)
    }
}

/// Whether a message is the system's or the developer's.
pub(crate) fn is_instruction(message: &Value) -> bool {
    let role = message.get("role").and_then(Value::as_str);
    role.is_some_and(|role| ["system", "developer"].contains(&role))
}
