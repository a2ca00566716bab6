//! Messages to token ids and back.
//!
//! - [`continuation`]: prompts that start with what was sampled.
//! - [`chat`]: a model's chat template, rendered as `transformers` renders it.
//! - [`messages`]: the messages of clients, in the form that templates expect.
//! - [`tokenizer`]: text to ids and ids to text, as a whole or token by token.
//! - [`reasoning`]: the reasoning of a model, separated from its answer.
//! - [`tools`]: tool calls in the text of a model.
//! - [`mod@fingerprint`]: a hash of the files of a tokenizer.
//! - [`json`]: JSON as Python writes it, because models were trained on that.
//!
//! Files are read once, at load. Nothing here reads a clock or is async.

#![forbid(unsafe_code)]

pub mod chat;
pub mod continuation;
pub mod fingerprint;
pub mod json;
pub mod messages;
pub mod reasoning;
pub mod tokenizer;
pub mod tools;

pub use chat::{ChatInput, ChatTemplate, RenderError, TemplateError};
pub use fingerprint::fingerprint;
pub use messages::{MessageError, prepare};
pub use reasoning::{PromptThought, ReasoningDelta, ReasoningParser};
pub use tokenizer::{Detokenizer, TokenStrings, Tokenizer, TokenizerError};
pub use tools::{ToolCall, ToolEvent, ToolFormat, ToolParser, ToolTypes};
