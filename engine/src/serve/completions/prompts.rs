//! The prompts of a completion, and whether the reply echoes them.

use std::sync::Arc;

use serde_json::Value;

use crate::info::ModelInfo;
use crate::serve::calls::{ApiError, Fields, parse_token_ids};
use crate::serve::engine_client::count_choices;
use crate::serve::generation::{check_length, encode_any_length, encode_prompt};

const PROMPT: &str = "prompt";

/// The part of a reply that repeats the prompts.
#[derive(Clone, Debug)]
pub(super) enum Echo {
    Off,
    /// The texts of the prompts, each before the sampled text.
    Before(Vec<Arc<str>>),
    /// The texts of the prompts alone.
    Only(Vec<Arc<str>>),
}

/// A prompt as ids, and as text where it was given whole as one.
pub(super) struct GivenPrompt {
    pub(super) ids: Arc<[u32]>,
    text: Option<Arc<str>>,
}

/// The tokens of a prompt that are kept.
#[derive(Clone, Copy)]
struct Truncation {
    tokens: usize,
    /// True if the last tokens are kept rather than the first.
    keeps_end: bool,
}

/// Reads `prompt`: a text, a list of ids, or a list of either, for `n` replies each.
pub(super) fn parse_prompts(
    fields: &Fields,
    model: &ModelInfo,
    n: usize,
) -> Result<Vec<GivenPrompt>, ApiError> {
    let special = fields.flag("add_special_tokens", true)?;
    let truncation = parse_truncation(fields, model)?;
    match fields.get(PROMPT) {
        Some(Value::Array(list)) if list.is_empty() => Err(ApiError::bad_field(PROMPT, "is empty")),
        Some(Value::Array(list)) if list[0].is_string() || list[0].is_array() => {
            // Too many choices are refused before any prompt is encoded.
            count_choices(n, list.len())?;
            list.iter().map(|prompt| parse_prompt(prompt, special, truncation, model)).collect()
        }
        Some(prompt) => Ok(vec![parse_prompt(prompt, special, truncation, model)?]),
        None => Err(ApiError::bad_field(PROMPT, "is missing")),
    }
}

fn parse_prompt(
    prompt: &Value,
    special: bool,
    truncation: Option<Truncation>,
    model: &ModelInfo,
) -> Result<GivenPrompt, ApiError> {
    let mut ids = match prompt {
        Value::String(text) if truncation.is_some() => {
            encode_any_length(PROMPT, text, special, model)?
        }
        Value::String(text) => encode_prompt(PROMPT, text, special, model)?,
        Value::Array(ids) => parse_token_ids(PROMPT, ids, model.vocab)?,
        _ => return Err(ApiError::bad_field(PROMPT, "must be a string or a list of token ids")),
    };

    let whole = ids.len();
    if let Some(Truncation { tokens, keeps_end }) = truncation {
        let removed =
            if keeps_end { 0..whole.saturating_sub(tokens) } else { tokens.min(whole)..whole };
        ids.drain(removed);
    }
    check_length(PROMPT, &ids, model)?;

    // The text of a truncated prompt is not the given one.
    let text = prompt.as_str().filter(|_| ids.len() == whole);
    Ok(GivenPrompt { text: text.map(Arc::from), ids: Arc::from(ids) })
}

/// Reads `truncate_prompt_tokens` and `truncation_side`.
fn parse_truncation(fields: &Fields, model: &ModelInfo) -> Result<Option<Truncation>, ApiError> {
    const SIDE: &str = "truncation_side";
    const TOKENS: &str = "truncate_prompt_tokens";
    let keeps_end = match fields.text(SIDE)? {
        None | Some("left") => true,
        Some("right") => false,
        Some(_) => return Err(ApiError::bad_field(SIDE, "must be `left` or `right`")),
    };

    match fields.integer(TOKENS)? {
        None => Ok(None),
        // The context must have room for one more token.
        Some(-1) => Ok(Some(Truncation { tokens: model.max_model_len - 1, keeps_end })),
        Some(count) => match usize::try_from(count) {
            Ok(tokens) if tokens > 0 => Ok(Some(Truncation { tokens, keeps_end })),
            _ => {
                let message = format!("must be positive or -1, got {count}");
                Err(ApiError::bad_field(TOKENS, message))
            }
        },
    }
}

/// Reads the texts to echo. They are empty if the reply has the prompts' ids.
pub(super) fn parse_echo(
    fields: &Fields,
    model: &ModelInfo,
    prompts: &[GivenPrompt],
    has_token_ids: bool,
) -> Result<Echo, ApiError> {
    if !fields.flag("echo", false)? {
        return Ok(Echo::Off);
    }
    let mut texts = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        texts.push(match &prompt.text {
            _ if has_token_ids => Arc::from(""),
            Some(text) => Arc::clone(text),
            None => Arc::from(model.tokenizer.decode(&prompt.ids, false)),
        });
    }
    match fields.integer("max_tokens")? {
        Some(0) => Ok(Echo::Only(texts)),
        _ => Ok(Echo::Before(texts)),
    }
}
