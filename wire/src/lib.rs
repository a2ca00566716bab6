//! The only crate that knows provider JSON. No I/O, no clock, not async.
#![forbid(unsafe_code)]

mod conversation;

pub use conversation::{Answer, Conversation, answers, conversation};
