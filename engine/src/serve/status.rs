//! `/health`, `/ping`, `/version`, `/load` and `/kv_event_sources`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::StatusCode;
use serde_json::json;

use super::calls::{ApiError, HttpCall, HttpReply, empty_reply, json_reply};
use super::state::ServerState;

/// Handles `/health` and `/ping`. An engine that is paused or asleep is healthy; one whose device
/// failed for good, or hangs, is not.
pub(super) async fn health(state: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    let status = state.engine.status();
    if let Some(reason) = status.refusal().filter(|_| status.lost || status.hung) {
        return Err(ApiError::unavailable(reason));
    }
    match state.engine.is_open() {
        true => Ok(empty_reply(StatusCode::OK)),
        false => Ok(empty_reply(StatusCode::SERVICE_UNAVAILABLE)),
    }
}

/// Handles `/version`.
pub(super) async fn version(_: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&json!({ "version": env!("CARGO_PKG_VERSION") })))
}

/// Handles `/load`: the number of choices that run or wait. vLLM counts calls, and only with
/// `--enable-server-load-tracking`.
pub(super) async fn load(state: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    let running = state.stats.running.load(Ordering::Relaxed);
    let waiting = state.stats.waiting.load(Ordering::Relaxed);
    Ok(json_reply(&json!({ "server_load": running + waiting })))
}

/// Handles `/kv_event_sources`. This engine publishes no events of its cache.
pub(super) async fn kv_event_sources(
    _: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&json!({})))
}
