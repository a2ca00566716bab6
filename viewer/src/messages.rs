//! The messages of an attempt, each where it was said first.

use std::collections::HashMap;

use episode::CallId;
use exporter::{ChoiceLink, choice_links, whole_requests};
use serde_json::Value;
use store::{AttemptRecord, MessageRow, Snapshot};
use wire::ConversationReader;

use crate::error::ViewError;
use crate::turn::TurnMaker;
use crate::weights::VersionTable;

/// The messages of an attempt: of each call those that are new against the turn that it continues,
/// then its answers. Calls without a turn have none.
///
/// # Errors
/// [`ViewError`] when the store cannot be read.
pub async fn messages(
    snapshot: &mut Snapshot,
    attempt: &AttemptRecord,
) -> Result<Vec<MessageRow>, ViewError> {
    let calls = snapshot.calls(attempt).await?;
    let (links, _) = choice_links(&calls);
    let whole = whole_requests(&calls);
    let weights = VersionTable(Vec::new());
    let maker = TurnMaker::new(&calls, &whole, &weights);

    let first_links = first_links(&links);
    let mut reader = ConversationReader::default();
    let mut rows = Vec::new();
    for call in &calls {
        let begun = &call.begun;
        let Some(link) = first_links.get(&begun.call_id) else { continue };
        let request = whole.get(&begun.call_id).unwrap_or(&begun.request).read();
        let sent = reader.messages(begun.route, &request);
        let count = sent.len();
        let numbered = sent.iter().enumerate().skip(maker.known_messages(link));
        let row = |choice: Option<u32>, position: usize, message: &Value| MessageRow {
            episode_id: attempt.id.to_string(),
            attempt: attempt.attempt,
            call_id: begun.call_id.to_string(),
            choice,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            ..row_of(message)
        };
        rows.extend(numbered.map(|(position, message)| row(None, position, &message.value)));

        let ended = call.ended.iter();
        let answers = ended.flat_map(|ended| wire::answers(begun.route, &ended.reply.read()));
        rows.extend(answers.map(|answer| row(Some(answer.index), count, &answer.message)));
    }
    Ok(rows)
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
