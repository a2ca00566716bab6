//! What chat and completions requests have in common.

use std::sync::Arc;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use crate::Card;
use crate::sample::Params;
use crate::sequence::StopRules;

/// The largest number of alternatives that a logprob entry may have (vLLM's `max_logprobs`).
pub(super) const MAX_LOGPROBS: usize = 20;

/// The smallest temperature that is not greedy; lower ones are raised to it, as in vLLM.
const LEAST_TEMPERATURE: f32 = 0.01;

/// What a reply is to show besides text.
#[derive(Clone, Debug)]
pub(super) struct Show {
    /// Alternatives of each token, or no logprobs at all.
    pub(super) logprobs: Option<usize>,
    pub(super) token_ids: bool,
    /// Whether tokens are named `token_id:N` rather than by their text.
    pub(super) ids_as_tokens: bool,
    pub(super) weight_versions: bool,
    /// Whether a stream ends with usage.
    pub(super) usage: bool,
    /// Whether every chunk of a stream has usage.
    pub(super) continuous_usage: bool,
    pub(super) stream: bool,
}

/// How to generate, for every prompt of a call.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) n: usize,
    /// The seed of the request, if it has one.
    pub(super) seed: Option<u64>,
    /// Everything but the seed, which each choice has for itself.
    pub(super) params: Params,
    /// Everything but `max_tokens`, which depends on the prompt.
    pub(super) stops: StopRules,
    pub(super) priority: i64,
    pub(super) cache_salt: Option<Arc<str>>,
    /// Alternatives of each token of the prompt, if those are scored at all.
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) show: Show,
}

impl Ask {
    /// Reads the fields that both routes know; `logprobs` is read by the route.
    pub(super) fn parse(
        fields: &Fields,
        card: &Card,
        logprobs: Option<usize>,
    ) -> Result<Ask, ApiError> {
        refuse_unsupported(fields)?;
        let (n, params) = (fields.count("n", 1)?.unwrap_or(1), params(fields, card)?);
        if n > 1 && params.temperature == 0.0 {
            return Err(ApiError::bad("n", format!("must be 1 for greedy sampling, got {n}")));
        }
        Ok(Ask {
            n,
            seed: fields.seed("seed")?,
            params: Params { logprobs, ..params },
            stops: stops(fields, card)?,
            priority: fields.integer("priority")?.unwrap_or(0),
            cache_salt: cache_salt(fields)?,
            prompt_logprobs: None,
            show: show(fields, logprobs)?,
        })
    }
}

/// The model that is asked for must be the one that is served; none means that one.
pub(super) fn check_model(fields: &Fields, card: &Card) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(name) if name != card.name => Err(ApiError::no_model(name)),
        _ => Ok(()),
    }
}

/// The limit of a reply to `prompt` tokens; what the context leaves if none was `wanted`.
pub(super) fn max_tokens(
    card: &Card,
    prompt: usize,
    wanted: Option<(&str, usize)>,
) -> Result<usize, ApiError> {
    let left = card.max_model_len - prompt;
    match wanted {
        None => Ok(left),
        Some((_, count)) if count <= left => Ok(count),
        Some((param, count)) => {
            let context = card.max_model_len;
            let message = format!(
                "is too large: {count}. This model's maximum context length is {context} tokens \
                 and your request has {prompt} input tokens ({count} > {context} - {prompt})."
            );
            Err(ApiError::bad(param, message))
        }
    }
}

fn params(fields: &Fields, card: &Card) -> Result<Params, ApiError> {
    let defaults = &card.defaults;
    let within = |name: &str, default: f32, fits: fn(f32) -> bool, range: &str| {
        let value = fields.number(name)?.unwrap_or(default);
        if fits(value) {
            return Ok(value);
        }
        Err(ApiError::bad(name, format!("must be {range}, got {value}")))
    };
    let temperature = within(
        "temperature",
        defaults.temperature,
        |value| value >= 0.0 && value.is_finite(),
        "a non-negative number",
    )?;
    let top_k = fields.integer("top_k")?.unwrap_or(defaults.top_k as i64);
    if top_k < -1 {
        return Err(ApiError::bad("top_k", format!("must be 0 or -1 (off) or more, got {top_k}")));
    }
    Ok(Params {
        temperature: if temperature > 0.0 { temperature.max(LEAST_TEMPERATURE) } else { 0.0 },
        top_p: within("top_p", defaults.top_p, |p| p > 0.0 && p <= 1.0, "in (0, 1]")?,
        top_k: usize::try_from(top_k).unwrap_or(0),
        min_p: within("min_p", defaults.min_p, |p| (0.0..=1.0).contains(&p), "in [0, 1]")?,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: within(
            "repetition_penalty",
            defaults.repetition_penalty,
            |value| value > 0.0 && value.is_finite(),
            "a positive number",
        )?,
        logit_bias: Arc::default(),
        allowed: None,
        bad_words: Arc::default(),
        seed: 0,
        logprobs: None,
        logprob_ids: None,
    })
}

fn cache_salt(fields: &Fields) -> Result<Option<Arc<str>>, ApiError> {
    match fields.text("cache_salt")? {
        Some("") => Err(ApiError::bad("cache_salt", "must not be empty")),
        salt => Ok(salt.map(Arc::from)),
    }
}

fn stops(fields: &Fields, card: &Card) -> Result<StopRules, ApiError> {
    let ignore_eos = fields.flag("ignore_eos", false)?;
    Ok(StopRules {
        eos: if ignore_eos { Vec::new() } else { card.eos.clone() },
        ids: fields.ids("stop_token_ids", card.vocab)?,
        texts: stop_texts(fields)?,
        include_text: fields.flag("include_stop_str_in_output", false)?,
        skip_special_tokens: fields.flag("skip_special_tokens", true)?,
        max_tokens: 0,
        min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
    })
}

fn stop_texts(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let texts = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(text) => std::slice::from_ref(text),
    };
    let text = |value: &Value| match value {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::bad("stop", "cannot contain an empty string"))
        }
        Value::String(text) => Ok(text.clone()),
        _ => Err(ApiError::bad("stop", "must be a string or a list of strings")),
    };
    texts.iter().map(text).collect()
}

fn show(fields: &Fields, logprobs: Option<usize>) -> Result<Show, ApiError> {
    let stream = fields.flag("stream", false)?;
    let options = fields.object("stream_options")?;
    if options.is_some() && !stream {
        return Err(ApiError::bad("stream_options", "can only be given when `stream` is true"));
    }
    let option = |name: &str| match options.and_then(|options| options.get(name)) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::bad("stream_options", format!(".{name} must be a boolean"))),
    };
    let usage = option("include_usage")?;
    Ok(Show {
        logprobs,
        token_ids: fields.flag("return_token_ids", false)?,
        ids_as_tokens: fields.flag("return_tokens_as_token_ids", false)?,
        weight_versions: fields.flag("return_weight_versions", false)?,
        usage,
        // vLLM ignores it without `include_usage`.
        continuous_usage: option("continuous_usage_stats")? && usage,
        stream,
    })
}

/// Fields that would change what is sampled and that this engine does not know: to ignore them
/// would be to answer another question.
fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    let neutral = [("presence_penalty", 0.0), ("frequency_penalty", 0.0)];
    for (name, neutral) in neutral {
        if fields.number(name)?.is_some_and(|value| value != neutral) {
            return Err(ApiError::bad(name, format!("other than {neutral} is not supported")));
        }
    }
    for name in ["echo", "use_beam_search"] {
        if fields.flag(name, false)? {
            return Err(ApiError::bad(name, "is not supported"));
        }
    }
    let absent = [
        "suffix",
        "prompt_logprobs",
        "prompt_embeds",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "allowed_token_ids",
        "bad_words",
        "logit_bias",
        "logits_processors",
        "truncate_prompt_tokens",
        "chat_template",
    ];
    for name in absent {
        if fields.get(name).is_some_and(|value| !is_empty(value)) {
            return Err(ApiError::bad(name, "is not supported"));
        }
    }
    match fields.object("response_format")?.and_then(|format| format.get("type")) {
        None => Ok(()),
        Some(kind) if kind == "text" => Ok(()),
        Some(kind) => Err(ApiError::bad("response_format", format!("{kind} is not supported"))),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// The rules of one prompt.
pub(super) fn rules(ask: &Ask, max_tokens: usize) -> Result<Arc<StopRules>, ApiError> {
    let min_tokens = ask.stops.min_tokens;
    if min_tokens > max_tokens {
        let message = format!("must be at most `max_tokens` = {max_tokens}, got {min_tokens}");
        return Err(ApiError::bad("min_tokens", message));
    }
    Ok(Arc::new(StopRules { max_tokens, ..ask.stops.clone() }))
}
