//! Text to token ids.
//!
//! A text may be as long as a request, and would take seconds and hundreds of times its length in
//! memory to encode. A text that is far longer than the context is therefore refused by its length
//! in bytes, and long texts are encoded one after another, where they do not block other
//! connections.

use template::TokenizerError;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::bounds::{SHORT_TEXT_BYTES, TEXT_BYTES_MIN, TEXT_BYTES_PER_TOKEN_MAX};
use crate::info::ModelInfo;
use crate::serve::calls::ApiError;

/// Encodes a prompt that must fit the model whole. `param` is the field to blame; `special` adds
/// the tokenizer's special tokens around the text.
pub(crate) fn encode_prompt(
    param: &str,
    text: &str,
    special: bool,
    model: &ModelInfo,
) -> Result<Vec<u32>, ApiError> {
    check_bytes(param, text, model)?;
    encode_any_length(param, text, special, model)
}

/// Encodes a text of which the model may get only a part, or that is only counted.
pub(crate) fn encode_any_length(
    param: &str,
    text: &str,
    special: bool,
    model: &ModelInfo,
) -> Result<Vec<u32>, ApiError> {
    encode_in_room(param, text, model, || model.tokenizer.encode(text, special))
}

/// Encodes the rest of a prompt, which stands behind other text.
pub(crate) fn encode_after(
    param: &str,
    text: &str,
    model: &ModelInfo,
) -> Result<Vec<u32>, ApiError> {
    check_bytes(param, text, model)?;
    encode_in_room(param, text, model, || model.tokenizer.encode_after(text))
}

/// Refuses a prompt that is empty or leaves no room for a reply.
pub(crate) fn check_length(param: &str, ids: &[u32], model: &ModelInfo) -> Result<(), ApiError> {
    match ids.len() {
        0 => Err(ApiError::bad_field(param, "must give at least one token")),
        len if len >= model.max_model_len => {
            Err(ApiError::prompt_too_long(param, too_long(&len.to_string(), model)))
        }
        _ => Ok(()),
    }
}

/// Refuses a text that does not fit even if all its tokens are the longest of the vocabulary.
fn check_bytes(param: &str, text: &str, model: &ModelInfo) -> Result<(), ApiError> {
    let Some(longest) = model.tokenizer.max_token_bytes() else { return Ok(()) };
    let least = text.len() / longest;
    if least < model.max_model_len {
        return Ok(());
    }
    Err(ApiError::prompt_too_long(param, too_long(&format!("at least {least}"), model)))
}

fn too_long(tokens: &str, model: &ModelInfo) -> String {
    let context = model.max_model_len;
    format!(
        "has {tokens} tokens, which leaves no room for a reply: this model's maximum context \
         length is {context} tokens"
    )
}

/// Encodes a text that is not far longer than the context, once there is room for it.
fn encode_in_room(
    param: &str,
    text: &str,
    model: &ModelInfo,
    encode: impl FnOnce() -> Result<Vec<u32>, TokenizerError>,
) -> Result<Vec<u32>, ApiError> {
    let most = model.max_model_len.saturating_mul(TEXT_BYTES_PER_TOKEN_MAX).max(TEXT_BYTES_MIN);
    if text.len() > most {
        let message = format!("has {} bytes of text; at most {most} are encoded", text.len());
        return Err(ApiError::prompt_too_long(param, message));
    }

    let encoded = match text.len() {
        0..=SHORT_TEXT_BYTES => encode(),
        bytes => run_blocking(|| {
            let _permit = model.text_work.acquire(bytes);
            encode()
        }),
    };
    encoded.map_err(|error| ApiError::bad_field(param, error))
}

/// Runs slow work without blocking other connections, if the runtime has other threads for them.
pub(super) fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
