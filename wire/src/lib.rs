//! The only crate that knows provider JSON. No I/O, no clock, not async.
//!
//! In the order in which a call meets them:
//! - [`route`] and [`Request`]: what kind of call it is and what its body says.
//! - [`ask`]: what to add so that the upstream reports ids and logprobs, and [`Hide`], which takes
//!   exactly that out of the reply again, by splicing bytes.
//! - [`Splitter`] and [`Event`]: server-sent events out of any chunking.
//! - [`Collector`] and [`Facts`]: what the reply says about the tokens that were sampled.
//! - [`conversation`] and [`answers`]: the messages of a recorded call, for the exporter.
#![forbid(unsafe_code)]

mod ask;
mod conversation;
mod fault;
mod json;
#[cfg(test)]
mod properties;
mod reply;
mod request;
mod sse;

pub use ask::{Asked, Dialect, Hide, ask, dialect_of_models};
pub use conversation::{Answer, Conversation, answers, conversation};
pub use fault::{error_body, error_event};
pub use reply::{Collector, Facts};
pub use request::{Request, route};
pub use sse::{Event, EventTooLong, Splitter};
