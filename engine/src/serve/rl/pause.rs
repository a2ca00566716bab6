//! Generation stops and goes on; the engine sleeps and wakes up.

use std::sync::Arc;

use serde_json::json;

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::routes::{Reply, json_reply};
use super::super::submit::{Gate, State};
use super::query::Query;
use super::update::whole;
use crate::control::{Command, Mode, Parts};

const MODES: [(&str, Mode); 4] = [
    ("abort", Mode::Abort),
    ("wait", Mode::Wait),
    ("keep", Mode::Keep),
    ("recompute", Mode::Recompute),
];

/// The mode that a query names; what is under way is aborted if it names none.
fn mode(query: &Query) -> Result<Mode, ApiError> {
    // vLLM's older name for one of the modes.
    let named = match query.get("mode") {
        None if query.flag("wait_for_inflight_requests", false)? => "wait",
        None => "abort",
        Some(name) => name,
    };
    let found = MODES.iter().find(|(name, _)| *name == named);
    found.map(|(_, mode)| *mode).ok_or_else(|| {
        let names = "`abort`, `wait`, `keep` or `recompute`";
        ApiError::bad("mode", format!("must be {names}, got `{named}`"))
    })
}

pub(super) async fn pause(state: &State, query: &Query) -> Result<Reply, ApiError> {
    let (mode, clear) = (mode(query)?, query.flag("clear_cache", true)?);
    stop(&state.gate, mode, clear).await?;
    Ok(json_reply(&json!({"status": "paused"})))
}

/// Stops generation; `clear` says that replies under way are computed again should weights change
/// before it goes on.
pub(in crate::serve) async fn stop(gate: &Gate, mode: Mode, clear: bool) -> Result<(), ApiError> {
    match gate.tell(|done| Command::Pause { mode, clear, done }).await? {
        true => Ok(()),
        false => Err(ApiError::conflict(
            "not all replies have ended: generation was resumed meanwhile, or the engine sleeps or \
             has no weights",
        )),
    }
}

pub(super) async fn resume(state: &State) -> Result<Reply, ApiError> {
    state.gate.tell(|done| Command::Resume { done }).await?;
    Ok(json_reply(&json!({"status": "resumed"})))
}

pub(super) fn is_paused(state: &State) -> Reply {
    json_reply(&json!({"is_paused": state.gate.board.read().paused.is_some()}))
}

/// Ends the replies that are named; all where none is, or the list is empty.
pub(super) async fn abort(state: &State, fields: &Fields) -> Result<Reply, ApiError> {
    let named = fields.list("request_ids")?.filter(|ids| !ids.is_empty());
    let aborted = match named {
        None => state.gate.tell(|done| Command::AbortAll { done }).await?,
        Some(ids) => {
            let count = ids.iter().filter_map(|id| id.as_str()).filter(|id| state.gate.abort(id));
            let count = count.count();
            state.gate.tell(|done| Command::DropAbandoned { done }).await?;
            count
        }
    };
    Ok(json_reply(&json!({"status": "aborted", "aborted": aborted})))
}

pub(super) async fn sleep(state: &Arc<State>, query: &Query) -> Result<Reply, ApiError> {
    let level = match query.get("level") {
        None | Some("1") => 1,
        Some("0") => 0,
        Some("2") => 2,
        Some(other) => {
            return Err(ApiError::bad("level", format!("must be 0, 1 or 2, got `{other}`")));
        }
    };
    let mode = mode(query)?;
    let state = Arc::clone(state);
    whole(async move {
        stop(&state.gate, mode, true).await?;
        // No update may be under way while its weights go.
        let _book = state.updates.book.lock().await;
        let parts = Parts { scheduling: true, weights: level > 0, cache: level > 0 };
        fall_asleep(&state, parts, level == 2).await?;
        Ok(json_reply(&json!({"status": "sleeping", "level": level})))
    })
    .await
}

pub(super) async fn release_cache(state: &State) -> Result<Reply, ApiError> {
    let parts = Parts { cache: true, ..Parts::default() };
    fall_asleep(state, parts, false).await?;
    Ok(json_reply(&json!({"status": "kv_cache_released"})))
}

async fn fall_asleep(state: &State, parts: Parts, drop: bool) -> Result<(), ApiError> {
    let asleep = state.gate.tell(|done| Command::Sleep { parts, drop, done }).await?;
    asleep.map_err(|error| ApiError::failed(&error))
}

pub(super) async fn wake_up(state: &State, query: &Query) -> Result<Reply, ApiError> {
    let tags: Vec<&str> = query.all("tags").filter(|tag| !tag.is_empty()).collect();
    // Nothing sleeps under another tag, such as SGLang's `cuda_graph`.
    let has = |tag: &str| tags.is_empty() || tags.contains(&tag);
    let parts =
        Parts { scheduling: has("scheduling"), weights: has("weights"), cache: has("kv_cache") };
    // Nobody may read the weights while they move.
    let _book = if parts.weights { Some(state.updates.book.lock().await) } else { None };
    let left = state.gate.tell(|done| Command::Wake { parts, done }).await?;
    let left = left.map_err(|error| ApiError::failed(&error))?;
    let status = if left.any() { "sleeping" } else { "awake" };
    let tags = (!tags.is_empty()).then_some(tags);
    Ok(json_reply(&json!({"status": status, "tags": tags})))
}

pub(super) fn is_sleeping(state: &State) -> Reply {
    json_reply(&json!({"is_sleeping": state.gate.board.read().asleep.any()}))
}
