//! Servers' own routes for text: llama.cpp's `/completion` and SGLang's `/generate`.

use episode::VersionSpan;
use serde::Deserialize;
use serde_json::Value;

use super::Collector;
use super::chat::{Entry, Span};
use super::draft::Draft;

/// A reply or an event of one, of either server.
#[derive(Deserialize)]
struct Native<'a> {
    index: Option<u32>,
    model: Option<String>,
    error: Option<Value>,
    /// llama.cpp: sampled ids, of one step or, where they were asked for, of the whole reply.
    tokens: Option<Vec<u32>>,
    #[serde(borrow)]
    completion_probabilities: Option<Vec<Entry<'a>>>,
    stop: Option<bool>,
    stop_type: Option<String>,
    stopping_word: Option<String>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    /// SGLang: all ids so far, or those of this event.
    output_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    meta_info: Option<Info>,
}

#[derive(Deserialize)]
struct Info {
    finish_reason: Option<Finish>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_token_logprobs: Option<Vec<(Option<f64>, u32, Value)>>,
    weight_version: Option<Value>,
    weight_versions: Option<Vec<Span>>,
}

#[derive(Deserialize)]
struct Finish {
    r#type: Option<String>,
    matched: Option<Value>,
    message: Option<String>,
}

impl Collector {
    /// Several prompts or choices are a list, or events with an index.
    pub(super) fn take_native(&mut self, json: &[u8]) -> Option<()> {
        let json = json.trim_ascii();
        if json == b"null" {
            return Some(());
        }
        let parts: Vec<Native<'_>> = match json.first() {
            Some(b'[') => serde_json::from_slice(json).ok()?,
            _ => vec![serde_json::from_slice(json).ok()?],
        };
        for (at, part) in (0..).zip(parts) {
            self.native(part.index.unwrap_or(at), part);
        }
        Some(())
    }

    fn native(&mut self, index: u32, mut part: Native<'_>) {
        self.model = part.model.take().or(self.model.take());
        if let Some(error) = part.error.take().filter(|error| !error.is_null()) {
            self.failed_with(&error);
            return;
        }
        let prompt_index = self.prompt_of(index);
        if let Some(ids) = part.prompt_token_ids.take() {
            self.prompts.entry(prompt_index).or_insert(ids);
        }
        match part.meta_info.take() {
            Some(info) => self.sglangs(index, part.output_ids.unwrap_or_default(), info),
            None if part.stop.is_some() => self.llamacpps(index, part),
            None => {}
        }
    }

    fn llamacpps(&mut self, index: u32, part: Native<'_>) {
        let prompt_index = self.prompt_of(index);
        if let Some(tokens) = part.tokens_evaluated {
            self.owed.counted(prompt_index, tokens);
            self.timed.prompt = Some(tokens);
        }
        let bytes = self.vocabulary.is_some();
        let entries = part.completion_probabilities.unwrap_or_default();
        let draft = self.draft(index, prompt_index);
        draft.add_tokens(entries.into_iter().map(|entry| entry.token(bytes)));
        if part.stop != Some(true) {
            return;
        }
        if let Some(ids) = part.tokens.filter(|ids| !ids.is_empty()) {
            draft.add_ids(ids);
        }
        draft.set_count(part.tokens_predicted);
        let reason = match part.stop_type.as_deref() {
            Some("limit") => "length",
            _ => "stop",
        };
        let word = part.stopping_word.filter(|word| !word.is_empty());
        draft.finish(Some(reason.to_owned()), word.map(Value::String));
        self.timed.completion = part.tokens_predicted;
    }

    /// An event may have more ids than its counts say: those of the next step, which came while it
    /// was written.
    fn sglangs(&mut self, index: u32, mut ids: Vec<u32>, info: Info) {
        let prompt_index = self.prompt_of(index);
        let version = info.weight_version.filter(|version| !version.is_null());
        self.version = version.map(super::chat::label).or(self.version.take());
        if let Some(tokens) = info.prompt_tokens {
            self.owed.counted(prompt_index, tokens);
            self.timed.prompt = Some(tokens);
        }
        let so_far = info.completion_tokens.and_then(|count| usize::try_from(count).ok());
        let is_whole = so_far.is_some_and(|count| count <= ids.len());
        ids.truncate(so_far.unwrap_or(ids.len()));
        let draft = self.draft(index, prompt_index);
        read(draft, is_whole, ids, info.output_token_logprobs);
        draft.set_count(info.completion_tokens);
        if let Some(spans) = info.weight_versions {
            draft.set_versions(spans.into_iter().map(VersionSpan::from).collect());
        }
        self.timed.completion = info.completion_tokens;
        let Some(finish) = info.finish_reason else { return };
        if finish.r#type.as_deref() == Some("abort") {
            self.failed_with(&finish.message.map_or(Value::from("aborted"), Value::from));
            return;
        }
        self.draft(index, prompt_index).finish(finish.r#type, finish.matched);
    }
}

/// Takes the ids of an event: all of them so far, or those that are new.
fn read(
    draft: &mut Draft,
    is_whole: bool,
    ids: Vec<u32>,
    logprobs: Option<Vec<(Option<f64>, u32, Value)>>,
) {
    if is_whole {
        draft.start_over();
    }
    if let Some(triples) = logprobs.filter(|triples| triples.len() == ids.len()) {
        draft.add_pairs(triples.into_iter().map(|(logprob, id, _)| (id, logprob)));
    }
    draft.add_ids(ids);
}
