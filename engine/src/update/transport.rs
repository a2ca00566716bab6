//! Connections over which weights arrive, beside folders and request bodies.

use serde_json::{Map, Value};

use super::error::UpdateError;
use super::incoming::IncomingTensor;

/// The receiver of the tensors of an update, one after another.
pub(crate) type TensorSink<'a> = &'a mut dyn FnMut(IncomingTensor<'_>) -> Result<(), UpdateError>;

/// A connection to the trainer that lasts from one update to the next. All methods block.
pub(crate) trait Transport: Send {
    /// Receives the tensors that `update_info` announces.
    fn receive(
        &mut self,
        info: &Map<String, Value>,
        sink: TensorSink<'_>,
    ) -> Result<(), UpdateError>;

    /// Returns true if everything that the trainer has sent so far was received.
    fn is_in_step(&self) -> bool;
}
