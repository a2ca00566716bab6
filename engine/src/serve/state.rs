//! The state that all connections share.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use super::access::Access;
use super::calls::{ApiError, Fields, JsonRoom};
use super::engine_client::EngineClient;
use super::lora::{self, AdapterRegistry, FoundAdapter};
use super::prefix::{ChatMemory, syntax_of};
use super::responses::store::ResponseStore;
use crate::core::message::EngineMessage;
use crate::core::status::SharedStatus;
use crate::info::ModelInfo;
use crate::lora::Adapter;
use crate::stats::EngineStats;
use crate::update::WeightUpdates;

/// A model that serves, and everything that its handlers need.
pub(super) struct ServerState {
    pub(super) model: ModelInfo,
    pub(super) engine: EngineClient,
    pub(super) stats: Arc<EngineStats>,
    pub(super) updates: Arc<WeightUpdates>,
    /// The sampled replies of chats, unless prefix-exact chat is off.
    pub(super) memory: Option<ChatMemory>,
    pub(super) adapters: AdapterRegistry,
    pub(super) access: Access,
    pub(super) responses: ResponseStore,
    /// The memory for parsed bodies.
    pub(super) json_room: JsonRoom,
}

impl ServerState {
    /// Makes the state, and the receiver for the engine thread.
    pub(super) fn new(
        model: ModelInfo,
        status: Arc<SharedStatus>,
        stats: Arc<EngineStats>,
        updates: Arc<WeightUpdates>,
        access: Access,
    ) -> (ServerState, Receiver<EngineMessage>) {
        let (engine, receiver) = EngineClient::new(model.max_queue, model.seed, status);
        let memory = model.prefix_exact_chat.then(|| ChatMemory::new(syntax_of(&model)));
        let adapters = AdapterRegistry::new(model.lora);
        let json_room = JsonRoom::default();
        let responses = ResponseStore::default();
        let state = ServerState {
            model,
            engine,
            stats,
            updates,
            memory,
            adapters,
            access,
            responses,
            json_room,
        };
        (state, receiver)
    }

    /// Returns the adapter that the request names as `model`; none for the model itself, or if the
    /// field is absent. An adapter that made room for others is read again.
    ///
    /// # Errors
    /// 404 for any other name.
    pub(super) async fn requested_adapter(
        self: &Arc<Self>,
        fields: &Fields,
    ) -> Result<Option<Arc<Adapter>>, ApiError> {
        let Some(name) = fields.text("model")?.filter(|name| *name != self.model.name) else {
            return Ok(None);
        };
        match self.adapters.find_to_use(name) {
            Some(FoundAdapter::Loaded(adapter)) => Ok(Some(adapter)),
            Some(FoundAdapter::Parked(adapter)) => lora::restore(self, adapter).await.map(Some),
            None => Err(ApiError::unknown_model(name, &self.model.name)),
        }
    }

    /// Refuses a request for a model that is not served.
    pub(super) fn check_model(&self, fields: &Fields) -> Result<(), ApiError> {
        match fields.text("model")? {
            Some(name) if name != self.model.name && self.adapters.find(name).is_none() => {
                Err(ApiError::unknown_model(name, &self.model.name))
            }
            _ => Ok(()),
        }
    }
}
