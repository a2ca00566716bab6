//! `/v1/chat/completions/batch`: several conversations in one call.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::calls::{ApiError, Fields, HttpCall, HttpReply, json_reply};
use super::chat;
use super::state::ServerState;
use crate::bounds::{BATCH_CHATS_MAX, JSON_BYTES_MAX};

const MESSAGES: &str = "messages";
/// What one reply for several conversations cannot have.
const REFUSED: [&str; 2] = ["stream", "tools"];

/// Handles `/v1/chat/completions/batch`: one choice for each conversation.
pub(super) async fn chats(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let mut fields = call.fields_with_reply_id("chatcmpl-")?;
    check(&fields)?;
    let Some(Value::Array(conversations)) = fields.take(MESSAGES) else {
        return Err(ApiError::internal());
    };
    // What the conversations share is copied for each of them.
    let copied = fields.json_len().saturating_mul(conversations.len());
    if copied > JSON_BYTES_MAX {
        return Err(ApiError::too_large(JSON_BYTES_MAX));
    }

    let id = fields.reply_id().to_owned();
    let mut calls = JoinSet::new();
    let count = conversations.len();
    for (index, conversation) in conversations.into_iter().enumerate() {
        let one = fields.with(MESSAGES, conversation).with_reply_id(format!("{id}_{index}"));
        let state = Arc::clone(state);
        // Dropping the set, as when the client leaves, ends all of them.
        calls.spawn(async move { whole(&state, &one).await.map(|reply| (index, reply)) });
    }

    let mut replies = vec![Map::new(); count];
    while let Some(done) = calls.join_next().await {
        let (index, reply) = done.map_err(|_| ApiError::internal())??;
        replies[index] = reply;
    }
    Ok(json_reply(&joined(&id, replies)))
}

/// Refuses what a batch cannot have.
fn check(fields: &Fields) -> Result<(), ApiError> {
    let conversations = fields.list(MESSAGES)?.unwrap_or_default();
    let count = conversations.len();
    if count == 0 || count > BATCH_CHATS_MAX {
        let message = format!("must hold 1 to {BATCH_CHATS_MAX} conversations, got {count}");
        return Err(ApiError::bad_field(MESSAGES, message));
    }

    let is_chat = |one: &Value| one.as_array().is_some_and(|messages| !messages.is_empty());
    if let Some(index) = conversations.iter().position(|one| !is_chat(one)) {
        let message = format!("must be a list of conversations; entry {index} is none");
        return Err(ApiError::bad_field(MESSAGES, message));
    }

    for name in REFUSED {
        if fields.get(name).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(ApiError::bad_field(name, "is not available for a batch of chats"));
        }
    }
    match fields.count("n", 1)? {
        None | Some(1) => Ok(()),
        Some(_) => Err(ApiError::bad_field("n", "must be 1 for a batch of chats")),
    }
}

/// Returns the reply to one conversation as an object.
async fn whole(state: &Arc<ServerState>, fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let reply = chat::complete(state, fields).await?;
    debug_assert_eq!(reply.status(), StatusCode::OK);
    let Ok(body) = reply.into_body().collect().await;
    serde_json::from_slice(&body.to_bytes()).map_err(|_| ApiError::internal())
}

/// Makes one reply of those to all conversations: their choices in order, and the sum of their
/// counts. What a single chat says of its prompt beside its choices is left out.
fn joined(id: &str, replies: Vec<Map<String, Value>>) -> Value {
    let mut choices = Vec::with_capacity(replies.len());
    let (mut prompt, mut completion) = (0, 0);
    let mut head = Map::new();
    for (index, mut reply) in replies.into_iter().enumerate() {
        if let Some(Value::Array(list)) = reply.get_mut("choices").map(Value::take) {
            choices.extend(list.into_iter().map(|mut choice| {
                choice["index"] = index.into();
                choice
            }));
        }
        let count = |name: &str| reply["usage"][name].as_u64().unwrap_or(0);
        prompt += count("prompt_tokens");
        completion += count("completion_tokens");
        head = reply;
    }

    for name in ["prefix", "prompt_text", "prompt_logprobs", "prompt_token_ids"] {
        head.remove(name);
    }
    head.insert("id".into(), id.into());
    head.insert("choices".into(), choices.into());
    let total = prompt + completion;
    let usage =
        json!({"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion});
    head.insert("usage".into(), usage);
    Value::Object(head)
}
