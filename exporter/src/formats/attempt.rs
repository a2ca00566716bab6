//! Attempt: the main conversation of an attempt, put together from the rows that its tokens make.
//!
//! Where a history is rewritten (thoughts that a template strips, an answer that an agent repairs),
//! the same conversation goes on in a row of its own, whose messages hold all of it.

use super::taught::is_cut_off;
use crate::rows::messages::Message;
use crate::rows::{Row, TurnRow};

/// What a conversation that goes on in another row says of it.
const GOES_ON: [&str; 3] = ["ids_missing", "other_model", "rewritten_history"];

/// The rows of one conversation; their tokens are not needed.
pub(crate) struct Attempt {
    first: Row,
    others: Vec<Row>,
}

/// The messages of a row, the prompt first.
pub(crate) fn whole(row: &Row) -> Vec<Message> {
    row.dialogue.prompt.iter().chain(&row.dialogue.completion).cloned().collect()
}

impl Attempt {
    pub(crate) fn new(first: &Row) -> Self {
        Self { first: first.clone(), others: Vec::new() }
    }

    /// Adds a later main row, if it goes on with this conversation.
    pub(crate) fn go_on(&mut self, row: &Row) {
        let follows = row.parent_trajectory_id.as_ref() == Some(&self.last().trajectory_id);
        if follows && GOES_ON.contains(&row.kind_reason) && self.is_begin_of(row) {
            self.others.push(row.clone());
        }
    }

    /// Whether a row begins with the same messages of the user. Clocks in instructions may differ.
    fn is_begin_of(&self, row: &Row) -> bool {
        let messages = whole(row);
        let given = self.prompt();
        let same = |(a, b): (&Message, &Message)| a.role == b.role && (a.role != "user" || a == b);
        messages.len() > given.len() && given.iter().zip(&messages).all(same)
    }

    /// The row that holds the whole conversation.
    pub(crate) fn last(&self) -> &Row {
        self.others.last().unwrap_or(&self.first)
    }

    /// What it began with.
    pub(crate) fn prompt(&self) -> &[Message] {
        &self.first.dialogue.prompt
    }

    /// The tools that it began with, one JSON document each.
    pub(crate) fn tools(&self) -> &[String] {
        &self.first.dialogue.tools
    }

    /// Attempts with the same beginning can be compared.
    pub(crate) fn begin(&self) -> (Vec<Message>, Vec<String>) {
        (self.prompt().to_vec(), self.tools().to_vec())
    }

    /// What came after the beginning.
    pub(crate) fn said(&self) -> Vec<Message> {
        whole(self.last()).drain(self.prompt().len()..).collect()
    }

    pub(crate) fn reward(&self) -> Option<f64> {
        self.first.reward
    }

    /// All turns, of which some may stand in several rows.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &TurnRow> {
        std::iter::once(&self.first).chain(&self.others).flat_map(|row| &row.turns)
    }

    /// Whether it ends with an answer that was not cut off.
    pub(crate) fn is_finished(&self) -> bool {
        let last = self.last();
        let is_answer = last.dialogue.completion.last().is_some_and(|m| m.role == "assistant");
        is_answer && last.turns.last().is_some_and(|turn| !is_cut_off(turn))
    }
}
