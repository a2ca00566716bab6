//! `/inference/v1/generate`: token ids in, token ids out, whole or as a stream.
//!
//! The object `sampling_params` holds the fields of the other routes. The text is part of the reply
//! only if `output_mode` is `text`.

use std::sync::Arc;

use http::api::schema::Field;
use hyper::StatusCode;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::calls::{
    ApiError, EventQueue, EventStream, Events, Fields, HttpCall, HttpReply, empty_reply,
    event_reply, json_reply, parse_token_ids,
};
use super::engine_client::Prompt;
use super::generation::{
    ChatLogprobs, ChoiceDecoder, ChoiceDelta, GenerationRequest, PromptLogprobs, PromptTokens,
    ReplyOptions, ReportedVersion, RequestedLimit, StopReason, TokenLogprobs, Usage, alternatives,
    check_experts_start, check_length, check_text, collect_choices, max_tokens, require_end,
    stop_rules,
};
use super::state::ServerState;
use crate::schedule::request::Output;
use crate::schedule::request::ReplyEnd;

/// The fields of the body. Those of `sampling_params` are the ones of all sampling.
pub(super) const GENERATE_FIELDS: &[Field] = &[
    Field::array(TOKEN_IDS),
    Field::object("sampling_params"),
    Field::string("output_mode"),
    Field::string("request_id"),
    Field::boolean("stream"),
    Field::object("stream_options"),
    Field::string("cache_salt"),
    Field::integer("priority"),
    Field::boolean("return_token_ids"),
    Field::boolean("return_weight_versions"),
    Field::boolean("return_routed_experts"),
    Field::boolean("return_tokens_as_token_ids"),
    Field::boolean("return_both_logprobs"),
    Field::string("model"),
    Field::refused("features"),
    Field::refused("content_parts"),
];

/// The fields of `/inference/v1/abort_requests`.
pub(super) const ABORT_FIELDS: &[Field] = &[Field::any(REQUEST_IDS)];

const TOKEN_IDS: &str = "token_ids";
const REQUEST_IDS: &str = "request_ids";

/// The fields of the body that take the place of those in `sampling_params`.
const OUTER: [&str; 10] = [
    "stream",
    "stream_options",
    "cache_salt",
    "priority",
    "return_token_ids",
    "return_weight_versions",
    "return_routed_experts",
    "return_tokens_as_token_ids",
    "return_both_logprobs",
    "model",
];

/// A call, for as long as its reply is made.
struct GenerateCall {
    id: String,
    /// The name of the model in the reply.
    model: Arc<str>,
    state: Arc<ServerState>,
    n: usize,
    options: ReplyOptions,
    prompt: Prompt,
    /// True if the reply has the text.
    has_text: bool,
}

impl GenerateCall {
    fn decoders(&self) -> Vec<ChoiceDecoder> {
        let Prompt { ids, stops } = &self.prompt;
        (0..self.n).map(|_| ChoiceDecoder::new(ids, stops, &self.options)).collect()
    }

    fn output_mode(&self) -> &'static str {
        if self.has_text { "text" } else { "tokens" }
    }

    fn reported_prompt(&self) -> Option<&[u32]> {
        self.options.token_ids.then_some(&*self.prompt.ids)
    }

    fn choice(&self, index: usize, delta: ChoiceDelta) -> GenerateChoice {
        let end = delta.end.as_ref();
        let logprobs = match self.has_text {
            true => ChatLogprobs::new(&delta.tokens, &self.options).map(GenerateLogprobs::Text),
            false => TokenLogprobs::new(&delta.tokens, &self.options).map(GenerateLogprobs::Ids),
        };
        GenerateChoice {
            index,
            finish_reason: end.map(ReplyEnd::finish_reason),
            stop_reason: end.and_then(ReplyEnd::stop_reason),
            token_ids: delta.ids,
            routed_experts: end.and_then(|end| end.numpy_experts(&self.options)),
            sampling_mask: (),
            // This reply has them whether or not the request asks for them.
            weight_versions: end.map(ReplyEnd::weight_versions),
            text: self.has_text.then_some(delta.text),
            logprobs,
        }
    }
}

/// Handles `/inference/v1/generate`.
pub(super) async fn answer(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields_with_reply_id("generate-tokens-")?;
    let model = &state.model;
    let adapter = state.requested_adapter(&fields).await?;
    for name in ["features", "content_parts"] {
        if fields.get(name).is_some() {
            let message = "is not supported: the model reads text only";
            return Err(ApiError::bad_field(name, message));
        }
    }

    let has_text = match fields.text("output_mode")? {
        None | Some("tokens") => false,
        Some("text") => true,
        Some(_) => return Err(ApiError::bad_field("output_mode", "must be `tokens` or `text`")),
    };
    let list = fields.list(TOKEN_IDS)?.unwrap_or_default();
    let ids = parse_token_ids(TOKEN_IDS, list, model.vocab)?;
    check_length(TOKEN_IDS, &ids, model)?;

    // The fields of all sampling stand in `sampling_params`, and are read as those of a body.
    let inner = sampling_fields(&fields)?;
    let logprobs = alternatives(&inner, model, "logprobs")?;
    let request = GenerationRequest::parse(&inner, model, adapter, logprobs)?;
    check_text(&inner, &request.stops, has_text)?;
    let requested =
        inner.count("max_tokens", 1)?.map(|tokens| RequestedLimit { field: "max_tokens", tokens });
    check_experts_start(&request.options, ids.len())?;
    let stops = stop_rules(&request, max_tokens(model, ids.len(), requested)?)?;

    // The queue borrows the prompt, and the reply keeps it.
    let prompts = [Prompt { ids: Arc::from(ids), stops }];
    let outputs = state.engine.submit(&request, &prompts)?;
    let [prompt] = prompts;
    let call = GenerateCall {
        id: request.id,
        model: request.model,
        state: Arc::clone(state),
        n: request.n,
        options: request.options,
        prompt,
        has_text,
    };
    if call.options.stream {
        return Ok(event_reply(EventStream::new(outputs, GenerateEvents::new(call))));
    }
    whole_reply(&call, outputs).await
}

/// Returns `sampling_params` with the fields that stand beside it.
fn sampling_fields(fields: &Fields) -> Result<Fields, ApiError> {
    let mut inner = fields.object("sampling_params")?.cloned().unwrap_or_default();
    for name in OUTER {
        inner.remove(name);
        if let Some(value) = fields.get(name) {
            inner.insert(name.to_owned(), value.clone());
        }
    }
    Ok(fields.nested(inner))
}

/// Handles `/inference/v1/abort_requests`: ends replies by their ids, with the tokens that they
/// have.
pub(super) async fn abort(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let fields = call.fields()?;
    let ids = match fields.get(REQUEST_IDS) {
        None => return Err(ApiError::bad_field(REQUEST_IDS, "is missing")),
        Some(Value::Array(ids)) => ids.as_slice(),
        Some(id) => std::slice::from_ref(id),
    };
    for id in ids {
        let Some(id) = id.as_str() else {
            return Err(ApiError::bad_field(REQUEST_IDS, "must be strings"));
        };
        state.engine.abort(id);
    }

    // While generation is paused, no step would notice that they ended.
    state.engine.drop_abandoned().await?;
    Ok(empty_reply(StatusCode::OK))
}

/// A reply in one piece. Fields of type `()` are null, as in vLLM.
#[derive(Serialize)]
struct GenerateReply<'a> {
    request_id: &'a str,
    model: &'a str,
    created: u64,
    usage: Usage,
    prompt_logprobs: Option<PromptLogprobs>,
    prompt_token_id_logprobs: (),
    prompt_token_ids: Option<&'a [u32]>,
    mm_placeholders: (),
    metrics: (),
    kv_transfer_params: (),
    ec_transfer_params: (),
    output_mode: &'static str,
    choices: Vec<GenerateChoice>,
}

#[derive(Serialize)]
struct GenerateChoice {
    index: usize,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    token_ids: Vec<u32>,
    routed_experts: Option<String>,
    sampling_mask: (),
    weight_versions: Option<Vec<ReportedVersion>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    logprobs: Option<GenerateLogprobs>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum GenerateLogprobs {
    Ids(TokenLogprobs),
    Text(ChatLogprobs),
}

async fn whole_reply(
    call: &GenerateCall,
    outputs: Receiver<Output>,
) -> Result<HttpReply, ApiError> {
    let tokenizer = &call.state.model.tokenizer;
    let prompt_ids = &call.prompt.ids;
    let collected = collect_choices(call.decoders(), tokenizer, outputs).await;
    // One choice that failed fails the call: a reply has no place for its error.
    for choice in &collected {
        require_end(choice.end.clone())?;
    }

    // All choices have the same prompt, so its facts are those of the first.
    let sampled = collected.iter().map(|choice| choice.ids.len()).sum();
    let cached = collected.first().map_or(0, ChoiceDelta::cached_tokens);
    let prompt = collected.first().and_then(|choice| choice.prompt.as_ref());
    let prompt_logprobs = prompt
        .and_then(|prompt| prompt.scores.as_deref())
        .map(|scores| PromptTokens::new(tokenizer, prompt_ids, 0, scores).logprobs());

    let choices = collected.into_iter().enumerate();
    Ok(json_reply(&GenerateReply {
        request_id: &call.id,
        model: &call.model,
        created: crate::engine::now(),
        usage: Usage::new(prompt_ids.len(), sampled).with_cached(cached),
        prompt_logprobs,
        prompt_token_id_logprobs: (),
        prompt_token_ids: call.reported_prompt(),
        mm_placeholders: (),
        metrics: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        output_mode: call.output_mode(),
        choices: choices.map(|(index, choice)| call.choice(index, choice)).collect(),
    }))
}

#[derive(Serialize)]
struct GenerateChunk<'a> {
    request_id: &'a str,
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    output_mode: &'static str,
    choices: Vec<GenerateChoice>,
}

/// The events of one call.
struct GenerateEvents {
    call: GenerateCall,
    choices: Vec<ChoiceDecoder>,
    has_started: bool,
}

impl GenerateEvents {
    fn new(call: GenerateCall) -> GenerateEvents {
        GenerateEvents { choices: call.decoders(), call, has_started: false }
    }

    fn chunk(&self, usage: Option<Usage>, choices: Vec<GenerateChoice>) -> GenerateChunk<'_> {
        GenerateChunk {
            request_id: &self.call.id,
            usage,
            prompt_token_ids: None,
            output_mode: self.call.output_mode(),
            choices,
        }
    }
}

impl Events for GenerateEvents {
    fn on_output(&mut self, output: Output, queue: &mut EventQueue) {
        let index = output.index;
        let Some(decoder) = self.choices.get_mut(index) else { return };
        let delta = decoder.push(&self.call.state.model.tokenizer, output);
        let so_far = Usage::new(self.call.prompt.ids.len(), decoder.count);
        let usage = self.call.options.continuous_usage.then_some(so_far);

        let is_first = !std::mem::replace(&mut self.has_started, true);
        let prompt_token_ids = self.call.reported_prompt().filter(|_| is_first);
        let choice = self.call.choice(index, delta);
        queue.push(&GenerateChunk { prompt_token_ids, ..self.chunk(usage, vec![choice]) });
    }

    fn on_end(&mut self, queue: &mut EventQueue) {
        if !self.call.options.usage {
            return;
        }
        let sampled = self.choices.iter().map(|choice| choice.count).sum();
        let cached = self.choices.first().map_or(0, |choice| choice.cached_tokens);
        let usage = Usage::new(self.call.prompt.ids.len(), sampled).with_cached(cached);
        queue.push(&self.chunk(Some(usage), Vec::new()));
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.has_ended)
    }
}
