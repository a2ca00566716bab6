//! The recordings that answer the calls of announced attempts.

use episode::{AttemptId, Replay, ReplayMode};
use http::api::reply::{JsonReply, bad_request};
use proxy::{Recorder, ReplayState};
use serde_json::{Value, json};
use store::{AttemptRecord, Selection};
use wire::IgnoreRules;

use crate::error::snapshot_error;
use crate::requests::ReplayBody;

/// The recording that a body names, and its record. The second name is that with the recorder's
/// prefix.
///
/// # Errors
/// A reply that says why it cannot be replayed.
pub(crate) async fn named_replay(
    recorder: &Recorder,
    body: ReplayBody,
    [named, prefixed]: [AttemptId; 2],
) -> Result<(Replay, AttemptRecord), JsonReply> {
    let mode = match body.mode.as_deref() {
        None => ReplayMode::default(),
        Some(word) => ReplayMode::from_word(word)
            .ok_or_else(|| bad_request(&format!("`mode` is strict or loose: `{word}`")))?,
    };
    let ignore = body.ignore.unwrap_or_default();
    IgnoreRules::read(&ignore).map_err(|error| bad_request(&error))?;

    let record = match found(recorder, &named).await? {
        Some(record) => record,
        // A client may leave the prefix out, as it does in its calls.
        None => {
            let missing = || bad_request(&format!("there is no recorded attempt `{named}`"));
            found(recorder, &prefixed).await?.ok_or_else(missing)?
        }
    };
    let source = AttemptId { episode: record.id.clone(), attempt: record.attempt };
    let keeps_time = body.keeps_time.unwrap_or(false);
    Ok((Replay { source, until: body.until, mode, ignore, keeps_time }, record))
}

async fn found(recorder: &Recorder, named: &AttemptId) -> Result<Option<AttemptRecord>, JsonReply> {
    let mut snapshot = recorder.store().reading().await.map_err(snapshot_error)?;
    let selection = Selection { episode: Some(named.episode.clone()), ..Selection::default() };
    let records = snapshot.episodes(&selection).await.map_err(snapshot_error)?;
    Ok(records.into_iter().find(|record| record.attempt == named.attempt))
}

/// The progress of the replay of an attempt, for people; null if it is none, or has ended.
pub(crate) fn state_of(recorder: &Recorder, attempt: &AttemptId) -> Value {
    let Some(ReplayState { replay, calls, given, refused }) = recorder.replay_of(attempt) else {
        return Value::Null;
    };
    json!({
        "source": replay.source.to_string(),
        "until": replay.until,
        "mode": replay.mode.as_str(),
        "calls": calls,
        "given": given,
        "refused": refused,
    })
}
