//! HTTP without the engine: calls, replies, errors, JSON fields and server-sent events.

mod call;
mod error;
mod fields;
mod json;
mod json_room;
mod query;
mod reply;
mod sse;

pub(crate) use call::{BodySpec, HttpCall, with_reply_id};
pub(crate) use error::ApiError;
pub(crate) use fields::{Field, FieldKind, Fields, parse_token_ids};
pub(crate) use json::to_json;
pub(crate) use json_room::JsonRoom;
pub(crate) use query::Query;
pub(crate) use reply::{
    HttpReply, ReplyBody, empty_reply, error_reply, event_reply, json_reply, raw_json_reply,
    text_reply, typed_reply,
};
pub(crate) use sse::{EventQueue, EventStream, Events};
