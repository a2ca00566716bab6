//! `/v1/chat/completions`: the request, and the reply in one piece.

use std::sync::Arc;

use hyper::Response;
use serde::Serialize;
use serde_json::Value;
use template::{ChatInput, ToolCall, ToolDelta, ToolParser, prepare};
use tokio::sync::mpsc::Receiver;

use super::chat_stream::ChatEvents;
use super::choice::{Choice, Piece, StopReason, WeightVersion, gather};
use super::error::ApiError;
use super::fields::Fields;
use super::logprobs::ChatLogprobs;
use super::request::{self, Ask, MAX_LOGPROBS, Show};
use super::routes::{ReplyBody, event_reply, json_reply};
use super::sse::EventStream;
use super::submit::{Prompt, State};
use super::usage::Usage;
use crate::Card;
use crate::sequence::{End, Finish, Output, StopRules};

/// What the reply needs to know of the call.
pub(super) struct Call {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) state: Arc<State>,
    pub(super) n: usize,
    pub(super) show: Show,
    pub(super) prompt: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
    pub(super) tools: ToolUse,
}

/// Whether tool calls are looked for, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolUse {
    Off,
    One,
    Many,
}

pub(super) async fn answer(
    state: &Arc<State>,
    id: String,
    fields: &Fields,
) -> Result<Response<ReplyBody>, ApiError> {
    let card = &state.card;
    request::check_model(fields, card)?;
    let tools = tool_use(fields)?;
    let mut ask = Ask::parse(fields, card, logprobs(fields)?)?;
    if tools != ToolUse::Off {
        // Tags may be special tokens, and the parser has to see them.
        ask.stops.skip_special_tokens = false;
    }
    let prompt = prompt(fields, card)?;
    let wanted = ["max_completion_tokens", "max_tokens"].map(|name| {
        let count = fields.count(name, 1)?;
        Ok::<_, ApiError>(count.map(|count| (name, count)))
    });
    let [first, second] = wanted;
    let limit = request::max_tokens(card, prompt.len(), first?.or(second?))?;
    let stops = request::rules(&ask, limit)?;
    let prompts = [Prompt { ids: Arc::clone(&prompt), stops: Arc::clone(&stops) }];
    let outputs = state.gate.submit(card.seed, &ask, &prompts)?;
    let Ask { n, show, .. } = ask;
    let created = crate::now();
    let call = Call { id, created, state: Arc::clone(state), n, show, prompt, stops, tools };
    if call.show.stream {
        return Ok(event_reply(EventStream::new(outputs, ChatEvents::new(call))));
    }
    whole(&call, outputs).await
}

/// `logprobs` is a flag here, and `top_logprobs` counts alternatives.
fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let asked = fields.flag("logprobs", false)?;
    let top = fields.count("top_logprobs", 0)?.unwrap_or(0);
    if top > 0 && !asked {
        return Err(ApiError::bad("top_logprobs", "can only be given when `logprobs` is true"));
    }
    if top > MAX_LOGPROBS {
        let message = format!("must be at most {MAX_LOGPROBS}, got {top}");
        return Err(ApiError::bad("top_logprobs", message));
    }
    Ok(asked.then_some(top))
}

fn tool_use(fields: &Fields) -> Result<ToolUse, ApiError> {
    let tools = fields.list("tools")?;
    for (index, tool) in tools.into_iter().flatten().enumerate() {
        if !tool["function"]["name"].is_string() {
            return Err(ApiError::bad(
                "tools",
                format!("[{index}].function.name must be a string"),
            ));
        }
    }
    if tools.is_some_and(<[Value]>::is_empty) {
        return Err(ApiError::bad("tools", "must not be empty; leave it out instead"));
    }
    let one = !fields.flag("parallel_tool_calls", true)?;
    let auto = if one { ToolUse::One } else { ToolUse::Many };
    match (fields.get("tool_choice"), tools) {
        (None, None) => Ok(ToolUse::Off),
        (None, Some(_)) => Ok(auto),
        (Some(choice), _) if choice == "none" => Ok(ToolUse::Off),
        (Some(_), None) => {
            Err(ApiError::bad("tool_choice", "can only be given together with `tools`"))
        }
        (Some(choice), Some(_)) if choice == "auto" => Ok(auto),
        (Some(choice), Some(_)) => Err(ApiError::bad(
            "tool_choice",
            format!("{choice} is not supported; supported: \"none\", \"auto\""),
        )),
    }
}

/// Renders the messages and encodes what comes out.
fn prompt(fields: &Fields, card: &Card) -> Result<Arc<[u32]>, ApiError> {
    let messages = fields.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::bad("messages", "must be a list of at least one message"));
    }
    let Some(template) = &card.template else {
        return Err(ApiError::bad("messages", "cannot be used: the model has no chat template"));
    };
    let messages = prepare(messages).map_err(|error| ApiError::bad("messages", error))?;
    let input = ChatInput {
        messages: &messages,
        tools: fields.list("tools")?,
        add_generation_prompt: fields.flag("add_generation_prompt", true)?,
        documents: fields.list("documents")?,
        variables: fields.object("chat_template_kwargs")?,
        now: i64::try_from(crate::now()).ok(),
    };
    let text = template.render(&input).map_err(|error| ApiError::bad("messages", error))?;
    let special = fields.flag("add_special_tokens", false)?;
    let ids = card.tokenizer.encode(&text, special);
    let ids = ids.map_err(|error| ApiError::bad("messages", error))?;
    check_length("messages", &ids, card)?;
    Ok(Arc::from(ids))
}

/// A prompt needs a token, and room for one more.
pub(super) fn check_length(param: &str, ids: &[u32], card: &Card) -> Result<(), ApiError> {
    let (len, context) = (ids.len(), card.max_model_len);
    match len {
        0 => Err(ApiError::bad(param, "must give at least one token")),
        _ if len >= context => {
            let message = format!(
                "has {len} tokens, which leaves no room for a reply: this model's maximum context \
                 length is {context} tokens"
            );
            Err(ApiError::bad(param, message))
        }
        _ => Ok(()),
    }
}

/// The text and the tool calls of one choice.
pub(super) struct Speech {
    parser: Option<ToolParser>,
    only_one: bool,
    /// Calls that were kept.
    pub(super) calls: usize,
}

impl Speech {
    pub(super) fn new(tools: ToolUse) -> Speech {
        let parser = (tools != ToolUse::Off).then(ToolParser::default);
        Speech { parser, only_one: tools == ToolUse::One, calls: 0 }
    }

    /// Whether text is parsed for calls.
    pub(super) fn is_parsed(&self) -> bool {
        self.parser.is_some()
    }

    pub(super) fn take(&mut self, text: String, ended: bool) -> ToolDelta {
        let Some(parser) = &mut self.parser else {
            return ToolDelta { content: text, calls: Vec::new() };
        };
        let mut delta = parser.push(&text);
        if ended {
            let rest = parser.finish();
            delta.content.push_str(&rest.content);
            delta.calls.extend(rest.calls);
        }
        if self.only_one {
            delta.calls.truncate(1_usize.saturating_sub(self.calls));
        }
        self.calls += delta.calls.len();
        delta
    }

    /// A reply that stopped of itself after a call stopped for the call. One that was cut off keeps
    /// saying so.
    pub(super) fn finish_reason(&self, end: &End) -> &'static str {
        match end.finish_reason() {
            "stop" if self.calls > 0 => "tool_calls",
            other => other,
        }
    }
}

/// A tool call as a reply shows it.
#[derive(Debug, Serialize)]
pub(super) struct CallForm {
    id: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    function: FunctionForm,
}

#[derive(Debug, Serialize)]
struct FunctionForm {
    name: String,
    arguments: String,
}

impl CallForm {
    /// A call under a new id; in a stream it has an index too.
    pub(super) fn new(call: ToolCall, index: Option<usize>) -> CallForm {
        CallForm {
            id: format!("chatcmpl-tool-{}", uuid::Uuid::new_v4().simple()),
            r#type: "function",
            index,
            function: FunctionForm { name: call.name, arguments: call.arguments },
        }
    }
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
    prompt_logprobs: (),
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: (),
    kv_transfer_params: (),
    ec_transfer_params: (),
    metrics: (),
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
    reasoning: (),
}

async fn whole(call: &Call, outputs: Receiver<Output>) -> Result<Response<ReplyBody>, ApiError> {
    let card = &call.state.card;
    let choices = (0..call.n).map(|_| Choice::new(&call.stops, &call.show)).collect();
    let gathered = gather(choices, &card.tokenizer, outputs).await;
    let sampled = gathered.iter().map(|one| one.ids.len()).sum();
    let cached = gathered.first().map_or(0, Piece::cached_tokens);
    let choices = gathered.into_iter().enumerate().map(|(index, one)| finished(call, index, one));
    let usage = Usage::new(call.prompt.len(), sampled);
    Ok(json_reply(&Reply {
        id: &call.id,
        object: "chat.completion",
        created: call.created,
        model: &card.name,
        choices: choices.collect::<Result<_, _>>()?,
        service_tier: (),
        system_fingerprint: &card.system_fingerprint,
        usage: usage.with_cached(cached).with_completion_details(),
        prompt_logprobs: (),
        prompt_token_ids: call.show.token_ids.then_some(&call.prompt),
        prompt_text: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    }))
}

fn finished(call: &Call, index: usize, one: Piece) -> Result<ReplyChoice, ApiError> {
    let end = one.end.filter(|end| end.finish != Finish::Failed).ok_or_else(ApiError::internal)?;
    let mut speech = Speech::new(call.tools);
    let delta = speech.take(one.text, true);
    let finish_reason = speech.finish_reason(&end);
    let content = (!delta.content.is_empty() || delta.calls.is_empty()).then_some(delta.content);
    Ok(ReplyChoice {
        index,
        message: Message {
            role: "assistant",
            content,
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            tool_calls: delta.calls.into_iter().map(|call| CallForm::new(call, None)).collect(),
            reasoning: (),
        },
        logprobs: ChatLogprobs::of(&one.tokens, &call.show),
        finish_reason,
        stop_reason: end.stop_reason(),
        token_ids: call.show.token_ids.then_some(one.ids),
        routed_experts: (),
        weight_versions: end.weight_versions(&call.show),
    })
}
