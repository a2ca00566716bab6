//! Said: the messages of a call as numbers, one for each distinct message of its episode.
//!
//! Spellings of one message are one number: arguments of tools are parsed and sorted by key, ids
//! of tool calls and reasoning are left out, `null` and an empty text are the same
//! (`wire::canonical`).

use std::collections::HashMap;

use serde_json::Value;

use crate::scan::Node;

/// What one choice of a call heard and said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// The messages that were sent.
    history: Vec<u32>,
    /// How many of the first ones are instructions: the system's or the developer's.
    instructions: usize,
    /// The message that was answered.
    answer: Option<u32>,
    /// The tools that were offered, as one number; none without any.
    tools: Option<u32>,
}

impl Said {
    /// The whole history, instructions first.
    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    /// Whether tools were offered.
    pub(crate) fn offers_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// Whether `other` has the same instructions and tools: they stand at the head of a prompt.
    pub(crate) fn has_head_of(&self, other: &Self) -> bool {
        (self.instructions(), self.tools) == (other.instructions(), other.tools)
    }

    /// The messages before the conversation. Clocks and folders in them change from call to call.
    pub(crate) fn instructions(&self) -> &[u32] {
        &self.history[..self.instructions]
    }

    /// The messages of the conversation itself.
    pub(crate) fn spoken(&self) -> &[u32] {
        &self.history[self.instructions..]
    }

    /// What was said before the last message that was sent, and that message.
    pub(crate) fn heard(&self) -> Option<(&[u32], &[u32])> {
        let before = self.spoken().len().checked_sub(1)?;
        Some(self.spoken().split_at(before))
    }

    /// What was said up to the answer, and the answer; none where there is none to continue.
    pub(crate) fn path(&self) -> Option<(&[u32], &[u32])> {
        Some((self.spoken(), std::slice::from_ref(self.answer.as_ref()?)))
    }
}

/// Reads the bodies of all calls. One entry a node.
pub(crate) fn said(nodes: &[Node<'_>]) -> Vec<Said> {
    let mut words = Words::default();
    let mut found = Vec::with_capacity(nodes.len());
    for choices in nodes.chunk_by(|a, b| a.call.begun.call_id == b.call.begun.call_id) {
        let call = choices[0].call;
        let route = call.begun.route;
        let asked = wire::conversation(route, &call.begun.request).unwrap_or_default();
        let heard = Said {
            history: asked.messages.iter().map(|m| words.number(m)).collect(),
            instructions: asked.messages.iter().take_while(|m| is_instruction(m)).count(),
            answer: None,
            tools: words.of_tools(asked.tools),
        };
        let answers = wire::answers(route, &choices[0].ended.reply);
        for node in choices {
            let answer = answers.iter().find(|a| a.index == node.index);
            let answer = answer.map(|a| words.number(&a.message));
            found.push(Said { answer, ..heard.clone() });
        }
    }
    found
}

fn is_instruction(message: &Value) -> bool {
    let role = message.get("role").and_then(Value::as_str);
    role.is_some_and(|role| ["system", "developer"].contains(&role))
}

/// One number for each distinct message of an episode.
#[derive(Debug, Default)]
struct Words(HashMap<String, u32>);

impl Words {
    fn number(&mut self, message: &Value) -> u32 {
        self.of_text(wire::canonical(message))
    }

    fn of_tools(&mut self, tools: Vec<Value>) -> Option<u32> {
        (!tools.is_empty()).then(|| self.of_text(Value::Array(tools).to_string()))
    }

    fn of_text(&mut self, text: String) -> u32 {
        // An episode's messages are in memory, so there are fewer of them than u32 can count.
        let next = self.0.len() as u32;
        *self.0.entry(text).or_insert(next)
    }
}
