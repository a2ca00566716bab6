//! OpenAI's Responses wire in front of a chat server.
//!
//! In the order in which a call meets them:
//! - [`request`]: the chat request that asks for the same thing.
//! - [`Reply`]: the chat reply as a response object, or chunk by chunk as its events.
//! - [`error_document`]: a refusal in the words of the Responses route.
//! - [`answer`], [`output`]: the assistant's message and the items of a recorded reply, for the
//!   exporter.
//!
//! Where the wire leaves a choice, this does what vLLM's own `/v1/responses` does.

mod answer;
mod error;
mod items;
mod object;
mod output;
#[cfg(test)]
mod properties;
mod reply;
mod request;
mod sealed;
mod tools;

pub(crate) use answer::{answer, output};
pub(crate) use error::error_document;
pub(crate) use reply::Reply;
pub(crate) use request::{recorded, request};
