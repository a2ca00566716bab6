//! `/v1/chat/completions`: the request, and the reply in one piece.

use std::sync::Arc;

use hyper::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use template::ReasoningParser;
use tokio::sync::mpsc::Receiver;

use super::chat_prompt::ChatPrompt;
use super::chat_stream::ChatEvents;
use super::choice::{Choice, Piece, StopReason, WeightVersion, ended, gather};
use super::encode::check_length;
use super::error::ApiError;
use super::fields::Fields;
use super::logprobs::{ChatLogprobs, PromptTokens};
use super::prefix::{Asked, Report, Sampled};
use super::request::{self, Ask, Show};
use super::routes::{ReplyBody, event_reply, json_reply};
use super::sampling::alternatives;
use super::speech::{CallForm, Calling, Reading, Said, Speech, ToolUse, finish_reason};
use super::sse::EventStream;
use super::submit::{Prompt, State};
use super::tool_choice::ToolChoice;
use super::usage::Usage;
use crate::Card;
use crate::sequence::{Finish, Output, StopRules};

/// What the reply needs to know of the call.
pub(super) struct Call {
    pub(super) id: String,
    pub(super) model: Arc<str>,
    pub(super) created: u64,
    pub(super) state: Arc<State>,
    pub(super) n: usize,
    pub(super) show: Show,
    pub(super) prompt: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
    pub(super) reading: Reading,
    /// What is told of the start of the prompt.
    pub(super) prefix: Option<Report>,
    asked: Option<Asked>,
}

impl Call {
    /// Remembers a reply, so that prompts that go on from it can start with its ids.
    pub(super) fn remember(&self, ids: &[u32], finish: &Finish) {
        let (Some(memory), Some(asked)) = (&self.state.memory, &self.asked) else { return };
        let said = Sampled {
            ids,
            finish,
            skip_special_tokens: self.stops.skip_special_tokens,
            includes_stop: self.stops.include_text,
        };
        memory.remember(asked, &said, &self.state.card.tokenizer);
    }
}

pub(super) async fn answer(
    state: &Arc<State>,
    id: String,
    fields: &Fields,
) -> Result<Response<ReplyBody>, ApiError> {
    let card = &state.card;
    request::check_model(fields, state)?;
    if fields.flag("echo", false)? {
        return Err(ApiError::bad("echo", "is not supported"));
    }
    let tools = ToolChoice::parse(fields, card)?;
    let mut ask = Ask::parse(fields, state, logprobs(fields, card)?)?;
    let thinks_aloud = card.thinks && card.tokenizer.special("<think>").is_some();
    if tools.reading != ToolUse::Off || thinks_aloud {
        // Tags may be special tokens, and the parser has to see them.
        ask.stops.skip_special_tokens = false;
    }
    let ChatPrompt { ids: prompt, text, prefix, asked } =
        ChatPrompt::new(state, fields, ask.cache_salt.as_ref())?;
    check_length("messages", &prompt, card)?;
    ask.params.grammar = tools.grammar(card, &text, ask.params.grammar.take())?;
    let reading = Reading {
        tools: tools.reading,
        calling: tools.calling(),
        reasoning: card.thinks.then(|| ReasoningParser::new(&text)),
        shows_reasoning: fields.flag("include_reasoning", true)?,
    };
    let wanted = ["max_completion_tokens", "max_tokens"].map(|name| {
        let count = fields.count(name, 1)?;
        Ok::<_, ApiError>(count.map(|count| (name, count)))
    });
    let [first, second] = wanted;
    let limit = request::max_tokens(card, prompt.len(), first?.or(second?))?;
    let stops = request::rules(&ask, limit)?;
    let prompts = [Prompt { ids: Arc::clone(&prompt), stops: Arc::clone(&stops) }];
    let outputs = state.gate.submit(card.seed, &ask, &prompts)?;
    let Ask { n, show, model, .. } = ask;
    let created = crate::now();
    let state = Arc::clone(state);
    let call = Call { id, model, created, state, n, show, prompt, stops, reading, prefix, asked };
    if call.show.stream {
        return Ok(event_reply(EventStream::new(outputs, ChatEvents::new(call))));
    }
    whole(&call, outputs).await
}

/// `logprobs` is a flag here, and `top_logprobs` counts alternatives.
fn logprobs(fields: &Fields, card: &Card) -> Result<Option<usize>, ApiError> {
    let asked = fields.flag("logprobs", false)?;
    let top = alternatives(fields, card, "top_logprobs")?.unwrap_or(0);
    if top > 0 && !asked {
        return Err(ApiError::bad("top_logprobs", "can only be given when `logprobs` is true"));
    }
    Ok(asked.then_some(top))
}

#[derive(Serialize)]
struct Reply<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ReplyChoice>,
    service_tier: (),
    system_fingerprint: &'a str,
    usage: Usage,
    prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: (),
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<Report>,
}

#[derive(Serialize)]
struct ReplyChoice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    token_ids: Option<Vec<u32>>,
    routed_experts: (),
    weight_versions: Option<Vec<WeightVersion>>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    refusal: (),
    annotations: (),
    audio: (),
    function_call: (),
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallForm>,
    reasoning: Option<String>,
}

async fn whole(call: &Call, outputs: Receiver<Output>) -> Result<Response<ReplyBody>, ApiError> {
    let card = &call.state.card;
    let choices = (0..call.n).map(|_| Choice::new(&call.stops, &call.show)).collect();
    let gathered = gather(choices, &card.tokenizer, outputs).await;
    let sampled = gathered.iter().map(|one| one.ids.len()).sum();
    let facts = gathered.first().and_then(|first| first.prompt.as_ref());
    let scores = facts.and_then(|facts| facts.scores.as_deref());
    let prompt_logprobs =
        scores.map(|scores| PromptTokens::new(&card.tokenizer, &call.prompt, scores).logprobs());
    let cached = gathered.first().map_or(0, Piece::cached_tokens);
    let choices = gathered.into_iter().enumerate().map(|(index, one)| finished(call, index, one));
    let usage = Usage::new(call.prompt.len(), sampled);
    Ok(json_reply(&Reply {
        id: &call.id,
        object: "chat.completion",
        created: call.created,
        model: &call.model,
        choices: choices.collect::<Result<_, _>>()?,
        service_tier: (),
        system_fingerprint: &card.system_fingerprint,
        usage: usage.with_cached(cached).with_completion_details(),
        prompt_logprobs,
        prompt_token_ids: call.show.token_ids.then_some(&call.prompt),
        prompt_text: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
        prefix: call.prefix,
    }))
}

fn finished(call: &Call, index: usize, one: Piece) -> Result<ReplyChoice, ApiError> {
    let end = ended(one.end)?;
    call.remember(&one.ids, &end.finish);
    let (said, called) = Speech::read(&call.reading, &one.text);
    let Said { reasoning, content, calls } = said;
    // vLLM has an empty text, not null, beside calls that the request asked for.
    let wanted = call.reading.calling != Calling::Free && !calls.is_empty();
    let silent = content.is_empty() && !wanted && !(calls.is_empty() && reasoning.is_empty());
    Ok(ReplyChoice {
        index,
        message: Message {
            role: "assistant",
            content: (!silent).then_some(content),
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            tool_calls: calls,
            reasoning: (!reasoning.is_empty()).then_some(reasoning),
        },
        logprobs: ChatLogprobs::of(&one.tokens, &call.show),
        finish_reason: finish_reason(&end, &call.reading, called),
        stop_reason: end.stop_reason(),
        token_ids: call.show.token_ids.then_some(one.ids),
        routed_experts: (),
        weight_versions: end.weight_versions(&call.show),
    })
}
