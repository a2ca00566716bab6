//! `/generate`: continues a text or ids, or several of either.

use std::sync::Arc;
use std::time::Instant;

use http::api::schema::Field;
use serde_json::{Map, Value};
use tokio::sync::mpsc::Receiver;

use super::params::{is_empty, translate};
use super::reply::{SglangCall, SglangEvents, SglangReply};
use crate::bounds::PROMPTS_MAX;
use crate::info::ModelInfo;
use crate::schedule::request::Output;
use crate::serve::calls::{
    ApiError, EventStream, Fields, HttpCall, HttpReply, event_reply, json_reply, parse_token_ids,
    text_reply,
};
use crate::serve::engine_client::Prompt;
use crate::serve::generation::{
    GenerationRequest, RequestedLimit, alternatives, check_length, collect_choices, encode_prompt,
    max_tokens, stop_rules,
};
use crate::serve::state::ServerState;

/// The fields of `/generate`. Each may be a list in a call of several prompts.
pub(crate) const GENERATE_FIELDS: &[Field] = &[
    Field::any("text"),
    Field::any("input_ids"),
    Field::any("sampling_params"),
    Field::any("rid"),
    Field::any("return_logprob"),
    Field::any("top_logprobs_num"),
    Field::any("logprob_start_len"),
    Field::boolean("return_text_in_logprobs"),
    Field::boolean("stream"),
    Field::any("lora_path"),
    Field::any("cache_salt"),
    Field::any("extra_key"),
    Field::any("priority"),
    Field::any("return_routed_experts"),
    Field::any(EXPERTS_START),
    Field::refused("input_embeds"),
    Field::refused("image_data"),
    Field::refused("video_data"),
    Field::refused("audio_data"),
    Field::refused("token_ids_logprob"),
    Field::refused("return_sampling_mask"),
    Field::refused("return_flat_raw_top_logprobs"),
    Field::refused("return_hidden_states"),
    Field::refused("return_indexer_topk"),
    Field::refused("session_params"),
    Field::refused("custom_logit_processor"),
    Field::refused("positional_embed_overrides"),
    Field::refused("max_thinking_tokens"),
    Field::refused("return_entropy"),
];

/// Fields beside `sampling_params`, and the engine's names of them.
const OUTER: [(&str, &str); 6] = [
    ("lora_path", "model"),
    ("cache_salt", "cache_salt"),
    ("extra_key", "cache_salt"),
    ("priority", "priority"),
    ("stream", "stream"),
    ("return_routed_experts", "return_routed_experts"),
];

/// The first token whose experts are reported.
const EXPERTS_START: &str = "routed_experts_start_len";

/// One prompt of a call, ready to be submitted.
struct PromptCall {
    call: SglangCall,
    request: GenerationRequest,
    prompt: Prompt,
}

/// The request that samples one token.
const PROBE: &[u8] = br#"{"input_ids": [0], "sampling_params": {"max_new_tokens": 1}}"#;

/// Handles `/generate`.
pub(crate) async fn answer(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    sample(state, &call.fields_or_empty()?).await
}

/// Handles `/health_generate`: samples one token, in its turn among the calls that wait.
pub(crate) async fn probe(state: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    let fields = Fields::parse(PROBE)?.declared_as(&[GENERATE_FIELDS])?;
    sample(state, &fields).await?;
    Ok(text_reply(String::new()))
}

/// Samples the replies to all prompts of a call.
async fn sample(state: &Arc<ServerState>, fields: &Fields) -> Result<HttpReply, ApiError> {
    for field in GENERATE_FIELDS.iter().filter(|field| field.is_refused) {
        if fields.get(field.name).is_some_and(|value| !is_empty(value)) {
            return Err(ApiError::bad_field(field.name, "is not supported"));
        }
    }

    // A stream has no place for the index of a prompt, so it is for one.
    let started = Instant::now();
    let batch = PromptBatch::parse(fields)?;
    let stream = fields.flag("stream", false)?;
    if stream && batch.prompts.len() > 1 {
        return Err(ApiError::bad_field("stream", "is for one prompt; send a call for each"));
    }
    let mut calls = Vec::with_capacity(batch.prompts.len());
    for index in 0..batch.prompts.len() {
        calls.push(batch.prompt_call(state, index, started).await?);
    }
    if stream && let Some(PromptCall { call, request, prompt }) = calls.pop() {
        let outputs = state.engine.submit(&request, &[prompt])?;
        return Ok(event_reply(EventStream::new(outputs, SglangEvents::new(call))));
    }

    // All prompts run at once. The outputs of those that are not awaited yet wait in their
    // channels.
    let mut running = Vec::with_capacity(calls.len());
    for PromptCall { call, request, prompt } in calls {
        running.push((call, state.engine.submit(&request, &[prompt])?));
    }
    let mut replies = Vec::new();
    for (call, outputs) in running {
        replies.extend(whole_replies(state, &call, outputs).await?);
    }
    match replies.as_slice() {
        [reply] if !batch.is_list => Ok(json_reply(reply)),
        all => Ok(json_reply(&all)),
    }
}

/// Collects the replies to one prompt.
async fn whole_replies(
    state: &ServerState,
    call: &SglangCall,
    outputs: Receiver<Output>,
) -> Result<Vec<SglangReply>, ApiError> {
    let decoders = (0..call.n).map(|_| call.decoder()).collect();
    let choices = collect_choices(decoders, &state.model.tokenizer, outputs).await;
    choices.into_iter().enumerate().map(|(index, choice)| call.reply(index, choice)).collect()
}

/// The prompts of a call, and the fields that hold for all of them or for each.
struct PromptBatch<'a> {
    fields: &'a Fields,
    prompts: Vec<&'a Value>,
    /// The field that the prompts are in.
    field: &'static str,
    /// True if the call gives a list of prompts. Its reply is then a list, too.
    is_list: bool,
}

impl<'a> PromptBatch<'a> {
    fn parse(fields: &'a Fields) -> Result<PromptBatch<'a>, ApiError> {
        let (field, given) = match (fields.get("input_ids"), fields.get("text")) {
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_field("text", "and `input_ids` cannot both be given"));
            }
            (Some(ids), None) => ("input_ids", ids),
            (None, Some(text)) => ("text", text),
            (None, None) => return Err(ApiError::bad_field("text", "or `input_ids` is missing")),
        };

        // A list of ids is one prompt; a list of lists is several.
        let list = match given {
            Value::Array(list) if field == "text" => Some(list),
            Value::Array(list) if list.iter().any(Value::is_array) => Some(list),
            _ => None,
        };
        let prompts = list.map_or_else(|| vec![given], |list| list.iter().collect());
        if prompts.is_empty() || prompts.len() > PROMPTS_MAX {
            let message = format!("must hold 1 to {PROMPTS_MAX} prompts, got {}", prompts.len());
            return Err(ApiError::bad_field(field, message));
        }
        Ok(PromptBatch { fields, prompts, field, is_list: list.is_some() })
    }

    /// Returns a field's value for one prompt: the value for all, or the entry of a list.
    fn field_of(&self, name: &str, index: usize) -> Result<Option<&'a Value>, ApiError> {
        match self.fields.get(name) {
            Some(Value::Array(list)) if self.is_list && list.len() == self.prompts.len() => {
                Ok(Some(&list[index]))
            }
            Some(Value::Array(_)) if self.is_list => {
                let message = format!("must have one entry for each of {}", self.prompts.len());
                Err(ApiError::bad_field(name, message))
            }
            value => Ok(value),
        }
    }

    /// Translates the fields for one prompt to the engine's own.
    fn translated_fields(&self, index: usize) -> Result<Fields, ApiError> {
        let mut fields = match self.field_of("sampling_params", index)? {
            None | Some(Value::Null) => translate(&Map::new())?,
            Some(Value::Object(params)) => translate(params)?,
            Some(_) => return Err(ApiError::bad_field("sampling_params", "must be an object")),
        };
        if self.field_of("return_logprob", index)? == Some(&Value::Bool(true)) {
            let top = self.field_of("top_logprobs_num", index)?.filter(|top| !top.is_null());
            fields.insert("logprobs".to_owned(), top.cloned().unwrap_or_else(|| 0.into()));
        }
        for (theirs, own) in OUTER {
            if let Some(value) = self.field_of(theirs, index)?.filter(|value| !value.is_null()) {
                fields.insert(own.to_owned(), value.clone());
            }
        }
        Ok(self.fields.nested(fields).with_reply_id(self.reply_id(index)?))
    }

    /// Returns the id of the reply to one prompt.
    fn reply_id(&self, index: usize) -> Result<String, ApiError> {
        match self.field_of("rid", index)? {
            None | Some(Value::Null) => Ok(uuid::Uuid::new_v4().simple().to_string()),
            Some(Value::String(rid)) => match self.fields.get("rid") {
                // One id for several prompts is made unique.
                Some(Value::String(_)) if self.is_list => Ok(format!("{rid}_{index}")),
                _ => Ok(rid.clone()),
            },
            Some(_) => Err(ApiError::bad_field("rid", "must be a string")),
        }
    }

    fn prompt_ids(&self, index: usize, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
        let ids = match self.prompts[index] {
            Value::String(text) if self.field == "text" => {
                encode_prompt(self.field, text, true, model)?
            }
            Value::Array(ids) if self.field == "input_ids" => {
                parse_token_ids(self.field, ids, model.vocab)?
            }
            _ => {
                let message = "must be texts, or lists of token ids";
                return Err(ApiError::bad_field(self.field, message));
            }
        };
        check_length(self.field, &ids, model)?;
        Ok(ids)
    }

    /// Returns the position at which the scores of a prompt start; none if it is not scored.
    fn scored_from(&self, index: usize, prompt_len: usize) -> Result<Option<usize>, ApiError> {
        const FIELD: &str = "logprob_start_len";
        let start = match self.field_of(FIELD, index)? {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value.as_i64(),
        };
        match start {
            Some(-1) => Ok(None),
            Some(start) => match usize::try_from(start) {
                Ok(start) if start < prompt_len => Ok(Some(start)),
                _ => {
                    let message = format!("must be -1, or from 0 to {}", prompt_len - 1);
                    Err(ApiError::bad_field(FIELD, message))
                }
            },
            None => Err(ApiError::bad_field(FIELD, "must be a whole number")),
        }
    }

    /// Returns the first token of which the reply has experts.
    fn experts_from(&self, index: usize, prompt_len: usize) -> Result<usize, ApiError> {
        let Some(value) = self.field_of(EXPERTS_START, index)?.filter(|value| !value.is_null())
        else {
            return Ok(0);
        };
        let start = value.as_u64().and_then(|start| usize::try_from(start).ok());
        start.filter(|start| *start <= prompt_len).ok_or_else(|| {
            ApiError::bad_field(EXPERTS_START, format!("must be from 0 to {prompt_len}"))
        })
    }

    /// Makes the call for one prompt. `started` is the time at which the whole call came.
    async fn prompt_call(
        &self,
        state: &Arc<ServerState>,
        index: usize,
        started: Instant,
    ) -> Result<PromptCall, ApiError> {
        let model = &state.model;
        let fields = self.translated_fields(index)?;
        let ids: Arc<[u32]> = self.prompt_ids(index, model)?.into();
        let logprobs = alternatives(&fields, model, "logprobs")?;
        let adapter = state.requested_adapter(&fields).await?;
        let mut request = GenerationRequest::parse(&fields, model, adapter, logprobs)?;

        let has_logprobs = request.options.logprobs.is_some();
        let scored_from = self.scored_from(index, ids.len())?.filter(|_| has_logprobs);
        if scored_from.is_some() && request.options.stream {
            let message = "is not available when `stream` is true";
            return Err(ApiError::bad_field("logprob_start_len", message));
        }
        request.prompt_logprobs = request.options.logprobs.filter(|_| scored_from.is_some());
        request.scored_from = scored_from.unwrap_or(0);

        // A prompt that is only scored needs no reply, but the engine samples at least one token.
        let wanted = fields.count("max_tokens", 0)?.unwrap_or(0);
        let requested = RequestedLimit { field: "max_new_tokens", tokens: wanted.max(1) };
        let stops = stop_rules(&request, max_tokens(model, ids.len(), Some(requested))?)?;
        let prompt_len = ids.len();
        let prompt = Prompt { ids: Arc::clone(&ids), stops: Arc::clone(&stops) };
        let call = SglangCall {
            state: Arc::clone(state),
            id: request.id.clone(),
            n: request.n,
            options: request.options.clone(),
            prompt: ids,
            stops,
            scored_from,
            experts_from: self.experts_from(index, prompt_len)?,
            hides_sampled: wanted == 0,
            has_texts: self.fields.flag("return_text_in_logprobs", false)?,
            started,
        };
        Ok(PromptCall { call, request, prompt })
    }
}
