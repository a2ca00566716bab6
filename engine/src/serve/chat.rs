//! `/v1/chat/completions`: the request, and the reply in one piece.

mod message;
mod prompt;
mod stream;
mod tool_choice;

use prompt::GIVEN_PROMPT;
pub(super) use prompt::{ChatPrompt, PROMPT_FIELDS};

use std::sync::Arc;

use http::api::schema::Field;
use serde::Serialize;
use template::{PromptThought, ReasoningParser};
use tokio::sync::mpsc::Receiver;

use super::calls::{ApiError, EventStream, Fields, HttpCall, HttpReply, event_reply, json_reply};
use super::engine_client::Prompt;
use super::generation::{
    ChatLogprobs, ChoiceDecoder, ChoiceDelta, GenerationRequest, PrescribedForm, PromptLogprobs,
    PromptTokens, ReplyOptions, ReportedVersion, RequestedLimit, StopReason, THOUGHT_BUDGET, Usage,
    alternatives, check_experts_start, check_length, check_text, collect_choices, max_tokens,
    require_end, stop_rules,
};
use super::prefix::{PrefixReport, RememberedPrompt, SampledReply};
use super::state::ServerState;
use crate::grammar::LeadingThought;
use crate::info::ModelInfo;
use crate::sample::{PromptEnd, ThoughtBudget};
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
    Field::boolean("return_prompt_text"),
    Field::boolean("echo"),
    Field::object(GIVEN_PROMPT),
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
    /// The text of the prompt, if the reply is to have it.
    prompt_text: Option<Arc<str>>,
    /// The text of the last message, if replies are to begin with it.
    echo: String,
    stops: Arc<StopRules>,
    format: MessageFormat,
    /// The report on the start of the prompt.
    prefix: Option<PrefixReport>,
    remembered: Option<RememberedPrompt>,
}

impl ChatCall {
    fn decoder(&self) -> ChoiceDecoder {
        let decoder = ChoiceDecoder::new(&self.prompt, &self.stops, &self.options);
        decoder.counting_reasoning(self.format.reasoning.clone())
    }

    /// Returns the counts of `sampled` tokens, `reasoning` of them inside the reasoning, and of the
    /// prompt, of which `cached` ones came from the cache.
    fn usage(&self, sampled: usize, cached: usize, reasoning: usize) -> Usage {
        let reasoning = self.format.reasoning.as_ref().map(|_| reasoning);
        Usage::new(self.prompt.len(), sampled).with_cache(cached).with_reasoning(reasoning)
    }

    /// Remembers a reply, so that prompts that continue it can start with its ids.
    fn remember(&self, ids: &[u32], finish: &FinishReason) {
        let (Some(memory), Some(prompt)) = (&self.state.memory, &self.remembered) else { return };
        let reply = SampledReply {
            prompt: &self.prompt,
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

/// Returns the parser of reasoning at the start of a reply.
fn reasoning_parser(
    model: &ModelInfo,
    thought: PromptThought,
    has_form: bool,
) -> Option<ReasoningParser> {
    let parser = model.thinks.then(|| ReasoningParser::new(thought));
    if has_form { parser.map(ReasoningParser::before_form) } else { parser }
}

/// Samples the replies to a chat whose fields have the id of the reply.
pub(super) async fn complete(
    state: &Arc<ServerState>,
    fields: &Fields,
) -> Result<HttpReply, ApiError> {
    let model = &state.model;
    let adapter = state.requested_adapter(fields).await?;

    let tools = ToolChoice::parse(fields, model)?;
    let logprobs = parse_logprobs(fields, model)?;
    let mut request = GenerationRequest::parse_before_form(fields, model, adapter, logprobs)?;
    check_text(fields, &request.stops, true)?;
    let form = tools.form(model, PrescribedForm::parse(fields)?)?;
    // The tags of calls and of reasoning may be special tokens, and the parser has to see them.
    let has_think_tag = model.thinks && model.tokenizer.special_id("<think>").is_some();
    if tools.parsing != ToolParsing::Off || has_think_tag {
        request.stops.skip_special_tokens = false;
    }

    let prompt = ChatPrompt::new(state, fields, request.cache_salt.as_ref())?;
    let ChatPrompt { ids, text, thought, prefix, remembered } =
        prompt.with_given_ids(fields, model)?;
    check_length("messages", &ids, model)?;
    // The prompt may have opened or closed the reasoning, after which the form begins.
    if let Some(form) = form {
        let leading = LeadingThought::of(model.thinks, thought);
        request.params.grammar = Some(form.compile(model, leading)?);
    }
    let format = MessageFormat {
        tools: tools.parsing,
        types: Arc::clone(&tools.types),
        demand: tools.demand(),
        reasoning: reasoning_parser(model, thought, request.params.grammar.is_some()),
        includes_reasoning: fields.flag("include_reasoning", true)?,
    };

    // The prompt decides the room that is left for the reply.
    let limit = max_tokens(model, ids.len(), parse_limit(fields)?)?;
    check_experts_start(&request.options, ids.len())?;
    let end = PromptEnd { ids: &ids, thought };
    request.params.thought = thought_budget(fields, model, &tools, end, limit)?;
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
        prompt_text: fields.flag("return_prompt_text", false)?.then_some(text),
        echo: prompt::echo(fields)?,
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

/// Reads the most tokens of reasoning. Without one, the reasoning before calls that the request
/// demands has half of the reply, so that there is room for them.
fn thought_budget(
    fields: &Fields,
    model: &ModelInfo,
    tools: &ToolChoice,
    prompt: PromptEnd<'_>,
    limit: usize,
) -> Result<Option<ThoughtBudget>, ApiError> {
    let requested = fields.integer(THOUGHT_BUDGET)?.unwrap_or(-1);
    if requested < -1 {
        let message =
            format!("must be a non-negative integer, or -1 for no limit, got {requested}");
        return Err(ApiError::bad_field(THOUGHT_BUDGET, message));
    }
    let tokens = match usize::try_from(requested) {
        Ok(tokens) => tokens,
        Err(_) if tools.demand() != ToolDemand::Optional => limit / 2,
        Err(_) => return Ok(None),
    };
    // A model without reasoning is within any budget.
    let budget = model.thinks.then(|| ThoughtBudget::new(&model.tokenizer, prompt, tokens));
    budget.transpose().map_err(|error| ApiError::bad_field(THOUGHT_BUDGET, error))
}

/// Refuses a chat that a request for token ids cannot stand for.
pub(super) fn check_renderable(fields: &Fields, model: &ModelInfo) -> Result<(), ApiError> {
    let tools = ToolChoice::parse(fields, model)?;
    if tools.demand() != ToolDemand::Optional {
        let message = "that demands a call has no form in a request for token ids";
        return Err(ApiError::bad_field("tool_choice", message));
    }
    match PrescribedForm::parse(fields)? {
        Some(form) if model.thinks => {
            let message = "after reasoning has no form in a request for token ids";
            Err(ApiError::bad_field(form.field, message))
        }
        _ => Ok(()),
    }
}

/// Reads the limit of the reply: `max_completion_tokens`, else its older name `max_tokens`.
pub(super) fn parse_limit(fields: &Fields) -> Result<Option<RequestedLimit<'static>>, ApiError> {
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
pub(super) fn parse_logprobs(
    fields: &Fields,
    model: &ModelInfo,
) -> Result<Option<usize>, ApiError> {
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
    prompt_text: Option<&'a str>,
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<PrefixReport>,
}

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: ChatMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    token_ids: Option<Vec<u32>>,
    routed_experts: Option<String>,
    weight_versions: Option<Vec<ReportedVersion>>,
}

#[derive(Serialize)]
struct ChatMessage {
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
    let decoders = (0..call.n).map(|_| call.decoder()).collect();
    let collected = collect_choices(decoders, &model.tokenizer, outputs).await;

    // All choices have the same prompt, so its facts are those of the first.
    let sampled = collected.iter().map(|choice| choice.ids.len()).sum();
    let reasoning = collected.iter().map(|choice| choice.reasoning).sum();
    let cached = collected.first().map_or(0, ChoiceDelta::cached_tokens);
    let prompt = collected.first().and_then(|choice| choice.prompt.as_ref());
    let prompt_logprobs = prompt
        .and_then(|prompt| prompt.scores.as_deref())
        .map(|scores| PromptTokens::new(&model.tokenizer, &call.prompt, 0, scores).logprobs());

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
        usage: call.usage(sampled, cached, reasoning),
        prompt_logprobs,
        prompt_token_ids: call.options.token_ids.then_some(&call.prompt),
        prompt_text: call.prompt_text.as_deref(),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
        prefix: call.prefix,
    }))
}

fn chat_choice(call: &ChatCall, index: usize, choice: ChoiceDelta) -> Result<ChatChoice, ApiError> {
    let end = require_end(choice.end)?;
    call.remember(&choice.ids, &end.finish);
    let (mut message, has_calls) = MessageParser::parse_whole(&call.format, &choice.text);
    message.content.insert_str(0, &call.echo);

    Ok(ChatChoice {
        index,
        message: ChatMessage::new(message, call.format.demand),
        logprobs: ChatLogprobs::new(&choice.tokens, &call.options),
        finish_reason: finish_reason(&end, &call.format, has_calls),
        stop_reason: end.stop_reason(),
        token_ids: call.options.token_ids.then_some(choice.ids),
        routed_experts: end.numpy_experts(&call.options),
        weight_versions: end.reported_versions(&call.options),
    })
}

impl ChatMessage {
    fn new(parsed: MessageDelta, demand: ToolDemand) -> ChatMessage {
        let MessageDelta { reasoning, content, tool_calls } = parsed;
        // Content that is empty is null beside calls or reasoning. Beside calls that the request
        // demands it is an empty text, as in vLLM.
        let is_demanded = demand != ToolDemand::Optional && !tool_calls.is_empty();
        let stands_alone = tool_calls.is_empty() && reasoning.is_empty();
        let has_content = !content.is_empty() || is_demanded || stands_alone;
        ChatMessage {
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
