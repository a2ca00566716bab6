//! Servers' own routes for text: llama.cpp's `/completion` and SGLang's `/generate`.

use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Collector;
use super::chat::{LogprobEntry, LogprobTriple, PromptIds};
use super::list::{Capped, Each, filled, short, short_value};
use super::versions::{Spans, version_name};
use crate::bounds::STOP_BYTES_MAX;

/// A reply of either server, or an event of one.
#[derive(Deserialize)]
struct NativeReply<'a> {
    index: Option<u32>,
    model: Option<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// llama.cpp: sampled ids, of one step or, if they were asked for, of the whole reply.
    tokens: Option<Capped<u32>>,
    #[serde(borrow)]
    completion_probabilities: Option<Capped<LogprobEntry<'a>>>,
    stop: Option<bool>,
    stop_type: Option<String>,
    stopping_word: Option<String>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    /// SGLang: all ids so far, or those of this event.
    output_ids: Option<Capped<u32>>,
    prompt_token_ids: Option<PromptIds>,
    #[serde(borrow)]
    meta_info: Option<SglangInfo<'a>>,
}

#[derive(Deserialize)]
struct SglangInfo<'a> {
    #[serde(borrow)]
    finish_reason: Option<SglangFinish<'a>>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_token_logprobs: Option<Capped<LogprobTriple>>,
    #[serde(borrow)]
    weight_version: Option<&'a RawValue>,
    #[serde(borrow)]
    weight_versions: Option<Spans<'a>>,
}

#[derive(Deserialize)]
struct SglangFinish<'a> {
    r#type: Option<String>,
    #[serde(borrow)]
    matched: Option<&'a RawValue>,
    message: Option<String>,
}

impl Collector {
    /// Takes a reply. Several prompts or choices are a list, or events with an index.
    pub(super) fn take_native(&mut self, json: &[u8]) -> Option<()> {
        let trimmed = json.trim_ascii();
        if trimmed == b"null" {
            return Some(());
        }
        if trimmed.first() != Some(&b'[') {
            let part: NativeReply<'_> = serde_json::from_slice(trimmed).ok()?;
            self.take_native_part(part.index.unwrap_or(0), part);
            return Some(());
        }

        let (mut at, choices_max) = (0, self.choices_max);
        let parts = Each::new(|part: NativeReply<'_>| {
            self.take_native_part(part.index.unwrap_or(at), part);
            at += 1;
            at < choices_max
        });
        let mut list = serde_json::Deserializer::from_slice(trimmed);
        let is_cut = parts.deserialize(&mut list).ok()?;
        self.note_cut(is_cut);
        list.end().ok()
    }

    fn take_native_part(&mut self, index: u32, mut part: NativeReply<'_>) {
        self.set_model(part.model.take());
        if let Some(error) = filled(part.error.take()) {
            self.set_raw_error(error);
            return;
        }
        let prompt_index = self.prompt_of(index);
        if let Some(ids) = part.prompt_token_ids.take() {
            self.set_prompt(prompt_index, ids);
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
        self.change(index, |choice| {
            choice.note_cut(entries.is_cut);
            choice.add_tokens(entries.items.into_iter().map(|entry| entry.token(keeps_bytes)));
        });
        // Ids of a step are in its logprobs, too. Only the last part has what follows.
        if part.stop != Some(true) {
            return;
        }

        let reason = match part.stop_type.as_deref() {
            Some("limit") => "length",
            _ => "stop",
        };
        let word = part.stopping_word.filter(|word| !word.is_empty());
        let word = word.map(|word| Value::String(short(word, STOP_BYTES_MAX)));
        self.change(index, |choice| {
            if let Some(ids) = part.tokens.filter(|ids| !ids.items.is_empty()) {
                choice.add_ids(ids);
            }
            choice.set_count(part.tokens_predicted);
            choice.set_finish(Some(reason.to_owned()), word);
        });
        self.timing_counts.completion = part.tokens_predicted;
    }

    fn take_sglang(&mut self, index: u32, mut ids: Capped<u32>, info: SglangInfo<'_>) {
        let prompt_index = self.prompt_of(index);
        self.version = filled(info.weight_version).map(version_name).or(self.version.take());
        self.take_prompt_count(prompt_index, info.prompt_tokens);
        self.timing_counts.completion = info.completion_tokens;

        // An event may have more ids than its count says: those of the next step, which came while
        // the event was written. An event with fewer ids holds only the new ones.
        let so_far = info.completion_tokens.and_then(|count| usize::try_from(count).ok());
        let has_all = so_far.is_some_and(|count| count <= ids.items.len());
        ids.items.truncate(so_far.unwrap_or(ids.items.len()));
        let pairs = info.output_token_logprobs.filter(|list| list.items.len() == ids.items.len());
        self.change(index, |choice| {
            if has_all {
                choice.clear_ids();
            }
            if let Some(triples) = pairs {
                choice.add_pairs(triples.items.into_iter().map(|(logprob, id, _)| (id, logprob)));
            }
            choice.add_ids(ids);
            choice.set_count(info.completion_tokens);
            if let Some(spans) = info.weight_versions {
                choice.add_spans(spans);
            }
        });

        let Some(finish) = info.finish_reason else { return };
        if finish.r#type.as_deref() == Some("abort") {
            self.set_error(&finish.message.map_or(Value::from("aborted"), Value::from));
        } else {
            let stop = filled(finish.matched).map(|stop| short_value(stop, STOP_BYTES_MAX));
            self.change(index, |choice| choice.set_finish(finish.r#type, stop));
        }
    }

    fn take_prompt_count(&mut self, prompt_index: u32, tokens: Option<u64>) {
        if let Some(tokens) = tokens {
            self.missing.set_prompt_tokens(prompt_index, tokens);
            self.timing_counts.prompt = Some(tokens);
        }
    }
}
