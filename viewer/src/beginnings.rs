//! Beginnings of what an attempt was asked, said last, and failed with.
//!
//! They are read for the attempts of one page, from their first and last calls: the calls between
//! them cost nothing.

use serde_json::Value;
use store::{CallRow, EpisodeSummary, Snapshot, SnapshotError, SpokenBody};

use crate::bounds::{BEGINNING_BYTES_MAX, BEGINNING_COPIES};
use crate::episodes::EpisodeView;
use crate::error::ViewError;
use crate::excerpt::{answered, prompted, shortened};

/// The states of an attempt that failed.
const FAILED: [&str; 2] = ["failed", episode::INFRASTRUCTURE_FAILED];

/// The document of each summary of a page, with beginnings of what was said.
pub(crate) async fn with_beginnings(
    snapshot: &mut Snapshot,
    found: Vec<EpisodeSummary>,
) -> Result<Vec<EpisodeView>, ViewError> {
    // Beside a recorder, the memory for one body at a time is borrowed.
    let bytes_max = BEGINNING_BYTES_MAX.min(snapshot.bytes_max() / BEGINNING_COPIES);
    let is_lent = snapshot.borrow_bytes(bytes_max * BEGINNING_COPIES).await;

    let mut views = Vec::with_capacity(found.len());
    for summary in found {
        let key = summary.episode.key;
        let mut view = EpisodeView::in_list(summary);
        if is_lent && view.generations > 0 {
            view.first_prompt = first_prompt(snapshot, key, bytes_max).await?;
            view.last_answer = last_answer(snapshot, key, bytes_max).await?;
            view.last_error = last_error(snapshot, key, &view, bytes_max).await?;
        }
        views.push(view);
    }
    snapshot.give_back();
    Ok(views)
}

async fn first_prompt(
    snapshot: &mut Snapshot,
    key: i64,
    bytes_max: u64,
) -> Result<Option<String>, ViewError> {
    let Some(request) = sound(snapshot.first_request(key, bytes_max).await)? else {
        return Ok(None);
    };
    let sent = wire::conversation(request.route, &request.bytes).unwrap_or_default();
    Ok(prompted(&sent.messages))
}

async fn last_answer(
    snapshot: &mut Snapshot,
    key: i64,
    bytes_max: u64,
) -> Result<Option<String>, ViewError> {
    let Some(reply) = sound(snapshot.last_reply(key, bytes_max).await)? else {
        return Ok(None);
    };
    let answers = wire::answers(reply.route, &reply.bytes);
    Ok(answers.first().and_then(|answer| answered(&answer.message)))
}

/// The error of the last call, if it failed; of a failed attempt, that of the last one that did.
async fn last_error(
    snapshot: &mut Snapshot,
    key: i64,
    view: &EpisodeView,
    bytes_max: u64,
) -> Result<Option<String>, ViewError> {
    // Nothing is without a complete reply.
    if view.incomplete + view.refused == 0 {
        return Ok(None);
    }
    let is_fault = |row: &CallRow| row.outcome.as_deref() != Some("complete");
    let last = snapshot.last_call_row(key).await?.filter(is_fault);
    let row = match last {
        None if FAILED.contains(&view.state.as_str()) => snapshot.last_fault_row(key).await?,
        last => last,
    };

    let Some(row) = row else { return Ok(None) };
    let Some(outcome) = row.outcome.as_deref() else {
        let is_running = view.closed_at.is_none();
        return Ok((!is_running).then(|| "the last call has no end".to_owned()));
    };
    let reply = match &row.error {
        Some(_) => None,
        None => sound(snapshot.reply_of(row.key, bytes_max).await)?,
    };
    let told = row.error.clone().or_else(|| reply.and_then(|reply| told(&reply.bytes)));
    Ok(Some(match (told, row.status) {
        (Some(told), Some(status)) if status >= 400 => shortened(&format!("{status}: {told}")),
        (Some(told), _) => shortened(&told),
        (None, Some(status)) => format!("{outcome}, status {status}"),
        (None, None) => outcome.to_owned(),
    }))
}

/// The message of a reply that is an error of a server.
fn told(reply: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(reply).ok()?;
    let error = body.get("error").unwrap_or(&body);
    let message = ["message", "detail"].into_iter().find_map(|name| error.get(name)?.as_str());
    message.or_else(|| error.as_str()).filter(|told| !told.trim().is_empty()).map(str::to_owned)
}

/// A body that does not decode has no beginning: the list is not refused for it.
fn sound(
    read: Result<Option<SpokenBody>, SnapshotError>,
) -> Result<Option<SpokenBody>, SnapshotError> {
    match read {
        Err(SnapshotError::Decode { .. }) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_is_found_in_its_reply() {
        for (reply, message) in [
            (r#"{"error":{"message":"too long","code":400}}"#, Some("too long")),
            (r#"{"error":"no model"}"#, Some("no model")),
            (r#"{"object":"error","message":"full"}"#, Some("full")),
            (r#"{"detail":"Not Found"}"#, Some("Not Found")),
            (r#"{"choices":[]}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(told(reply.as_bytes()).as_deref(), message, "{reply}");
        }
    }
}
