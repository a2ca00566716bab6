//! Chat and text completions, in the spellings of every server we know.

use std::borrow::Cow;

use episode::{TokenCounts, VersionSpan};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Collector;
use super::choice::{ChoiceDraft, SampledToken};

/// A longer name of a version is cut: every choice gets a copy.
const VERSION_BYTES_MAX: usize = 256;
/// Spans that all choices share are copied to each. If the copies were more than this in all, they
/// are not read.
const SHARED_SPANS_MAX: usize = 4096;

/// A reply, or a chunk of one. Fields that we do not read are not listed.
#[derive(Deserialize)]
struct ChatReply<'a> {
    model: Option<String>,
    #[serde(borrow)]
    choices: Option<Vec<ChatChoice<'a>>>,
    usage: Option<ChatUsage>,
    prompt_token_ids: Option<Vec<u32>>,
    error: Option<Value>,
    /// SGLang's flat errors have `error` here.
    object: Option<Value>,
    message: Option<Value>,
    /// The reply of `count_tokens`.
    input_tokens: Option<u64>,
    metadata: Option<Metadata>,
    #[serde(borrow)]
    sglext: Option<Sglext<'a>>,
    timings: Option<Timings>,
    __verbose: Option<Verbose>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<String>,
    stop_reason: Option<Value>,
    matched_stop: Option<Value>,
    token_ids: Option<Vec<u32>>,
    response_token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    weight_versions: Option<Vec<WeightSpan>>,
    #[serde(borrow)]
    meta_info: Option<MetaInfo<'a>>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
    #[serde(borrow)]
    sampling_mask: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct ChatUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Logprobs of a choice: chat has a list of entries, text completions have parallel lists.
#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow)]
    content: Option<Vec<LogprobEntry<'a>>>,
    #[serde(borrow)]
    refusal: Option<Vec<LogprobEntry<'a>>>,
    token_logprobs: Option<Vec<Option<f64>>>,
    #[serde(borrow)]
    tokens: Option<Vec<Cow<'a, str>>>,
    token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    top_logprobs: Option<Vec<&'a RawValue>>,
}

/// One token in a list of logprobs.
#[derive(Deserialize)]
pub(super) struct LogprobEntry<'a> {
    logprob: Option<f64>,
    id: Option<u32>,
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    bytes: Option<&'a RawValue>,
    #[serde(borrow)]
    top_logprobs: Option<&'a RawValue>,
}

/// A triple of SGLang's lists of logprobs: logprob, id and text.
pub(super) type LogprobTriple = (Option<f64>, u32, Value);

/// SGLang: the tokens of a choice.
#[derive(Deserialize)]
struct MetaInfo<'a> {
    output_token_logprobs: Option<Vec<LogprobTriple>>,
    completion_tokens: Option<u64>,
    #[serde(borrow)]
    output_token_sampling_mask: Option<&'a RawValue>,
    #[serde(borrow)]
    output_token_sampling_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
}

/// SGLang: the weights of a reply.
#[derive(Deserialize)]
struct Metadata {
    weight_version: Option<Value>,
    weight_versions: Option<Vec<WeightSpan>>,
}

/// SGLang: ids and experts of a streamed reply.
#[derive(Deserialize)]
struct Sglext<'a> {
    input_ids: Option<Vec<u32>>,
    output_ids: Option<Vec<Vec<u32>>>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
}

/// llama.cpp: numbers of tokens that were read and sampled, on the last chunk.
#[derive(Clone, Copy, Deserialize)]
struct Timings {
    cache_n: Option<u64>,
    prompt_n: Option<u64>,
    predicted_n: Option<u64>,
}

/// llama.cpp: the details of a choice that has ended.
#[derive(Deserialize)]
struct Verbose {
    #[serde(default)]
    index: u32,
    /// All sampled ids; empty unless they were asked for.
    tokens: Option<Vec<u32>>,
    /// False on the steps of a streamed text.
    stop: Option<bool>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    prompt: Option<Value>,
    stop_type: Option<String>,
}

/// Tokens `start..end` of a choice that were sampled by one version of the weights.
#[derive(Deserialize)]
pub(super) struct WeightSpan {
    version: Value,
    start: u32,
    end: u32,
}

/// The indices of the choices in a chunk that could not be read as a whole; `None` if one of them
/// is not known.
pub(super) fn choice_indices(json: &[u8]) -> Option<Vec<u32>> {
    let chunk: Value = serde_json::from_slice(json).ok()?;
    chunk.get("choices")?.as_array()?.iter().map(choice_index).collect()
}

fn choice_index(choice: &Value) -> Option<u32> {
    u32::try_from(choice.get("index").map_or(Some(0), Value::as_u64)?).ok()
}

impl Collector {
    pub(super) fn take_chat(&mut self, json: &[u8]) -> Option<()> {
        // llama.cpp begins a streamed batch with it.
        if json.trim_ascii() == b"null" {
            return Some(());
        }
        let reply: ChatReply<'_> = serde_json::from_slice(json).ok()?;

        self.model = reply.model.or(self.model.take());
        // Beside timings, the usage is that of one choice.
        if let Some(usage) = reply.usage.filter(|_| reply.timings.is_none()) {
            self.set_usage(usage.prompt_tokens, usage.completion_tokens);
        }
        self.set_usage(reply.input_tokens, None);
        if let Some(error) = reply.error.filter(|error| !error.is_null()) {
            self.set_error(&error);
        } else if reply.object.is_some_and(|object| object == "error") {
            self.set_error(&reply.message.unwrap_or_default());
        }
        if let Some(ids) = reply.prompt_token_ids {
            self.prompts.entry(0).or_insert(ids);
        }

        let choices = reply.choices.unwrap_or_default();
        let first = choices.first().map(|choice| choice.index);
        for choice in choices {
            self.take_choice(choice);
        }

        // These speak of choices that must be there by now.
        self.take_metadata(reply.metadata);
        self.take_sglext(reply.sglext);
        if let Some(timings) = reply.timings {
            self.take_timings(first, timings, reply.usage.unwrap_or_default());
        }
        if let Some(verbose) = reply.__verbose {
            self.take_verbose(verbose);
        }
        Some(())
    }

    /// Takes the counts of one choice so far, of which the last ones hold, with the usage beside
    /// them. In a reply of several choices they are of the first one; in a chunk without choices,
    /// of the only one.
    fn take_timings(&mut self, first: Option<u32>, timings: Timings, usage: ChatUsage) {
        let read = timings.prompt_n.map(|n| n.saturating_add(timings.cache_n.unwrap_or(0)));
        let prompt = usage.prompt_tokens.or(read);
        let completion = usage.completion_tokens.or(timings.predicted_n);
        self.timing_counts = TokenCounts { prompt, completion };

        let only = if self.choices.len() == 1 { self.choices.keys().next().copied() } else { None };
        let Some(index) = first.or(only) else { return };
        let prompt_index = self.prompt_of(index);
        self.choice(index, prompt_index).set_count(completion);
        if let Some(tokens) = prompt {
            self.missing.set_prompt_tokens(prompt_index, tokens);
        }
    }

    fn take_verbose(&mut self, verbose: Verbose) {
        if verbose.stop == Some(false) {
            return;
        }

        let prompt_index = self.prompt_of(verbose.index);
        if let Some(tokens) = verbose.tokens_evaluated {
            self.missing.set_prompt_tokens(prompt_index, tokens);
        }
        if let Some(Value::String(text)) = verbose.prompt.filter(|_| prompt_index == 0) {
            self.missing.text = Some(text);
        }

        let choice = self.choice(verbose.index, prompt_index);
        choice.set_count(verbose.tokens_predicted);
        if let Some(ids) = verbose.tokens.filter(|ids| !ids.is_empty()) {
            choice.add_ids(ids);
        }
        if verbose.stop_type.as_deref() == Some("eos") {
            choice.set_stopped_by_end_token();
        }
    }

    fn take_choice(&mut self, part: ChatChoice<'_>) {
        let prompt_index = self.prompt_of(part.index);
        if let Some(ids) = part.prompt_token_ids {
            self.prompts.entry(prompt_index).or_insert(ids);
        }

        // Read before the choice is borrowed.
        let (keeps_bytes, keeps_alternatives) =
            (self.vocabulary.is_some(), self.keeps_alternatives);
        let choice = self.choice(part.index, prompt_index);
        if let Some(ids) = part.token_ids.or(part.response_token_ids) {
            choice.add_ids(ids);
        }
        if let Some(logprobs) = part.logprobs {
            logprobs.add_to(choice, keeps_bytes, keeps_alternatives);
        }
        if let Some(spans) = part.weight_versions {
            choice.set_versions(spans.into_iter().map(VersionSpan::from).collect());
        }
        if let Some(meta) = part.meta_info {
            meta.add_to(choice);
        }
        // vLLM's name for the stop, then SGLang's.
        choice.set_finish(part.finish_reason, part.stop_reason.or(part.matched_stop));
        add_side(choice, "routed_experts", part.routed_experts);
        add_side(choice, "sampling_mask", part.sampling_mask);
    }

    fn take_metadata(&mut self, metadata: Option<Metadata>) {
        let Some(metadata) = metadata else { return };
        let version = metadata.weight_version.filter(|version| !version.is_null());
        self.version = version.map(version_name).or(self.version.take());
        if let Some(spans) = metadata.weight_versions {
            self.take_spans_of_one(spans.into_iter().map(VersionSpan::from).collect());
        }
    }

    /// Takes the spans of one choice; SGLang does not say of which. If its first token was sampled
    /// by the version at the reply's end, all tokens of all choices were, and the spans say nothing
    /// more.
    fn take_spans_of_one(&mut self, spans: Vec<VersionSpan>) {
        match spans.as_slice() {
            [only] if only.start == 0 && Some(&only.version) == self.version.as_ref() => {}
            _ => self.share_spans(spans),
        }
    }

    /// Gives every choice the same versions.
    fn share_spans(&mut self, spans: Vec<VersionSpan>) {
        if spans.len().saturating_mul(self.choices.len()) > SHARED_SPANS_MAX {
            self.version = None;
            self.unread += 1;
            return;
        }
        self.choices.values_mut().for_each(|choice| choice.set_versions(spans.clone()));
    }

    fn take_sglext(&mut self, sglext: Option<Sglext<'_>>) {
        let Some(sglext) = sglext else { return };
        if let Some(ids) = sglext.input_ids {
            self.prompts.entry(0).or_insert(ids);
        }
        for (index, ids) in sglext.output_ids.into_iter().flatten().enumerate() {
            self.choice(index as u32, 0).add_ids(ids);
        }
        if let Some(raw) = sglext.routed_experts {
            add_side(self.choice(0, 0), "routed_experts", Some(raw));
        }
    }
}

impl Logprobs<'_> {
    fn add_to(self, choice: &mut ChoiceDraft, keeps_bytes: bool, keeps_alternatives: bool) {
        // Chat: a list of entries.
        let entries: Vec<LogprobEntry<'_>> =
            self.content.into_iter().chain(self.refusal).flatten().collect();
        if keeps_alternatives && !entries.is_empty() {
            let tops = entries.iter().map(|e| e.top_logprobs.map_or("[]", RawValue::get));
            choice.add_side("top_logprobs", tops.map(str::to_owned).collect::<Vec<_>>());
        }
        choice.add_tokens(entries.into_iter().map(|entry| entry.token(keeps_bytes)));

        // Text completions: parallel lists.
        let names = self.tokens.unwrap_or_default();
        let numbers = self.token_logprobs.unwrap_or_default().into_iter().enumerate();
        choice.add_tokens(numbers.map(|(at, logprob)| {
            let name = names.get(at);
            let id = self.token_ids.as_ref().and_then(|ids| ids.get(at).copied());
            SampledToken {
                logprob,
                id: id.or_else(|| name.and_then(|name| id_in_name(name))),
                bytes: name.filter(|_| keeps_bytes).map(|name| name.as_bytes().to_vec()),
            }
        }));
        if let Some(tops) = self.top_logprobs.filter(|_| keeps_alternatives) {
            choice.add_side("top_logprobs", tops.into_iter().map(|top| top.get().to_owned()));
        }
    }
}

impl LogprobEntry<'_> {
    pub(super) fn token(self, keeps_bytes: bool) -> SampledToken {
        let name = self.token.as_deref();
        let id = self.id.or_else(|| name.and_then(id_in_name));
        let bytes = if keeps_bytes { self.token_bytes() } else { None };
        SampledToken { logprob: self.logprob, id, bytes }
    }

    /// The bytes of the token; the text stands in for them if there are none.
    fn token_bytes(&self) -> Option<Vec<u8>> {
        let given = self.bytes.and_then(|raw| serde_json::from_str(raw.get()).ok()).flatten();
        given.or_else(|| Some(self.token.as_deref()?.as_bytes().to_vec()))
    }
}

impl MetaInfo<'_> {
    fn add_to(self, choice: &mut ChoiceDraft) {
        if let Some(triples) = self.output_token_logprobs {
            choice.add_pairs(triples.into_iter().map(|(logprob, id, _)| (id, logprob)));
        }
        choice.set_count(self.completion_tokens);
        add_side(choice, "sampling_mask", self.output_token_sampling_mask);
        add_side(choice, "sampling_logprobs", self.output_token_sampling_logprobs);
        add_side(choice, "routed_experts", self.routed_experts);
    }
}

/// Adds a value that covers the whole choice, or a list with an element for each new token.
fn add_side(choice: &mut ChoiceDraft, name: &'static str, raw: Option<&RawValue>) {
    let Some(text) = raw.map(RawValue::get).filter(|text| *text != "null") else { return };
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Ok(list) => choice.add_side(name, list.into_iter().map(|value| value.get().to_owned())),
        Err(_) => choice.add_side(name, [text.to_owned()]),
    }
}

/// The id in a token that is spelled `token_id:N`.
fn id_in_name(name: &str) -> Option<u32> {
    name.strip_prefix("token_id:")?.parse().ok()
}

/// The name of a version, at most `VERSION_BYTES_MAX` bytes long.
pub(super) fn version_name(version: Value) -> String {
    let mut name = match version {
        Value::String(name) => name,
        other => other.to_string(),
    };
    name.truncate(name.floor_char_boundary(VERSION_BYTES_MAX));
    name
}

impl From<WeightSpan> for VersionSpan {
    fn from(span: WeightSpan) -> Self {
        Self { version: version_name(span.version), start: span.start, end: span.end }
    }
}
