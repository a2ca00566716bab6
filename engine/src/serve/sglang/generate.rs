//! `/generate`: a text or ids, or several of either, continued.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use tokio::sync::mpsc::Receiver;

use super::super::choice::{Choice, gather};
use super::super::encode::{self, check_length};
use super::super::error::ApiError;
use super::super::fields::{Fields, token_ids};
use super::super::request::{self, Ask};
use super::super::routes::{Reply, event_reply, json_reply};
use super::super::sampling::alternatives;
use super::super::sse::EventStream;
use super::super::submit::{Prompt, State};
use super::params::{is_empty, translate};
use super::reply::{Call, GenerateEvents, Generated};
use crate::Card;
use crate::sequence::Output;

/// Prompts of one call.
const MAX_PROMPTS: usize = 1024;

/// Fields that would change the reply and have no counterpart.
const UNSUPPORTED: [&str; 15] = [
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "token_ids_logprob",
    "return_sampling_mask",
    "return_flat_raw_top_logprobs",
    "return_hidden_states",
    "return_routed_experts",
    "return_indexer_topk",
    "session_params",
    "custom_logit_processor",
    "positional_embed_overrides",
    "max_thinking_tokens",
    "return_entropy",
];

pub(super) async fn answer(state: &Arc<State>, fields: &Fields) -> Result<Reply, ApiError> {
    for name in UNSUPPORTED {
        if fields.get(name).is_some_and(|value| !is_empty(value)) {
            return Err(ApiError::bad(name, "is not supported"));
        }
    }
    let started = Instant::now();
    let batch = Batch::parse(fields)?;
    let stream = fields.flag("stream", false)?;
    if stream && batch.prompts.len() > 1 {
        return Err(ApiError::bad("stream", "is for one prompt; send a call for each"));
    }
    let calls: Result<Vec<_>, ApiError> =
        (0..batch.prompts.len()).map(|index| batch.call(state, index, started)).collect();
    let mut calls = calls?;
    if stream && let Some((call, ask, prompt)) = calls.pop() {
        let outputs = state.gate.submit(state.card.seed, &ask, &[prompt])?;
        return Ok(event_reply(EventStream::new(outputs, GenerateEvents::new(call))));
    }
    // All of them run at once; those that are not awaited yet wait in their channels.
    let mut running = Vec::with_capacity(calls.len());
    for (call, ask, prompt) in calls {
        running.push((call, state.gate.submit(state.card.seed, &ask, &[prompt])?));
    }
    let mut replies = Vec::new();
    for (call, outputs) in running {
        replies.extend(whole(state, &call, outputs).await?);
    }
    match replies.as_slice() {
        [one] if !batch.is_list => Ok(json_reply(one)),
        all => Ok(json_reply(&all)),
    }
}

/// All choices of one prompt.
async fn whole(
    state: &State,
    call: &Call,
    outputs: Receiver<Output>,
) -> Result<Vec<Generated>, ApiError> {
    let choices = (0..call.n).map(|_| Choice::new(&call.stops, &call.show)).collect();
    let pieces = gather(choices, &state.card.tokenizer, outputs).await;
    let replies = pieces.into_iter().enumerate();
    replies.map(|(index, piece)| call.reply(index, piece)).collect()
}

/// The prompts of a call, and what is said of all of them or of each.
struct Batch<'a> {
    fields: &'a Fields,
    prompts: Vec<&'a Value>,
    /// The field that they came in.
    field: &'static str,
    /// Whether the reply is a list even if there is one prompt.
    is_list: bool,
}

impl<'a> Batch<'a> {
    fn parse(fields: &'a Fields) -> Result<Batch<'a>, ApiError> {
        let (field, given) = match (fields.get("input_ids"), fields.get("text")) {
            (Some(_), Some(_)) => {
                return Err(ApiError::bad("text", "and `input_ids` cannot both be given"));
            }
            (Some(ids), None) => ("input_ids", ids),
            (None, Some(text)) => ("text", text),
            (None, None) => return Err(ApiError::bad("text", "or `input_ids` is missing")),
        };
        let several = match given {
            Value::Array(list) if field == "text" => Some(list),
            Value::Array(list) if list.iter().any(Value::is_array) => Some(list),
            _ => None,
        };
        let prompts = several.map_or_else(|| vec![given], |list| list.iter().collect());
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            let message = format!("must hold 1 to {MAX_PROMPTS} prompts, got {}", prompts.len());
            return Err(ApiError::bad(field, message));
        }
        Ok(Batch { fields, prompts, field, is_list: several.is_some() })
    }

    /// What a field says of a prompt: the field is one value for all, or a list in a batch.
    fn of(&self, name: &str, index: usize) -> Result<Option<&'a Value>, ApiError> {
        match self.fields.get(name) {
            Some(Value::Array(list)) if self.is_list => {
                let message = || format!("must have one entry for each of {}", self.prompts.len());
                let fits = list.len() == self.prompts.len();
                let value = list.get(index).filter(|_| fits);
                value.ok_or_else(|| ApiError::bad(name, message())).map(Some)
            }
            value => Ok(value),
        }
    }

    /// The engine's own request for a prompt.
    fn fields(&self, index: usize) -> Result<Fields, ApiError> {
        let params = match self.of("sampling_params", index)? {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => translate(params)?,
            Some(_) => return Err(ApiError::bad("sampling_params", "must be an object")),
        };
        let mut fields = match params.is_empty() {
            true => translate(&Map::new())?,
            false => params,
        };
        if self.of("return_logprob", index)? == Some(&Value::Bool(true)) {
            let top = self.of("top_logprobs_num", index)?.filter(|top| !top.is_null());
            let top = top.cloned().unwrap_or_else(|| 0.into());
            fields.insert("logprobs".to_owned(), top);
        }
        let outer = [
            ("lora_path", "model"),
            ("cache_salt", "cache_salt"),
            ("extra_key", "cache_salt"),
            ("priority", "priority"),
            ("stream", "stream"),
        ];
        for (theirs, ours) in outer {
            if let Some(value) = self.of(theirs, index)?.filter(|value| !value.is_null()) {
                fields.insert(ours.to_owned(), value.clone());
            }
        }
        Ok(Fields::new(fields).under(self.rid(index)?))
    }

    /// The id of a prompt's reply.
    fn rid(&self, index: usize) -> Result<String, ApiError> {
        match self.of("rid", index)? {
            None | Some(Value::Null) => Ok(uuid::Uuid::new_v4().simple().to_string()),
            Some(Value::String(rid)) => match self.fields.get("rid") {
                // One name for several.
                Some(Value::String(_)) if self.is_list => Ok(format!("{rid}_{index}")),
                _ => Ok(rid.clone()),
            },
            Some(_) => Err(ApiError::bad("rid", "must be a string")),
        }
    }

    fn ids(&self, index: usize, card: &Card) -> Result<Vec<u32>, ApiError> {
        let wrong = || ApiError::bad(self.field, "must be texts, or lists of token ids");
        let ids = match self.prompts[index] {
            Value::String(text) if self.field == "text" => {
                encode::prompt(self.field, text, true, card)?
            }
            Value::Array(ids) if self.field == "input_ids" => {
                token_ids(self.field, ids, card.vocab)?
            }
            _ => return Err(wrong()),
        };
        check_length(self.field, &ids, card)?;
        Ok(ids)
    }

    /// Where the scores of a prompt begin; none if they are not asked for.
    fn scored_from(&self, index: usize, ids: usize) -> Result<Option<usize>, ApiError> {
        const FIELD: &str = "logprob_start_len";
        let start = match self.of(FIELD, index)? {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value.as_i64(),
        };
        match start {
            Some(-1) => Ok(None),
            Some(start) => match usize::try_from(start) {
                Ok(start) if start < ids => Ok(Some(start)),
                _ => Err(ApiError::bad(FIELD, format!("must be -1, or from 0 to {}", ids - 1))),
            },
            None => Err(ApiError::bad(FIELD, "must be a whole number")),
        }
    }

    fn call(
        &self,
        state: &Arc<State>,
        index: usize,
        started: Instant,
    ) -> Result<(Call, Ask, Prompt), ApiError> {
        let (card, fields) = (&state.card, self.fields(index)?);
        let ids: Arc<[u32]> = self.ids(index, card)?.into();
        let mut ask = Ask::parse(&fields, state, alternatives(&fields, card, "logprobs")?)?;
        let scored = self.scored_from(index, ids.len())?.filter(|_| ask.show.logprobs.is_some());
        if scored.is_some() && ask.show.stream {
            let message = "is not available when `stream` is true";
            return Err(ApiError::bad("logprob_start_len", message));
        }
        ask.prompt_logprobs = ask.show.logprobs.filter(|_| scored.is_some());
        // To be scored, a prompt needs no reply, but the engine makes one of at least one token.
        let wanted = fields.count("max_tokens", 0)?.unwrap_or(0);
        let limit = request::max_tokens(card, ids.len(), Some(("max_new_tokens", wanted.max(1))))?;
        let stops = request::rules(&ask, limit)?;
        let prompt = Prompt { ids: Arc::clone(&ids), stops: Arc::clone(&stops) };
        let call = Call {
            state: Arc::clone(state),
            id: ask.id.clone(),
            n: ask.n,
            show: ask.show.clone(),
            prompt: ids,
            stops,
            scored,
            is_silent: wanted == 0,
            with_text: self.fields.flag("return_text_in_logprobs", false)?,
            started,
        };
        Ok((call, ask, prompt))
    }
}
