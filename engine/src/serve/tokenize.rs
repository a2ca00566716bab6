//! `/tokenize` and `/detokenize`.

use std::path::Path;
use std::sync::Arc;

use http::api::schema::Field;
use serde::Serialize;
use serde_json::{Map, Value};

use super::calls::{ApiError, HttpCall, HttpReply, json_reply, parse_token_ids};
use super::chat::ChatPrompt;
use super::generation::encode_any_length;
use super::state::ServerState;
use crate::bounds::{DETOKENIZED_MIN, DETOKENIZED_PER_TOKEN_MAX};

/// The fields of `/tokenize` besides those of a chat's prompt.
pub(super) const TOKENIZE_FIELDS: &[Field] = &[
    Field::string("model"),
    Field::string("prompt"),
    Field::string("cache_salt"),
    Field::boolean("return_token_strs"),
];

/// The fields of `/detokenize`.
pub(super) const DETOKENIZE_FIELDS: &[Field] = &[Field::string("model"), Field::array(TOKENS)];

const TOKENS: &str = "tokens";

#[derive(Serialize)]
struct TokenizeReply {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
struct DetokenizeReply {
    prompt: String,
}

/// Handles `/tokenize`: the ids of a text, or of messages as chat renders them.
pub(super) async fn tokenize(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields()?;
    let model = &state.model;
    state.check_model(&fields)?;

    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let special = fields.flag("add_special_tokens", true)?;
            // The tokens are only counted, so they need not fit the model.
            encode_any_length("prompt", text, special, model)?
        }
        // The ids are those of a chat with this salt, remembered replies included.
        None if fields.get("messages").is_some() => {
            let salt = fields.cache_salt()?;
            ChatPrompt::new(state, &fields, salt.as_ref())?.ids.to_vec()
        }
        None => return Err(ApiError::bad_field("prompt", "or `messages` is missing")),
    };

    let token_strs = fields
        .flag("return_token_strs", false)?
        .then(|| tokens.iter().map(|id| model.tokenizer.token(*id).unwrap_or_default()).collect());
    Ok(json_reply(&TokenizeReply {
        count: tokens.len(),
        max_model_len: model.max_model_len,
        tokens,
        token_strs,
    }))
}

/// Handles `/tokenizer_info`: the model folder's `tokenizer_config.json`, with the chat template in
/// use.
pub(super) async fn tokenizer_info(
    state: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    let model = &state.model;
    let path = Path::new(&model.root).join("tokenizer_config.json");
    // A model of random weights has no such file.
    let text =
        tokio::task::spawn_blocking(|| std::fs::read(path)).await.map_err(ApiError::failed)?;
    let text = text.unwrap_or_default();
    let mut config: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
    config.entry("tokenizer_class").or_insert_with(|| "PreTrainedTokenizerFast".into());
    if let Some(template) = &model.template {
        config.insert("chat_template".to_owned(), template.source().into());
    }
    Ok(json_reply(&config))
}

/// Handles `/detokenize`: the text of ids, with special tokens spelled out.
pub(super) async fn detokenize(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields()?;
    let model = &state.model;
    state.check_model(&fields)?;
    let Some(list) = fields.list(TOKENS)? else {
        return Err(ApiError::bad_field(TOKENS, "is missing"));
    };
    let most = model.max_model_len.saturating_mul(DETOKENIZED_PER_TOKEN_MAX).max(DETOKENIZED_MIN);
    if list.len() > most {
        let message = format!("holds {} ids; at most {most} are decoded", list.len());
        return Err(ApiError::bad_field(TOKENS, message));
    }
    let ids = parse_token_ids(TOKENS, list, model.vocab)?;
    Ok(json_reply(&DetokenizeReply { prompt: model.tokenizer.decode(&ids, false) }))
}
