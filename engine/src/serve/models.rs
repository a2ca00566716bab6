//! `/v1/models`: the model that is served, and the adapters to it.

use std::sync::Arc;

use serde::Serialize;

use super::calls::{ApiError, HttpCall, HttpReply, json_reply};
use super::state::ServerState;
use crate::lora::Adapter;

#[derive(Serialize)]
struct ModelEntry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: Option<String>,
    /// Null for adapters, as in vLLM.
    max_model_len: Option<usize>,
}

#[derive(Serialize)]
struct ServedModels {
    object: &'static str,
    data: Vec<ModelEntry>,
}

impl ModelEntry {
    fn of_model(state: &ServerState) -> ModelEntry {
        let model = &state.model;
        ModelEntry {
            id: model.name.clone(),
            object: "model",
            created: model.created,
            owned_by: "rolltape",
            root: model.root.clone(),
            parent: None,
            max_model_len: Some(model.max_model_len),
        }
    }

    fn of_adapter(state: &ServerState, adapter: &Adapter) -> ModelEntry {
        ModelEntry {
            id: adapter.name.to_string(),
            root: adapter.path.display().to_string(),
            parent: Some(state.model.name.clone()),
            max_model_len: None,
            ..ModelEntry::of_model(state)
        }
    }
}

/// Handles `/v1/models`: the model first, then the adapters.
pub(super) async fn list(state: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    let mut data = vec![ModelEntry::of_model(state)];
    data.extend(state.adapters.list().iter().map(|one| ModelEntry::of_adapter(state, one)));
    Ok(json_reply(&ServedModels { object: "list", data }))
}

/// Handles `/v1/models/{name}`. A name may contain slashes.
pub(super) async fn show(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let name = &call.parameter;
    if *name == state.model.name {
        return Ok(json_reply(&ModelEntry::of_model(state)));
    }
    match state.adapters.find(name) {
        Some(adapter) => Ok(json_reply(&ModelEntry::of_adapter(state, &adapter))),
        None => Err(ApiError::unknown_model(name, &state.model.name)),
    }
}
