//! Connections over which weights arrive, beside folders and request bodies.

use kernels::Placement;
use serde_json::{Map, Value};

use super::error::UpdateError;
use super::incoming::IncomingWeights;

/// A connection to the trainer that lasts from one update to the next. All methods block.
pub(crate) trait Transport: Send {
    /// Receives the tensors that `update_info` announces. What arrives on a GPU may stay there if
    /// `home` is the device.
    fn receive(
        &mut self,
        info: &Map<String, Value>,
        home: Placement,
        weights: &mut IncomingWeights,
    ) -> Result<(), UpdateError>;

    /// Returns true if everything that the trainer has sent so far was received.
    fn is_in_step(&self) -> bool;
}
