//! The messages of an attempt, each where it was said first.

use std::collections::HashMap;
use std::sync::Arc;

use episode::{Call, CallId};
use exporter::{ChoiceLink, choice_links, whole_requests};
use serde_json::Value;
use store::{AttemptRecord, MessageRow, Snapshot};
use wire::{ConversationReader, ReadMessage};

use crate::error::ViewError;
use crate::turn::same_beginning;

/// The messages of a call that has a turn.
struct CallMessages {
    sent: Vec<Arc<ReadMessage>>,
    /// The answer of each choice, by its index.
    answers: Vec<(u32, ReadMessage)>,
}

/// The messages of an attempt, as [`messages_of`] has them.
///
/// # Errors
/// [`ViewError`] when the store cannot be read.
pub async fn messages(
    snapshot: &mut Snapshot,
    attempt: &AttemptRecord,
) -> Result<Vec<MessageRow>, ViewError> {
    Ok(messages_of(attempt, &snapshot.calls(attempt).await?))
}

/// The messages of the calls of an attempt: of each call those that are new against the turn that
/// it continues, then its answers. Calls without a turn have none.
pub fn messages_of(attempt: &AttemptRecord, calls: &[Call]) -> Vec<MessageRow> {
    let (links, _) = choice_links(calls);
    let first_links = first_links(&links);
    let said = read(calls, &first_links);

    let mut rows = Vec::new();
    for call in calls {
        let id = call.begun.call_id;
        let (Some(link), Some(of_call)) = (first_links.get(&id), said.get(&id)) else { continue };
        let row = |choice: Option<u32>, position: usize, message: &Value| MessageRow {
            episode_id: attempt.id.to_string(),
            attempt: attempt.attempt,
            call_id: id.to_string(),
            choice,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            ..row_of(message)
        };

        let numbered = of_call.sent.iter().enumerate().skip(of_call.known(link, &said));
        rows.extend(numbered.map(|(position, message)| row(None, position, &message.value)));
        let (count, answers) = (of_call.sent.len(), of_call.answers.iter());
        rows.extend(answers.map(|(index, answer)| row(Some(*index), count, &answer.value)));
    }
    rows
}

/// Reads the calls that have a turn.
fn read(
    calls: &[Call],
    first_links: &HashMap<CallId, &ChoiceLink>,
) -> HashMap<CallId, CallMessages> {
    let whole = whole_requests(calls);
    let mut reader = ConversationReader::default();
    let with_turn = calls.iter().filter(|call| first_links.contains_key(&call.begun.call_id));
    let said = with_turn.map(|call| {
        let begun = &call.begun;
        let request = whole.get(&begun.call_id).unwrap_or(&begun.request).read();
        let ended = call.ended.iter();
        let answers = ended.flat_map(|ended| wire::answers(begun.route, &ended.reply.read()));
        let answers = answers.map(|answer| (answer.index, ReadMessage::of(answer.message)));
        let sent = reader.messages(begun.route, &request);
        (begun.call_id, CallMessages { sent, answers: answers.collect() })
    });
    said.collect()
}

impl CallMessages {
    /// The number of messages that a call has from the turn that it continues.
    fn known(&self, link: &ChoiceLink, said: &HashMap<CallId, Self>) -> usize {
        let Some((parent, choice)) = link.parent else { return 0 };
        let Some(parent) = said.get(&parent) else { return 0 };
        let likenesses = |sent: &[Arc<ReadMessage>]| -> Vec<u64> {
            sent.iter().map(|message| message.likeness).collect()
        };
        let answer = parent.answers.iter().find(|(index, _)| *index == choice);
        let answer = answer.map(|(_, message)| message.likeness);
        same_beginning(&likenesses(&self.sent), &likenesses(&parent.sent), answer)
    }
}

/// The first choice of each call that has a turn.
pub(crate) fn first_links(links: &[ChoiceLink]) -> HashMap<CallId, &ChoiceLink> {
    // The first one of a call is put in last.
    links.iter().rev().map(|link| (link.call_id, link)).collect()
}

fn row_of(message: &Value) -> MessageRow {
    let text = |key: &str| message.get(key).and_then(Value::as_str).map(str::to_owned);
    let calls =
        message.get("tool_calls").filter(|calls| calls.as_array().is_some_and(|c| !c.is_empty()));
    MessageRow {
        role: text("role").unwrap_or_default(),
        content: wire::content_text(message.get("content")),
        reasoning: wire::reasoning(message).map(str::to_owned),
        tool_calls: calls.map(Value::to_string),
        tool_call_id: text("tool_call_id"),
        ..MessageRow::default()
    }
}
