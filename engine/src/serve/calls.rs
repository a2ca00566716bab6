//! Calls and replies in the form of vLLM: JSON fields, errors, server-sent events, and the memory
//! of parsed bodies. What all listeners share is in the crate `http`.

mod call;
mod error;
mod fields;
mod json;
mod json_room;
mod reply;
mod sse;

pub(crate) use call::{HttpCall, WEIGHTS_TYPE, with_reply_id};
pub(crate) use error::ApiError;
pub(crate) use fields::{Fields, parse_token_ids};
pub(crate) use json::to_json;
pub(crate) use json_room::JsonRoom;
pub(crate) use reply::{
    HttpReply, ReplyBody, empty_reply, error_reply, event_reply, json_reply, raw_json_reply,
    text_reply, typed_reply,
};
pub(crate) use sse::{EventQueue, EventStream, Events};
