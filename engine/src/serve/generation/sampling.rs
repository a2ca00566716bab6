//! The fields that say how tokens are chosen and when a reply ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::bounds::{
    BAD_WORD_BYTES_MAX, BAD_WORDS_MAX, LOGPROB_IDS_MAX, STOP_BYTES_MAX, STOP_IDS_MAX, STOPS_MAX,
};
use crate::info::ModelInfo;
use crate::sample::SamplingParams;
use crate::schedule::request::StopRules;
use crate::serve::calls::{ApiError, Fields, parse_token_ids};

/// The smallest temperature that is not greedy; lower ones are raised to it, as in vLLM.
const MIN_TEMPERATURE: f32 = 0.01;

/// The largest bias of a logit, as in OpenAI's service; larger ones are clamped.
const MAX_BIAS: f64 = 100.0;

/// Reads a number of alternatives; -1 stands for the whole vocabulary.
///
/// # Errors
/// 400 if the server reports fewer (`--max-logprobs`).
pub(crate) fn alternatives(
    fields: &Fields,
    model: &ModelInfo,
    name: &str,
) -> Result<Option<usize>, ApiError> {
    let Some(number) = fields.integer(name)? else { return Ok(None) };
    let count = match usize::try_from(number) {
        Ok(count) => count,
        Err(_) if number == -1 => model.vocab,
        Err(_) => {
            let message = format!("must be non-negative or -1, got {number}");
            return Err(ApiError::bad_field(name, message));
        }
    };

    if count > model.max_logprobs {
        let message = format!("must be at most {}, got {number}", model.max_logprobs);
        return Err(ApiError::bad_field(name, message));
    }
    Ok(Some(count.min(model.vocab)))
}

/// Reads the sampling parameters. The seed stays 0, because it differs by choice; the grammar and
/// the budget of reasoning stay absent, because they depend on the prompt.
pub(super) fn parse_params(
    fields: &Fields,
    model: &ModelInfo,
    logprobs: Option<usize>,
) -> Result<SamplingParams, ApiError> {
    let defaults = &model.defaults;
    let temperature = at_least_zero(fields, "temperature", defaults.temperature)?;
    let logprob_ids = parse_logprob_ids(fields, model, logprobs)?;

    Ok(SamplingParams {
        temperature: if temperature > 0.0 { temperature.max(MIN_TEMPERATURE) } else { 0.0 },
        top_p: checked(fields, "top_p", defaults.top_p, |p| p > 0.0 && p <= 1.0, "in (0, 1]")?,
        top_k: parse_top_k(fields, model)?,
        min_p: checked(fields, "min_p", defaults.min_p, |p| (0.0..=1.0).contains(&p), "in [0, 1]")?,
        presence_penalty: penalty(fields, "presence_penalty", defaults.presence_penalty)?,
        frequency_penalty: penalty(fields, "frequency_penalty", defaults.frequency_penalty)?,
        repetition_penalty: positive(fields, "repetition_penalty", defaults.repetition_penalty)?,
        logit_bias: parse_logit_bias(fields, model)?,
        allowed: parse_allowed(fields, model)?,
        bad_words: parse_bad_words(fields, model)?,
        seed: 0,
        logprobs,
        logprob_ids,
        grammar: None,
        thought: None,
    })
}

/// Reads a number that must satisfy `is_valid`; `range` names the numbers that do.
fn checked(
    fields: &Fields,
    name: &str,
    default: f32,
    is_valid: fn(f32) -> bool,
    range: &str,
) -> Result<f32, ApiError> {
    let value = fields.number(name)?.unwrap_or(default);
    if is_valid(value) {
        return Ok(value);
    }
    Err(ApiError::bad_field(name, format!("must be {range}, got {value}")))
}

fn at_least_zero(fields: &Fields, name: &str, default: f32) -> Result<f32, ApiError> {
    let is_valid = |value: f32| value >= 0.0 && value.is_finite();
    checked(fields, name, default, is_valid, "a non-negative number")
}

fn positive(fields: &Fields, name: &str, default: f32) -> Result<f32, ApiError> {
    let is_valid = |value: f32| value > 0.0 && value.is_finite();
    checked(fields, name, default, is_valid, "a positive number")
}

fn penalty(fields: &Fields, name: &str, default: f32) -> Result<f32, ApiError> {
    checked(fields, name, default, |value| (-2.0..=2.0).contains(&value), "in [-2, 2]")
}

fn parse_top_k(fields: &Fields, model: &ModelInfo) -> Result<usize, ApiError> {
    let top_k = fields.integer("top_k")?.unwrap_or(model.defaults.top_k as i64);
    if top_k < -1 {
        let message = format!("must be 0 or -1 (off) or more, got {top_k}");
        return Err(ApiError::bad_field("top_k", message));
    }
    Ok(usize::try_from(top_k).unwrap_or(0))
}

/// Reads an object from token ids, as strings, to biases.
fn parse_logit_bias(fields: &Fields, model: &ModelInfo) -> Result<Arc<[(u32, f32)]>, ApiError> {
    const FIELD: &str = "logit_bias";
    let Some(map) = fields.object(FIELD)? else { return Ok(Arc::default()) };

    // Several spellings of an id add up.
    let mut biases: BTreeMap<u32, f32> = BTreeMap::new();
    for (key, value) in map {
        let Some(id) = key.parse::<u32>().ok().filter(|id| (*id as usize) < model.vocab) else {
            let vocab = model.vocab;
            let message = format!("has the key `{key}`, which is no token id below {vocab}");
            return Err(ApiError::bad_field(FIELD, message));
        };
        let Some(bias) = value.as_f64() else {
            return Err(ApiError::bad_field(FIELD, format!("has no number at `{key}`")));
        };
        *biases.entry(id).or_default() += bias.clamp(-MAX_BIAS, MAX_BIAS) as f32;
    }
    Ok(biases.into_iter().collect())
}

fn parse_allowed(fields: &Fields, model: &ModelInfo) -> Result<Option<Arc<[u32]>>, ApiError> {
    const FIELD: &str = "allowed_token_ids";
    let Some(list) = fields.list(FIELD)? else { return Ok(None) };
    let mut ids = parse_token_ids(FIELD, list, model.vocab)?;
    if ids.is_empty() {
        return Err(ApiError::bad_field(FIELD, "is empty, so nothing could be sampled"));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids.into()))
}

fn parse_logprob_ids(
    fields: &Fields,
    model: &ModelInfo,
    logprobs: Option<usize>,
) -> Result<Option<Arc<[u32]>>, ApiError> {
    const FIELD: &str = "logprob_token_ids";
    let Some(list) = fields.list(FIELD)? else { return Ok(None) };
    if list.is_empty() || list.len() > LOGPROB_IDS_MAX {
        let message = format!("must hold 1 to {LOGPROB_IDS_MAX} ids, got {}", list.len());
        return Err(ApiError::bad_field(FIELD, message));
    }
    if logprobs.is_none() {
        return Err(ApiError::bad_field(FIELD, "can only be given together with `logprobs`"));
    }
    Ok(Some(parse_token_ids(FIELD, list, model.vocab)?.into()))
}

/// Reads the forbidden texts as token sequences. A text is also forbidden after a space if it has
/// as many tokens there and begins with another one.
fn parse_bad_words(fields: &Fields, model: &ModelInfo) -> Result<Arc<[Vec<u32>]>, ApiError> {
    const FIELD: &str = "bad_words";
    let encode = |text: &str| {
        model.tokenizer.encode(text, false).map_err(|error| ApiError::bad_field(FIELD, error))
    };

    let words = fields.list(FIELD)?.unwrap_or_default();
    let bytes = words.iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
    if words.len() > BAD_WORDS_MAX || bytes > BAD_WORD_BYTES_MAX {
        let message =
            format!("must be at most {BAD_WORDS_MAX} texts of {BAD_WORD_BYTES_MAX} bytes in all");
        return Err(ApiError::bad_field(FIELD, message));
    }

    let mut sequences: Vec<Vec<u32>> = Vec::new();
    for word in words {
        let Some(word) = word.as_str().map(str::trim_start) else {
            return Err(ApiError::bad_field(FIELD, "must be a list of strings"));
        };
        // In most vocabularies a word behind a space is another token.
        let plain = encode(word)?;
        let spaced = encode(&format!(" {word}"))?;
        if plain.is_empty() {
            return Err(ApiError::bad_field(FIELD, "must not hold a text without tokens"));
        }
        let is_other = spaced.first() != plain.first() && spaced.len() == plain.len();
        sequences.push(plain);
        sequences.extend(is_other.then_some(spaced));
    }

    if sequences.len() > BAD_WORDS_MAX {
        let count = sequences.len();
        let message = format!("make {count} sequences of tokens, at most {BAD_WORDS_MAX} fit");
        return Err(ApiError::bad_field(FIELD, message));
    }
    Ok(sequences.into())
}

/// Reads the stop rules. `max_tokens` stays 0, because it depends on the prompt.
pub(super) fn parse_stops(fields: &Fields, model: &ModelInfo) -> Result<StopRules, ApiError> {
    const IDS: &str = "stop_token_ids";
    let ignore_eos = fields.flag("ignore_eos", false)?;
    let mut ids = fields.token_ids(IDS, u32::MAX as usize)?;
    if ids.len() > STOP_IDS_MAX {
        let message = format!("must hold at most {STOP_IDS_MAX} ids, got {}", ids.len());
        return Err(ApiError::bad_field(IDS, message));
    }
    // An id that the model does not have is never sampled. Clients name those of several models.
    ids.retain(|id| (*id as usize) < model.vocab);

    Ok(StopRules {
        // Before `min_tokens`, an end-of-sequence token that is ignored may not come either.
        late: model.eos.iter().chain(&ids).copied().collect(),
        eos: if ignore_eos { Vec::new() } else { model.eos.clone() },
        ids: ids.into(),
        texts: parse_stop_texts(fields)?,
        include_text: fields.flag("include_stop_str_in_output", false)?,
        skip_special_tokens: fields.flag("skip_special_tokens", true)?,
        max_tokens: 0,
        min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
    })
}

/// Reads `stop`: a text or a list of texts.
fn parse_stop_texts(fields: &Fields) -> Result<Arc<[String]>, ApiError> {
    const FIELD: &str = "stop";
    let texts = match fields.get(FIELD) {
        None => return Ok(Arc::default()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(text) => std::slice::from_ref(text),
    };

    let bytes = texts.iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
    if texts.len() > STOPS_MAX || bytes > STOP_BYTES_MAX {
        let message = format!("must be at most {STOPS_MAX} texts of {STOP_BYTES_MAX} bytes in all");
        return Err(ApiError::bad_field(FIELD, message));
    }
    texts.iter().map(parse_stop_text).collect()
}

fn parse_stop_text(value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::bad_field("stop", "cannot contain an empty string"))
        }
        Value::String(text) => Ok(text.clone()),
        _ => Err(ApiError::bad_field("stop", "must be a string or a list of strings")),
    }
}
