//! `/v1/completions`: the request, and the reply in one piece.

mod prompts;
mod stream;

use std::sync::Arc;

use http::api::schema::Field;
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use super::calls::{ApiError, EventStream, Fields, HttpCall, HttpReply, event_reply, json_reply};
use super::engine_client::Prompt;
use super::generation::{
    ChoiceDecoder, ChoiceDelta, GenerationRequest, PromptLogprobs, PromptTokens, ReplyOptions,
    ReportedVersion, RequestedLimit, StopReason, TextLogprobs, Usage, alternatives,
    check_experts_start, check_text, collect_choices, max_tokens, require_end, stop_rules,
};
use super::state::ServerState;
use crate::info::ModelInfo;
use crate::schedule::request::Output;
use crate::schedule::request::PromptInfo;
use prompts::{Echo, GivenPrompt, parse_echo, parse_prompts};
use stream::CompletionEvents;

/// The fields of a completion besides those of all sampling.
pub(super) const COMPLETION_FIELDS: &[Field] = &[
    Field::any("prompt"),
    Field::integer("max_tokens"),
    Field::integer("logprobs"),
    Field::boolean("echo"),
    Field::boolean("add_special_tokens"),
    Field::integer("truncate_prompt_tokens"),
    Field::string("truncation_side"),
    Field::refused("suffix"),
    Field::refused("best_of"),
];

/// Tokens of a reply if the request sets no limit, as in vLLM.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A call, for as long as its reply is made.
struct CompletionCall {
    id: String,
    /// The name of the model in the reply.
    model: Arc<str>,
    created: u64,
    state: Arc<ServerState>,
    /// Choices of each prompt.
    n: usize,
    options: ReplyOptions,
    prompts: Vec<Prompt>,
    echo: Echo,
    /// True if the reply has `prompt_logprobs`.
    has_prompt_logprobs: bool,
}

impl CompletionCall {
    /// Makes a decoder for each choice, ordered by prompt.
    fn decoders(&self) -> Vec<ChoiceDecoder> {
        self.prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, self.n))
            .map(|prompt| ChoiceDecoder::new(&prompt.ids, &prompt.stops, &self.options))
            .collect()
    }

    /// Returns the ids of a choice's prompt.
    fn prompt_of(&self, index: usize) -> &[u32] {
        &self.prompts[index / self.n].ids
    }

    /// Returns the text that a choice's reply starts with, if prompts are echoed.
    fn echo_of(&self, index: usize) -> Option<&str> {
        match &self.echo {
            Echo::Off => None,
            Echo::Before(texts) | Echo::Only(texts) => {
                texts.get(index / self.n).map(|text| &**text)
            }
        }
    }

    /// True if the reply leaves the sampled tokens out.
    fn hides_sampled(&self) -> bool {
        matches!(self.echo, Echo::Only(_))
    }

    /// Returns the tokens of a choice's prompt, if the engine scored them.
    fn prompt_tokens_of(&self, index: usize, facts: &PromptInfo) -> Option<PromptTokens> {
        let scores = facts.scores.as_deref()?;
        Some(PromptTokens::new(&self.state.model.tokenizer, self.prompt_of(index), 0, scores))
    }

    /// Counts the tokens of all prompts.
    fn prompt_len(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).sum()
    }
}

/// Handles `/v1/completions`.
pub(super) async fn answer(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields_with_reply_id("cmpl-")?;
    let model = &state.model;
    let adapter = state.requested_adapter(&fields).await?;
    for name in ["suffix", "best_of"] {
        if fields.get(name).is_some_and(|value| value != "") {
            return Err(ApiError::bad_field(name, "is not supported"));
        }
    }

    let logprobs = alternatives(&fields, model, "logprobs")?;
    let mut request = GenerationRequest::parse(&fields, model, adapter, logprobs)?;
    check_text(&fields, &request.stops, true)?;
    let given = parse_prompts(&fields, model, request.n)?;
    let echo = parse_echo(&fields, model, &given, request.options.token_ids)?;
    // The logprobs of an echo are those of the prompt, too.
    if !matches!(echo, Echo::Off) && request.prompt_logprobs.is_none() {
        request.prompt_logprobs = logprobs;
    }

    // Each prompt leaves another part of the context to its replies.
    let mut prompts = Vec::with_capacity(given.len());
    for prompt in given {
        check_experts_start(&request.options, prompt.ids.len())?;
        let limit = reply_limit(&fields, model, prompt.ids.len(), &echo)?;
        prompts.push(Prompt { ids: prompt.ids, stops: stop_rules(&request, limit)? });
    }
    let outputs = state.engine.submit(&request, &prompts)?;
    let call = CompletionCall {
        id: request.id,
        model: request.model,
        created: crate::engine::now(),
        state: Arc::clone(state),
        n: request.n,
        options: request.options,
        prompts,
        echo,
        has_prompt_logprobs: request.prompt_logprobs.is_some(),
    };
    if call.options.stream {
        return Ok(event_reply(EventStream::new(outputs, CompletionEvents::new(call))));
    }
    whole_reply(&call, outputs).await
}

/// Returns the limit of the reply to a prompt of `prompt_len` tokens.
/// A prompt, and the most tokens of its replies.
pub(super) struct LimitedPrompt {
    pub(super) ids: Arc<[u32]>,
    pub(super) limit: usize,
}

/// Reads the prompts of a request without an echo.
pub(super) fn plain_prompts(
    fields: &Fields,
    model: &ModelInfo,
    n: usize,
) -> Result<Vec<LimitedPrompt>, ApiError> {
    if fields.flag("echo", false)? {
        return Err(ApiError::bad_field("echo", "has no form in a request for token ids"));
    }
    let limited = |GivenPrompt { ids, .. }: GivenPrompt| {
        let limit = reply_limit(fields, model, ids.len(), &Echo::Off)?;
        Ok(LimitedPrompt { ids, limit })
    };
    parse_prompts(fields, model, n)?.into_iter().map(limited).collect()
}

fn reply_limit(
    fields: &Fields,
    model: &ModelInfo,
    prompt_len: usize,
    echo: &Echo,
) -> Result<usize, ApiError> {
    const FIELD: &str = "max_tokens";
    // An echo alone needs no reply, but the engine samples at least one token.
    if matches!(echo, Echo::Only(_)) {
        return Ok(1);
    }
    let requested = fields.count(FIELD, 1)?.map(|tokens| RequestedLimit { field: FIELD, tokens });
    let limit = max_tokens(model, prompt_len, requested)?;
    // An explicit null asks for the rest of the context.
    let is_absent = requested.is_none() && !fields.is_null(FIELD);
    Ok(if is_absent { limit.min(DEFAULT_MAX_TOKENS) } else { limit })
}

/// A reply in one piece. Fields of type `()` are null, as in vLLM.
#[derive(Serialize)]
struct CompletionReply<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChoice<'a>>,
    service_tier: (),
    system_fingerprint: &'a str,
    usage: Usage,
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
}

#[derive(Serialize)]
struct CompletionChoice<'a> {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    token_ids: Option<Vec<u32>>,
    prompt_logprobs: Option<PromptLogprobs>,
    prompt_token_ids: Option<&'a [u32]>,
    routed_experts: Option<String>,
    weight_versions: Option<Vec<ReportedVersion>>,
}

async fn whole_reply(
    call: &CompletionCall,
    outputs: Receiver<Output>,
) -> Result<HttpReply, ApiError> {
    let model = &call.state.model;
    let mut collected = collect_choices(call.decoders(), &model.tokenizer, outputs).await;
    // An echo alone has one sampled token, which the engine made because it makes at least one.
    if call.hides_sampled() {
        collected.iter_mut().for_each(ChoiceDelta::clear_sampled);
    }
    let sampled = collected.iter().map(|choice| choice.ids.len()).sum();
    let cached = collected.iter().step_by(call.n).map(ChoiceDelta::cached_tokens).sum();

    let mut choices = Vec::with_capacity(collected.len());
    let mut prompt = None;
    for (index, choice) in collected.into_iter().enumerate() {
        // Only the first choice of a prompt has its scores; they hold for the others.
        if index % call.n == 0 {
            let facts = choice.prompt.as_ref();
            prompt = facts.and_then(|facts| call.prompt_tokens_of(index, facts));
        }
        choices.push(completion_choice(call, index, choice, prompt.as_ref())?);
    }

    Ok(json_reply(&CompletionReply {
        id: &call.id,
        object: "text_completion",
        created: call.created,
        model: &call.model,
        choices,
        service_tier: (),
        system_fingerprint: &model.system_fingerprint,
        usage: Usage::new(call.prompt_len(), sampled).with_cached(cached).with_reasoning(None),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    }))
}

/// Makes the reply of a choice. `prompt` has the scores of its prompt, if there are any.
fn completion_choice<'a>(
    call: &'a CompletionCall,
    index: usize,
    choice: ChoiceDelta,
    prompt: Option<&PromptTokens>,
) -> Result<CompletionChoice<'a>, ApiError> {
    let end = require_end(choice.end)?;
    let options = &call.options;
    // The lists of logprobs cover the text. Without scores of the prompt they cannot cover an echo.
    let echo = call.echo_of(index);
    let logprobs = match (echo, prompt) {
        (None, _) => TextLogprobs::new(&choice.tokens, options, &mut 0),
        (Some(_), None) => None,
        (Some(_), Some(prompt)) => {
            TextLogprobs::with_prompt(prompt, &choice.tokens, options, &mut 0)
        }
    };

    Ok(CompletionChoice {
        index,
        text: echo.unwrap_or_default().to_owned() + &choice.text,
        logprobs,
        finish_reason: end.finish_reason(),
        stop_reason: end.stop_reason(),
        token_ids: options.token_ids.then_some(choice.ids),
        prompt_logprobs: prompt.filter(|_| call.has_prompt_logprobs).map(PromptTokens::logprobs),
        prompt_token_ids: options.token_ids.then(|| call.prompt_of(index)),
        routed_experts: end.numpy_experts(options),
        weight_versions: end.reported_versions(options),
    })
}
