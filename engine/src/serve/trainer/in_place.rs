//! Updates in place: tensors are written over those that serve, as soon as they were checked.
//!
//! They take the memory of one broadcast, or of one tensor of a folder, and not that of a second
//! copy of the weights. Replies stand still from the first tensor to the end. If the end never
//! comes, there are no weights, and a later update of all tensors brings them back.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use crate::core::message::Command;
use crate::core::status::WeightState;
use crate::options::UpdateMode;
use crate::serve::calls::{ApiError, Fields};
use crate::serve::state::ServerState;
use crate::update::{TensorDestination, TensorWriter, UpdateError, UpdateState};
use crate::weights::Elements;

/// The refusal of a known label for an update in place, whose tensors cannot be compared before
/// they are written.
pub(super) const KNOWN_LABEL: &str =
    "in place, an update of one call takes a label that is new; nothing was changed";

/// The consequence of an update in place that was not finished.
const NO_WEIGHTS: &str = "the update in place ended half-way, so the engine has no weights until \
                          an update of all of them";

/// Reads the mode of an update; the engine's own if none is named.
pub(super) fn parse_mode(state: &ServerState, name: Option<&str>) -> Result<UpdateMode, ApiError> {
    match name {
        None => Ok(state.model.update_mode),
        Some("staged") => Ok(UpdateMode::Staged),
        Some("in_place") => Ok(UpdateMode::InPlace),
        Some(other) => {
            let message = format!("must be `staged` or `in_place`, got `{other}`");
            Err(ApiError::bad_field("mode", message))
        }
    }
}

/// Reads the mode of an update from the fields of a call.
pub(super) fn mode_of(state: &ServerState, fields: &Fields) -> Result<UpdateMode, ApiError> {
    parse_mode(state, fields.text("mode")?)
}

/// The place where the tensors of a new update go. An engine without weights has nothing that could
/// be written over.
pub(super) fn destination(state: &Arc<ServerState>, mode: UpdateMode) -> TensorDestination {
    match (mode, state.engine.status().weights) {
        (UpdateMode::Staged, _) | (_, WeightState::Absent) => TensorDestination::Kept,
        _ => TensorDestination::Written(Arc::new(EngineWriter {
            state: Arc::downgrade(state),
            runtime: Handle::current(),
        })),
    }
}

/// Has the engine thread write tensors over the weights.
struct EngineWriter {
    /// The state holds the update, which holds this.
    state: Weak<ServerState>,
    runtime: Handle,
}

impl std::fmt::Debug for EngineWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EngineWriter")
    }
}

impl TensorWriter for EngineWriter {
    fn write(&self, tensors: BTreeMap<String, Elements>) -> Result<(), UpdateError> {
        let state = self.state.upgrade().ok_or(UpdateError::Stopping)?;
        let sent = state.engine.send(|done| Command::Overwrite { tensors, done });
        let written = self.runtime.block_on(sent).map_err(|_| UpdateError::Stopping)?;
        written.map_err(|error| UpdateError::Device(error.to_string()))
    }
}

/// Ends an update that has written over some of the weights, and will not be finished.
pub(super) async fn give_up(
    state: &ServerState,
    book: &mut UpdateState,
    reason: &str,
) -> Result<(), ApiError> {
    book.open = None;
    book.is_torn = true;
    let reason: Arc<str> = Arc::from(reason);
    state.engine.send(|done| Command::GiveUp { reason, done }).await
}

/// As [`give_up`], after an error, which then says so. An update that has written nothing changed
/// nothing.
pub(super) async fn give_up_after(
    state: &ServerState,
    book: &mut UpdateState,
    error: ApiError,
    has_written: bool,
) -> ApiError {
    if !has_written {
        return error;
    }
    match give_up(state, book, error.message()).await {
        Ok(()) => error.with_consequence(NO_WEIGHTS),
        Err(stopped) => stopped,
    }
}
