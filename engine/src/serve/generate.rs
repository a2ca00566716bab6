//! `/inference/v1/generate`: ids in, ids out, whole or as a stream.
//!
//! How to sample stands in the object `sampling_params`, in the fields of the other routes; the
//! text comes along only if `output_mode` is `text`.

use std::sync::Arc;

use hyper::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc::Receiver;

use super::choice::{Choice, Piece, StopReason, WeightVersion, ended, gather};
use super::encode::check_length;
use super::error::ApiError;
use super::fields::{Fields, token_ids};
use super::logprobs::{ChatLogprobs, PromptTokens, TokenLogprobs};
use super::request::{self, Ask, Show};
use super::routes::{ReplyBody, event_reply, json_reply};
use super::sampling::alternatives;
use super::sse::{EventStream, Events, Ready};
use super::submit::{Prompt, State};
use super::usage::Usage;
use crate::sequence::{End, Output};

/// Fields of the body that are read where `sampling_params` are.
const OUTER: [&str; 9] = [
    "stream",
    "stream_options",
    "cache_salt",
    "priority",
    "return_token_ids",
    "return_weight_versions",
    "return_tokens_as_token_ids",
    "return_both_logprobs",
    "model",
];

struct Call {
    id: String,
    model: Arc<str>,
    state: Arc<State>,
    n: usize,
    show: Show,
    prompt: Prompt,
    /// Whether the text comes along.
    text: bool,
}

impl Call {
    fn choices(&self) -> Vec<Choice> {
        (0..self.n).map(|_| Choice::new(&self.prompt.stops, &self.show)).collect()
    }

    fn output_mode(&self) -> &'static str {
        if self.text { "text" } else { "tokens" }
    }

    fn prompt_ids(&self) -> Option<&[u32]> {
        self.show.token_ids.then_some(&*self.prompt.ids)
    }

    fn choice(&self, index: usize, piece: Piece) -> TokenChoice {
        let (end, show) = (piece.end.as_ref(), &self.show);
        let logprobs = match self.text {
            true => ChatLogprobs::of(&piece.tokens, show).map(Logprobs::Text),
            false => TokenLogprobs::of(&piece.tokens, show).map(Logprobs::Ids),
        };
        TokenChoice {
            index,
            finish_reason: end.map(End::finish_reason),
            stop_reason: end.and_then(End::stop_reason),
            token_ids: piece.ids,
            routed_experts: (),
            sampling_mask: (),
            // Always part of this reply.
            weight_versions: end.map(End::spans),
            text: self.text.then_some(piece.text),
            logprobs,
        }
    }
}

pub(super) async fn answer(
    state: &Arc<State>,
    id: String,
    fields: &Fields,
) -> Result<Response<ReplyBody>, ApiError> {
    const PROMPT: &str = "token_ids";
    let card = &state.card;
    request::check_model(fields, state)?;
    for name in ["features", "content_parts"] {
        if fields.get(name).is_some() {
            return Err(ApiError::bad(name, "is not supported: the model reads text only"));
        }
    }
    let text = match fields.text("output_mode")? {
        None | Some("tokens") => false,
        Some("text") => true,
        Some(_) => return Err(ApiError::bad("output_mode", "must be `tokens` or `text`")),
    };
    let ids = token_ids(PROMPT, fields.list(PROMPT)?.unwrap_or_default(), card.vocab)?;
    check_length(PROMPT, &ids, card)?;
    let inner = sampling_fields(fields, &id)?;
    let ask = Ask::parse(&inner, state, alternatives(&inner, card, "logprobs")?)?;
    let wanted = inner.count("max_tokens", 1)?.map(|count| ("max_tokens", count));
    let stops = request::rules(&ask, request::max_tokens(card, ids.len(), wanted)?)?;
    let prompts = [Prompt { ids: Arc::from(ids), stops }];
    let outputs = state.gate.submit(card.seed, &ask, &prompts)?;
    let [prompt] = prompts;
    let Ask { n, show, model, .. } = ask;
    let call = Call { id, model, state: Arc::clone(state), n, show, prompt, text };
    if call.show.stream {
        let choices = call.choices();
        let events = TokenEvents { call, choices, started: false };
        return Ok(event_reply(EventStream::new(outputs, events)));
    }
    whole(&call, outputs).await
}

/// The sampling parameters, with what stands beside them.
fn sampling_fields(fields: &Fields, id: &str) -> Result<Fields, ApiError> {
    let mut inner = fields.object("sampling_params")?.cloned().unwrap_or_default();
    for name in OUTER {
        inner.remove(name);
        if let Some(value) = fields.get(name) {
            inner.insert(name.to_owned(), value.clone());
        }
    }
    Ok(Fields::new(inner).under(id.to_owned()))
}

/// `/inference/v1/abort_requests`: ends replies as they are, by their ids.
pub(super) fn abort(state: &State, fields: &Fields) -> Result<(), ApiError> {
    const FIELD: &str = "request_ids";
    let ids = fields.get(FIELD).ok_or_else(|| ApiError::bad(FIELD, "is missing"))?;
    let ids = match ids {
        Value::Array(ids) => ids.as_slice(),
        one => std::slice::from_ref(one),
    };
    for id in ids {
        let id = id.as_str();
        state.gate.abort(id.ok_or_else(|| ApiError::bad(FIELD, "must be strings"))?);
    }
    Ok(())
}

#[derive(Serialize)]
struct Reply<'a> {
    request_id: &'a str,
    model: &'a str,
    created: u64,
    usage: Usage,
    prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    prompt_token_id_logprobs: (),
    prompt_token_ids: Option<&'a [u32]>,
    mm_placeholders: (),
    metrics: (),
    kv_transfer_params: (),
    ec_transfer_params: (),
    output_mode: &'static str,
    choices: Vec<TokenChoice>,
}

#[derive(Serialize)]
struct TokenChoice {
    index: usize,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    token_ids: Vec<u32>,
    routed_experts: (),
    sampling_mask: (),
    weight_versions: Option<Vec<WeightVersion>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    logprobs: Option<Logprobs>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs {
    Ids(TokenLogprobs),
    Text(ChatLogprobs),
}

async fn whole(call: &Call, outputs: Receiver<Output>) -> Result<Response<ReplyBody>, ApiError> {
    let card = &call.state.card;
    let gathered = gather(call.choices(), &card.tokenizer, outputs).await;
    gathered.iter().try_for_each(|one| ended(one.end.clone()).map(drop))?;
    let sampled = gathered.iter().map(|one| one.ids.len()).sum();
    let facts = gathered.first().and_then(|first| first.prompt.as_ref());
    let scores = facts.and_then(|facts| facts.scores.as_deref());
    let prompt = &call.prompt.ids;
    let prompt_logprobs =
        scores.map(|scores| PromptTokens::new(&card.tokenizer, prompt, scores).logprobs());
    let cached = gathered.first().map_or(0, Piece::cached_tokens);
    let choices = gathered.into_iter().enumerate();
    Ok(json_reply(&Reply {
        request_id: &call.id,
        model: &call.model,
        created: crate::now(),
        usage: Usage::new(prompt.len(), sampled).with_cached(cached),
        prompt_logprobs,
        prompt_token_id_logprobs: (),
        prompt_token_ids: call.prompt_ids(),
        mm_placeholders: (),
        metrics: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        output_mode: call.output_mode(),
        choices: choices.map(|(index, one)| call.choice(index, one)).collect(),
    }))
}

#[derive(Serialize)]
struct Chunk<'a> {
    request_id: &'a str,
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    output_mode: &'static str,
    choices: Vec<TokenChoice>,
}

/// The events of one call.
struct TokenEvents {
    call: Call,
    choices: Vec<Choice>,
    started: bool,
}

impl TokenEvents {
    fn chunk(&self, usage: Option<Usage>, choices: Vec<TokenChoice>) -> Chunk<'_> {
        Chunk {
            request_id: &self.call.id,
            usage,
            prompt_token_ids: None,
            output_mode: self.call.output_mode(),
            choices,
        }
    }
}

impl Events for TokenEvents {
    fn output(&mut self, output: Output, ready: &mut Ready) {
        let index = output.index;
        let Some(choice) = self.choices.get_mut(index) else { return };
        let piece = choice.take(&self.call.state.card.tokenizer, output);
        let usage = Usage::new(self.call.prompt.ids.len(), choice.count);
        let usage = self.call.show.continuous_usage.then_some(usage);
        let first = !std::mem::replace(&mut self.started, true);
        let choice = self.call.choice(index, piece);
        let prompt_token_ids = self.call.prompt_ids().filter(|_| first);
        ready.push(&Chunk { prompt_token_ids, ..self.chunk(usage, vec![choice]) });
    }

    fn end(&mut self, ready: &mut Ready) {
        if self.call.show.usage {
            let sampled = self.choices.iter().map(|choice| choice.count).sum();
            let cached = self.choices.first().map_or(0, |choice| choice.cached_tokens);
            let usage = Usage::new(self.call.prompt.ids.len(), sampled).with_cached(cached);
            ready.push(&self.chunk(Some(usage), Vec::new()));
        }
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.ended)
    }
}
