//! Chat and text completions, in the spellings of every server we know.

use std::borrow::Cow;

use episode::{TokenCounts, VersionSpan};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Collector;
use super::draft::{Draft, Token};

/// A longer name of a version is cut: every choice gets a copy.
const VERSION_BYTES_MAX: usize = 256;
/// Spans that all choices share are copied to each. More than this, in all, are not read.
const SHARED_SPANS_MAX: usize = 4096;

/// A reply or a chunk of one; what we do not read is not named.
#[derive(Deserialize)]
struct Reply<'a> {
    model: Option<String>,
    #[serde(borrow)]
    choices: Option<Vec<Part<'a>>>,
    usage: Option<Usage>,
    prompt_token_ids: Option<Vec<u32>>,
    error: Option<Value>,
    /// SGLang's flat errors say `error` here.
    object: Option<Value>,
    message: Option<Value>,
    /// `count_tokens`.
    input_tokens: Option<u64>,
    metadata: Option<Metadata>,
    #[serde(borrow)]
    sglext: Option<Sglext<'a>>,
    timings: Option<Timings>,
    __verbose: Option<Verbose>,
}

#[derive(Deserialize)]
struct Part<'a> {
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
    weight_versions: Option<Vec<Span>>,
    #[serde(borrow)]
    meta_info: Option<MetaInfo<'a>>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
    #[serde(borrow)]
    sampling_mask: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Chat has a list of entries, text completions lists side by side.
#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow)]
    content: Option<Vec<Entry<'a>>>,
    #[serde(borrow)]
    refusal: Option<Vec<Entry<'a>>>,
    token_logprobs: Option<Vec<Option<f64>>>,
    #[serde(borrow)]
    tokens: Option<Vec<Cow<'a, str>>>,
    token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    top_logprobs: Option<Vec<&'a RawValue>>,
}

/// One token in a list of logprobs.
#[derive(Deserialize)]
pub(super) struct Entry<'a> {
    logprob: Option<f64>,
    id: Option<u32>,
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    bytes: Option<&'a RawValue>,
    #[serde(borrow)]
    top_logprobs: Option<&'a RawValue>,
}

/// SGLang: triples of logprob, id and text, from one list.
#[derive(Deserialize)]
struct MetaInfo<'a> {
    output_token_logprobs: Option<Vec<(Option<f64>, u32, Value)>>,
    completion_tokens: Option<u64>,
    #[serde(borrow)]
    output_token_sampling_mask: Option<&'a RawValue>,
    #[serde(borrow)]
    output_token_sampling_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata {
    weight_version: Option<Value>,
    weight_versions: Option<Vec<Span>>,
}

#[derive(Deserialize)]
struct Sglext<'a> {
    input_ids: Option<Vec<u32>>,
    output_ids: Option<Vec<Vec<u32>>>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
}

/// llama.cpp: how many tokens were read and sampled, on the last chunk.
#[derive(Deserialize)]
struct Timings {
    cache_n: Option<u64>,
    prompt_n: Option<u64>,
    predicted_n: Option<u64>,
}

/// llama.cpp: what it knows of a choice that has ended.
#[derive(Deserialize)]
struct Verbose {
    #[serde(default)]
    index: u32,
    /// All sampled ids; empty unless they were asked for.
    tokens: Option<Vec<u32>>,
    /// False on the steps of a stream of text.
    stop: Option<bool>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    prompt: Option<Value>,
    stop_type: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Span {
    version: Value,
    start: u32,
    end: u32,
}

/// The choices that a chunk is of, if it says no more that can be read; none where it does not say
/// of all its parts.
pub(super) fn indices(json: &[u8]) -> Option<Vec<u32>> {
    let chunk: Value = serde_json::from_slice(json).ok()?;
    let index =
        |part: &Value| u32::try_from(part.get("index").map_or(Some(0), Value::as_u64)?).ok();
    chunk.get("choices")?.as_array()?.iter().map(index).collect()
}

impl Collector {
    pub(super) fn take_chat(&mut self, json: &[u8]) -> Option<()> {
        // llama.cpp begins a streamed batch with it.
        if json.trim_ascii() == b"null" {
            return Some(());
        }
        let reply: Reply<'_> = serde_json::from_slice(json).ok()?;
        self.model = reply.model.or(self.model.take());
        let usage =
            reply.usage.as_ref().map(|usage| (usage.prompt_tokens, usage.completion_tokens));
        if let Some((prompt, completion)) = usage.filter(|_| reply.timings.is_none()) {
            self.counts(prompt, completion);
        }
        self.counts(reply.input_tokens, None);
        if let Some(error) = reply.error.filter(|e| !e.is_null()) {
            self.failed_with(&error);
        } else if reply.object.is_some_and(|o| o == "error") {
            self.failed_with(&reply.message.unwrap_or_default());
        }
        if let Some(ids) = reply.prompt_token_ids {
            self.prompts.entry(0).or_insert(ids);
        }
        let parts = reply.choices.unwrap_or_default();
        let first = parts.first().map(|part| part.index);
        for part in parts {
            self.part(part);
        }
        self.sglang(reply.metadata, reply.sglext);
        if let Some(timings) = reply.timings {
            self.timings(first, &timings, usage);
        }
        if let Some(verbose) = reply.__verbose {
            self.verbose(verbose);
        }
        Some(())
    }

    /// Counts of one choice so far, the last of which hold; so is the usage beside them. In a reply
    /// of several choices they are of the first; where there is none, of the only one.
    fn timings(
        &mut self,
        first: Option<u32>,
        timings: &Timings,
        usage: Option<(Option<u64>, Option<u64>)>,
    ) {
        let (prompt, completion) = usage.unwrap_or_default();
        let read = timings.prompt_n.map(|n| n.saturating_add(timings.cache_n.unwrap_or(0)));
        let (prompt, completion) = (prompt.or(read), completion.or(timings.predicted_n));
        self.timed = TokenCounts { prompt, completion };
        let only = if self.choices.len() == 1 { self.choices.keys().next().copied() } else { None };
        let Some(index) = first.or(only) else { return };
        let prompt_index = self.prompt_of(index);
        self.draft(index, prompt_index).set_count(completion);
        if let Some(tokens) = prompt {
            self.owed.counted(prompt_index, tokens);
        }
    }

    fn verbose(&mut self, verbose: Verbose) {
        if verbose.stop == Some(false) {
            return;
        }
        let prompt_index = self.prompt_of(verbose.index);
        if let Some(tokens) = verbose.tokens_evaluated {
            self.owed.counted(prompt_index, tokens);
        }
        if let Some(Value::String(text)) = verbose.prompt.filter(|_| prompt_index == 0) {
            self.owed.rendered(text);
        }
        let draft = self.draft(verbose.index, prompt_index);
        draft.set_count(verbose.tokens_predicted);
        if let Some(ids) = verbose.tokens.filter(|ids| !ids.is_empty()) {
            draft.add_ids(ids);
        }
        if verbose.stop_type.as_deref() == Some("eos") {
            draft.stopped_by_end();
        }
    }

    fn part(&mut self, part: Part<'_>) {
        let prompt_index = self.prompt_of(part.index);
        if let Some(ids) = part.prompt_token_ids {
            self.prompts.entry(prompt_index).or_insert(ids);
        }
        let (bytes, alternatives) = (self.vocabulary.is_some(), self.alternatives);
        let draft = self.draft(part.index, prompt_index);
        if let Some(ids) = part.token_ids.or(part.response_token_ids) {
            draft.add_ids(ids);
        }
        if let Some(logprobs) = part.logprobs {
            logprobs.read(draft, bytes, alternatives);
        }
        if let Some(spans) = part.weight_versions {
            draft.set_versions(spans.into_iter().map(VersionSpan::from).collect());
        }
        if let Some(meta) = part.meta_info {
            meta.read(draft);
        }
        draft.finish(part.finish_reason, part.stop_reason.or(part.matched_stop));
        for (name, raw) in
            [("routed_experts", part.routed_experts), ("sampling_mask", part.sampling_mask)]
        {
            side(draft, name, raw);
        }
    }

    fn sglang(&mut self, metadata: Option<Metadata>, sglext: Option<Sglext<'_>>) {
        if let Some(metadata) = metadata {
            let version = metadata.weight_version.filter(|version| !version.is_null());
            self.version = version.map(label).or(self.version.take());
            if let Some(spans) = metadata.weight_versions {
                self.one_choice(spans.into_iter().map(VersionSpan::from).collect());
            }
        }
        let Some(sglext) = sglext else { return };
        if let Some(ids) = sglext.input_ids {
            self.prompts.entry(0).or_insert(ids);
        }
        for (index, ids) in sglext.output_ids.into_iter().flatten().enumerate() {
            self.draft(index as u32, 0).add_ids(ids);
        }
        if let Some(raw) = sglext.routed_experts {
            side(self.draft(0, 0), "routed_experts", Some(raw));
        }
    }
}

impl Collector {
    /// SGLang tells the spans of one choice, whichever it is. Where its first token was sampled by
    /// the version of the reply's end, all tokens of all choices were, however many they are.
    fn one_choice(&mut self, spans: Vec<VersionSpan>) {
        match spans.as_slice() {
            [only] if only.start == 0 && Some(&only.version) == self.version.as_ref() => {}
            _ => self.share(spans),
        }
    }

    /// Gives every choice the same versions.
    fn share(&mut self, spans: Vec<VersionSpan>) {
        if spans.len().saturating_mul(self.choices.len()) > SHARED_SPANS_MAX {
            self.version = None;
            self.unread += 1;
            return;
        }
        self.choices.values_mut().for_each(|draft| draft.set_versions(spans.clone()));
    }
}

impl Logprobs<'_> {
    fn read(self, draft: &mut Draft, bytes: bool, alternatives: bool) {
        let entries = self.content.into_iter().chain(self.refusal).flatten();
        let entries: Vec<Entry<'_>> = entries.collect();
        let tops = entries.iter().map(|e| e.top_logprobs.map_or("[]", RawValue::get));
        if alternatives && !entries.is_empty() {
            draft.side("top_logprobs", tops.map(str::to_owned).collect::<Vec<_>>());
        }
        draft.add_tokens(entries.into_iter().map(|entry| entry.token(bytes)));
        let names = self.tokens.unwrap_or_default();
        let numbers = self.token_logprobs.unwrap_or_default().into_iter().enumerate();
        draft.add_tokens(numbers.map(|(at, logprob)| {
            let name = names.get(at);
            let id = self.token_ids.as_ref().and_then(|ids| ids.get(at).copied());
            Token {
                logprob,
                id: id.or_else(|| name.and_then(|name| id_in(name))),
                bytes: name.filter(|_| bytes).map(|name| name.as_bytes().to_vec()),
            }
        }));
        if let Some(tops) = self.top_logprobs.filter(|_| alternatives) {
            draft.side("top_logprobs", tops.into_iter().map(|top| top.get().to_owned()));
        }
    }
}

impl Entry<'_> {
    pub(super) fn token(self, with_bytes: bool) -> Token {
        let given = || serde_json::from_str::<Option<Vec<u8>>>(self.bytes?.get()).ok().flatten();
        let name = self.token.as_deref();
        Token {
            logprob: self.logprob,
            id: self.id.or_else(|| name.and_then(id_in)),
            bytes: with_bytes
                .then(|| given().or_else(|| Some(name?.as_bytes().to_vec())))
                .flatten(),
        }
    }
}

impl MetaInfo<'_> {
    fn read(self, draft: &mut Draft) {
        if let Some(triples) = self.output_token_logprobs {
            draft.add_pairs(triples.into_iter().map(|(logprob, id, _)| (id, logprob)));
        }
        draft.set_count(self.completion_tokens);
        side(draft, "sampling_mask", self.output_token_sampling_mask);
        side(draft, "sampling_logprobs", self.output_token_sampling_logprobs);
        side(draft, "routed_experts", self.routed_experts);
    }
}

/// Adds a value that covers the whole choice, or its next tokens; a list by its elements.
fn side(draft: &mut Draft, name: &'static str, raw: Option<&RawValue>) {
    let Some(text) = raw.map(RawValue::get).filter(|text| *text != "null") else { return };
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Ok(list) => draft.side(name, list.into_iter().map(|element| element.get().to_owned())),
        Err(_) => draft.side(name, [text.to_owned()]),
    }
}

/// The id in a token that is spelled `token_id:N`.
fn id_in(name: &str) -> Option<u32> {
    name.strip_prefix("token_id:")?.parse().ok()
}

pub(super) fn label(version: Value) -> String {
    let mut label = match version {
        Value::String(label) => label,
        other => other.to_string(),
    };
    label.truncate(label.floor_char_boundary(VERSION_BYTES_MAX));
    label
}

impl From<Span> for VersionSpan {
    fn from(span: Span) -> Self {
        Self { version: label(span.version), start: span.start, end: span.end }
    }
}
