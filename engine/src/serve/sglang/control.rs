//! Pauses, weights and adapters by SGLang's names.

use std::sync::Arc;

use http::api::schema::Field;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::params::is_empty;
use crate::core::message::Command;
use crate::core::message::PauseMode;
use crate::serve::calls::{
    ApiError, HttpCall, HttpReply, json_reply, raw_json_reply, text_reply, to_json,
};
use crate::serve::state::ServerState;
use crate::serve::{lora, trainer};

/// The fields of `/abort_request`.
pub(crate) const ABORT_FIELDS: &[Field] = &[Field::string(RID), Field::boolean("abort_all")];

/// The fields of `/pause_generation`.
pub(crate) const PAUSE_FIELDS: &[Field] = &[Field::string("mode")];

/// The fields of `/update_weights_from_disk`.
pub(crate) const UPDATE_FIELDS: &[Field] = &[
    Field::string(MODEL_PATH),
    Field::string("weight_version"),
    Field::boolean("abort_all_requests"),
    Field::refused("manifest"),
    Field::refused("is_async"),
];

const RID: &str = "rid";
const MODEL_PATH: &str = "model_path";

/// Handles `/abort_request`: ends a reply by the id that its call gave, or all replies.
pub(crate) async fn abort(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let fields = call.fields_or_empty()?;
    if fields.flag("abort_all", false)? {
        state.engine.abort_all().await?;
        return Ok(text_reply(String::new()));
    }
    let Some(rid) = fields.text(RID)?.filter(|rid| !rid.is_empty()) else {
        return Err(ApiError::bad_field(RID, "is missing"));
    };
    if state.engine.abort(rid) {
        state.engine.drop_abandoned().await?;
    }
    Ok(text_reply(String::new()))
}

/// Handles `/pause_generation`. Replies under way are aborted, computed again after the pause, or
/// continued as they are.
pub(crate) async fn pause(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let fields = call.fields_or_empty()?;
    let (mode, clear_cache) = match fields.text("mode")?.unwrap_or("abort") {
        "abort" => (PauseMode::Abort, true),
        "retract" => (PauseMode::Recompute, true),
        "in_place" => (PauseMode::Keep, false),
        other => {
            let message = format!("must be `abort`, `retract` or `in_place`, got `{other}`");
            return Err(ApiError::bad_field("mode", message));
        }
    };
    trainer::pause_generation(&state.engine, mode, clear_cache).await?;
    Ok(json_reply(&json!({"message": "Generation paused successfully.", "status": "ok"})))
}

/// Handles `/continue_generation`.
pub(crate) async fn resume(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    call.fields_or_empty()?;
    state.engine.send(|done| Command::Resume { done }).await?;
    Ok(json_reply(&json!({"message": "Generation continued successfully.", "status": "ok"})))
}

/// Handles `/flush_cache`: forgets the prefixes that no reply uses.
pub(crate) async fn flush_cache(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    call.fields_or_empty()?;
    state.engine.send(|done| Command::ResetPrefixes { running: false, done }).await?;
    Ok(text_reply("Cache flushed.\n".to_owned()))
}

/// Handles `/update_weights_from_disk`: serves a folder of a whole model from now on. Replies under
/// way continue with the new weights, unless the request aborts them.
pub(crate) async fn update_from_disk(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields_or_empty()?;
    let Some(folder) = fields.text(MODEL_PATH)?.filter(|folder| !folder.is_empty()) else {
        return Err(ApiError::bad_field(MODEL_PATH, "is missing"));
    };
    for name in ["manifest", "is_async"] {
        if fields.get(name).is_some_and(|value| !is_empty(value)) {
            return Err(ApiError::bad_field(name, "is not supported"));
        }
    }
    // Replies that are not aborted here continue under the new weights.
    if fields.flag("abort_all_requests", false)? {
        state.engine.abort_all().await?;
    }

    // SGLang answers a refusal with 400 and a body of the same form.
    let label = fields.text("weight_version")?.map(str::to_owned);
    match trainer::push_folder(state, folder.to_owned(), label).await {
        Ok(_) => Ok(json_reply(&update_result(true, "Succeeded to update model weights."))),
        Err(error) => {
            let body = to_json(&update_result(false, error.message()));
            Ok(raw_json_reply(StatusCode::BAD_REQUEST, body))
        }
    }
}

fn update_result(success: bool, message: &str) -> Value {
    json!({"success": success, "message": message, "num_paused_requests": 0})
}

/// Handles `/load_lora_adapter`.
pub(crate) async fn load_adapter(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    lora::load_adapter(state, &call.fields_or_empty()?).await?;
    Ok(loaded_adapters(state))
}

/// Handles `/unload_lora_adapter`.
pub(crate) async fn unload_adapter(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    lora::unload_adapter(state, &call.fields_or_empty()?)?;
    Ok(loaded_adapters(state))
}

/// Replies with the names and folders of the loaded adapters.
fn loaded_adapters(state: &ServerState) -> HttpReply {
    let mut paths = Map::new();
    for adapter in state.adapters.list() {
        paths.insert(adapter.name.to_string(), adapter.path.display().to_string().into());
    }
    json_reply(&json!({"success": true, "error_message": "", "loaded_adapters": paths}))
}

/// Handles `/model_info` and `/get_model_info`.
pub(crate) async fn model_info(
    state: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    let root = &state.model.root;
    Ok(json_reply(&json!({
        "model_path": root,
        "tokenizer_path": root,
        "is_generation": true,
        "weight_version": &*state.engine.status().version,
    })))
}
