//! `/v1/chat/completions/render` and `/v1/completions/render`: the request to
//! `/inference/v1/generate` that samples what the other route would sample.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::calls::{ApiError, Fields, HttpCall, HttpReply, json_reply};
use super::chat::{self, ChatPrompt};
use super::completions;
use super::generation::{
    GENERATION_FIELDS, GenerationRequest, THOUGHT_BUDGET, alternatives, check_length, max_tokens,
};
use super::state::ServerState;

/// Fields that stand beside `sampling_params`.
const OUTER: [&str; 9] = [
    "model",
    "request_id",
    "stream",
    "stream_options",
    "cache_salt",
    "priority",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "return_weight_versions",
];

/// A request to `/inference/v1/generate`, in vLLM's form.
#[derive(Serialize)]
struct RenderedRequest<'a> {
    request_id: &'a str,
    token_ids: &'a [u32],
    /// Null: the model reads text only.
    features: (),
    sampling_params: Value,
    #[serde(flatten)]
    outer: Map<String, Value>,
}

/// Handles `/v1/chat/completions/render`.
pub(super) async fn chat(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let fields = call.fields_with_reply_id("chatcmpl-")?;
    let model = &state.model;
    state.check_model(&fields)?;
    chat::check_renderable(&fields, model)?;
    let logprobs = chat::parse_logprobs(&fields, model)?;
    // All fields are read, so that what the chat refuses is refused here.
    let request = GenerationRequest::parse(&fields, model, None, logprobs)?;

    let ChatPrompt { ids, .. } = ChatPrompt::new(state, &fields, request.cache_salt.as_ref())?;
    check_length("messages", &ids, model)?;
    let limit = max_tokens(model, ids.len(), chat::parse_limit(&fields)?)?;
    Ok(json_reply(&rendered(&fields, &ids, limit, logprobs)))
}

/// Handles `/v1/completions/render`: one request for each prompt.
pub(super) async fn completion(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields_with_reply_id("cmpl-")?;
    let model = &state.model;
    state.check_model(&fields)?;
    let logprobs = alternatives(&fields, model, "logprobs")?;
    let request = GenerationRequest::parse(&fields, model, None, logprobs)?;

    let prompts = completions::plain_prompts(&fields, model, request.n)?;
    let requests: Vec<_> =
        prompts.iter().map(|one| rendered(&fields, &one.ids, one.limit, logprobs)).collect();
    Ok(json_reply(&requests))
}

/// Writes the request for one prompt.
fn rendered<'a>(
    fields: &'a Fields,
    ids: &'a [u32],
    limit: usize,
    logprobs: Option<usize>,
) -> RenderedRequest<'a> {
    let given = |name: &&str| Some(((*name).to_owned(), fields.get(name)?.clone()));
    let names = GENERATION_FIELDS.iter().map(|field| field.name);
    let inner = names.filter(|name| !OUTER.contains(name) && *name != THOUGHT_BUDGET);
    let mut sampling_params: Map<String, Value> = inner.filter_map(|name| given(&name)).collect();
    sampling_params.insert("max_tokens".to_owned(), json!(limit));
    sampling_params.extend(logprobs.map(|count| ("logprobs".to_owned(), json!(count))));
    let outer = OUTER.iter().filter(|name| **name != "request_id").filter_map(given).collect();
    RenderedRequest {
        request_id: fields.reply_id(),
        token_ids: ids,
        features: (),
        sampling_params: Value::Object(sampling_params),
        outer,
    }
}
