//! One call while it is written, in either notation.

use std::sync::Arc;

use super::json_call::JsonCall;
use super::progress::CallProgress;
use super::tagged_call::TaggedCall;
use super::{ToolEvent, ToolFormat, ToolParser};

/// A text that may be a call.
#[derive(Clone, Debug)]
pub(super) enum PartialCall {
    Json(JsonCall),
    Tagged(TaggedCall),
}

impl PartialCall {
    /// Starts a call that follows this markup.
    pub(super) fn new(parser: &ToolParser, markup: String) -> PartialCall {
        let is_demanded = parser.is_demanded;
        match parser.format {
            ToolFormat::Hermes | ToolFormat::Llama3Json => {
                PartialCall::Json(JsonCall::new(markup, is_demanded))
            }
            ToolFormat::Qwen3Coder => {
                let types = Arc::clone(&parser.types);
                PartialCall::Tagged(TaggedCall::new(markup, types, is_demanded))
            }
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

    /// Notes that no text follows the call, which a lenient reading needs to know.
    pub(super) fn end_text(&mut self) {
        match self {
            PartialCall::Json(_) => {}
            PartialCall::Tagged(call) => call.end_text(),
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

    /// Returns all of its text.
    pub(super) fn into_raw(self) -> String {
        match self {
            PartialCall::Json(call) => call.into_raw(),
            PartialCall::Tagged(call) => call.into_raw(),
        }
    }
}
