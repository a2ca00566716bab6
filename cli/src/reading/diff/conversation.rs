//! The conversation of an attempt, message by message.

use serde::Serialize;
use viewer::{CallView, EpisodeTree, TurnView};

use super::aligned::Said;
use crate::reading::message::{ReadableMessage, ToolNames};

/// Messages of an attempt that are compared; more take too long to align.
pub(super) const MESSAGES_MAX: usize = 10_000;

/// A message in its conversation.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SaidMessage {
    pub(super) turn: u32,
    call_id: String,
    /// True if the model said it.
    pub(super) is_answer: bool,
    pub(super) text: String,
    #[serde(skip)]
    pub(super) message: ReadableMessage,
}

impl SaidMessage {
    /// The part that is compared.
    pub(super) fn said(&self) -> Said<'_> {
        Said { is_answer: self.is_answer, text: &self.text }
    }
}

/// The messages of an attempt: of each turn what was new in it, then the answer.
pub(super) fn conversation(tree: &EpisodeTree) -> Vec<SaidMessage> {
    let (mut all, mut names) = (Vec::new(), ToolNames::default());
    let mut before: Option<&TurnView> = None;
    let calls = tree.calls_by_id();
    for turn in &tree.turns {
        let is_first = before.is_none_or(|before| before.call_id != turn.call_id);
        if let Some(call) = calls.get(turn.call_id.as_str()) {
            all.extend(said(turn, call, is_first, &mut names));
        }
        before = Some(turn);
        if all.len() >= MESSAGES_MAX {
            break;
        }
    }
    all
}

/// The messages that a turn adds to a conversation.
fn said(
    turn: &TurnView,
    call: &CallView,
    is_first: bool,
    names: &mut ToolNames,
) -> Vec<SaidMessage> {
    let of = |message: ReadableMessage, is_answer| SaidMessage {
        turn: turn.number,
        call_id: turn.call_id.clone(),
        is_answer,
        text: message.plain(),
        message,
    };
    let new = if is_first { call.messages.as_slice() } else { &[] };
    let mut found: Vec<SaidMessage> =
        names.read(new).into_iter().map(|message| of(message, false)).collect();
    let choice = call.choices.iter().find(|choice| choice.index == turn.choice);
    let answer = choice.filter(|choice| !choice.message.is_null());
    found.extend(answer.map(|choice| of(names.read_one(&choice.message), true)));
    found
}
