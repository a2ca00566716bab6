//! Servers' own routes for text: llama.cpp's `/completion` and SGLang's `/generate`.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, MapAccess};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Collector;
use super::chat::PromptIds;
use super::endings::error_of;
use super::lenient::{Expected, Held, Lenient, Object};
use super::list::{Each, Ids, filled, short, short_value};
use super::logprobs::{Entries, Triples};
use super::versions::{Spans, version_name};
use crate::bounds::{ERROR_BYTES_MAX, STOP_BYTES_MAX};
use crate::json::mended;

/// A reply of either server, or an event of one.
#[derive(Default, Deserialize)]
struct NativeReply<'a> {
    index: Lenient<u32>,
    model: Lenient<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// llama.cpp: sampled ids, of one step or, if they were asked for, of the whole reply.
    tokens: Lenient<Ids>,
    #[serde(borrow)]
    completion_probabilities: Lenient<Entries<'a>>,
    stop: Lenient<bool>,
    stop_type: Lenient<String>,
    stopping_word: Lenient<String>,
    tokens_predicted: Lenient<u64>,
    tokens_evaluated: Lenient<u64>,
    /// SGLang: all ids so far, or those of this event.
    output_ids: Lenient<Ids>,
    prompt_token_ids: Lenient<PromptIds>,
    #[serde(borrow)]
    meta_info: Held<SglangInfo<'a>>,
}

#[derive(Default, Deserialize)]
struct SglangInfo<'a> {
    #[serde(borrow)]
    finish_reason: Lenient<SglangFinish<'a>>,
    prompt_tokens: Lenient<u64>,
    completion_tokens: Lenient<u64>,
    output_token_logprobs: Lenient<Triples>,
    #[serde(borrow)]
    weight_version: Option<&'a RawValue>,
    #[serde(borrow)]
    weight_versions: Lenient<Spans<'a>>,
}

#[derive(Default, Deserialize)]
struct SglangFinish<'a> {
    r#type: Lenient<String>,
    #[serde(borrow)]
    matched: Option<&'a RawValue>,
    message: Lenient<String>,
}

impl<'de: 'a, 'a> Expected<'de> for SglangFinish<'a> {
    fn of_object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        Ok(Object::of_object(object)?.map(|Object(finish)| finish))
    }

    /// Older servers send the type alone.
    fn of_text(text: Cow<'de, str>) -> Option<Self> {
        Some(Self { r#type: Lenient::Value(text.into_owned()), ..Self::default() })
    }
}

impl Collector {
    /// Takes a reply. Several prompts or choices are a list, or events with an index.
    pub(super) fn take_native(&mut self, json: &[u8]) -> Option<()> {
        let mut taken = 0;
        let read = self.take_native_parts(json, &mut taken);
        read.or_else(|| self.take_native_parts(&mended(json)?, &mut taken))
    }

    /// Takes the parts of a reply that follow the first ones, which were `taken` before.
    fn take_native_parts(&mut self, json: &[u8], taken: &mut u32) -> Option<()> {
        let trimmed = json.trim_ascii();
        if trimmed.first() != Some(&b'[') {
            let part: NativeReply<'_> = serde_json::from_slice(trimmed).ok()?;
            self.take_native_part(0, part);
            return Some(());
        }

        let (mut at, choices_max) = (0, self.choices_max);
        let parts = Each::new(|part: Held<NativeReply<'_>>| {
            if let Some(part) = part.members().filter(|_| at >= *taken) {
                self.take_native_part(at, part);
                *taken = at + 1;
            }
            at += 1;
            at < choices_max
        });
        let mut list = serde_json::Deserializer::from_slice(trimmed);
        let is_cut = parts.deserialize(&mut list).ok()?;
        self.note_cut(is_cut);
        list.end().ok()
    }

    /// Takes the part at the place `at`.
    fn take_native_part(&mut self, at: u32, mut part: NativeReply<'_>) {
        let index = part.index.value().unwrap_or(at);
        self.set_model(part.model.take().value());
        if let Some(error) = error_of(part.error) {
            self.set_raw_error(error);
            return;
        }
        let prompt_index = self.prompt_of(index);
        if let Lenient::Value(ids) = part.prompt_token_ids.take() {
            self.set_prompt(prompt_index, ids);
        }
        match part.meta_info.take().members() {
            Some(info) => self.take_sglang(index, part.output_ids, info),
            None if part.stop != Lenient::Absent => self.take_llamacpp(index, part),
            None => {}
        }
    }

    fn take_llamacpp(&mut self, index: u32, part: NativeReply<'_>) {
        let prompt_index = self.prompt_of(index);
        self.take_prompt_count(prompt_index, part.tokens_evaluated.value());

        let keeps_bytes = self.vocabulary.is_some();
        let entries = part.completion_probabilities;
        self.change(index, |choice| {
            choice.note_lost_logprobs(entries.is_other());
            let entries = entries.value().unwrap_or_default();
            choice.note_lost_logprobs(entries.has_others());
            choice.note_cut(entries.is_cut);
            choice.add_tokens(entries.tokens(keeps_bytes));
        });
        // Ids of a step are in its logprobs, too. Only the last part has what follows.
        if part.stop != Lenient::Value(true) {
            return;
        }

        let reason = match part.stop_type.as_value().map(String::as_str) {
            Some("limit") => "length",
            _ => "stop",
        };
        let word = part.stopping_word.value().filter(|word| !word.is_empty());
        let word = word.map(|word| Value::String(short(word, STOP_BYTES_MAX)));
        let count = part.tokens_predicted.value();
        self.change(index, |choice| {
            if let Some(ids) = part.tokens.value().filter(|ids| !ids.items.is_empty()) {
                choice.add_ids(ids);
            }
            choice.set_count(count);
            choice.set_finish(Some(reason.to_owned()), word);
        });
        self.timing_counts.completion = count;
    }

    fn take_sglang(&mut self, index: u32, ids: Lenient<Ids>, info: SglangInfo<'_>) {
        let prompt_index = self.prompt_of(index);
        self.version = filled(info.weight_version).map(version_name).or(self.version.take());
        self.take_prompt_count(prompt_index, info.prompt_tokens.value());
        let count = info.completion_tokens.value();
        self.timing_counts.completion = count;

        // An event may have more ids than its count says: those of the next step, which came while
        // the event was written. An event with fewer ids holds only the new ones.
        let is_lost = ids.is_other();
        let mut ids = ids.value().unwrap_or_default();
        let so_far = count.and_then(|count| usize::try_from(count).ok());
        let has_all = so_far.is_some_and(|count| count <= ids.items.len());
        ids.items.truncate(so_far.unwrap_or(ids.items.len()));
        let pairs = info.output_token_logprobs.value();
        let pairs = pairs.filter(|list| list.items.len() == ids.items.len() && list.are_whole());
        self.change(index, |choice| {
            if has_all {
                choice.clear_ids();
            }
            if let Some(triples) = pairs {
                choice.add_pairs(triples.pairs());
            }
            choice.add_ids(Ids { is_damaged: ids.is_damaged || is_lost, ..ids });
            choice.set_count(count);
            if let Some(spans) = info.weight_versions.value() {
                choice.add_spans(spans);
            }
        });
        if let Lenient::Value(finish) = info.finish_reason {
            self.take_sglang_finish(index, finish);
        }
    }

    fn take_sglang_finish(&mut self, index: u32, finish: SglangFinish<'_>) {
        let reason = finish.r#type.value();
        if reason.as_deref() == Some("abort") {
            let message = finish.message.value().unwrap_or_else(|| "aborted".to_owned());
            self.error = Some(short(message, ERROR_BYTES_MAX));
        } else {
            self.note_ending(reason.as_deref());
            let stop = filled(finish.matched).map(|stop| short_value(stop, STOP_BYTES_MAX));
            self.change(index, |choice| choice.set_finish(reason, stop));
        }
    }

    fn take_prompt_count(&mut self, prompt_index: u32, tokens: Option<u64>) {
        if let Some(tokens) = tokens {
            self.missing.set_prompt_tokens(prompt_index, tokens);
            self.timing_counts.prompt = Some(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use episode::Route;

    use super::super::Facts;
    use super::*;

    fn facts(parts: &[&str]) -> Facts {
        let mut collector = Collector::new(Route::Generate, None, None);
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    #[test]
    fn a_foreign_value_costs_only_itself() {
        let llamacpp = |more: &str| {
            let step = r#"{"content":"a","stop":false,"completion_probabilities":[{"id":5,"logprob":-0.5}]}"#;
            let end = format!(
                r#"{{"content":"","stop":true,"stop_type":"limit","tokens_evaluated":2,"tokens_predicted":1{more}}}"#
            );
            facts(&[step, &end])
        };
        let sglang = |more: &str| {
            facts(&[&format!(
                r#"{{"text":"a","output_ids":[5],"meta_info":{{"finish_reason":{{"type":"stop"}},"prompt_tokens":2,"completion_tokens":1,"output_token_logprobs":[[-0.5,5,null]]{more}}}}}"#
            )])
        };
        let ids = |found: &Facts| found.choices[0].token_ids.clone();
        for value in ["7", "[1]", "\"\\ud83d\"", "1e999", "{\"a\":1}", "null", "\"x\""] {
            for name in ["timings", "stopping_word2", "model", "generation_settings", "index2"] {
                let found = llamacpp(&format!(r#","{name}":{value}"#));
                assert_eq!(found, Facts { model: found.model.clone(), ..llamacpp("") }, "{value}");
            }
            for name in ["id", "e2e_latency", "cached_tokens", "weight_versions", "matched_stop"] {
                let found = sglang(&format!(r#","{name}":{value}"#));
                assert_eq!(ids(&found), ids(&sglang("")), "{name}: {value}");
            }
        }
        assert_eq!((ids(&llamacpp("")), ids(&sglang(""))), (Some(vec![5]), Some(vec![5])));
    }

    #[test]
    fn the_parts_of_a_list_are_read_one_by_one() {
        let part = |id: &str| {
            format!(
                r#"{{"output_ids":[{id}],"meta_info":{{"finish_reason":"stop","completion_tokens":1.0,"note":"\ud83d"}}}}"#
            )
        };
        let found = facts(&[&format!("[{},7,{},{}]", part("5"), part("-1"), part("6"))]);
        let ids: Vec<_> = found.choices.iter().map(|c| (c.index, c.token_ids.clone())).collect();
        assert_eq!(ids, [(0, Some(vec![5])), (2, None), (3, Some(vec![6]))]);
        assert!(found.is_finished && found.unread == 0);
    }

    #[test]
    fn an_answer_that_was_aborted_has_an_error() {
        for (finish, told) in [
            (r#"{"type":"abort","message":"gone"}"#, "gone"),
            (r#"{"type":"abort"}"#, "aborted"),
            (r#"{"type":"error"}"#, "the engine ended the answer with `error`"),
        ] {
            let found = facts(&[&format!(r#"{{"meta_info":{{"finish_reason":{finish}}}}}"#)]);
            assert_eq!(found.error.as_deref(), Some(told));
        }
        for open in [r#"{"content":"a","stop":false}"#, r#"{"meta_info":{"finish_reason":null}}"#] {
            assert!(!facts(&[open]).is_finished, "{open}");
        }
    }
}
