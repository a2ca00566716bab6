//! Generation is paused and resumed; the engine sleeps and wakes up.

use std::sync::Arc;

use http::api::query::Query;
use http::api::schema::Field;
use serde_json::{Value, json};

use super::task::{BookGuard, lock_book, run_blocking, run_to_end};
use crate::core::message::Command;
use crate::core::message::PauseMode;
use crate::core::message::SleepTags;
use crate::core::status::WeightState;
use crate::error::ModelError;
use crate::serve::calls::{ApiError, HttpCall, HttpReply, json_reply};
use crate::serve::engine_client::EngineClient;
use crate::serve::state::ServerState;

/// The fields of `/abort_requests`.
pub(crate) const ABORT_FIELDS: &[Field] = &[Field::array("request_ids")];

/// The modes of a pause by name.
const MODES: [(&str, PauseMode); 4] = [
    ("abort", PauseMode::Abort),
    ("wait", PauseMode::Wait),
    ("keep", PauseMode::Keep),
    ("recompute", PauseMode::Recompute),
];

/// Reads the mode of a pause; `abort` if the query names none.
fn parse_mode(query: &Query) -> Result<PauseMode, ApiError> {
    let name = match query.get("mode") {
        // vLLM's older name of a mode.
        None if query.flag("wait_for_inflight_requests", false)? => "wait",
        None => "abort",
        Some(name) => name,
    };
    match MODES.iter().find(|(known, _)| *known == name) {
        Some((_, mode)) => Ok(*mode),
        None => {
            let message = format!("must be `abort`, `wait`, `keep` or `recompute`, got `{name}`");
            Err(ApiError::bad_field("mode", message))
        }
    }
}

/// Handles `/pause`.
pub(crate) async fn pause(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let query = call.query()?;
    let mode = parse_mode(&query)?;
    let clear_cache = query.flag("clear_cache", true)?;
    pause_generation(&state.engine, mode, clear_cache).await?;
    Ok(json_reply(&json!({"status": "paused"})))
}

/// Pauses generation. With `clear_cache`, prefixes are forgotten when it is resumed, and replies
/// under way are computed again if the weights have changed by then.
///
/// # Errors
/// 409 if the mode waits for replies that cannot end.
pub(crate) async fn pause_generation(
    engine: &EngineClient,
    mode: PauseMode,
    clear_cache: bool,
) -> Result<(), ApiError> {
    match engine.send(|done| Command::Pause { mode, clear: clear_cache, done }).await? {
        true => Ok(()),
        false => Err(ApiError::conflict(
            "not all replies have ended: generation was resumed meanwhile, or the engine sleeps or \
             has no weights",
        )),
    }
}

/// Handles `/resume`.
pub(crate) async fn resume(state: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    state.engine.send(|done| Command::Resume { done }).await?;
    Ok(json_reply(&json!({"status": "resumed"})))
}

/// Handles `/is_paused`.
pub(crate) async fn is_paused(
    state: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&json!({"is_paused": state.engine.status().paused.is_some()})))
}

/// Handles `/abort_requests`: ends the replies with these ids, or all replies if the list is absent
/// or empty.
pub(crate) async fn abort(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let fields = call.fields()?;
    let aborted = match fields.list("request_ids")? {
        None | Some([]) => state.engine.abort_all().await?,
        Some(ids) => {
            let strings = ids.iter().filter_map(Value::as_str);
            let count = strings.filter(|id| state.engine.abort(id)).count();
            state.engine.drop_abandoned().await?;
            count
        }
    };
    Ok(json_reply(&json!({"status": "aborted", "aborted": aborted})))
}

/// Handles `/reset_prefix_cache`.
pub(crate) async fn reset_prefix_cache(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let running = call.query()?.flag("reset_running_requests", false)?;
    state.engine.send(|done| Command::ResetPrefixes { running, done }).await?;
    Ok(json_reply(&json!({"success": true})))
}

/// Handles `/sleep`.
pub(crate) async fn sleep(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let query = call.query()?;
    let level = match query.get("level") {
        None | Some("1") => 1,
        Some("0") => 0,
        Some("2") => 2,
        Some(other) => {
            let message = format!("must be 0, 1 or 2, got `{other}`");
            return Err(ApiError::bad_field("level", message));
        }
    };
    let mode = parse_mode(&query)?;

    if level > 0 && state.engine.status().weights == WeightState::Changing {
        return Err(ApiError::conflict(ModelError::Changing));
    }
    // A caller that disconnects must not leave the engine half asleep.
    let state = Arc::clone(state);
    run_to_end(async move {
        pause_generation(&state.engine, mode, true).await?;
        // An update must not read or change the weights while they go.
        let mut book = lock_book(&state).await;
        if level > 0 {
            book = offload_open_update(book).await?;
        }
        let parts = SleepTags { scheduling: true, weights: level > 0, cache: level > 0 };
        release_parts(&state.engine, parts, level == 2).await?;
        drop(book);
        Ok(json_reply(&json!({"status": "sleeping", "level": level})))
    })
    .await
}

/// Moves what an open update has on the GPU to the host.
async fn offload_open_update(book: BookGuard) -> Result<BookGuard, ApiError> {
    let (book, moved) = run_blocking(move || {
        let moved = book.open.as_ref().map_or(Ok(0), |open| open.incoming().move_to_host());
        (book, moved)
    })
    .await?;
    moved?;
    Ok(book)
}

/// Handles `/release_kv_cache_memory`.
pub(crate) async fn release_kv_cache(
    state: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    let parts = SleepTags { cache: true, ..SleepTags::default() };
    release_parts(&state.engine, parts, false).await?;
    Ok(json_reply(&json!({"status": "kv_cache_released"})))
}

/// Gives back the memory of parts of the engine; weights are dropped if `drop` says so.
async fn release_parts(
    engine: &EngineClient,
    parts: SleepTags,
    drop: bool,
) -> Result<(), ApiError> {
    engine.send(|done| Command::Sleep { parts, drop, done }).await?.map_err(ApiError::failed)
}

/// Handles `/wake_up`.
pub(crate) async fn wake_up(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let query = call.query_with_lists(&["tags"])?;
    let tags: Vec<&str> = query.all("tags").filter(|tag| !tag.is_empty()).collect();
    // A tag that names no part, such as SGLang's `cuda_graph`, wakes nothing.
    let is_named = |tag: &str| tags.is_empty() || tags.contains(&tag);
    let parts = SleepTags {
        scheduling: is_named("scheduling"),
        weights: is_named("weights"),
        cache: is_named("kv_cache"),
    };

    // Nobody may read the weights while they move.
    let _book = if parts.weights { Some(lock_book(state).await) } else { None };
    let asleep =
        state.engine.send(|done| Command::Wake { parts, done }).await?.map_err(ApiError::failed)?;
    let status = if asleep.any() { "sleeping" } else { "awake" };
    let woken = (!tags.is_empty()).then_some(tags);
    Ok(json_reply(&json!({"status": status, "tags": woken})))
}

/// Handles `/is_sleeping`.
pub(crate) async fn is_sleeping(
    state: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&json!({"is_sleeping": state.engine.status().asleep.any()})))
}
