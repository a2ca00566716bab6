//! Numbers of a trainer for sampled tokens. They are appended and never overwritten.

use crate::{CallId, Micros};

/// A stream of numbers, one for each of some tokens that a choice sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Annotation {
    /// The call.
    pub call: CallId,
    /// The choice of that call.
    pub choice: u32,
    /// The name of the stream, such as `trainer_logprobs`.
    pub name: String,
    /// The label of the trainer's weights.
    pub version: String,
    /// First token, counted from the first one of the choice.
    pub start: u32,
    /// One number a token; NaN where nothing is said of it.
    pub values: Vec<f32>,
    /// Time at which it was given.
    pub at: Micros,
}
