//! `/v1/completions`: the request, and the reply in one piece.

use std::sync::Arc;

use hyper::Response;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::chat_prompt::check_length;
use super::choice::{Choice, Piece, StopReason, WeightVersion, gather};
use super::completions_stream::TextEvents;
use super::error::ApiError;
use super::fields::{Fields, token_ids};
use super::logprobs::TextLogprobs;
use super::request::{self, Ask, MAX_LOGPROBS, Show};
use super::routes::{ReplyBody, event_reply, json_reply};
use super::sse::EventStream;
use super::submit::{Prompt, State};
use super::usage::Usage;
use crate::Card;
use crate::sequence::{Finish, Output};

/// Tokens of a reply when the request does not say (vLLM's default).
const DEFAULT_MAX_TOKENS: usize = 16;

/// What the reply needs to know of the call.
pub(super) struct Call {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) state: Arc<State>,
    pub(super) n: usize,
    pub(super) show: Show,
    pub(super) prompts: Vec<Prompt>,
}

impl Call {
    /// Choices of all prompts.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let each = self.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, self.n));
        each.map(|prompt| Choice::new(&prompt.stops, &self.show)).collect()
    }

    /// The prompt of a choice; choices are ordered by prompt.
    pub(super) fn prompt(&self, index: usize) -> &[u32] {
        &self.prompts[index / self.n].ids
    }

    /// Tokens of all prompts.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).sum()
    }
}

pub(super) async fn answer(
    state: &Arc<State>,
    id: String,
    fields: &Fields,
) -> Result<Response<ReplyBody>, ApiError> {
    let card = &state.card;
    request::check_model(fields, card)?;
    let logprobs = fields.count("logprobs", 0)?;
    if let Some(count) = logprobs.filter(|count| *count > MAX_LOGPROBS) {
        let message = format!("must be at most {MAX_LOGPROBS}, got {count}");
        return Err(ApiError::bad("logprobs", message));
    }
    let ask = Ask::parse(fields, card, logprobs)?;
    let prompts = prompts(fields, card)?;
    let limits = prompts.into_iter().map(|ids| {
        let stops = request::rules(&ask, limit(fields, card, ids.len())?)?;
        Ok::<_, ApiError>(Prompt { ids, stops })
    });
    let prompts: Vec<Prompt> = limits.collect::<Result<_, _>>()?;
    let outputs = state.gate.submit(card.seed, &ask, &prompts)?;
    let Ask { n, show, .. } = ask;
    let created = crate::now();
    let call = Call { id, created, state: Arc::clone(state), n, show, prompts };
    if call.show.stream {
        return Ok(event_reply(EventStream::new(outputs, TextEvents::new(call))));
    }
    whole(&call, outputs).await
}

fn limit(fields: &Fields, card: &Card, prompt: usize) -> Result<usize, ApiError> {
    let wanted = fields.count("max_tokens", 1)?;
    let limit = request::max_tokens(card, prompt, wanted.map(|count| ("max_tokens", count)))?;
    // An explicit null asks for what the context leaves.
    let unsaid = wanted.is_none() && !fields.is_null("max_tokens");
    Ok(if unsaid { limit.min(DEFAULT_MAX_TOKENS) } else { limit })
}

/// A text, ids, or a list of either.
fn prompts(fields: &Fields, card: &Card) -> Result<Vec<Arc<[u32]>>, ApiError> {
    const FIELD: &str = "prompt";
    let special = fields.flag("add_special_tokens", true)?;
    let one = |prompt: &Value| {
        let ids = match prompt {
            Value::String(text) => {
                card.tokenizer.encode(text, special).map_err(|error| ApiError::bad(FIELD, error))?
            }
            Value::Array(ids) => token_ids(FIELD, ids, card.vocab)?,
            _ => return Err(ApiError::bad(FIELD, "must be a string or a list of token ids")),
        };
        check_length(FIELD, &ids, card)?;
        Ok(Arc::from(ids))
    };
    match fields.get(FIELD) {
        Some(Value::Array(list)) if list.is_empty() => Err(ApiError::bad(FIELD, "is empty")),
        Some(Value::Array(list)) if list[0].is_string() || list[0].is_array() => {
            list.iter().map(one).collect()
        }
        Some(prompt) => Ok(vec![one(prompt)?]),
        None => Err(ApiError::bad(FIELD, "is missing")),
    }
}

#[derive(Serialize)]
struct Reply<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ReplyChoice<'a>>,
    service_tier: (),
    system_fingerprint: &'a str,
    usage: Usage,
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
}

#[derive(Serialize)]
struct ReplyChoice<'a> {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    token_ids: Option<Vec<u32>>,
    prompt_logprobs: (),
    prompt_token_ids: Option<&'a [u32]>,
    routed_experts: (),
    weight_versions: Option<Vec<WeightVersion>>,
}

async fn whole(call: &Call, outputs: Receiver<Output>) -> Result<Response<ReplyBody>, ApiError> {
    let card = &call.state.card;
    let choices = call.choices();
    let gathered = gather(choices, &card.tokenizer, outputs).await;
    let sampled = gathered.iter().map(|one| one.ids.len()).sum();
    let cached = gathered.iter().step_by(call.n).map(Piece::cached_tokens).sum();
    let choices = gathered.into_iter().enumerate().map(|(index, one)| finished(call, index, one));
    Ok(json_reply(&Reply {
        id: &call.id,
        object: "text_completion",
        created: call.created,
        model: &card.name,
        choices: choices.collect::<Result<_, _>>()?,
        service_tier: (),
        system_fingerprint: &card.system_fingerprint,
        usage: Usage::new(call.prompt_tokens(), sampled).with_cached(cached),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    }))
}

fn finished(call: &Call, index: usize, one: Piece) -> Result<ReplyChoice<'_>, ApiError> {
    let end = one.end.filter(|end| end.finish != Finish::Failed).ok_or_else(ApiError::internal)?;
    let show = &call.show;
    Ok(ReplyChoice {
        index,
        text: one.text,
        logprobs: TextLogprobs::of(&one.tokens, show, &mut 0),
        finish_reason: end.finish_reason(),
        stop_reason: end.stop_reason(),
        token_ids: show.token_ids.then_some(one.ids),
        prompt_logprobs: (),
        prompt_token_ids: show.token_ids.then(|| call.prompt(index)),
        routed_experts: (),
        weight_versions: end.weight_versions(show),
    })
}
