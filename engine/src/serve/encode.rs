//! Texts of requests to ids.
//!
//! A text may be as long as a request, and turning it into ids takes seconds then. What could never
//! fit is refused before; and other connections go on meanwhile.

use tokio::runtime::{Handle, RuntimeFlavor};

use super::error::ApiError;
use crate::Card;

/// Bytes of a text that are turned into ids at once, in about a millisecond.
const SHORT: usize = 4 << 10;

/// The ids of a prompt, which is to fit the model whole; `param` is the field to blame. Special
/// tokens around the text are added if `special`.
pub(super) fn prompt(
    param: &str,
    text: &str,
    special: bool,
    card: &Card,
) -> Result<Vec<u32>, ApiError> {
    check_bytes(param, text, card)?;
    cut(param, text, special, card)
}

/// The ids of a text of which only a part may be meant for the model.
pub(super) fn cut(
    param: &str,
    text: &str,
    special: bool,
    card: &Card,
) -> Result<Vec<u32>, ApiError> {
    let encode = || card.tokenizer.encode(text, special);
    let ids = if text.len() > SHORT { aside(encode) } else { encode() };
    ids.map_err(|error| ApiError::bad(param, error))
}

/// The same for a text behind others.
pub(super) fn after(param: &str, text: &str, card: &Card) -> Result<Vec<u32>, ApiError> {
    check_bytes(param, text, card)?;
    let encode = || card.tokenizer.encode_after(text);
    let ids = if text.len() > SHORT { aside(encode) } else { encode() };
    ids.map_err(|error| ApiError::bad(param, error))
}

/// Refuses a prompt that leaves no room for a reply.
pub(super) fn check_length(param: &str, ids: &[u32], card: &Card) -> Result<(), ApiError> {
    match ids.len() {
        0 => Err(ApiError::bad(param, "must give at least one token")),
        len if len >= card.max_model_len => {
            Err(ApiError::too_long(param, too_long(&len.to_string(), card)))
        }
        _ => Ok(()),
    }
}

/// Refuses a text that makes too many tokens however long those are.
fn check_bytes(param: &str, text: &str, card: &Card) -> Result<(), ApiError> {
    let Some(longest) = card.tokenizer.longest() else { return Ok(()) };
    let least = text.len() / longest;
    if least < card.max_model_len {
        return Ok(());
    }
    Err(ApiError::too_long(param, too_long(&format!("at least {least}"), card)))
}

fn too_long(tokens: &str, card: &Card) -> String {
    let context = card.max_model_len;
    format!(
        "has {tokens} tokens, which leaves no room for a reply: this model's maximum context \
         length is {context} tokens"
    )
}

/// Does work that takes long without holding up other connections, where there are threads to go
/// on with them.
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
