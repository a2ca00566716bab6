//! `/v1/models`: the model that is served, and the adapters to it.

use hyper::Response;
use serde::Serialize;

use super::error::ApiError;
use super::routes::{ReplyBody, json_reply};
use super::submit::State;
use crate::lora::Adapter;

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: Option<String>,
    /// vLLM tells it of the model only.
    max_model_len: Option<usize>,
}

impl Model {
    fn of(state: &State) -> Model {
        let card = &state.card;
        Model {
            id: card.name.clone(),
            object: "model",
            created: card.created,
            owned_by: "rolltape",
            root: card.root.clone(),
            parent: None,
            max_model_len: Some(card.max_model_len),
        }
    }

    fn with(state: &State, adapter: &Adapter) -> Model {
        Model {
            id: adapter.name.to_string(),
            root: adapter.path.display().to_string(),
            parent: Some(state.card.name.clone()),
            max_model_len: None,
            ..Model::of(state)
        }
    }
}

/// All models, the served one first.
pub(super) fn list(state: &State) -> Response<ReplyBody> {
    #[derive(Serialize)]
    struct List {
        object: &'static str,
        data: Vec<Model>,
    }
    let adapters = state.adapters.list();
    let adapters = adapters.iter().map(|adapter| Model::with(state, adapter));
    let data = std::iter::once(Model::of(state)).chain(adapters).collect();
    json_reply(&List { object: "list", data })
}

/// One model by its name, which may have slashes.
pub(super) fn one(state: &State, name: &str) -> Result<Response<ReplyBody>, ApiError> {
    if name == state.card.name {
        return Ok(json_reply(&Model::of(state)));
    }
    let adapter =
        state.adapters.find(name).ok_or_else(|| ApiError::no_model(name, &state.card.name))?;
    Ok(json_reply(&Model::with(state, &adapter)))
}
