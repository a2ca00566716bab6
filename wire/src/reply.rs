//! The facts of a reply: ids, logprobs, versions and counts, collected as it passes.
//!
//! - `chat`, `native`, `messages`, `responses`: readers, one for each kind of route.
//! - `choice`: a choice as it grows, and the ids and logprobs that it ends with.
//! - `lenient`, `list`: values of any kind, lists and texts, read within bounds.
//! - `logprobs`: lists of logprobs.
//! - `deltas`: pieces of text, counted where nobody counts tokens.
//! - `endings`: how a reply tells that it failed.
//! - [`Vocabulary`]: finds ids by the bytes of their tokens.
//! - [`MissingIds`] and [`PromptLookup`]: ids that a reply does not hold, and how to ask for them.

mod chat;
mod choice;
mod deltas;
mod endings;
mod entries;
mod lenient;
mod list;
mod logprobs;
mod messages;
pub(crate) mod missing;
mod native;
mod responses;
mod versions;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use episode::{Choice, Route, TokenCounts};
use serde_json::value::RawValue;

use crate::bounds::{
    CHOICES_MAX, ERROR_BYTES_MAX, MODEL_BYTES_MAX, PROMPTS_MAX, TOKEN_BYTES_MAX,
    TOKEN_COLUMN_BYTES_MAX,
};
use crate::document::ReplyDocument;
use crate::json::Brackets;
use crate::request::Request;
use crate::sse::{ReadEvent, documents};
use chat::PromptIds;
use choice::{ChoiceDraft, ReplyContext};
pub(crate) use endings::is_failure;
use endings::{error_text, may_hold_tokens};
use list::short;
use messages::MessagesUsage;
pub use missing::{MissingIds, PromptLookup, rendered_text};
pub(crate) use vocabulary::Spelling;
pub use vocabulary::{Vocabulary, VocabularyError};

/// Collects the facts of a reply from one document or from many chunks. Never fails: a chunk that
/// cannot be read is counted if tokens may be lost with it, and its bytes are recorded anyway.
#[derive(Debug)]
pub struct Collector {
    route: Route,
    choices_per_prompt: u32,
    /// Number of prompts of the request. Ids of other prompts are ignored.
    prompts_max: u32,
    /// Number of choices that the request asks for. Further ones are not collected.
    choices_max: u32,
    /// Bytes that ids and logprobs occupy.
    token_bytes: usize,
    /// Bytes that the other data of the tokens occupies.
    column_bytes: usize,
    /// The reply holds more than is collected, so that none of it is.
    is_capped: bool,
    /// The other data of the tokens was too long, and is left out.
    lacks_columns: bool,
    /// Keeps lists of alternatives: they hold more than the sampled token itself.
    keeps_alternatives: bool,
    vocabulary: Option<Arc<Vocabulary>>,
    model: Option<String>,
    prompts: BTreeMap<u32, Vec<u32>>,
    choices: BTreeMap<u32, ChoiceDraft>,
    /// The weight version of all tokens, if the server reports no spans.
    version: Option<String>,
    usage: TokenCounts,
    /// Counts beside the usage, for replies without one.
    timing_counts: TokenCounts,
    /// Pieces of text that came in events without ids.
    deltas: u64,
    /// The usage of a Messages reply so far, field by field.
    messages_usage: MessagesUsage,
    /// The reply holds a call of one of the agent's tools.
    has_call: bool,
    missing: MissingIds,
    error: Option<String>,
    unread: u32,
    /// Something of the chunk that is being taken was lost.
    is_chunk_lost: bool,
    /// A chunk was lost that may have been part of any choice.
    has_gap: bool,
}

/// The facts of a whole reply.
#[derive(Debug, Default, PartialEq)]
pub struct Facts {
    /// The model that the server named.
    pub model: Option<String>,
    /// Token ids of each prompt, by its place in the request; an empty list for a prompt without
    /// reported ids.
    pub prompts: Vec<Vec<u32>>,
    /// The choices, by index.
    pub choices: Vec<Choice>,
    /// The server's counts, or counts of the ids if it sent none. Where there are none either, the
    /// pieces of text in a stream are counted: at least as many tokens were sampled.
    pub usage: TokenCounts,
    /// The error that the reply carried, inside a stream or instead of one.
    pub error: Option<String>,
    /// True if there is an answer, and every choice of it has its finish reason.
    pub is_finished: bool,
    /// Number of chunks that could not be read and may have held tokens.
    pub unread: u32,
    /// True if the reply holds more choices or tokens than are collected. Then none are.
    pub is_capped: bool,
    /// Ids that are not in the reply, but that the server can still be asked for.
    pub missing: MissingIds,
}

/// The token counts of a reply, whether or not it reports ids.
pub fn token_counts(route: Route, reply: &[u8]) -> TokenCounts {
    let mut collector = Collector::new(route, None, None);
    documents(reply).for_each(|document| collector.take(&document));
    collector.reported_counts()
}

impl Collector {
    /// A collector for the upstream's reply on `route` to `request`. A `vocabulary` gives ids to
    /// tokens that come with their bytes and without an id.
    pub fn new(
        route: Route,
        request: Option<&Request>,
        vocabulary: Option<Arc<Vocabulary>>,
    ) -> Self {
        Self {
            route,
            choices_per_prompt: request.map_or(1, Request::choices),
            prompts_max: prompt_count(route, request).min(PROMPTS_MAX),
            choices_max: choice_count(route, request),
            keeps_alternatives: request.is_some_and(|request| request.asks_alternatives(route)),
            vocabulary,

            token_bytes: 0,
            column_bytes: 0,
            is_capped: false,
            lacks_columns: false,
            model: None,
            prompts: BTreeMap::new(),
            choices: BTreeMap::new(),
            version: None,
            usage: TokenCounts::default(),
            timing_counts: TokenCounts::default(),
            deltas: 0,
            messages_usage: MessagesUsage::default(),
            has_call: false,
            missing: MissingIds::default(),
            error: None,
            unread: 0,
            is_chunk_lost: false,
            has_gap: false,
        }
    }

    /// Keeps alternatives even if the agent did not ask for them.
    pub fn keep_alternatives(mut self) -> Self {
        self.keeps_alternatives = true;
        self
    }

    /// Takes one document, or the data of one event.
    pub fn take(&mut self, json: &[u8]) {
        let read = match self.route {
            _ if !is_object_or_list(json) => Some(()),
            Route::Messages => self.take_messages(json),
            Route::Responses => self.take_responses(json),
            Route::Generate => self.take_native(json),
            _ => {
                let brackets = Brackets::of(json).ok();
                brackets.and_then(|brackets| self.take_chat(&brackets.outline(json)))
            }
        };
        self.note_read(read, json);
    }

    /// Takes one document, or the data of one event, whose outline others need too.
    pub fn take_document(&mut self, document: &ReplyDocument) {
        match self.route {
            Route::Messages | Route::Responses | Route::Generate => self.take(document.bytes()),
            _ if !is_object_or_list(document.bytes()) => {}
            _ => {
                let read = document.outline().ok().and_then(|outline| self.take_chat(&outline));
                self.note_read(read, document.bytes());
            }
        }
    }

    /// Takes an event. One that is named an error is one, whatever its data is.
    pub fn take_event(&mut self, event: &ReadEvent<'_>) {
        let Some(data) = event.data() else { return };
        self.take_document(data);
        self.count_deltas(data.bytes());
        if self.error.is_none() && event.is_named("error") {
            match serde_json::from_slice(data.bytes()) {
                Ok(error) => self.set_raw_error(error),
                Err(_) => {
                    let text = String::from_utf8_lossy(data.bytes().trim_ascii());
                    self.error = Some(short(text.into_owned(), ERROR_BYTES_MAX));
                }
            }
        }
    }

    fn note_read(&mut self, read: Option<()>, json: &[u8]) {
        if read.is_none() && may_hold_tokens(json) {
            self.mark_all();
        }
        // A chunk may lose several things, and counts once.
        self.unread += u32::from(std::mem::take(&mut self.is_chunk_lost));
    }

    /// Marks that a part of a reply was lost that may have been of any choice: no ids are exact.
    fn mark_all(&mut self) {
        self.is_chunk_lost = true;
        self.has_gap = true;
    }

    /// The index of the prompt that the choice of this index continues.
    fn prompt_of(&self, index: u32) -> u32 {
        match self.route {
            Route::Completions | Route::Generate => index / self.choices_per_prompt,
            _ => 0,
        }
    }

    /// Returns true if every choice that the request asks for has a finish reason.
    pub fn finished(&self) -> bool {
        let asked = u64::from(self.choices_per_prompt) * u64::from(self.prompts_max);
        self.choices.len() as u64 >= asked && self.choices.values().all(ChoiceDraft::has_finished)
    }

    /// Returns true if the reply carried an error.
    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// Stops to collect tokens, and forgets those that were collected.
    pub fn stop(&mut self) {
        self.note_cut(true);
    }

    /// Number of bytes that what was collected occupies, roughly.
    pub fn held(&self) -> usize {
        self.token_bytes + self.column_bytes + self.choices.len() * size_of::<ChoiceDraft>()
    }

    /// The facts that were collected.
    pub fn facts(mut self) -> Facts {
        if self.has_gap {
            self.choices.values_mut().for_each(ChoiceDraft::mark_gap);
        }

        // These need the drafts, which the choices are made of.
        let reported = self.reported_counts();
        let lacks_end = self.choices.iter().filter(|(_, choice)| choice.lacks_end_token());
        self.missing.unended = lacks_end.map(|(index, _)| *index).collect();
        let is_finished =
            !self.choices.is_empty() && self.choices.values().all(ChoiceDraft::has_finished);
        let context = ReplyContext {
            // With one choice, the count of all sampled tokens is its own count.
            count: if self.choices.len() == 1 { reported.completion } else { None },
            version: self.version.as_deref(),
            vocabulary: self.vocabulary.as_deref(),
        };
        let choices: Vec<Choice> =
            self.choices.into_values().map(|choice| choice.finish(&context)).collect();

        let counted_prompt = (!self.prompts.is_empty())
            .then(|| self.prompts.values().map(|ids| ids.len() as u64).sum());
        let usage = TokenCounts {
            prompt: reported.prompt.or(counted_prompt),
            completion: match count_sampled(&choices) {
                None if is_finished && reported.completion.is_some() => reported.completion,
                // What was counted before the end is not all of it.
                None => reported.completion.max((self.deltas > 0).then_some(self.deltas)),
                counted => reported.completion.or(counted),
            },
        };
        Facts {
            model: self.model,
            prompts: in_place(self.prompts, self.prompts_max),
            choices,
            usage,
            error: self.error,
            is_finished,
            unread: self.unread,
            is_capped: self.is_capped,
            missing: self.missing,
        }
    }

    /// The server's own counts. Where it counts each choice by itself, the sum is known once every
    /// choice has its count.
    fn reported_counts(&self) -> TokenCounts {
        let prompts: BTreeSet<u32> = self.choices.values().map(ChoiceDraft::prompt_index).collect();
        let prompt = match prompts.len() {
            0 | 1 => self.timing_counts.prompt,
            _ => self.missing.prompt_tokens(&prompts),
        };
        let completion = match self.choices.len() {
            0 | 1 => self.timing_counts.completion,
            _ => sum(self.choices.values().map(ChoiceDraft::count)),
        };

        let bounded = |count: Option<u64>| count.map(|count| count.min(TokenCounts::MAX));
        TokenCounts {
            prompt: bounded(self.usage.prompt.or(prompt)),
            completion: bounded(self.usage.completion.or(completion)),
        }
    }

    fn set_usage(&mut self, prompt: Option<u64>, completion: Option<u64>) {
        self.usage = TokenCounts {
            prompt: prompt.or(self.usage.prompt),
            completion: completion.or(self.usage.completion),
        };
    }

    /// Sets the error.
    fn set_raw_error(&mut self, error: &RawValue) {
        self.error = Some(error_text(error));
    }

    /// Notes the word with which a choice ended. An error that the reply tells says more.
    fn note_ending(&mut self, reason: Option<&str>) {
        if let Some(reason) = reason.filter(|reason| self.error.is_none() && is_failure(reason)) {
            let text = format!("the engine ended the answer with `{reason}`");
            self.error = Some(short(text, ERROR_BYTES_MAX));
        }
    }

    fn set_model(&mut self, model: Option<String>) {
        if let Some(model) = model {
            self.model = Some(short(model, MODEL_BYTES_MAX));
        }
    }

    /// Sets the ids of a prompt. The first ones hold.
    fn set_prompt(&mut self, prompt_index: u32, ids: PromptIds) {
        let is_new = prompt_index < self.prompts_max && !self.prompts.contains_key(&prompt_index);
        if is_new && !self.is_capped && !ids.is_damaged {
            self.token_bytes += ids.items.len() * size_of::<u32>();
            self.prompts.insert(prompt_index, ids.items);
            self.note_cut(ids.is_cut || self.token_bytes > TOKEN_BYTES_MAX);
        }
    }

    /// Changes the choice of this index, which is made if it is new. Returns false if the reply has
    /// no room for it.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut ChoiceDraft)) -> bool {
        if self.choices.len() as u64 >= u64::from(self.choices_max)
            && !self.choices.contains_key(&index)
        {
            self.note_cut(true);
            return false;
        }
        let prompt_index = self.prompt_of(index);
        let choice =
            self.choices.entry(index).or_insert_with(|| ChoiceDraft::new(index, prompt_index));

        let (tokens, columns) = (choice.token_bytes(), choice.column_bytes());
        change(choice);
        if self.is_capped {
            choice.drop_tokens();
        } else if self.lacks_columns {
            choice.drop_columns();
        }
        self.token_bytes = self.token_bytes.saturating_sub(tokens) + choice.token_bytes();
        self.column_bytes = self.column_bytes.saturating_sub(columns) + choice.column_bytes();

        let is_cut = choice.is_cut();
        if self.column_bytes > TOKEN_COLUMN_BYTES_MAX {
            (self.lacks_columns, self.column_bytes) = (true, 0);
            self.choices.values_mut().for_each(ChoiceDraft::drop_columns);
        }
        self.note_cut(is_cut || self.token_bytes > TOKEN_BYTES_MAX);
        true
    }

    /// Stops to collect if the reply `is_cut`: it holds more than is collected.
    fn note_cut(&mut self, is_cut: bool) {
        if is_cut && !self.is_capped {
            self.is_capped = true;
            self.choices.values_mut().for_each(ChoiceDraft::drop_tokens);
            self.prompts.clear();
            (self.token_bytes, self.column_bytes) = (0, 0);
        }
    }
}

/// Returns true if a document may be an object or a list. No other holds anything of a reply.
fn is_object_or_list(json: &[u8]) -> bool {
    matches!(json.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// The sum of counts if all are known; it saturates.
fn sum(mut counts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    counts.try_fold(0_u64, |sum, count| Some(sum.saturating_add(count?)))
}

/// The number of sampled ids of all choices, if all are known and there is a choice.
fn count_sampled(choices: &[Choice]) -> Option<u64> {
    if choices.is_empty() {
        return None;
    }
    choices.iter().map(|choice| choice.token_ids.as_ref().map(|ids| ids.len() as u64)).sum()
}

/// The number of prompts of a request to `route`.
fn prompt_count(route: Route, request: Option<&Request>) -> u32 {
    let batch = request.filter(|_| matches!(route, Route::Completions | Route::Generate));
    batch.map_or(1, |request| u32::try_from(request.prompts()).unwrap_or(u32::MAX))
}

/// The number of choices of the reply to a request.
fn choice_count(route: Route, request: Option<&Request>) -> u32 {
    let Some(request) = request else { return CHOICES_MAX };
    request.choices().saturating_mul(prompt_count(route, Some(request)).max(1)).min(CHOICES_MAX)
}

/// Prompts at their places. A reply that was cut short has some of them only, and not always the
/// first ones.
fn in_place(mut reported: BTreeMap<u32, Vec<u32>>, prompts_max: u32) -> Vec<Vec<u32>> {
    let end = reported.keys().rev().find(|at| **at < prompts_max).map_or(0, |last| last + 1);
    (0..end).map(|at| reported.remove(&at).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use episode::Fidelity;

    use std::borrow::Cow;

    use super::*;
    use crate::sse::Event;

    fn collect(route: Route, n: u32, parts: &[&str]) -> Facts {
        let mut collector = Collector::new(route, None, None);
        (collector.choices_per_prompt, collector.prompts_max) = (n, 2);
        collector.choices_max = 2 * n;
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    #[test]
    fn a_streamed_chat_adds_up() {
        let facts = collect(
            Route::Chat,
            1,
            &[
                r#"{"model":"m","choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2,3]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"finish_reason":null,"token_ids":[4]}]}"#,
                r#"{"choices":[{"index":0,"delta":{},"logprobs":{"content":[{"token":"b"}]},"finish_reason":"stop","stop_reason":7,"token_ids":[5],"weight_versions":[{"version":"3","start":0,"end":2}]}]}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
            ],
        );
        let choice = &facts.choices[0];
        assert_eq!(facts.prompts, [[1, 2, 3]]);
        assert_eq!(choice.token_ids.as_deref(), Some(&[4, 5][..]));
        assert!(choice.logprobs[0] == -0.5 && choice.logprobs[1].is_nan());
        assert_eq!(choice.fidelity, Fidelity::Exact);
        assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
        assert_eq!(choice.stop_reason.as_deref(), Some("7"));
        assert_eq!(choice.versions[0].number(), Some(3));
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(2) });
        assert_eq!(facts.model.as_deref(), Some("m"));
    }

    #[test]
    fn choices_of_a_batch_of_prompts_find_their_prompt() {
        let facts = collect(
            Route::Completions,
            2,
            &[r#"{"choices":[
                {"index":0,"text":"","token_ids":[9],"prompt_token_ids":[1],"logprobs":{"token_logprobs":[-1.0]}},
                {"index":1,"text":"","token_ids":[8],"prompt_token_ids":[1]},
                {"index":2,"text":"","token_ids":[7],"prompt_token_ids":[2]},
                {"index":3,"text":"","token_ids":[6],"prompt_token_ids":[2]}]}"#],
        );
        assert_eq!(facts.prompts, [[1], [2]]);
        let of: Vec<_> = facts.choices.iter().map(|c| c.prompt_index).collect();
        assert_eq!(of, [0, 0, 1, 1]);
        assert_eq!(facts.choices[0].logprobs, [-1.0]);
        assert_eq!(facts.usage.completion, Some(4));
    }

    /// A batch of two prompts with two choices each: a collector for it, and its events.
    fn batch() -> (Collector, Vec<Vec<u8>>) {
        let request =
            include_bytes!("../../tests/tapes/vllm/completions/batch_stream.request.json");
        let stream = include_bytes!("../../tests/tapes/vllm/completions/batch_stream.asked.sse");
        let request = Request::read(&Bytes::from_static(request)).unwrap();
        (
            Collector::new(Route::Completions, Some(&request), None),
            documents(stream).map(Cow::into_owned).collect(),
        )
    }

    #[test]
    fn a_prompt_keeps_its_place_however_early_a_batch_is_cut() {
        let count = batch().1.len();
        let mut gaps = 0;
        for cut in 1..=count {
            let (mut collector, events) = batch();
            events[..cut].iter().for_each(|event| collector.take(event));
            let facts = collector.facts();
            gaps += facts.prompts.iter().filter(|prompt| prompt.is_empty()).count();
            for choice in &facts.choices {
                let own: &[u32] = if choice.prompt_index == 0 { &[1, 5] } else { &[1, 6, 7] };
                assert_eq!(facts.prompts[choice.prompt_index as usize], own, "{cut}");
            }
        }
        assert_eq!(gaps, 1, "the first event is of the second prompt");
    }

    #[test]
    fn a_batch_has_finished_when_all_of_its_choices_have() {
        let (mut collector, events) = batch();
        let finished: Vec<bool> = events
            .iter()
            .map(|event| {
                collector.take(event);
                collector.finished()
            })
            .collect();
        let first = finished.iter().position(|finished| *finished);
        assert_eq!(first, Some(3), "{finished:?}");
    }

    #[test]
    fn prompts_that_were_not_asked_for_take_no_room() {
        let (mut collector, _) = batch();
        collector.take(br#"{"choices":[{"index":4294967295,"prompt_token_ids":[9]}]}"#);
        collector.take(br#"{"choices":[{"index":0,"prompt_token_ids":[1,5]}]}"#);
        assert_eq!(collector.facts().prompts, [[1, 5]]);
    }

    fn of_one_choice() -> Collector {
        let request = Request::read(&Bytes::from_static(b"{}")).unwrap();
        Collector::new(Route::Chat, Some(&request), None)
    }

    #[test]
    fn choices_that_were_not_asked_for_are_not_collected() {
        let choices = |indices: std::ops::Range<u32>| {
            let all = indices.map(|index| format!(r#"{{"index":{index},"token_ids":[1]}}"#));
            format!(r#"{{"choices":[{}]}}"#, all.collect::<Vec<_>>().join(","))
        };
        let mut one = of_one_choice();
        one.take(choices(0..1).as_bytes());
        assert!(!one.is_capped);
        one.take(choices(0..1000).as_bytes());
        (1000..2000).for_each(|index| one.take(choices(index..index + 1).as_bytes()));
        let facts = one.facts();
        assert!(facts.is_capped && facts.choices[0].token_ids.is_none());
        assert_eq!(facts.choices.len(), 1);
    }

    #[test]
    fn ids_and_other_data_without_end_take_no_room() {
        let ids = format!(r#"{{"choices":[{{"token_ids":[{}1]}}]}}"#, "1,".repeat(1 << 17));
        let mut endless = of_one_choice();
        let per_chunk = (1 << 17) * 4;
        for _ in 0..=TOKEN_BYTES_MAX / per_chunk {
            endless.take(ids.as_bytes());
            assert!(endless.held() <= TOKEN_BYTES_MAX + per_chunk);
        }
        assert!(endless.is_capped && endless.held() < 1 << 16);
        endless.take(br#"{"choices":[{"finish_reason":"stop"}]}"#);
        assert!(endless.finished());

        let mask = format!(r#"{{"choices":[{{"sampling_mask":["{}"]}}]}}"#, "x".repeat(8 << 20));
        let mut masked = of_one_choice();
        masked.take(br#"{"choices":[{"token_ids":[7]}]}"#);
        (0..=TOKEN_COLUMN_BYTES_MAX / (8 << 20)).for_each(|_| masked.take(mask.as_bytes()));
        let choice = &masked.facts().choices[0];
        assert_eq!((choice.token_ids.as_deref(), choice.token_columns.len()), (Some(&[7][..]), 0));
    }

    #[test]
    fn long_words_of_an_upstream_are_cut() {
        let long = "x".repeat(1 << 20);
        let mut wordy = of_one_choice();
        let chunk = format!(
            r#"{{"model":"{long}","choices":[{{"finish_reason":"{long}","stop_reason":"{long}"}}],
            "error":{{"message":"{long}"}}}}"#
        );
        wordy.take(chunk.as_bytes());
        let facts = wordy.facts();
        let choice = &facts.choices[0];
        let words = [&facts.model, &choice.finish_reason, &choice.stop_reason, &facts.error];
        assert!(words.iter().all(|word| word.as_ref().unwrap().len() <= ERROR_BYTES_MAX));
    }

    #[test]
    fn counts_are_read_from_replies_of_every_form() {
        let counts = |prompt, completion| TokenCounts { prompt, completion };
        let whole = br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        assert_eq!(token_counts(Route::Chat, whole), counts(Some(3), Some(2)));
        let stream = [b"data: ".as_slice(), whole, b"\n\ndata: [DONE]\n\n"].concat();
        assert_eq!(token_counts(Route::Chat, &stream), counts(Some(3), Some(2)));
        assert_eq!(token_counts(Route::Chat, br#"{"choices":[]}"#), counts(None, None));
        let messages = br#"{"type":"message","usage":{"input_tokens":3,"output_tokens":2}}"#;
        assert_eq!(token_counts(Route::Messages, messages), counts(Some(3), Some(2)));
    }

    /// A chunk of llama.cpp's of one choice, with `count` sampled tokens so far.
    fn timed(index: u32, id: u32, finish: &str, count: u32) -> String {
        let logprobs = match finish {
            "null" => format!(r#"{{"content":[{{"id":{id},"logprob":-0.5}}]}}"#),
            _ => "null".to_owned(),
        };
        format!(
            r#"{{"choices":[{{"index":{index},"logprobs":{logprobs},"finish_reason":{finish}}}],
            "timings":{{"cache_n":2,"prompt_n":1,"predicted_n":{count}}}}}"#
        )
    }

    #[test]
    fn an_event_without_anything_loses_nothing() {
        let parts = ["null", &timed(0, 7, "null", 1), &timed(0, 0, "\"stop\"", 1)];
        for route in [Route::Chat, Route::Completions] {
            let facts = collect(route, 1, &parts);
            assert_eq!(facts.unread, 0);
            assert_eq!(facts.choices[0].token_ids.as_deref(), Some(&[7][..]));
        }
    }

    #[test]
    fn counts_that_grow_with_the_stream_end_with_the_last() {
        let parts = [timed(0, 7, "null", 1), timed(0, 8, "null", 2), timed(0, 0, "\"stop\"", 2)];
        let facts = collect(Route::Chat, 1, &parts.each_ref().map(String::as_str));
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(2) });
        assert_eq!(facts.choices[0].token_ids.as_deref(), Some(&[7, 8][..]));
    }

    #[test]
    fn counts_beside_a_choice_are_of_that_choice() {
        let parts = [
            timed(1, 7, "null", 1),
            timed(0, 8, "null", 1),
            timed(0, 9, "null", 2),
            timed(0, 0, "\"stop\"", 2),
            timed(1, 0, "\"stop\"", 1),
        ];
        let facts = collect(Route::Chat, 2, &parts.each_ref().map(String::as_str));
        let ids: Vec<_> = facts.choices.iter().map(|c| c.token_ids.clone().unwrap()).collect();
        assert_eq!(ids, [vec![8, 9], vec![7]]);
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(3) });
    }

    #[test]
    fn an_end_that_is_not_told_is_owed_where_it_alone_is_missing() {
        let end = |count: u32, stop: &str| {
            let last = timed(0, 0, "\"stop\"", count);
            let verbose = format!(
                r#","__verbose":{{"index":0,"tokens":[],"stop":true,"tokens_predicted":{count},
                "tokens_evaluated":3,"prompt":"<s>hi","stop_type":"{stop}"}}}}"#
            );
            let last = last.strip_suffix('}').unwrap().to_owned() + &verbose;
            collect(Route::Chat, 1, &[&timed(0, 7, "null", 1), &last])
        };
        let facts = end(2, "eos");
        assert_eq!(
            (&facts.missing.unended[..], facts.missing.text.as_deref()),
            (&[0][..], Some("<s>hi"))
        );
        assert_eq!(facts.choices[0].token_ids.as_deref(), Some(&[7][..]));
        assert_eq!(facts.usage.completion, Some(2));
        for other in [end(2, "word"), end(3, "eos")] {
            assert!(other.missing.unended.is_empty() && other.choices[0].token_ids.is_none());
        }
        let whole = end(1, "eos");
        assert!(whole.missing.unended.is_empty() && whole.choices[0].token_ids.is_some());
    }

    #[test]
    fn an_event_that_is_named_an_error_is_one() {
        for (event, told) in [
            ("event: error\ndata: provider down\n\n", Some("provider down")),
            ("event: error\ndata: {\"code\":7}\n\n", Some("{\"code\":7}")),
            ("event: error\ndata: {\"error\":\"down\"}\n\n", Some("down")),
            ("event: error\ndata: {\"message\":\"down\"}\n\n", Some("down")),
            ("event: ping\ndata: provider down\n\n", None),
        ] {
            for route in [Route::Chat, Route::Messages, Route::Responses, Route::Generate] {
                let mut collector = Collector::new(route, None, None);
                collector.take_event(&Event(Bytes::from_static(event.as_bytes())).read());
                assert_eq!(collector.facts().error.as_deref(), told, "{route:?} {event}");
            }
        }
    }

    #[test]
    fn errors_and_nonsense_are_kept_apart() {
        let facts = collect(Route::Chat, 1, &[r#"{"error":{"message":"out of memory"}}"#, "{"]);
        assert_eq!(facts.error.as_deref(), Some("out of memory"));
        assert_eq!(facts.unread, 1);
    }

    #[test]
    fn a_choice_of_which_a_part_could_not_be_read_has_no_ids() {
        let chunk = |index: u32, id: &str| {
            format!(r#"{{"choices":[{{"index":{index},"token_ids":[{id}]}}]}}"#)
        };
        let ids = |parts: &[&str], unread: u32| {
            let facts = collect(Route::Chat, 2, parts);
            assert_eq!(facts.unread, unread);
            facts.choices.into_iter().map(|choice| choice.token_ids).collect::<Vec<_>>()
        };
        let (first, second, more) = (chunk(0, "1"), chunk(1, "2"), chunk(0, "3"));
        let one = ids(&[&first, &second, &chunk(0, "-1"), &more], 0);
        assert_eq!(one, [None, Some(vec![2])], "the chunk says whose it is");
        let any = ids(&[&first, &second, r#"{"choices":[{"#, &more], 1);
        assert_eq!(any, [None, None], "it may have been of either");
        let twice = r#"{"choices":[{"index":"?","token_ids":[1]},{"index":"?","token_ids":[2]}]}"#;
        assert_eq!(ids(&[&first, &second, twice], 1), [None, None], "one chunk counts once");
    }

    #[test]
    fn counts_without_measure_are_the_largest() {
        let most = u64::MAX;
        let timings = format!(r#"{{"timings":{{"prompt_n":{most},"cache_n":{most}}}}}"#);
        let usage =
            format!(r#"{{"usage":{{"input_tokens":{most},"cache_read_input_tokens":{most}}}}}"#);
        for (route, reply) in [(Route::Chat, timings), (Route::Messages, usage)] {
            assert_eq!(
                collect(route, 1, &[&reply]).usage.prompt,
                Some(TokenCounts::MAX),
                "{reply}"
            );
        }
    }

    #[test]
    fn one_version_of_a_reply_is_that_of_all_its_choices() {
        let reply = |version: &str| {
            format!(
                r#"{{"choices":[{{"index":0,"token_ids":[1,2]}},{{"index":1,"token_ids":[3,4,5]}}],
                "metadata":{{"weight_version":"{version}",
                "weight_versions":[{{"version":"7","start":0,"end":2}}]}}}}"#
            )
        };
        let ends = |version: &str| {
            let facts = collect(Route::Chat, 2, &[&reply(version)]);
            let spans = facts.choices.iter().map(|choice| choice.versions[0].end);
            spans.collect::<Vec<_>>()
        };
        assert_eq!(ends("7"), [2, 3]);
        assert_eq!(ends("8"), [2, 2], "which of the two sampled the rest is not known");
    }

    #[test]
    fn a_reply_is_not_multiplied_by_its_choices() {
        let choices: Vec<String> = (0..1000).map(|n| format!(r#"{{"index":{n}}}"#)).collect();
        let reply = |metadata: String| {
            format!(r#"{{"choices":[{}],"metadata":{{{metadata}}}}}"#, choices.join(","))
        };
        let span = r#"{"version":"1","start":0,"end":1}"#;
        let shared = |spans: usize| {
            let spans = vec![span; spans].join(",");
            collect(Route::Chat, 500, &[&reply(format!(r#""weight_versions":[{spans}]"#))])
        };
        let spans = |facts: &Facts| facts.choices.iter().map(|c| c.versions.len()).sum::<usize>();
        assert_eq!((spans(&shared(4)), shared(4).unread), (4000, 0));
        assert_eq!((spans(&shared(5)), shared(5).unread), (0, 1));
        let long = "\u{e9}".repeat(200);
        let one = format!(
            r#"{{"choices":[{{"token_ids":[1]}}],"metadata":{{"weight_version":"{long}"}}}}"#
        );
        let facts = collect(Route::Chat, 1, &[&one]);
        assert_eq!(facts.choices[0].versions[0].version.len(), 256);
    }
}
