//! OpenAI's Responses wire over chat.
//!
//! In the order in which a call meets them:
//! - [`request()`]: the chat request that asks for the same reply; [`recorded`]: what is read of a
//!   request for the record.
//! - [`ResponseBuilder`]: the chat reply as a response object, or chunk by chunk as its events.
//! - [`error_document`]: a refusal in the form of the Responses route.
//! - [`answer()`], [`output_items`]: the assistant's message and the items of a recorded reply, for
//!   the exporter.
//!
//! Where the wire leaves a choice, this does what vLLM's own `/v1/responses` does.

mod answer;
mod builder;
mod error;
mod items;
mod object;
mod output;
#[cfg(test)]
mod properties;
mod request;
mod sealed;
mod tools;

pub(crate) use answer::{answer, output_items};
pub(crate) use builder::ResponseBuilder;
pub(crate) use error::error_document;
pub(crate) use request::{recorded, request};
