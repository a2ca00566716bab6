//! The conversation of an attempt, message by message.

use serde::Serialize;
use viewer::{CallView, EpisodeTree, TurnView};

use super::aligned::Said;
use crate::exit::Failure;
use crate::reading::message::ReadableMessage;
use crate::reading::source::Source;

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
pub(super) async fn conversation(
    source: &Source,
    tree: &EpisodeTree,
) -> Result<Vec<SaidMessage>, Failure> {
    let mut all = Vec::new();
    let mut call: Option<CallView> = None;
    for turn in &tree.turns {
        let is_first = call.as_ref().is_none_or(|call| call.call_id != turn.call_id);
        if is_first {
            call = Some(source.call(&turn.call_id).await?);
        }
        if let Some(call) = &call {
            all.extend(said(turn, call, is_first));
        }
        if all.len() >= MESSAGES_MAX {
            break;
        }
    }
    Ok(all)
}

/// The messages that a turn adds to a conversation.
fn said(turn: &TurnView, call: &CallView, is_first: bool) -> Vec<SaidMessage> {
    let of = |message: ReadableMessage, is_answer| SaidMessage {
        turn: turn.number,
        call_id: turn.call_id.clone(),
        is_answer,
        text: message.plain(),
        message,
    };
    let new = ReadableMessage::all(&call.messages).into_iter().skip(turn.new_from as usize);
    let mut found: Vec<SaidMessage> =
        new.filter(|_| is_first).map(|message| of(message, false)).collect();
    let choice = call.choices.iter().find(|choice| choice.index == turn.choice);
    let answer = choice.filter(|choice| !choice.message.is_null());
    found.extend(answer.map(|choice| of(ReadableMessage::of(&choice.message), true)));
    found
}
