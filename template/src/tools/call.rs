//! One call while it is written, in either notation.

use std::sync::Arc;

use super::json_call::JsonCall;
use super::progress::CallProgress;
use super::tagged_call::TaggedCall;
use super::{ToolEvent, ToolFormat, ToolTypes};

/// A text that may be a call.
#[derive(Clone, Debug)]
pub(super) enum PartialCall {
    Json(JsonCall),
    Tagged(TaggedCall),
}

impl PartialCall {
    /// Starts a call that follows this markup.
    pub(super) fn new(format: ToolFormat, markup: String, types: &Arc<ToolTypes>) -> PartialCall {
        match format {
            ToolFormat::Hermes | ToolFormat::Llama3Json => PartialCall::Json(JsonCall::new(markup)),
            ToolFormat::Qwen3Coder => PartialCall::Tagged(TaggedCall::new(markup, types)),
        }
    }

    /// Returns true if its name was returned.
    pub(super) fn has_emitted(&self) -> bool {
        match self {
            PartialCall::Json(call) => call.has_emitted(),
            PartialCall::Tagged(call) => call.has_emitted(),
        }
    }

    /// Takes a piece of text and returns the parts of the call that are certain.
    pub(super) fn push(&mut self, piece: &str, out: &mut Vec<ToolEvent>) -> CallProgress {
        match self {
            PartialCall::Json(call) => call.push(piece, out),
            PartialCall::Tagged(call) => call.push(piece, out),
        }
    }

    /// Ends the text in the call, whose name may have been returned.
    pub(super) fn cut(&mut self, out: &mut Vec<ToolEvent>) {
        match self {
            // All of the arguments so far was returned.
            PartialCall::Json(_) => {}
            PartialCall::Tagged(call) => call.cut(out),
        }
    }

    /// Returns all of its text, and the part that was not returned before.
    pub(super) fn into_raw(self) -> (String, String) {
        match self {
            PartialCall::Json(call) => call.into_raw(),
            PartialCall::Tagged(call) => call.into_raw(),
        }
    }
}
