//! Text to token ids.
//!
//! A text may be as long as a request, which takes seconds to encode. A prompt that cannot fit the
//! model is therefore refused by its length in bytes first, and long texts are encoded where they
//! do not block other connections.

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::info::ModelInfo;
use crate::serve::http::ApiError;

/// Bytes that take about a millisecond to encode. Longer texts are encoded apart.
const SHORT_BYTES: usize = 4 << 10;

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

/// Encodes a text of which the model may get only a part.
pub(crate) fn encode_any_length(
    param: &str,
    text: &str,
    special: bool,
    model: &ModelInfo,
) -> Result<Vec<u32>, ApiError> {
    run_unless_short(text, || model.tokenizer.encode(text, special))
        .map_err(|error| ApiError::bad_field(param, error))
}

/// Encodes the rest of a prompt, which stands behind other text.
pub(crate) fn encode_after(
    param: &str,
    text: &str,
    model: &ModelInfo,
) -> Result<Vec<u32>, ApiError> {
    check_bytes(param, text, model)?;
    run_unless_short(text, || model.tokenizer.encode_after(text))
        .map_err(|error| ApiError::bad_field(param, error))
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

fn run_unless_short<T>(text: &str, encode: impl FnOnce() -> T) -> T {
    if text.len() > SHORT_BYTES { run_blocking(encode) } else { encode() }
}

/// Runs slow work without blocking other connections, if the runtime has other threads for them.
pub(super) fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
