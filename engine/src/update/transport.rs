//! Ways for weights to come in that are neither a folder nor a body.

use serde_json::{Map, Value};

use super::Refused;
use super::staging::Piece;

/// Where tensors of an update are put, one after another.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<(), Refused>;

/// A connection to the trainer that stays from one update to the next. All of it blocks.
pub(crate) trait Transport: Send {
    /// Receives the tensors that `update_info` announces.
    fn receive(&mut self, info: &Map<String, Value>, sink: Sink<'_>) -> Result<(), Refused>;

    /// Whether all that the trainer has sent so far was received.
    fn is_in_step(&self) -> bool;
}
