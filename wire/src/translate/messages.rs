//! Anthropic's Messages wire over chat.
//!
//! The request follows vLLM's own `/v1/messages` field by field. That translation decides the
//! prompt's tokens, and an agent must get the prompt that it would get without us.
//! - [`request()`]: the body, with its messages from `history`; [`recorded`]: what is read of it
//!   for the record.
//! - [`MessageBuilder`]: a document, or a stream whose content blocks `blocks` puts in order.
//! - [`error_document`]: a refusal in Anthropic's form.
//! - [`answer()`]: a recorded reply, read back for the exporter.

mod answer;
mod blocks;
mod builder;
mod error;
mod history;
#[cfg(test)]
mod properties;
mod request;
mod spelling;
mod usage;

use serde_json::Value;

pub(crate) use answer::answer;
pub(crate) use builder::MessageBuilder;
pub(crate) use error::error_document;
pub(crate) use request::{recorded, request};

/// The text under `key`; empty if there is none.
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The arguments of a call of chat, as text.
fn arguments(call: &Value) -> &str {
    call.pointer("/function/arguments").and_then(Value::as_str).unwrap_or_default()
}

/// The entries of the list under `key`; none if there is no list.
fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
