//! SGLang's names for what the engine does: the routes that trainers call on such a server.
//!
//! Each is turned into the engine's own fields and commands; what has no counterpart is refused by
//! name. `/update_weight_version` has the same form in vLLM and is not here.

mod control;
mod generate;
mod params;
mod reply;

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::json;

use super::adapters;
use super::error::ApiError;
use super::fields::Fields;
use super::routes::{Reply, json_reply};
use super::submit::State;

/// A route of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Generate,
    AbortRequest,
    LoadAdapter,
    UnloadAdapter,
    ModelInfo,
    UpdateFromDisk,
    Pause,
    Continue,
    Flush,
}

/// Which route a call is for; whether its path has one at all if the method does not fit.
pub(super) fn route(method: &Method, path: &str) -> Option<Result<Route, ApiError>> {
    let (methods, route): (&[Method], Route) = match path {
        "/generate" => (&[Method::POST, Method::PUT], Route::Generate),
        "/abort_request" => (&[Method::POST], Route::AbortRequest),
        "/load_lora_adapter" => (&[Method::POST], Route::LoadAdapter),
        "/unload_lora_adapter" => (&[Method::POST], Route::UnloadAdapter),
        "/update_weights_from_disk" => (&[Method::POST], Route::UpdateFromDisk),
        "/pause_generation" => (&[Method::POST], Route::Pause),
        "/continue_generation" => (&[Method::POST], Route::Continue),
        "/flush_cache" => (&[Method::GET, Method::POST], Route::Flush),
        "/model_info" | "/get_model_info" => (&[Method::GET], Route::ModelInfo),
        _ => return None,
    };
    let wrong = || ApiError::no_route(StatusCode::METHOD_NOT_ALLOWED);
    Some(if methods.contains(method) { Ok(route) } else { Err(wrong()) })
}

/// Answers a call; `body` is empty for what is only read.
pub(super) async fn answer(
    state: &Arc<State>,
    route: Route,
    body: &[u8],
) -> Result<Reply, ApiError> {
    let fields = Fields::parse(if body.is_empty() { b"{}" } else { body })?;
    match route {
        Route::Generate => generate::answer(state, &fields).await,
        Route::AbortRequest => control::abort(state, &fields).await,
        Route::UpdateFromDisk => control::update_from_disk(state, &fields).await,
        Route::Pause => control::pause(state, &fields).await,
        Route::Continue => control::resume(state).await,
        Route::Flush => control::flush(state).await,
        Route::LoadAdapter => {
            adapters::load_named(state, &fields).await?;
            Ok(loaded(state))
        }
        Route::UnloadAdapter => {
            adapters::unload_named(state, &fields)?;
            Ok(loaded(state))
        }
        Route::ModelInfo => Ok(model_info(state)),
    }
}

/// The adapters that requests may name.
fn loaded(state: &State) -> Reply {
    let paths = state.adapters.list();
    let paths: serde_json::Map<_, _> = paths
        .iter()
        .map(|adapter| (adapter.name.to_string(), json!(adapter.path.display().to_string())))
        .collect();
    json_reply(&json!({"success": true, "error_message": "", "loaded_adapters": paths}))
}

fn model_info(state: &State) -> Reply {
    let root = &state.card.root;
    json_reply(&json!({
        "model_path": root,
        "tokenizer_path": root,
        "is_generation": true,
        "weight_version": &*state.gate.board.read().version,
    }))
}
