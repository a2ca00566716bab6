//! What the requests for replies have in common.

use std::sync::Arc;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::sampling::{self, alternatives};
use super::submit::State;
use crate::Card;
use crate::lora::Adapter;
use crate::sample::Params;
use crate::sequence::StopRules;

/// What a reply is to show besides text.
#[derive(Clone, Debug)]
pub(super) struct Show {
    /// Alternatives of each token, or no logprobs at all.
    pub(super) logprobs: Option<usize>,
    /// Whether each logprob comes with its rank and with both the model's own and the processed
    /// one, whatever the mode is.
    pub(super) both_logprobs: bool,
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
    /// The id of the reply, by which the call can be aborted; empty if it cannot.
    pub(super) id: String,
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
    /// What is added to the model.
    pub(super) adapter: Option<Arc<Adapter>>,
    /// What the reply calls the model.
    pub(super) model: Arc<str>,
}

impl Ask {
    /// Reads the fields that all routes know; `logprobs` is read by the route.
    pub(super) fn parse(
        fields: &Fields,
        state: &State,
        logprobs: Option<usize>,
    ) -> Result<Ask, ApiError> {
        refuse_unsupported(fields)?;
        let card = &state.card;
        let n = fields.count("n", 1)?.unwrap_or(1);
        let params = sampling::params(fields, card, logprobs)?;
        if n > 1 && params.temperature == 0.0 {
            return Err(ApiError::bad("n", format!("must be 1 for greedy sampling, got {n}")));
        }
        let adapter = check_model(fields, state)?;
        let model = adapter.as_ref().map_or_else(|| (*card.name).into(), |one| one.name.clone());
        let show = show(fields, params.logprob_ids.is_some(), logprobs)?;
        Ok(Ask {
            id: fields.id().to_owned(),
            n,
            // vLLM takes -1 as no seed.
            seed: fields.seed("seed")?.filter(|seed| *seed != u64::MAX),
            params,
            stops: sampling::stops(fields, card)?,
            priority: fields.integer("priority")?.unwrap_or(0),
            cache_salt: cache_salt(fields)?,
            prompt_logprobs: prompt_logprobs(fields, card, show.stream)?,
            show,
            adapter,
            model,
        })
    }
}

/// The adapter that is asked for as `model`; none if that is the model itself, or absent.
pub(super) fn check_model(
    fields: &Fields,
    state: &State,
) -> Result<Option<Arc<Adapter>>, ApiError> {
    match fields.text("model")? {
        Some(name) if name != state.card.name => {
            let found = state.adapters.find(name);
            found.map(Some).ok_or_else(|| ApiError::no_model(name, &state.card.name))
        }
        _ => Ok(None),
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

fn cache_salt(fields: &Fields) -> Result<Option<Arc<str>>, ApiError> {
    const FIELD: &str = "cache_salt";
    const LONGEST: usize = 1024;
    match fields.text(FIELD)? {
        Some("") => Err(ApiError::bad(FIELD, "must not be empty")),
        Some(salt) if salt.len() > LONGEST => {
            Err(ApiError::bad(FIELD, format!("must be at most {LONGEST} bytes")))
        }
        salt => Ok(salt.map(Arc::from)),
    }
}

fn prompt_logprobs(fields: &Fields, card: &Card, stream: bool) -> Result<Option<usize>, ApiError> {
    const FIELD: &str = "prompt_logprobs";
    let count = alternatives(fields, card, FIELD)?;
    if stream && count.is_some_and(|count| count > 0) {
        return Err(ApiError::bad(FIELD, "are not available when `stream` is true"));
    }
    // A stream has no place for them.
    Ok(count.filter(|_| !stream))
}

fn show(fields: &Fields, listed: bool, logprobs: Option<usize>) -> Result<Show, ApiError> {
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
        // What was asked for by id is shown whole.
        logprobs: logprobs.map(|count| if listed { usize::MAX } else { count }),
        both_logprobs: fields.flag("return_both_logprobs", false)?,
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
    if fields.flag("use_beam_search", false)? {
        return Err(ApiError::bad("use_beam_search", "is not supported"));
    }
    if fields.integer("thinking_token_budget")?.is_some_and(|budget| budget != -1) {
        return Err(ApiError::bad("thinking_token_budget", "is not supported"));
    }
    for name in ["prompt_embeds", "logits_processors", "repetition_detection", "chat_template"] {
        if fields.get(name).is_some_and(|value| !is_empty(value)) {
            return Err(ApiError::bad(name, "is not supported"));
        }
    }
    Ok(())
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
