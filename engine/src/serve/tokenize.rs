//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use hyper::Response;
use serde::Serialize;

use super::chat_prompt::ChatPrompt;
use super::encode;
use super::error::ApiError;
use super::fields::{Fields, token_ids};
use super::request;
use super::routes::{ReplyBody, json_reply};
use super::submit::State;

/// The ids of a text, or of messages as chat would render them.
pub(super) fn tokenize(state: &State, fields: &Fields) -> Result<Response<ReplyBody>, ApiError> {
    #[derive(Serialize)]
    struct Reply {
        count: usize,
        max_model_len: usize,
        tokens: Vec<u32>,
        token_strs: Option<Vec<String>>,
    }
    let card = &state.card;
    request::check_model(fields, state)?;
    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let special = fields.flag("add_special_tokens", true)?;
            // Tokens are only counted: no model has to have room for them.
            encode::cut("prompt", text, special, card)?
        }
        None if fields.get("messages").is_some() => {
            let salt = fields.text("cache_salt")?.map(Arc::from);
            ChatPrompt::new(state, fields, salt.as_ref())?.ids.to_vec()
        }
        None => return Err(ApiError::bad("prompt", "or `messages` is missing")),
    };
    let spelled = |id: &u32| card.tokenizer.token(*id).unwrap_or_default();
    let token_strs = fields.flag("return_token_strs", false)?;
    Ok(json_reply(&Reply {
        count: tokens.len(),
        max_model_len: card.max_model_len,
        token_strs: token_strs.then(|| tokens.iter().map(spelled).collect()),
        tokens,
    }))
}

/// The text of ids, special tokens spelled out.
pub(super) fn detokenize(state: &State, fields: &Fields) -> Result<Response<ReplyBody>, ApiError> {
    #[derive(Serialize)]
    struct Reply {
        prompt: String,
    }
    const FIELD: &str = "tokens";
    let card = &state.card;
    request::check_model(fields, state)?;
    let ids = fields.list(FIELD)?.ok_or_else(|| ApiError::bad(FIELD, "is missing"))?;
    let ids = token_ids(FIELD, ids, card.vocab)?;
    Ok(json_reply(&Reply { prompt: card.tokenizer.decode(&ids, false) }))
}
