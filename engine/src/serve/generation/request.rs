//! The fields that all routes for sampling share.

use std::sync::Arc;

use http::api::schema::Field;
use serde_json::{Map, Value};

use super::sampling::{self, alternatives};
use super::structured::PrescribedForm;
use crate::grammar::LeadingThought;
use crate::info::ModelInfo;
use crate::lora::Adapter;
use crate::sample::SamplingParams;
use crate::schedule::request::StopRules;
use crate::serve::calls::{ApiError, Fields};

/// The field with the most tokens of reasoning.
pub(crate) const THOUGHT_BUDGET: &str = "thinking_token_budget";

/// The first token whose experts are reported, by vLLM's name and by SGLang's.
const EXPERTS_STARTS: [&str; 2] = ["routed_experts_prompt_start", "routed_experts_start_len"];

/// The fields that every route for sampling reads; each route has a few of its own.
pub(crate) const GENERATION_FIELDS: &[Field] = &[
    Field::string("model"),
    Field::string("request_id"),
    Field::integer("n"),
    Field::integer("seed"),
    Field::number("temperature"),
    Field::number("top_p"),
    Field::integer("top_k"),
    Field::number("min_p"),
    Field::number("presence_penalty"),
    Field::number("frequency_penalty"),
    Field::number("repetition_penalty"),
    Field::object("logit_bias"),
    Field::array("allowed_token_ids"),
    Field::array("bad_words"),
    Field::array("logprob_token_ids"),
    Field::any("stop"),
    Field::array("stop_token_ids"),
    Field::integer("min_tokens"),
    Field::boolean("ignore_eos"),
    Field::boolean("include_stop_str_in_output"),
    Field::boolean("skip_special_tokens"),
    Field::object("response_format"),
    Field::object("structured_outputs"),
    Field::any("guided_json"),
    Field::any("guided_regex"),
    Field::any("guided_choice"),
    Field::any("guided_grammar"),
    Field::any("json_schema"),
    Field::any("regex"),
    Field::any("ebnf"),
    Field::any("grammar"),
    Field::string("guided_whitespace_pattern"),
    Field::integer("priority"),
    Field::string("cache_salt"),
    Field::integer("prompt_logprobs"),
    Field::boolean("return_both_logprobs"),
    Field::boolean("return_token_ids"),
    Field::boolean("return_tokens_as_token_ids"),
    Field::boolean("return_weight_versions"),
    Field::boolean("return_routed_experts"),
    Field::integer(EXPERTS_STARTS[0]),
    Field::integer(EXPERTS_STARTS[1]),
    Field::boolean("stream"),
    Field::object("stream_options"),
    Field::refused("use_beam_search"),
    Field::integer(THOUGHT_BUDGET),
    Field::boolean(DETOKENIZE),
    Field::refused("prompt_embeds"),
    Field::refused("logits_processors"),
    Field::refused("custom_logit_processor"),
    Field::refused("repetition_detection"),
    Field::refused("chat_template"),
    Field::refused("prompt_logprob_token_ids"),
    Field::refused("prompt_logprob_start"),
    Field::refused("stop_regex"),
    Field::refused("watermarking"),
    Field::refused("trace_decode_token_ids"),
    Field::refused("mm_payload"),
];

/// The field that says that the reply is to have no text.
const DETOKENIZE: &str = "detokenize";

/// The facts that a reply reports besides its text.
#[derive(Clone, Debug)]
pub(crate) struct ReplyOptions {
    /// Alternatives of each token; none if no logprobs are reported.
    pub(crate) logprobs: Option<usize>,
    /// True if each logprob comes with its rank, the model's own and the processed logprob.
    pub(crate) both_logprobs: bool,
    pub(crate) token_ids: bool,
    /// True if tokens are named `token_id:N` rather than by their text.
    pub(crate) ids_as_tokens: bool,
    pub(crate) weight_versions: bool,
    /// True if the end of a reply has the experts of its tokens.
    pub(crate) routed_experts: bool,
    /// The first token whose experts are reported.
    pub(crate) experts_from: usize,
    /// True if a stream ends with usage.
    pub(crate) usage: bool,
    /// True if every chunk of a stream has usage.
    pub(crate) continuous_usage: bool,
    pub(crate) stream: bool,
}

/// The settings of a call: how to sample, when to stop and what to report, for all its prompts.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRequest {
    /// The id of the reply, by which the call can be aborted; empty if it cannot.
    pub(crate) id: String,
    /// Replies to each prompt.
    pub(crate) n: usize,
    /// The seed of the request, if it has one.
    pub(crate) seed: Option<u64>,
    /// Sampling parameters but the seed, which differs by choice.
    pub(crate) params: SamplingParams,
    /// Stop rules but `max_tokens`, which depends on the prompt.
    pub(crate) stops: StopRules,
    /// Lower values go first.
    pub(crate) priority: i64,
    /// Prefixes are shared only between calls of the same salt.
    pub(crate) cache_salt: Option<Arc<str>>,
    /// The attempt of an episode that the call is of.
    pub(crate) attempt: Option<Arc<str>>,
    /// Alternatives of each token of the prompt; none if the prompt is not scored.
    pub(crate) prompt_logprobs: Option<usize>,
    /// The position in the prompt behind which tokens are scored.
    pub(crate) scored_from: usize,
    pub(crate) options: ReplyOptions,
    /// The adapter that the request names as `model`.
    pub(crate) adapter: Option<Arc<Adapter>>,
    /// The name of the model in the reply.
    pub(crate) model: Arc<str>,
}

impl GenerationRequest {
    /// Reads the shared fields of a route without reasoning. The route reads `logprobs`, because
    /// its meaning differs by route.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn parse(
        fields: &Fields,
        model: &ModelInfo,
        adapter: Option<Arc<Adapter>>,
        logprobs: Option<usize>,
    ) -> Result<GenerationRequest, ApiError> {
        let mut request = GenerationRequest::parse_before_form(fields, model, adapter, logprobs)?;
        if let Some(form) = PrescribedForm::parse(fields)? {
            request.params.grammar = Some(form.compile(model, LeadingThought::None)?);
        }
        if fields.integer(THOUGHT_BUDGET)?.is_some_and(|budget| budget != -1) {
            return Err(ApiError::bad_field(THOUGHT_BUDGET, "is supported in chats only"));
        }
        Ok(request)
    }

    /// Reads the shared fields but the form of the reply and the budget of its reasoning, which
    /// depend on the prompt.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn parse_before_form(
        fields: &Fields,
        model: &ModelInfo,
        adapter: Option<Arc<Adapter>>,
        logprobs: Option<usize>,
    ) -> Result<GenerationRequest, ApiError> {
        refuse_unsupported(fields)?;
        let n = fields.count("n", 1)?.unwrap_or(1);
        let params = sampling::parse_params(fields, model, logprobs)?;
        if n > 1 && params.temperature == 0.0 {
            let message = format!("must be 1 for greedy sampling, got {n}");
            return Err(ApiError::bad_field("n", message));
        }

        let options = parse_options(fields, logprobs, params.logprob_ids.is_some())?;
        let name = adapter.as_ref().map_or_else(|| (*model.name).into(), |one| one.name.clone());
        Ok(GenerationRequest {
            id: fields.reply_id().to_owned(),
            n,
            // vLLM takes -1 as no seed.
            seed: fields.seed("seed")?.filter(|seed| *seed != u64::MAX),
            params,
            stops: sampling::parse_stops(fields, model)?,
            priority: parse_priority(fields, model)?,
            cache_salt: fields.cache_salt()?,
            attempt: fields.attempt(),
            prompt_logprobs: parse_prompt_logprobs(fields, model, options.stream)?,
            scored_from: 0,
            options,
            adapter,
            model: name,
        })
    }
}

/// A limit of tokens that a request sets, and the field that sets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedLimit<'a> {
    pub(crate) field: &'a str,
    pub(crate) tokens: usize,
}

/// Returns the limit of a reply to a prompt of `prompt_len` tokens: the requested one, or else that
/// of `generation_config.json`, or the rest of the context.
///
/// # Errors
/// 400 if the context has less room than requested, in vLLM's words.
pub(crate) fn max_tokens(
    model: &ModelInfo,
    prompt_len: usize,
    requested: Option<RequestedLimit<'_>>,
) -> Result<usize, ApiError> {
    let room = model.max_model_len - prompt_len;
    match requested {
        None => Ok(model.defaults.max_new_tokens.map_or(room, |most| most.min(room))),
        Some(limit) if limit.tokens <= room => Ok(limit.tokens),
        Some(RequestedLimit { field, tokens }) => {
            let context = model.max_model_len;
            let message = format!(
                "is too large: {tokens}. This model's maximum context length is {context} tokens \
                 and your request has {prompt_len} input tokens \
                 ({tokens} > {context} - {prompt_len})."
            );
            Err(ApiError::bad_field(field, message))
        }
    }
}

/// Completes the stop rules for one prompt.
pub(crate) fn stop_rules(
    request: &GenerationRequest,
    max_tokens: usize,
) -> Result<Arc<StopRules>, ApiError> {
    let min_tokens = request.stops.min_tokens;
    if min_tokens > max_tokens {
        let message = format!("must be at most `max_tokens` = {max_tokens}, got {min_tokens}");
        return Err(ApiError::bad_field("min_tokens", message));
    }
    Ok(Arc::new(StopRules { max_tokens, ..request.stops.clone() }))
}

/// Reads the priority, which has no effect unless the engine was started with `--allow-priority`.
fn parse_priority(fields: &Fields, model: &ModelInfo) -> Result<i64, ApiError> {
    let priority = fields.integer("priority")?.unwrap_or(0);
    Ok(if model.allow_priority { priority } else { 0 })
}

fn parse_prompt_logprobs(
    fields: &Fields,
    model: &ModelInfo,
    stream: bool,
) -> Result<Option<usize>, ApiError> {
    const FIELD: &str = "prompt_logprobs";
    let count = alternatives(fields, model, FIELD)?;
    if stream && count.is_some_and(|count| count > 0) {
        return Err(ApiError::bad_field(FIELD, "are not available when `stream` is true"));
    }
    // The chunks of a stream have no place for them.
    Ok(count.filter(|_| !stream))
}

/// Reads the fields that say what to report. `by_id` says that the request names the alternatives
/// by id; all of these are reported.
fn parse_options(
    fields: &Fields,
    logprobs: Option<usize>,
    by_id: bool,
) -> Result<ReplyOptions, ApiError> {
    let stream = fields.flag("stream", false)?;
    let stream_options = fields.object("stream_options")?;
    if stream_options.is_some() && !stream {
        let message = "can only be given when `stream` is true";
        return Err(ApiError::bad_field("stream_options", message));
    }

    let usage = stream_option(stream_options, "include_usage")?;
    // vLLM ignores this one without `include_usage`.
    let continuous_usage = stream_option(stream_options, "continuous_usage_stats")? && usage;
    Ok(ReplyOptions {
        logprobs: logprobs.map(|count| if by_id { usize::MAX } else { count }),
        both_logprobs: fields.flag("return_both_logprobs", false)?,
        token_ids: fields.flag("return_token_ids", false)?,
        ids_as_tokens: fields.flag("return_tokens_as_token_ids", false)?,
        weight_versions: fields.flag("return_weight_versions", false)?,
        routed_experts: fields.flag("return_routed_experts", false)?,
        experts_from: parse_experts_start(fields)?,
        usage,
        continuous_usage,
        stream,
    })
}

fn parse_experts_start(fields: &Fields) -> Result<usize, ApiError> {
    let mut start = 0;
    for name in EXPERTS_STARTS {
        start = fields.count(name, 0)?.unwrap_or(start);
    }
    Ok(start)
}

/// Refuses experts from a token on that is beyond the prompt, as vLLM does.
pub(crate) fn check_experts_start(
    options: &ReplyOptions,
    prompt_len: usize,
) -> Result<(), ApiError> {
    if options.experts_from <= prompt_len {
        return Ok(());
    }
    let message = format!("must be between 0 and the prompt length ({prompt_len}), inclusive.");
    Err(ApiError::bad_field(EXPERTS_STARTS[0], message))
}

fn stream_option(options: Option<&Map<String, Value>>, name: &str) -> Result<bool, ApiError> {
    match options.and_then(|options| options.get(name)) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::bad_field("stream_options", format!(".{name} must be a boolean"))),
    }
}

/// Refuses the fields that would change the tokens and that this engine does not implement.
/// Without them the reply would answer another request.
fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    const MESSAGE: &str = "is not supported";
    fields.flag("use_beam_search", false)?;
    for field in GENERATION_FIELDS.iter().filter(|field| field.is_refused) {
        if fields.get(field.name).is_some_and(|value| !is_empty(value)) {
            return Err(ApiError::bad_field(field.name, MESSAGE));
        }
    }
    Ok(())
}

/// Refuses a request without text in the reply, `detokenize: false`, if it needs text: the reply is
/// text, or stop texts are to end it.
pub(crate) fn check_text(
    fields: &Fields,
    stops: &StopRules,
    is_text: bool,
) -> Result<(), ApiError> {
    if fields.flag(DETOKENIZE, true)? {
        return Ok(());
    }
    if is_text {
        return Err(ApiError::bad_field(DETOKENIZE, "must be true: the reply is text"));
    }
    if !stops.texts.is_empty() {
        let message = "must be true: the texts of `stop` are looked for in the text of the reply";
        return Err(ApiError::bad_field(DETOKENIZE, message));
    }
    Ok(())
}

/// True for a value that asks for nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
