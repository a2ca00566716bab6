//! `/v1/chat/completions`: the request, and the reply in one piece.

mod message;
mod prompt;
mod stream;
mod tool_choice;

pub(super) use prompt::{ChatPrompt, PROMPT_FIELDS};

use std::sync::Arc;

use serde::Serialize;
use template::ReasoningParser;
use tokio::sync::mpsc::Receiver;

use super::engine_client::Prompt;
use super::generation::{
    ChatLogprobs, ChoiceDecoder, ChoiceDelta, GenerationRequest, PromptLogprobs, PromptTokens,
    ReplyOptions, RequestedLimit, StopReason, Usage, WeightVersion, alternatives, check_length,
    collect_choices, max_tokens, require_end, stop_rules,
};
use super::http::{
    ApiError, EventStream, Field, Fields, HttpCall, HttpReply, event_reply, json_reply,
};
use super::prefix::{PrefixReport, RememberedPrompt, SampledReply};
use super::state::ServerState;
use crate::info::ModelInfo;
use crate::schedule::request::FinishReason;
use crate::schedule::request::Output;
use crate::schedule::request::StopRules;
use message::{
    MessageDelta, MessageFormat, MessageParser, ToolCallDelta, ToolDemand, ToolParsing,
    finish_reason,
};
use stream::ChatEvents;
use tool_choice::ToolChoice;

/// The fields of a chat besides those of its prompt and of all sampling.
pub(super) const CHAT_FIELDS: &[Field] = &[
    Field::integer("max_completion_tokens"),
    Field::integer("max_tokens"),
    Field::boolean("logprobs"),
    Field::integer("top_logprobs"),
    Field::any("tool_choice"),
    Field::boolean("parallel_tool_calls"),
    Field::boolean("include_reasoning"),
    Field::refused("echo"),
];

/// A call, for as long as its reply is made.
struct ChatCall {
    id: String,
    /// The name of the model in the reply.
    model: Arc<str>,
    created: u64,
    state: Arc<ServerState>,
    n: usize,
    options: ReplyOptions,
    prompt: Arc<[u32]>,
    stops: Arc<StopRules>,
    format: MessageFormat,
    /// The report on the start of the prompt.
    prefix: Option<PrefixReport>,
    remembered: Option<RememberedPrompt>,
}

impl ChatCall {
    /// Remembers a reply, so that prompts that continue it can start with its ids.
    fn remember(&self, ids: &[u32], finish: &FinishReason) {
        let (Some(memory), Some(prompt)) = (&self.state.memory, &self.remembered) else { return };
        let reply = SampledReply {
            ids,
            finish,
            skip_special_tokens: self.stops.skip_special_tokens,
            includes_stop: self.stops.include_text,
        };
        memory.remember(prompt, &reply, &self.state.model.tokenizer);
    }
}

/// Handles `/v1/chat/completions`.
pub(super) async fn answer(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    complete(state, &call.fields_with_reply_id("chatcmpl-")?).await
}

/// Samples the replies to a chat whose fields have the id of the reply.
pub(super) async fn complete(
    state: &Arc<ServerState>,
    fields: &Fields,
) -> Result<HttpReply, ApiError> {
    let model = &state.model;
    let adapter = state.requested_adapter(fields)?;
    if fields.flag("echo", false)? {
        return Err(ApiError::bad_field("echo", "is not supported"));
    }

    let tools = ToolChoice::parse(fields, model)?;
    let mut request =
        GenerationRequest::parse(fields, model, adapter, parse_logprobs(fields, model)?)?;
    // The tags of calls and of reasoning may be special tokens, and the parser has to see them.
    let has_think_tag = model.thinks && model.tokenizer.special_id("<think>").is_some();
    if tools.parsing != ToolParsing::Off || has_think_tag {
        request.stops.skip_special_tokens = false;
    }

    let ChatPrompt { ids, text, prefix, remembered } =
        ChatPrompt::new(state, fields, request.cache_salt.as_ref())?;
    check_length("messages", &ids, model)?;
    // The prompt may have opened the reasoning, so the grammar of demanded calls depends on it.
    request.params.grammar = tools.grammar(model, &text, request.params.grammar.take())?;
    let format = MessageFormat {
        tools: tools.parsing,
        demand: tools.demand(),
        reasoning: model.thinks.then(|| ReasoningParser::new(&text)),
        includes_reasoning: fields.flag("include_reasoning", true)?,
    };

    // The prompt decides the room that is left for the reply.
    let limit = max_tokens(model, ids.len(), parse_limit(fields)?)?;
    let stops = stop_rules(&request, limit)?;
    let prompt = Prompt { ids: Arc::clone(&ids), stops: Arc::clone(&stops) };
    let outputs = state.engine.submit(&request, &[prompt])?;
    let call = ChatCall {
        id: request.id,
        model: request.model,
        created: crate::engine::now(),
        state: Arc::clone(state),
        n: request.n,
        options: request.options,
        prompt: ids,
        stops,
        format,
        prefix,
        remembered,
    };
    if call.options.stream {
        return Ok(event_reply(EventStream::new(outputs, ChatEvents::new(call))));
    }
    whole_reply(&call, outputs).await
}

/// Reads the limit of the reply: `max_completion_tokens`, else its older name `max_tokens`.
fn parse_limit(fields: &Fields) -> Result<Option<RequestedLimit<'static>>, ApiError> {
    let newer = requested_limit(fields, "max_completion_tokens")?;
    let older = requested_limit(fields, "max_tokens")?;
    Ok(newer.or(older))
}

fn requested_limit(
    fields: &Fields,
    field: &'static str,
) -> Result<Option<RequestedLimit<'static>>, ApiError> {
    Ok(fields.count(field, 1)?.map(|tokens| RequestedLimit { field, tokens }))
}

/// Reads the number of alternatives. In chat `logprobs` is a flag, and `top_logprobs` the number.
fn parse_logprobs(fields: &Fields, model: &ModelInfo) -> Result<Option<usize>, ApiError> {
    let has_logprobs = fields.flag("logprobs", false)?;
    let top = alternatives(fields, model, "top_logprobs")?.unwrap_or(0);
    if top > 0 && !has_logprobs {
        let message = "can only be given when `logprobs` is true";
        return Err(ApiError::bad_field("top_logprobs", message));
    }
    Ok(has_logprobs.then_some(top))
}

/// A reply in one piece. Fields of type `()` are null, as in vLLM.
#[derive(Serialize)]
struct ChatReply<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice>,
    service_tier: (),
    system_fingerprint: &'a str,
    usage: Usage,
    prompt_logprobs: Option<PromptLogprobs>,
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: (),
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<PrefixReport>,
}

#[derive(Serialize)]
struct ChatChoice {
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
    tool_calls: Vec<ToolCallDelta>,
    reasoning: Option<String>,
}

async fn whole_reply(call: &ChatCall, outputs: Receiver<Output>) -> Result<HttpReply, ApiError> {
    let model = &call.state.model;
    let decoders = (0..call.n).map(|_| ChoiceDecoder::new(&call.stops, &call.options)).collect();
    let collected = collect_choices(decoders, &model.tokenizer, outputs).await;

    // All choices have the same prompt, so its facts are those of the first.
    let sampled = collected.iter().map(|choice| choice.ids.len()).sum();
    let cached = collected.first().map_or(0, ChoiceDelta::cached_tokens);
    let prompt = collected.first().and_then(|choice| choice.prompt.as_ref());
    let prompt_logprobs = prompt
        .and_then(|prompt| prompt.scores.as_deref())
        .map(|scores| PromptTokens::new(&model.tokenizer, &call.prompt, scores).logprobs());

    let mut choices = Vec::with_capacity(collected.len());
    for (index, choice) in collected.into_iter().enumerate() {
        choices.push(chat_choice(call, index, choice)?);
    }
    Ok(json_reply(&ChatReply {
        id: &call.id,
        object: "chat.completion",
        created: call.created,
        model: &call.model,
        choices,
        service_tier: (),
        system_fingerprint: &model.system_fingerprint,
        usage: Usage::new(call.prompt.len(), sampled).with_cached(cached).with_completion_details(),
        prompt_logprobs,
        prompt_token_ids: call.options.token_ids.then_some(&call.prompt),
        prompt_text: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
        prefix: call.prefix,
    }))
}

fn chat_choice(call: &ChatCall, index: usize, choice: ChoiceDelta) -> Result<ChatChoice, ApiError> {
    let end = require_end(choice.end)?;
    call.remember(&choice.ids, &end.finish);
    let (message, has_calls) = MessageParser::parse_whole(&call.format, &choice.text);

    Ok(ChatChoice {
        index,
        message: Message::new(message, call.format.demand),
        logprobs: ChatLogprobs::new(&choice.tokens, &call.options),
        finish_reason: finish_reason(&end, &call.format, has_calls),
        stop_reason: end.stop_reason(),
        token_ids: call.options.token_ids.then_some(choice.ids),
        routed_experts: (),
        weight_versions: end.reported_versions(&call.options),
    })
}

impl Message {
    fn new(parsed: MessageDelta, demand: ToolDemand) -> Message {
        let MessageDelta { reasoning, content, tool_calls } = parsed;
        // Content that is empty is null beside calls or reasoning. Beside calls that the request
        // demands it is an empty text, as in vLLM.
        let is_demanded = demand != ToolDemand::Optional && !tool_calls.is_empty();
        let stands_alone = tool_calls.is_empty() && reasoning.is_empty();
        let has_content = !content.is_empty() || is_demanded || stands_alone;
        Message {
            role: "assistant",
            content: has_content.then_some(content),
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            tool_calls,
            reasoning: (!reasoning.is_empty()).then_some(reasoning),
        }
    }
}
