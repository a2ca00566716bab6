//! Anthropic's Messages over chat: the request one way, the reply the other.
//!
//! The request follows vLLM's own `/v1/messages` field by field, since that translation decides
//! the prompt's tokens: an agent must get the prompt that it would get without us.
//! - [`request`]: the body, with its messages from `history`.
//! - [`Reply`]: a document, or a stream whose blocks `blocks` puts in a row.
//! - [`error_document`]: a refusal in Anthropic's words.
//! - [`answer`]: a recorded reply, read back for the exporter.

mod answer;
mod arguments;
mod blocks;
mod error;
mod history;
#[cfg(test)]
mod properties;
mod reply;
mod request;
mod usage;

use serde_json::Value;

pub(crate) use answer::answer;
pub(crate) use error::error_document;
pub(crate) use reply::Reply;
pub(crate) use request::request;

/// The text under `key`; empty when there is none.
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The entries of the list under `key`; none when there is no list.
fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
