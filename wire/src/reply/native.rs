//! Servers' own routes for text: llama.cpp's `/completion` and SGLang's `/generate`.

use episode::VersionSpan;
use serde::Deserialize;
use serde_json::Value;

use super::Collector;
use super::chat::{LogprobEntry, LogprobTriple, WeightSpan, version_name};

/// A reply of either server, or an event of one.
#[derive(Deserialize)]
struct NativeReply<'a> {
    index: Option<u32>,
    model: Option<String>,
    error: Option<Value>,
    /// llama.cpp: sampled ids, of one step or, if they were asked for, of the whole reply.
    tokens: Option<Vec<u32>>,
    #[serde(borrow)]
    completion_probabilities: Option<Vec<LogprobEntry<'a>>>,
    stop: Option<bool>,
    stop_type: Option<String>,
    stopping_word: Option<String>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    /// SGLang: all ids so far, or those of this event.
    output_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    meta_info: Option<SglangInfo>,
}

#[derive(Deserialize)]
struct SglangInfo {
    finish_reason: Option<SglangFinish>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_token_logprobs: Option<Vec<LogprobTriple>>,
    weight_version: Option<Value>,
    weight_versions: Option<Vec<WeightSpan>>,
}

#[derive(Deserialize)]
struct SglangFinish {
    r#type: Option<String>,
    matched: Option<Value>,
    message: Option<String>,
}

impl Collector {
    /// Takes a reply. Several prompts or choices are a list, or events with an index.
    pub(super) fn take_native(&mut self, json: &[u8]) -> Option<()> {
        let trimmed = json.trim_ascii();
        if trimmed == b"null" {
            return Some(());
        }
        let parts: Vec<NativeReply<'_>> = match trimmed.first() {
            Some(b'[') => serde_json::from_slice(trimmed).ok()?,
            _ => vec![serde_json::from_slice(trimmed).ok()?],
        };
        for (at, part) in (0..).zip(parts) {
            self.take_native_part(part.index.unwrap_or(at), part);
        }
        Some(())
    }

    fn take_native_part(&mut self, index: u32, mut part: NativeReply<'_>) {
        self.model = part.model.take().or(self.model.take());
        if let Some(error) = part.error.take().filter(|error| !error.is_null()) {
            self.set_error(&error);
            return;
        }
        let prompt_index = self.prompt_of(index);
        if let Some(ids) = part.prompt_token_ids.take() {
            self.prompts.entry(prompt_index).or_insert(ids);
        }
        match part.meta_info.take() {
            Some(info) => self.take_sglang(index, part.output_ids.unwrap_or_default(), info),
            None if part.stop.is_some() => self.take_llamacpp(index, part),
            None => {}
        }
    }

    fn take_llamacpp(&mut self, index: u32, part: NativeReply<'_>) {
        let prompt_index = self.prompt_of(index);
        self.take_prompt_count(prompt_index, part.tokens_evaluated);

        let keeps_bytes = self.vocabulary.is_some();
        let entries = part.completion_probabilities.unwrap_or_default();
        let choice = self.choice(index, prompt_index);
        choice.add_tokens(entries.into_iter().map(|entry| entry.token(keeps_bytes)));
        // Ids of a step are in its logprobs, too. Only the last part has what follows.
        if part.stop != Some(true) {
            return;
        }

        if let Some(ids) = part.tokens.filter(|ids| !ids.is_empty()) {
            choice.add_ids(ids);
        }
        choice.set_count(part.tokens_predicted);
        let reason = match part.stop_type.as_deref() {
            Some("limit") => "length",
            _ => "stop",
        };
        let word = part.stopping_word.filter(|word| !word.is_empty());
        choice.set_finish(Some(reason.to_owned()), word.map(Value::String));
        self.timing_counts.completion = part.tokens_predicted;
    }

    fn take_sglang(&mut self, index: u32, mut ids: Vec<u32>, info: SglangInfo) {
        let prompt_index = self.prompt_of(index);
        let version = info.weight_version.filter(|version| !version.is_null());
        self.version = version.map(version_name).or(self.version.take());
        self.take_prompt_count(prompt_index, info.prompt_tokens);
        self.timing_counts.completion = info.completion_tokens;

        // An event may have more ids than its count says: those of the next step, which came while
        // the event was written. An event with fewer ids holds only the new ones.
        let so_far = info.completion_tokens.and_then(|count| usize::try_from(count).ok());
        let has_all = so_far.is_some_and(|count| count <= ids.len());
        ids.truncate(so_far.unwrap_or(ids.len()));
        let choice = self.choice(index, prompt_index);
        if has_all {
            choice.clear_ids();
        }
        if let Some(triples) = info.output_token_logprobs.filter(|list| list.len() == ids.len()) {
            choice.add_pairs(triples.into_iter().map(|(logprob, id, _)| (id, logprob)));
        }
        choice.add_ids(ids);

        choice.set_count(info.completion_tokens);
        if let Some(spans) = info.weight_versions {
            choice.set_versions(spans.into_iter().map(VersionSpan::from).collect());
        }
        let Some(finish) = info.finish_reason else { return };
        if finish.r#type.as_deref() == Some("abort") {
            self.set_error(&finish.message.map_or(Value::from("aborted"), Value::from));
        } else {
            choice.set_finish(finish.r#type, finish.matched);
        }
    }

    fn take_prompt_count(&mut self, prompt_index: u32, tokens: Option<u64>) {
        if let Some(tokens) = tokens {
            self.missing.set_prompt_tokens(prompt_index, tokens);
            self.timing_counts.prompt = Some(tokens);
        }
    }
}
