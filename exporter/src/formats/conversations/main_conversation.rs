//! The main conversation of an attempt, joined from the rows that its tokens make.
//!
//! Where a history is rewritten (reasoning that a template strips, an answer that an agent
//! repairs), the same conversation continues in a row of its own, whose messages hold all of it.

use crate::formats::conversations::trained_messages::is_cut_off;
use crate::rows::messages::RowMessage;
use crate::rows::row::{Row, TurnRow};

/// Kind reasons of a row that continues a conversation of another row.
const CONTINUES: [&str; 3] = ["ids_missing", "other_model", "rewritten_history"];

/// The rows of one conversation. Their tokens are not needed.
pub(crate) struct MainConversation {
    first: Row,
    others: Vec<Row>,
}

impl MainConversation {
    pub(crate) fn new(first: &Row) -> Self {
        Self { first: first.clone(), others: Vec::new() }
    }

    /// Adds a later main row, if it continues this conversation.
    pub(crate) fn add(&mut self, row: &Row) {
        let follows = row.parent_trajectory_id.as_ref() == Some(&self.last().trajectory_id);
        if follows && CONTINUES.contains(&row.kind_reason) && self.begins(row) {
            self.others.push(row.clone());
        }
    }

    /// Returns true where a row begins with the same messages of the user. Instructions may differ,
    /// since some hold a clock.
    fn begins(&self, row: &Row) -> bool {
        let prompt = self.prompt();
        row.messages().count() > prompt.len()
            && prompt
                .iter()
                .zip(row.messages())
                .all(|(a, b)| a.role == b.role && (a.role != "user" || a == b))
    }

    /// Returns the row that holds the whole conversation.
    pub(crate) fn last(&self) -> &Row {
        self.others.last().unwrap_or(&self.first)
    }

    pub(crate) fn prompt(&self) -> &[RowMessage] {
        &self.first.dialogue.prompt
    }

    /// Returns the tools of the first call, one JSON document each.
    pub(crate) fn tools(&self) -> &[String] {
        &self.first.dialogue.tools
    }

    /// Returns true where both have the same prompt and tools, so that they can be compared.
    pub(crate) fn is_comparable_with(&self, other: &Self) -> bool {
        self.prompt() == other.prompt() && self.tools() == other.tools()
    }

    /// Returns the messages behind the prompt.
    pub(crate) fn completion(&self) -> Vec<RowMessage> {
        self.last().messages().skip(self.prompt().len()).cloned().collect()
    }

    pub(crate) fn reward(&self) -> Option<f64> {
        self.first.reward
    }

    /// Returns all turns. Some may stand in several rows.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &TurnRow> {
        std::iter::once(&self.first).chain(&self.others).flat_map(|row| &row.turns)
    }

    /// Returns true where it ends with an answer that was not cut off.
    pub(crate) fn is_finished(&self) -> bool {
        let last = self.last();
        let is_answer = last.dialogue.completion.last().is_some_and(|m| m.role == "assistant");
        is_answer && last.turns.last().is_some_and(|turn| !is_cut_off(turn))
    }
}
