//! Messages to token ids and back.
//!
//! - [`chat`]: a model's chat template, rendered as `transformers` renders it.
//! - [`messages`]: what clients send, in the form that templates expect.
//! - [`tokenizer`]: text to ids, ids to text, one token at a time where wanted.
//! - [`reasoning`]: what a model thought before it answered.
//! - [`tools`]: tool calls in what a model wrote.
//! - [`mod@fingerprint`]: a name for a tokenizer that changes when its files do.
//! - [`json`]: JSON as Python writes it, which is what models were trained on.
//!
//! Files are read at load and never again; there is no clock and nothing is async.

#![forbid(unsafe_code)]

pub mod chat;
pub mod fingerprint;
pub mod json;
pub mod messages;
pub mod reasoning;
pub mod tokenizer;
pub mod tools;

pub use chat::{ChatInput, ChatTemplate, RenderError, TemplateError};
pub use fingerprint::fingerprint;
pub use messages::{MessageError, prepare};
pub use reasoning::{ReasoningDelta, ReasoningParser};
pub use tokenizer::{Detokenizer, TokenNames, Tokenizer, TokenizerError};
pub use tools::{ToolCall, ToolEvent, ToolFormat, ToolParser};
