//! Generation stops and goes on, and weights come in, by SGLang's names.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::json;

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::rl::pause::stop;
use super::super::rl::update::push_folder;
use super::super::routes::{Reply, body_reply, json_reply, text_reply};
use super::super::sse;
use super::super::submit::State;
use crate::control::{Command, Mode};

/// Ends a reply as it is, by the id that its call gave, or all.
pub(super) async fn abort(state: &State, fields: &Fields) -> Result<Reply, ApiError> {
    const FIELD: &str = "rid";
    if fields.flag("abort_all", false)? {
        state.gate.tell(|done| Command::AbortAll { done }).await?;
        return Ok(text_reply(String::new()));
    }
    let rid = fields.text(FIELD)?.filter(|rid| !rid.is_empty());
    let rid = rid.ok_or_else(|| ApiError::bad(FIELD, "is missing"))?;
    if state.gate.abort(rid) {
        // While generation stands still nobody else looks.
        state.gate.tell(|done| Command::DropAbandoned { done }).await?;
    }
    Ok(text_reply(String::new()))
}

/// What is under way is aborted, or computed again when generation goes on, or goes on as it is.
pub(super) async fn pause(state: &State, fields: &Fields) -> Result<Reply, ApiError> {
    let (mode, clear) = match fields.text("mode")?.unwrap_or("abort") {
        "abort" => (Mode::Abort, true),
        "retract" => (Mode::Recompute, true),
        "in_place" => (Mode::Keep, false),
        other => {
            let names = "`abort`, `retract` or `in_place`";
            return Err(ApiError::bad("mode", format!("must be {names}, got `{other}`")));
        }
    };
    stop(&state.gate, mode, clear).await?;
    Ok(json_reply(&json!({"message": "Generation paused successfully.", "status": "ok"})))
}

pub(super) async fn resume(state: &State) -> Result<Reply, ApiError> {
    state.gate.tell(|done| Command::Resume { done }).await?;
    Ok(json_reply(&json!({"message": "Generation continued successfully.", "status": "ok"})))
}

/// Forgets the beginnings of prompts that nobody uses.
pub(super) async fn flush(state: &State) -> Result<Reply, ApiError> {
    state.gate.tell(|done| Command::ResetPrefixes { running: false, done }).await?;
    Ok(text_reply("Cache flushed.\n".to_owned()))
}

/// Serves the folder of a whole model from now on. What is under way goes on with the new weights,
/// unless it is to be aborted.
pub(super) async fn update_from_disk(
    state: &Arc<State>,
    fields: &Fields,
) -> Result<Reply, ApiError> {
    const FIELD: &str = "model_path";
    let folder = fields.text(FIELD)?.filter(|folder| !folder.is_empty());
    let folder = folder.ok_or_else(|| ApiError::bad(FIELD, "is missing"))?;
    for name in ["manifest", "is_async"] {
        if fields.get(name).is_some_and(|value| !super::params::is_empty(value)) {
            return Err(ApiError::bad(name, "is not supported"));
        }
    }
    if fields.flag("abort_all_requests", false)? {
        state.gate.tell(|done| Command::AbortAll { done }).await?;
    }
    let version = fields.text("weight_version")?.map(str::to_owned);
    match push_folder(state, folder.to_owned(), version).await {
        Ok(_) => Ok(json_reply(&json!({
            "success": true,
            "message": "Succeeded to update model weights.",
            "num_paused_requests": 0,
        }))),
        Err(error) => {
            let told = json!({"success": false, "message": error.message(),
                "num_paused_requests": 0});
            Ok(body_reply(StatusCode::BAD_REQUEST, sse::json(&told)))
        }
    }
}
