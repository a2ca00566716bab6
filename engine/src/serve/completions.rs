//! `/v1/completions`: the request, and the reply in one piece.

use std::sync::Arc;

use hyper::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc::Receiver;

use super::choice::{Choice, Piece, StopReason, WeightVersion, ended, gather};
use super::completions_stream::TextEvents;
use super::encode::{self, check_length};
use super::error::ApiError;
use super::fields::{Fields, token_ids};
use super::logprobs::{PromptTokens, TextLogprobs};
use super::request::{self, Ask, Show};
use super::routes::{ReplyBody, event_reply, json_reply};
use super::sampling::alternatives;
use super::sse::EventStream;
use super::submit::{Prompt, State, choices};
use super::usage::Usage;
use crate::Card;
use crate::sequence::{Output, PromptFacts};

/// Tokens of a reply when the request does not say (vLLM's default).
const DEFAULT_MAX_TOKENS: usize = 16;

/// What the reply needs to know of the call.
pub(super) struct Call {
    pub(super) id: String,
    pub(super) model: Arc<str>,
    pub(super) created: u64,
    pub(super) state: Arc<State>,
    pub(super) n: usize,
    pub(super) show: Show,
    pub(super) prompts: Vec<Prompt>,
    pub(super) echo: Echo,
    prompt_logprobs: bool,
}

/// What a reply says of the text that it continues.
#[derive(Clone, Debug)]
pub(super) enum Echo {
    Nothing,
    /// The texts of the prompts, then what was sampled.
    Before(Vec<Arc<str>>),
    /// The texts of the prompts alone.
    Only(Vec<Arc<str>>),
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

    /// What comes before the sampled text of a choice, if prompts are echoed.
    pub(super) fn echoed(&self, index: usize) -> Option<&str> {
        match &self.echo {
            Echo::Nothing => None,
            Echo::Before(texts) | Echo::Only(texts) => {
                texts.get(index / self.n).map(|text| &**text)
            }
        }
    }

    /// Whether what is sampled is not told.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.echo, Echo::Only(_))
    }

    /// The tokens of a choice's prompt, named and scored, if they were.
    pub(super) fn prompt_tokens_of(
        &self,
        index: usize,
        facts: &PromptFacts,
    ) -> Option<PromptTokens> {
        let scores = facts.scores.as_deref()?;
        Some(PromptTokens::new(&self.state.card.tokenizer, self.prompt(index), scores))
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
    request::check_model(fields, state)?;
    for name in ["suffix", "best_of"] {
        if fields.get(name).is_some_and(|value| value != "") {
            return Err(ApiError::bad(name, "is not supported"));
        }
    }
    let logprobs = alternatives(fields, card, "logprobs")?;
    let mut ask = Ask::parse(fields, state, logprobs)?;
    let prompts = prompts(fields, card, ask.n)?;
    let echo = echo(fields, card, &prompts, ask.show.token_ids)?;
    if !matches!(echo, Echo::Nothing) && ask.prompt_logprobs.is_none() {
        ask.prompt_logprobs = logprobs;
    }
    let prompt_logprobs = ask.prompt_logprobs.is_some();
    let limits = prompts.into_iter().map(|prompt| {
        let stops = request::rules(&ask, limit(fields, card, prompt.ids.len(), &echo)?)?;
        Ok::<_, ApiError>(Prompt { ids: prompt.ids, stops })
    });
    let prompts: Vec<Prompt> = limits.collect::<Result<_, _>>()?;
    let outputs = state.gate.submit(card.seed, &ask, &prompts)?;
    let Ask { n, show, model, .. } = ask;
    let (created, state) = (crate::now(), Arc::clone(state));
    let call = Call { id, model, created, state, n, show, prompts, echo, prompt_logprobs };
    if call.show.stream {
        return Ok(event_reply(EventStream::new(outputs, TextEvents::new(call))));
    }
    whole(&call, outputs).await
}

fn limit(fields: &Fields, card: &Card, prompt: usize, echo: &Echo) -> Result<usize, ApiError> {
    if matches!(echo, Echo::Only(_)) {
        return Ok(1);
    }
    let wanted = fields.count("max_tokens", 1)?;
    let limit = request::max_tokens(card, prompt, wanted.map(|count| ("max_tokens", count)))?;
    // An explicit null asks for what the context leaves.
    let unsaid = wanted.is_none() && !fields.is_null("max_tokens");
    Ok(if unsaid { limit.min(DEFAULT_MAX_TOKENS) } else { limit })
}

/// A prompt as it was given and as the model sees it.
struct Given {
    ids: Arc<[u32]>,
    text: Option<Arc<str>>,
}

/// A text, ids, or a list of either, for `n` replies each.
fn prompts(fields: &Fields, card: &Card, n: usize) -> Result<Vec<Given>, ApiError> {
    const FIELD: &str = "prompt";
    let special = fields.flag("add_special_tokens", true)?;
    let cut = truncation(fields, card)?;
    let one = |prompt: &Value| {
        let mut ids = match prompt {
            Value::String(text) if cut.is_some() => encode::cut(FIELD, text, special, card)?,
            Value::String(text) => encode::prompt(FIELD, text, special, card)?,
            Value::Array(ids) => token_ids(FIELD, ids, card.vocab)?,
            _ => return Err(ApiError::bad(FIELD, "must be a string or a list of token ids")),
        };
        let whole = ids.len();
        if let Some((count, left)) = cut {
            let gone = whole.saturating_sub(count);
            ids.drain(if left { 0..gone } else { count.min(whole)..whole });
        }
        check_length(FIELD, &ids, card)?;
        let text = prompt.as_str().filter(|_| ids.len() == whole);
        Ok(Given { text: text.map(Arc::from), ids: Arc::from(ids) })
    };
    match fields.get(FIELD) {
        Some(Value::Array(list)) if list.is_empty() => Err(ApiError::bad(FIELD, "is empty")),
        Some(Value::Array(list)) if list[0].is_string() || list[0].is_array() => {
            choices(n, list.len())?;
            list.iter().map(one).collect()
        }
        Some(prompt) => Ok(vec![one(prompt)?]),
        None => Err(ApiError::bad(FIELD, "is missing")),
    }
}

/// How many tokens of a prompt are kept, if not all, and whether they are the last ones.
fn truncation(fields: &Fields, card: &Card) -> Result<Option<(usize, bool)>, ApiError> {
    let left = match fields.text("truncation_side")? {
        None | Some("left") => true,
        Some("right") => false,
        Some(_) => return Err(ApiError::bad("truncation_side", "must be `left` or `right`")),
    };
    const FIELD: &str = "truncate_prompt_tokens";
    match fields.integer(FIELD)? {
        None => Ok(None),
        // Room for one token more is always needed.
        Some(-1) => Ok(Some((card.max_model_len - 1, left))),
        Some(count) => match usize::try_from(count) {
            Ok(count) if count > 0 => Ok(Some((count, left))),
            _ => Err(ApiError::bad(FIELD, format!("must be positive or -1, got {count}"))),
        },
    }
}

/// The texts to echo. With ids in the reply there is none: the ids say it better.
fn echo(
    fields: &Fields,
    card: &Card,
    prompts: &[Given],
    token_ids: bool,
) -> Result<Echo, ApiError> {
    if !fields.flag("echo", false)? {
        return Ok(Echo::Nothing);
    }
    let text = |prompt: &Given| match &prompt.text {
        _ if token_ids => Arc::from(""),
        Some(text) => Arc::clone(text),
        None => Arc::from(card.tokenizer.decode(&prompt.ids, false)),
    };
    let texts = prompts.iter().map(text).collect();
    Ok(if fields.integer("max_tokens")? == Some(0) {
        Echo::Only(texts)
    } else {
        Echo::Before(texts)
    })
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
    prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    prompt_token_ids: Option<&'a [u32]>,
    routed_experts: (),
    weight_versions: Option<Vec<WeightVersion>>,
}

async fn whole(call: &Call, outputs: Receiver<Output>) -> Result<Response<ReplyBody>, ApiError> {
    let card = &call.state.card;
    let choices = call.choices();
    let mut gathered = gather(choices, &card.tokenizer, outputs).await;
    if call.is_silent() {
        gathered.iter_mut().for_each(Piece::mute);
    }
    let sampled = gathered.iter().map(|one| one.ids.len()).sum();
    let cached = gathered.iter().step_by(call.n).map(Piece::cached_tokens).sum();
    let mut choices = Vec::with_capacity(gathered.len());
    let mut prompt = None;
    for (index, one) in gathered.into_iter().enumerate() {
        if index % call.n == 0 {
            // The first choice of a prompt knows the scores of the prompt for all of them.
            prompt = one.prompt.as_ref().and_then(|facts| call.prompt_tokens_of(index, facts));
        }
        choices.push(finished(call, index, one, prompt.as_ref())?);
    }
    Ok(json_reply(&Reply {
        id: &call.id,
        object: "text_completion",
        created: call.created,
        model: &call.model,
        choices,
        service_tier: (),
        system_fingerprint: &card.system_fingerprint,
        usage: Usage::new(call.prompt_tokens(), sampled)
            .with_cached(cached)
            .with_completion_details(),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    }))
}

fn finished<'a>(
    call: &'a Call,
    index: usize,
    one: Piece,
    prompt: Option<&PromptTokens>,
) -> Result<ReplyChoice<'a>, ApiError> {
    let end = ended(one.end)?;
    let show = &call.show;
    let (text, logprobs) = match (call.echoed(index), prompt) {
        (None, _) => (one.text, TextLogprobs::of(&one.tokens, show, &mut 0)),
        (Some(echo), None) => (echo.to_owned() + &one.text, None),
        (Some(echo), Some(prompt)) => {
            let logprobs = TextLogprobs::echoed(prompt, &one.tokens, show, &mut 0);
            (echo.to_owned() + &one.text, logprobs)
        }
    };
    Ok(ReplyChoice {
        index,
        text,
        logprobs,
        finish_reason: end.finish_reason(),
        stop_reason: end.stop_reason(),
        token_ids: show.token_ids.then_some(one.ids),
        prompt_logprobs: prompt.filter(|_| call.prompt_logprobs).map(PromptTokens::logprobs),
        prompt_token_ids: show.token_ids.then(|| call.prompt(index)),
        routed_experts: (),
        weight_versions: end.weight_versions(show),
    })
}
