//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`.
//!
//! Replies and errors are vLLM's. An adapter that this engine cannot use is refused by the name of
//! the setting.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::api::schema::Field;

use super::registry::NewAdapter;
use crate::bounds::ADAPTER_NAME_BYTES_MAX;
use crate::lora;
use crate::lora::{Adapter, AdapterError, LoraLayer};
use crate::serve::calls::{ApiError, Fields, HttpCall, HttpReply, text_reply};
use crate::serve::state::ServerState;

/// The fields of a call that loads an adapter.
pub(crate) const LOAD_FIELDS: &[Field] = &[
    Field::string("lora_name"),
    Field::string("lora_path"),
    Field::boolean("load_inplace"),
    Field::refused("is_3d_lora_weight"),
];

/// The fields of a call that unloads an adapter.
pub(crate) const UNLOAD_FIELDS: &[Field] = &[Field::string("lora_name")];

/// Handles `/v1/load_lora_adapter`. Requests may name the adapter once this is answered.
pub(crate) async fn load(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let name = load_adapter(state, &call.fields()?).await?;
    Ok(text_reply(format!("Success: LoRA adapter '{name}' added successfully.")))
}

/// Loads the adapter that the fields name, and returns its name.
pub(crate) async fn load_adapter(
    state: &Arc<ServerState>,
    fields: &Fields,
) -> Result<String, ApiError> {
    let name = fields.text("lora_name")?.filter(|text| !text.is_empty());
    let path = fields.text("lora_path")?.filter(|text| !text.is_empty());
    let (Some(name), Some(path)) = (name, path) else {
        let message = "Both 'lora_name' and 'lora_path' must be provided.";
        return Err(ApiError::invalid_input(message));
    };
    check_request(state, fields, name)?;
    let replaces = fields.flag("load_inplace", false)?;
    state.adapters.check(name, replaces)?;

    // Reading and hashing block.
    let task_state = Arc::clone(state);
    let task_name = name.to_owned();
    let path = PathBuf::from(path);
    tokio::task::spawn_blocking(move || read_and_register(&task_state, task_name, path, replaces))
        .await
        .map_err(|_| ApiError::internal())??;

    tracing::info!(name, "loaded a LoRA adapter");
    Ok(name.to_owned())
}

/// Refuses settings of the request or of the server that allow no adapter.
fn check_request(state: &ServerState, fields: &Fields, name: &str) -> Result<(), ApiError> {
    if name == state.model.name || name.len() > ADAPTER_NAME_BYTES_MAX {
        let message = format!(
            "must be another name than the model's, of at most {ADAPTER_NAME_BYTES_MAX} bytes"
        );
        return Err(ApiError::bad_field("lora_name", message));
    }
    if fields.flag("is_3d_lora_weight", false)? {
        return Err(ApiError::bad_field("is_3d_lora_weight", "is not supported"));
    }
    if state.adapters.bounds.adapters == 0 {
        let message = "the engine was started with `--max-loras 0`, so it loads no adapter";
        return Err(ApiError::invalid_input(message));
    }
    Ok(())
}

fn read_and_register(
    state: &ServerState,
    name: String,
    path: PathBuf,
    replaces: bool,
) -> Result<(), ApiError> {
    let layers = read_layers(state, &name, &path)?;
    let new = NewAdapter { name, path, layers, replaces };
    state.adapters.register(new, &state.engine, &state.updates)
}

fn read_layers(state: &ServerState, name: &str, path: &Path) -> Result<Vec<LoraLayer>, ApiError> {
    let rank = state.adapters.bounds.rank;
    let folder = state.model.weights_root.folder(path).map_err(ApiError::invalid_input)?;
    lora::read_adapter(&folder, &state.model.config, rank)
        .map_err(|error| adapter_error(name, &error))
}

/// Reads an adapter that made room for others from its folder again.
pub(crate) async fn restore(
    state: &Arc<ServerState>,
    parked: Arc<Adapter>,
) -> Result<Arc<Adapter>, ApiError> {
    let state = Arc::clone(state);
    // Reading and hashing block.
    tokio::task::spawn_blocking(move || {
        let layers = read_layers(&state, &parked.name, &parked.path)?;
        state.adapters.restore(&parked, layers)
    })
    .await
    .map_err(|_| ApiError::internal())?
}

/// Handles `/v1/unload_lora_adapter`. Calls that run with the adapter go on with it.
pub(crate) async fn unload(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let name = unload_adapter(state, &call.fields()?)?;
    Ok(text_reply(format!("Success: LoRA adapter '{name}' removed successfully.")))
}

/// Unloads the adapter that the fields name, and returns its name.
pub(crate) fn unload_adapter(state: &ServerState, fields: &Fields) -> Result<String, ApiError> {
    let Some(name) = fields.text("lora_name")?.filter(|name| !name.is_empty()) else {
        let message = "'lora_name' needs to be provided to unload a LoRA adapter.";
        return Err(ApiError::invalid_input(message));
    };
    if !state.adapters.remove(name) {
        return Err(ApiError::not_found(format!("The lora adapter '{name}' cannot be found.")));
    }
    tracing::info!(name, "unloaded a LoRA adapter");
    Ok(name.to_owned())
}

/// Explains an adapter that cannot be used, with all causes that the text does not have yet.
fn adapter_error(name: &str, error: &AdapterError) -> ApiError {
    let mut message = format!("Loading lora {name} failed: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = cause.source();
    }

    match error {
        AdapterError::Absent { .. } => ApiError::not_found(message),
        _ => ApiError::invalid_input(message),
    }
}
