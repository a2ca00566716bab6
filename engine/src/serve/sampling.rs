//! The fields of a request that say how tokens are chosen and when a reply ends.

use std::sync::Arc;

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, token_ids};
use super::form;
use crate::Card;
use crate::sample::Params;
use crate::sequence::StopRules;

/// The smallest temperature that is not greedy; lower ones are raised to it, as in vLLM.
const LEAST_TEMPERATURE: f32 = 0.01;

/// The farthest that a bias moves a logit, as in OpenAI's service.
const MOST_BIAS: f64 = 100.0;

/// Ids whose logprobs one request may ask for.
const MAX_LOGPROB_IDS: usize = 128;

/// Runs of ids that one request may forbid.
const MAX_BAD_WORDS: usize = 512;

/// A count of alternatives that is not larger than the server allows; -1 is the whole vocabulary.
pub(super) fn alternatives(
    fields: &Fields,
    card: &Card,
    name: &str,
) -> Result<Option<usize>, ApiError> {
    let Some(number) = fields.integer(name)? else { return Ok(None) };
    let count = match usize::try_from(number) {
        Ok(count) => count,
        Err(_) if number == -1 => card.vocab,
        Err(_) => {
            let message = format!("must be non-negative or -1, got {number}");
            return Err(ApiError::bad(name, message));
        }
    };
    if count > card.max_logprobs {
        let most = card.max_logprobs;
        return Err(ApiError::bad(name, format!("must be at most {most}, got {number}")));
    }
    Ok(Some(count.min(card.vocab)))
}

/// Everything but the seed, which each choice has for itself.
pub(super) fn params(
    fields: &Fields,
    card: &Card,
    logprobs: Option<usize>,
) -> Result<Params, ApiError> {
    let defaults = &card.defaults;
    let within = |name: &str, default: f32, fits: fn(f32) -> bool, range: &str| {
        let value = fields.number(name)?.unwrap_or(default);
        if fits(value) {
            return Ok(value);
        }
        Err(ApiError::bad(name, format!("must be {range}, got {value}")))
    };
    let positive = |name, default| {
        within(name, default, |value| value > 0.0 && value.is_finite(), "a positive number")
    };
    let penalty = |name| within(name, 0.0, |value| (-2.0..=2.0).contains(&value), "in [-2, 2]");
    let temperature = within(
        "temperature",
        defaults.temperature,
        |value| value >= 0.0 && value.is_finite(),
        "a non-negative number",
    )?;
    let logprob_ids = logprob_ids(fields, card, logprobs)?;
    Ok(Params {
        temperature: if temperature > 0.0 { temperature.max(LEAST_TEMPERATURE) } else { 0.0 },
        top_p: within("top_p", defaults.top_p, |p| p > 0.0 && p <= 1.0, "in (0, 1]")?,
        top_k: top_k(fields, card)?,
        min_p: within("min_p", defaults.min_p, |p| (0.0..=1.0).contains(&p), "in [0, 1]")?,
        presence_penalty: penalty("presence_penalty")?,
        frequency_penalty: penalty("frequency_penalty")?,
        repetition_penalty: positive("repetition_penalty", defaults.repetition_penalty)?,
        logit_bias: logit_bias(fields, card)?,
        allowed: allowed(fields, card)?,
        bad_words: bad_words(fields, card)?,
        seed: 0,
        logprobs,
        logprob_ids,
        grammar: form::grammar(fields, card)?,
    })
}

fn top_k(fields: &Fields, card: &Card) -> Result<usize, ApiError> {
    let top_k = fields.integer("top_k")?.unwrap_or(card.defaults.top_k as i64);
    if top_k < -1 {
        return Err(ApiError::bad("top_k", format!("must be 0 or -1 (off) or more, got {top_k}")));
    }
    Ok(usize::try_from(top_k).unwrap_or(0))
}

/// An object from ids, as strings, to numbers.
fn logit_bias(fields: &Fields, card: &Card) -> Result<Arc<[(u32, f32)]>, ApiError> {
    const FIELD: &str = "logit_bias";
    let Some(map) = fields.object(FIELD)? else { return Ok(Arc::default()) };
    let bias = |(key, value): (&String, &Value)| {
        let id = key.parse().ok().filter(|id| (*id as usize) < card.vocab);
        let id: u32 = id.ok_or_else(|| {
            let message = format!("has the key `{key}`, which is no token id below {}", card.vocab);
            ApiError::bad(FIELD, message)
        })?;
        let bias = value.as_f64();
        let bias = bias.ok_or_else(|| ApiError::bad(FIELD, format!("has no number at `{key}`")))?;
        Ok((id, bias.clamp(-MOST_BIAS, MOST_BIAS) as f32))
    };
    map.iter().map(bias).collect()
}

fn allowed(fields: &Fields, card: &Card) -> Result<Option<Arc<[u32]>>, ApiError> {
    const FIELD: &str = "allowed_token_ids";
    let Some(list) = fields.list(FIELD)? else { return Ok(None) };
    let mut ids = token_ids(FIELD, list, card.vocab)?;
    if ids.is_empty() {
        return Err(ApiError::bad(FIELD, "is empty, so nothing could be sampled"));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids.into()))
}

fn logprob_ids(
    fields: &Fields,
    card: &Card,
    logprobs: Option<usize>,
) -> Result<Option<Arc<[u32]>>, ApiError> {
    const FIELD: &str = "logprob_token_ids";
    let Some(list) = fields.list(FIELD)? else { return Ok(None) };
    if list.is_empty() || list.len() > MAX_LOGPROB_IDS {
        let message = format!("must hold 1 to {MAX_LOGPROB_IDS} ids, got {}", list.len());
        return Err(ApiError::bad(FIELD, message));
    }
    if logprobs.is_none() {
        return Err(ApiError::bad(FIELD, "can only be given together with `logprobs`"));
    }
    Ok(Some(token_ids(FIELD, list, card.vocab)?.into()))
}

/// Each word as it is spelled at the start of a text and, if that is as long, after a space.
fn bad_words(fields: &Fields, card: &Card) -> Result<Arc<[Vec<u32>]>, ApiError> {
    const FIELD: &str = "bad_words";
    let mut words: Vec<Vec<u32>> = Vec::new();
    for word in fields.list(FIELD)?.into_iter().flatten() {
        let Some(word) = word.as_str() else {
            return Err(ApiError::bad(FIELD, "must be a list of strings"));
        };
        let encode = |text: &str| {
            card.tokenizer.encode(text, false).map_err(|error| ApiError::bad(FIELD, error))
        };
        let plain = encode(word.trim_start())?;
        let spaced = encode(&format!(" {}", word.trim_start()))?;
        let Some(first) = plain.first().copied() else {
            return Err(ApiError::bad(FIELD, "must not hold a text without tokens"));
        };
        let (same, len) = (spaced.first() == Some(&first), plain.len());
        words.push(plain);
        if !same && spaced.len() == len {
            words.push(spaced);
        }
    }
    if words.len() > MAX_BAD_WORDS {
        let message = format!("make {} runs of tokens, at most {MAX_BAD_WORDS} fit", words.len());
        return Err(ApiError::bad(FIELD, message));
    }
    Ok(words.into())
}

/// Ids that may end a reply by a request.
const MAX_STOP_IDS: usize = 1024;

/// Texts that may end a reply, and their bytes in all: each is looked for behind every token.
const MAX_STOPS: usize = 256;
const MAX_STOP_BYTES: usize = 16 << 10;

/// Everything but `max_tokens`, which depends on the prompt.
pub(super) fn stops(fields: &Fields, card: &Card) -> Result<StopRules, ApiError> {
    let ignore_eos = fields.flag("ignore_eos", false)?;
    const IDS: &str = "stop_token_ids";
    let ids = fields.ids(IDS, card.vocab)?;
    if ids.len() > MAX_STOP_IDS {
        let message = format!("must hold at most {MAX_STOP_IDS} ids, got {}", ids.len());
        return Err(ApiError::bad(IDS, message));
    }
    Ok(StopRules {
        // An end that is ignored is not an early one either before `min_tokens`.
        late: card.eos.iter().chain(&ids).copied().collect(),
        eos: if ignore_eos { Vec::new() } else { card.eos.clone() },
        ids: ids.into(),
        texts: stop_texts(fields)?,
        include_text: fields.flag("include_stop_str_in_output", false)?,
        skip_special_tokens: fields.flag("skip_special_tokens", true)?,
        max_tokens: 0,
        min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
    })
}

fn stop_texts(fields: &Fields) -> Result<Arc<[String]>, ApiError> {
    let texts = match fields.get("stop") {
        None => return Ok(Arc::default()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(text) => std::slice::from_ref(text),
    };
    let bytes = texts.iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
    if texts.len() > MAX_STOPS || bytes > MAX_STOP_BYTES {
        let message = format!("must be at most {MAX_STOPS} texts of {MAX_STOP_BYTES} bytes in all");
        return Err(ApiError::bad("stop", message));
    }
    let text = |value: &Value| match value {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::bad("stop", "cannot contain an empty string"))
        }
        Value::String(text) => Ok(text.clone()),
        _ => Err(ApiError::bad("stop", "must be a string or a list of strings")),
    };
    texts.iter().map(text).collect()
}
