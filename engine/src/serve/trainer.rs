//! The routes that trainers call, under the names of vLLM's development mode.
//!
//! - `pause`: stops and resumes generation, and puts the engine to sleep.
//! - `update`: receives weights.
//! - `apply`: checks the weights that were received, and has the engine serve them.
//! - `in_place`: writes them over those that serve, as they are received.
//! - `room`: says what updates will take of a GPU's memory.
//! - `info`: reports the weights and the configuration.

mod apply;
mod errors;
mod in_place;
mod info;
mod pause;
mod room;
mod task;
mod update;

pub(super) use info::{CHECK_FIELDS, check_weights, server_info, weight_info, world_size};
pub(super) use pause::{
    ABORT_FIELDS, abort, is_paused, is_sleeping, pause, pause_generation, release_kv_cache,
    reset_prefix_cache, resume, sleep, wake_up,
};
pub(super) use update::{
    CONNECT_FIELDS, FINISH_FIELDS, RENAME_FIELDS, START_FIELDS, UPDATE_FIELDS, connect, disconnect,
    finish, push_folder, rename, start, update,
};

use std::sync::Arc;

use hyper::StatusCode;

use super::calls::{ApiError, HttpCall, HttpReply, empty_reply};
use super::state::ServerState;

/// Handles `/reset_mm_cache` and `/reset_encoder_cache`. This engine has no caches of images or of
/// encoders, so they are always empty.
pub(super) async fn reset_absent_cache(
    _: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    Ok(empty_reply(StatusCode::OK))
}

/// Handles `/collective_rpc`.
pub(super) async fn collective_rpc(
    _: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    Err(ApiError::not_implemented(
        "`/collective_rpc` runs methods of vLLM's workers, which this engine does not have",
    ))
}
