//! Chat and text completions, in the spellings of every server we know.

use std::ops::Range;

use episode::{TokenCounts, VersionSpan};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Collector;
use super::choice::ChoiceDraft;
use super::endings::{error_of, may_hold_tokens};
use super::entries::{PlainEntry, plain_entries};
use super::lenient::{Held, Lenient};
use super::list::{Ids, each, filled, short_value};
use super::logprobs::{Logprobs, Triples, add_entries};
use super::versions::{Spans, version_name};
use crate::bounds::{PROMPT_TOKENS_MAX, STOP_BYTES_MAX};
use crate::json::{Ends, Malformed, Outline, each_element, members, mended, root};

/// Spans that all choices share are copied to each. If the copies were more than this in all, they
/// are not read.
const SHARED_SPANS_MAX: usize = 4096;

/// The long lists of a reply, and the reply without them. They are read apart, because serde passes
/// over a value once before it hands it on.
#[derive(Default)]
struct LongLists<'a> {
    /// The place of a list of [`ChatChoice`], read one by one, or of what stands for it.
    choices: Option<Range<usize>>,
    prompt_ids: Option<&'a [u8]>,
    /// SGLang's experts of a streamed reply.
    experts: Option<&'a str>,
    /// The reply with nulls in their places.
    rest: Vec<u8>,
}

impl<'a> LongLists<'a> {
    fn of(document: &'a Outline<'_>) -> Result<Self, Malformed> {
        let json = document.bytes();
        let mut found = Self::default();
        let whole = root(document)?;
        let mut cut = Vec::new();

        for member in members(document, &whole)? {
            let list = &json[member.value.clone()];
            let is_list = list != b"null";
            match member.name(json).as_ref() {
                b"choices" => found.choices = is_list.then(|| member.value.clone()),
                b"prompt_token_ids" => found.prompt_ids = is_list.then_some(list),
                b"sglext" => {
                    let Some((place, text)) = experts_in(document, &member.value) else { continue };
                    found.experts = Some(text);
                    cut.push(place);
                    continue;
                }
                _ => continue,
            }
            cut.push(member.value);
        }

        // Space around it goes, too.
        found.rest = without(json, whole, &cut);
        Ok(found)
    }
}

/// The long lists of a choice that are spelled as servers spell them.
#[derive(Default)]
struct ChoiceLists<'a> {
    token_ids: Lenient<Ids>,
    prompt_ids: Lenient<PromptIds>,
    content: Option<Vec<PlainEntry<'a>>>,
    /// Experts in base64.
    experts: Option<&'a str>,
}

impl<'a> ChoiceLists<'a> {
    /// The lists of the choice at a place of a document, and the choice without them; `None` if it
    /// must be read as a whole.
    fn of(document: &'a Outline<'_>, place: Range<usize>) -> Option<(Self, Vec<u8>)> {
        let json = document.bytes();
        let (mut token_ids, mut prompt_ids, mut content) = (None, None, None);
        let mut experts = None;
        let mut cut = Vec::new();

        for member in members(document, &place).ok()? {
            let value = &json[member.value.clone()];
            let is_new = match member.name(json).as_ref() {
                b"routed_experts" => {
                    let Some(text) = plain_text(value) else { continue };
                    experts.replace(text).is_none()
                }
                b"meta_info" => {
                    let Some((place, text)) = experts_in(document, &member.value) else { continue };
                    experts.replace(text).is_none().then_some(())?;
                    cut.push(place);
                    continue;
                }
                b"token_ids" if value != b"null" => token_ids.replace(value).is_none(),
                b"prompt_token_ids" if value != b"null" => prompt_ids.replace(value).is_none(),
                b"logprobs" if value.starts_with(b"{") => {
                    let list = only_content(document, member.value.clone())?;
                    content.replace(&json[list]).is_none()
                }
                _ => continue,
            };
            // serde refuses a field that comes twice.
            is_new.then_some(())?;
            cut.push(member.value);
        }

        let mut found = Self { experts, ..Self::default() };
        if let Some(list) = token_ids {
            found.token_ids = Ids::of_json(list).ok()?;
        }
        if let Some(list) = prompt_ids {
            found.prompt_ids = PromptIds::of_json(list).ok()?;
        }
        if let Some(list) = content {
            found.content = Some(plain_entries(list)?);
        }
        Some((found, without(json, place, &cut)))
    }
}

/// A text without escapes, with its quotes.
fn plain_text(value: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| *byte >= b' ' && *byte != b'\\';
    let is_text = value.first() == Some(&b'"') && value.iter().all(is_plain);
    std::str::from_utf8(value).ok().filter(|_| is_text)
}

/// The experts in an object of SGLang's, if they are in base64, and their place. They are
/// megabytes, so nobody else reads or copies them.
fn experts_in<'a>(
    document: &'a Outline<'_>,
    object: &Range<usize>,
) -> Option<(Range<usize>, &'a str)> {
    let json = document.bytes();
    let members = members(document, object).ok()?;
    let mut found = members.into_iter().filter(|m| m.name(json).as_ref() == b"routed_experts");
    let place = found.next()?.value;
    let text = plain_text(&json[place.clone()])?;
    // serde refuses a field that comes twice.
    found.next().is_none().then_some((place, text))
}

/// The place of the list of entries in logprobs that hold nothing else.
fn only_content(document: &Outline<'_>, logprobs: Range<usize>) -> Option<Range<usize>> {
    let json = document.bytes();
    let mut found = None;
    for member in members(document, &logprobs).ok()? {
        match member.name(json).as_ref() {
            b"content" if found.is_none() => found = Some(member.value),
            b"refusal" if json[member.value.clone()] == *b"null" => {}
            _ => return None,
        }
    }
    found
}

/// A document's bytes in `whole`, with nulls in the places of `cut`.
fn without(json: &[u8], whole: Range<usize>, cut: &[Range<usize>]) -> Vec<u8> {
    let gone: usize = cut.iter().map(Range::len).sum();
    let mut rest = Vec::with_capacity(whole.len() - gone + cut.len() * b"null".len());
    let mut copied = whole.start;
    for place in cut {
        rest.extend_from_slice(&json[copied..place.start]);
        rest.extend_from_slice(b"null");
        copied = place.end;
    }
    rest.extend_from_slice(&json[copied..whole.end]);
    rest
}

/// A reply, or a chunk of one, without its [`LongLists`]. Fields that are not read are not here.
#[derive(Default, Deserialize)]
struct ChatReply<'a> {
    model: Lenient<String>,
    usage: Held<ChatUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// SGLang's flat errors have `error` here, others in their `type`.
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    /// The error of a server that is made with FastAPI.
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    /// The reply of `count_tokens`.
    input_tokens: Lenient<u64>,
    #[serde(borrow)]
    metadata: Held<Metadata<'a>>,
    #[serde(borrow)]
    sglext: Held<Sglext<'a>>,
    timings: Held<Timings>,
    #[serde(borrow)]
    __verbose: Held<Verbose<'a>>,
}

/// The ids of a prompt.
pub(super) type PromptIds = Ids<PROMPT_TOKENS_MAX>;

#[derive(Default, Deserialize)]
struct ChatChoice<'a> {
    index: Lenient<u32>,
    #[serde(borrow)]
    logprobs: Held<Logprobs<'a>>,
    finish_reason: Lenient<String>,
    /// OpenRouter: the word of the server behind it.
    native_finish_reason: Lenient<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    matched_stop: Option<&'a RawValue>,
    token_ids: Lenient<Ids>,
    response_token_ids: Lenient<Ids>,
    prompt_token_ids: Lenient<PromptIds>,
    #[serde(borrow)]
    weight_versions: Lenient<Spans<'a>>,
    #[serde(borrow)]
    meta_info: Held<MetaInfo<'a>>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
    #[serde(borrow)]
    sampling_mask: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct ChatUsage {
    prompt_tokens: Lenient<u64>,
    completion_tokens: Lenient<u64>,
}

/// SGLang: the tokens of a choice.
#[derive(Default, Deserialize)]
struct MetaInfo<'a> {
    output_token_logprobs: Lenient<Triples>,
    completion_tokens: Lenient<u64>,
    #[serde(borrow)]
    output_token_sampling_mask: Option<&'a RawValue>,
    #[serde(borrow)]
    output_token_sampling_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
}

/// SGLang: the weights of a reply.
#[derive(Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    weight_version: Option<&'a RawValue>,
    #[serde(borrow)]
    weight_versions: Lenient<Spans<'a>>,
}

/// SGLang: ids and experts of a streamed reply.
#[derive(Default, Deserialize)]
struct Sglext<'a> {
    input_ids: Lenient<PromptIds>,
    /// A list of lists, read one by one.
    #[serde(borrow)]
    output_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    routed_experts: Option<&'a RawValue>,
}

/// llama.cpp: numbers of tokens that were read and sampled, on the last chunk.
#[derive(Clone, Copy, Default, Deserialize)]
struct Timings {
    cache_n: Lenient<u64>,
    prompt_n: Lenient<u64>,
    predicted_n: Lenient<u64>,
}

/// llama.cpp: the details of a choice that has ended.
#[derive(Default, Deserialize)]
struct Verbose<'a> {
    index: Lenient<u32>,
    /// All sampled ids; empty unless they were asked for.
    tokens: Lenient<Ids>,
    /// False on the steps of a streamed text.
    stop: Lenient<bool>,
    tokens_predicted: Lenient<u64>,
    tokens_evaluated: Lenient<u64>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    stop_type: Lenient<String>,
}

impl Collector {
    /// Takes a reply or a chunk of one; `None` if tokens of it may be lost.
    pub(super) fn take_chat(&mut self, document: &Outline<'_>) -> Option<()> {
        let lists = LongLists::of(document).ok()?;
        let mended_rest;
        let reply: ChatReply<'_> = match serde_json::from_slice(&lists.rest) {
            Ok(reply) => reply,
            Err(_) => {
                mended_rest = mended(&lists.rest)?;
                serde_json::from_slice(&mended_rest).ok()?
            }
        };

        self.take_error(&reply, lists.choices.is_some());
        self.set_model(reply.model.value());
        let (usage, timings) = (reply.usage.members(), reply.timings.members());
        // Beside timings, the usage is that of one choice.
        if let Some(usage) = usage.filter(|_| timings.is_none()) {
            self.set_usage(usage.prompt_tokens.value(), usage.completion_tokens.value());
        }
        self.set_usage(reply.input_tokens.value(), None);
        if let Some(list) = lists.prompt_ids
            && let Lenient::Value(ids) = PromptIds::of_json(list).unwrap_or_default()
        {
            self.set_prompt(0, ids);
        }

        let first = lists.choices.and_then(|choices| self.take_choices(document, choices));
        // These speak of choices that must be there by now.
        self.take_metadata(reply.metadata.members());
        self.take_sglext(reply.sglext.members());
        if let Some(text) = lists.experts {
            self.change(0, |choice| choice.add_column("routed_experts", [text]));
        }
        if let Some(timings) = timings {
            self.take_timings(first, timings, usage.unwrap_or_default());
        }
        if let Some(verbose) = reply.__verbose.members() {
            self.take_verbose(verbose);
        }
        Some(())
    }

    fn take_error(&mut self, reply: &ChatReply<'_>, has_choices: bool) {
        let is_flat = |kind: Option<&RawValue>| kind.is_some_and(|kind| kind.get() == "\"error\"");
        if let Some(error) = error_of(reply.error) {
            self.set_raw_error(error);
        } else if is_flat(reply.object) || is_flat(reply.r#type) {
            self.set_raw_error(reply.message.unwrap_or(RawValue::NULL));
        } else if let Some(detail) = error_of(reply.detail).filter(|_| !has_choices) {
            self.set_raw_error(detail);
        }
    }

    /// Takes the counts of one choice so far, of which the last ones hold, with the usage beside
    /// them. In a reply of several choices they are of the first one; in a chunk without choices,
    /// of the only one.
    fn take_timings(&mut self, first: Option<u32>, timings: Timings, usage: ChatUsage) {
        let cached = timings.cache_n.value().unwrap_or(0);
        let read = timings.prompt_n.value().map(|n| n.saturating_add(cached));
        let prompt = usage.prompt_tokens.value().or(read);
        let completion = usage.completion_tokens.value().or(timings.predicted_n.value());
        self.timing_counts = TokenCounts { prompt, completion };

        let only = if self.choices.len() == 1 { self.choices.keys().next().copied() } else { None };
        let Some(index) = first.or(only) else { return };
        let prompt_index = self.prompt_of(index);
        self.change(index, |choice| choice.set_count(completion));
        if let Some(tokens) = prompt {
            self.missing.set_prompt_tokens(prompt_index, tokens);
        }
    }

    fn take_verbose(&mut self, verbose: Verbose<'_>) {
        if verbose.stop == Lenient::Value(false) {
            return;
        }

        let index = verbose.index.value().unwrap_or(0);
        let prompt_index = self.prompt_of(index);
        if let Some(tokens) = verbose.tokens_evaluated.value() {
            self.missing.set_prompt_tokens(prompt_index, tokens);
        }
        if let Some(prompt) = verbose.prompt.filter(|_| prompt_index == 0)
            && let Ok(text) = serde_json::from_str(prompt.get())
        {
            self.missing.text = Some(text);
        }

        self.change(index, |choice| {
            choice.set_count(verbose.tokens_predicted.value());
            if let Some(ids) = verbose.tokens.value().filter(|ids| !ids.items.is_empty()) {
                choice.add_ids(ids);
            }
            if verbose.stop_type.value().as_deref() == Some("eos") {
                choice.set_stopped_by_end_token();
            }
        });
    }

    /// Takes the choices at a place of a document. Returns the index of the first one.
    fn take_choices(&mut self, document: &Outline<'_>, place: Range<usize>) -> Option<u32> {
        let (mut first, mut has_room, mut is_cut) = (None, true, false);
        let mut at = 0;

        let walked = each_element(document, &place, |element| {
            let json = &document.bytes()[element.clone()];
            if !has_room {
                is_cut = true;
                return serde_json::from_slice(json).map(|IgnoredAny| ()).map_err(|_| Malformed);
            }
            if json.first() == Some(&b'{') {
                match self.take_element(document, element, at) {
                    Some((index, has_more_room)) => {
                        first.get_or_insert(index);
                        has_room = has_more_room;
                    }
                    None if may_hold_tokens(json) => self.mark_all(),
                    None => {}
                }
            }
            at += 1;
            Ok(())
        });
        if walked.is_err() && may_hold_tokens(&document.bytes()[place]) {
            self.mark_all();
        }
        self.note_cut(is_cut);
        first
    }

    /// Takes the choice at the place `at` of a list. Returns its index, and false if the reply has
    /// no room for further ones; `None` if it is not known whose it is.
    fn take_element(
        &mut self,
        document: &Outline<'_>,
        element: Range<usize>,
        at: u32,
    ) -> Option<(u32, bool)> {
        let json = &document.bytes()[element.clone()];
        let (lists, rest) = ChoiceLists::of(document, element).unzip();
        let choice = rest.as_deref().unwrap_or(json);
        let mended_choice;
        let choice: ChatChoice<'_> = match serde_json::from_slice(choice) {
            Ok(choice) => choice,
            Err(_) => {
                mended_choice = mended(choice)?;
                serde_json::from_slice(&mended_choice).ok()?
            }
        };

        let index = match choice.index {
            Lenient::Value(index) => index,
            Lenient::Other if self.choices_max > 1 => return None,
            // A list of several choices without an index has them in order.
            Lenient::Absent | Lenient::Other => at,
        };
        Some((index, self.take_choice(index, choice, lists.unwrap_or_default())))
    }

    /// Takes a choice, or a piece of one. Returns false if the reply has no room for further ones.
    fn take_choice(&mut self, index: u32, part: ChatChoice<'_>, lists: ChoiceLists<'_>) -> bool {
        let prompt_index = self.prompt_of(index);
        if let Lenient::Value(ids) = lists.prompt_ids.or(part.prompt_token_ids) {
            self.set_prompt(prompt_index, ids);
        }
        let reason = part.finish_reason.value();
        if let Some(error) = error_of(part.error) {
            self.set_raw_error(error);
        }
        self.note_ending(reason.as_deref());
        self.note_ending(part.native_finish_reason.value().as_deref());

        // Read before the choice is borrowed.
        let (keeps_bytes, keeps_alternatives) =
            (self.vocabulary.is_some(), self.keeps_alternatives);
        self.change(index, |choice| {
            choice.take_ids(lists.token_ids.or(part.token_ids).or(part.response_token_ids));
            if let Some(entries) = lists.content {
                add_entries(choice, &entries, keeps_bytes, keeps_alternatives);
            }
            choice.note_lost_logprobs(part.logprobs.is_other());
            if let Some(logprobs) = part.logprobs.members() {
                logprobs.add_to(choice, keeps_bytes, keeps_alternatives);
            }
            if let Some(spans) = part.weight_versions.value() {
                choice.add_spans(spans);
            }
            if let Some(meta) = part.meta_info.members() {
                meta.add_to(choice);
            }
            // vLLM's name for the stop, then SGLang's.
            let stop = filled(part.stop_reason).or(filled(part.matched_stop));
            let stop = stop.map(|stop| short_value(stop, STOP_BYTES_MAX));
            choice.set_finish(reason, stop);
            if let Some(text) = lists.experts {
                choice.add_column("routed_experts", [text]);
            }
            add_column(choice, "routed_experts", part.routed_experts);
            add_column(choice, "sampling_mask", part.sampling_mask);
        })
    }

    fn take_metadata(&mut self, metadata: Option<Metadata<'_>>) {
        let Some(metadata) = metadata else { return };
        self.version = filled(metadata.weight_version).map(version_name).or(self.version.take());
        if let Some(spans) = metadata.weight_versions.value() {
            self.note_cut(spans.is_cut);
            self.take_spans_of_one(spans.version_spans());
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
            self.is_chunk_lost = true;
            return;
        }
        self.choices.values_mut().for_each(|choice| choice.set_versions(spans.clone()));
    }

    fn take_sglext(&mut self, sglext: Option<Sglext<'_>>) {
        let Some(sglext) = sglext else { return };
        if let Some(ids) = sglext.input_ids.value() {
            self.set_prompt(0, ids);
        }
        if let Some(lists) = filled(sglext.output_ids) {
            let mut index = 0;
            let is_cut = each(lists, |ids: Lenient<Ids>| {
                let has_room = self.change(index, |choice| choice.take_ids(ids));
                index += 1;
                has_room
            });
            match is_cut {
                Ok(is_cut) => self.note_cut(is_cut),
                Err(_) => self.mark_all(),
            }
        }
        if let Some(raw) = sglext.routed_experts {
            self.change(0, |choice| add_column(choice, "routed_experts", Some(raw)));
        }
    }
}

impl MetaInfo<'_> {
    fn add_to(self, choice: &mut ChoiceDraft) {
        match self.output_token_logprobs {
            Lenient::Value(triples) => {
                choice.note_cut(triples.is_cut);
                choice.add_pairs(triples.pairs());
            }
            Lenient::Other => choice.add_pairs([None]),
            Lenient::Absent => {}
        }
        choice.set_count(self.completion_tokens.value());
        add_column(choice, "sampling_mask", self.output_token_sampling_mask);
        add_column(choice, "sampling_logprobs", self.output_token_sampling_logprobs);
        add_column(choice, "routed_experts", self.routed_experts);
    }
}

/// Adds a value that covers the whole choice, or a list with an element for each new token.
fn add_column(choice: &mut ChoiceDraft, name: &'static str, raw: Option<&RawValue>) {
    let Some(value) = filled(raw) else { return };
    let added = if value.get().starts_with('[') {
        choice.add_column(name, []);
        each(value, |element: &RawValue| {
            choice.add_column(name, [element.get()]);
            true
        })
    } else {
        choice.add_column(name, [value.get()]);
        Ok(false)
    };
    debug_assert!(added.is_ok(), "the value was read as JSON before");
}

#[cfg(test)]
mod tests {
    use episode::{Fidelity, Route};

    use super::super::Facts;
    use super::*;
    use crate::json::Brackets;

    /// A stream of two choices with all that a server may report.
    const STREAM: [&str; 6] = [
        r#"{"model":"m","choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1,2]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[3],"logprobs":{"content":[{"token":"a","logprob":-0.5}]}}]}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"c"},"token_ids":[5],"logprobs":{"content":[{"token":"c","logprob":-1.5}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"token_ids":[4],"logprobs":{"content":[{"token":"b","logprob":-0.25}]},"finish_reason":"stop","stop_reason":4}]}"#,
        r#"{"choices":[{"index":1,"delta":{},"token_ids":[6],"logprobs":{"content":[{"token":"d","logprob":-2.5}]},"finish_reason":"length"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":4}}"#,
    ];

    /// Values of every kind.
    const VALUES: [&str; 17] = [
        "null",
        "true",
        "false",
        "0",
        "-1",
        "7",
        "1.5",
        "1.7e9",
        "1e999",
        "NaN",
        "\"no\"",
        "\"\\ud83d\"",
        "[]",
        "[{}]",
        "[1 2]",
        "{}",
        "{\"a\":[1,{\"b\":\"\\udc00\"}]}",
    ];

    fn facts(parts: &[&str]) -> Facts {
        let mut collector = Collector::new(Route::Chat, None, None);
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    /// The facts of the stream with `change` made to the event at `at`.
    fn changed(at: usize, change: impl Fn(&str) -> String) -> Facts {
        let event = change(STREAM[at]);
        let mut stream = STREAM;
        stream[at] = &event;
        facts(&stream)
    }

    #[test]
    fn an_event_without_tokens_loses_none() {
        let whole = facts(&STREAM);
        let ids: Vec<_> = whole.choices.iter().map(|choice| choice.token_ids.clone()).collect();
        assert_eq!(ids, [Some(vec![3, 4]), Some(vec![5, 6])]);
        let mut events: Vec<String> = [
            "",
            " ",
            "ping",
            "2026-11-26T10:00:00Z",
            "{ping}",
            "[DONE]",
            "{\"ts\":1}",
            "{\"ts\" 1}",
        ]
        .map(str::to_owned)
        .to_vec();
        events.extend(VALUES.map(str::to_owned));
        for field in ["model", "usage", "metadata", "id", "object", "created", "choices", "sglext"]
        {
            events.extend(VALUES.map(|value| format!(r#"{{"choices":[],"{field}":{value}}}"#)));
        }
        for choice in [r#""delta":null"#, r#""index":null"#, r#""logprobs":false"#, r#""delta":{}"#]
        {
            events.push(format!(r#"{{"choices":[{{{choice}}}]}}"#));
        }
        for event in events {
            for at in 1..STREAM.len() {
                let mut stream = STREAM.to_vec();
                stream.insert(at, &event);
                let found = facts(&stream);
                assert_eq!(
                    found,
                    Facts { model: found.model.clone(), ..facts(&STREAM) },
                    "{event}"
                );
            }
        }
    }

    #[test]
    fn a_foreign_member_costs_only_itself() {
        let names = [
            "model",
            "usage",
            "id",
            "created",
            "metadata",
            "timings",
            "sglext",
            "__verbose",
            "extra",
            "\\ud800",
            "detail",
            "object",
            "input_tokens",
        ];
        let in_choice = [
            "finish_reason",
            "native_finish_reason",
            "delta",
            "message",
            "matched_stop",
            "text",
            "meta_info",
            "weight_versions",
            "prompt_token_ids",
            "extra",
            "\\ud800",
        ];
        for value in VALUES {
            for at in 0..STREAM.len() {
                for name in names {
                    let found = changed(at, |event| {
                        event.replacen('{', &format!(r#"{{"{name}":{value},"#), 1)
                    });
                    let own =
                        Facts { model: found.model.clone(), usage: found.usage, ..facts(&STREAM) };
                    assert_eq!(found, own, "{name}: {value}");
                }
                for name in in_choice.iter().filter(|_| at < STREAM.len() - 1) {
                    let found = changed(at, |event| {
                        event.replacen("[{", &format!(r#"[{{"{name}":{value},"#), 1)
                    });
                    let ids = found.choices.iter().map(|choice| choice.token_ids.as_deref());
                    assert!(ids.eq([Some(&[3, 4][..]), Some(&[5, 6][..])]), "{name}: {value}");
                    assert_eq!((found.unread, found.error), (0, None), "{name}: {value}");
                }
            }
        }
    }

    #[test]
    fn experts_in_base64_are_kept_as_they_came_and_read_by_nobody() {
        let long = "QUJD".repeat(1 << 10);
        let of = |choice: &str, more: &str| {
            let part = format!(r#"{{"index":0,"token_ids":[3],"finish_reason":"stop"{choice}}}"#);
            let reply = format!(r#"{{"choices":[{part}]{more}}}"#);
            let brackets = Brackets::of(reply.as_bytes()).unwrap();
            let document = brackets.outline(reply.as_bytes());
            let lists = LongLists::of(&document).unwrap();
            let at = reply.find("{\"index").unwrap();
            let rest = ChoiceLists::of(&document, at..at + part.len()).unwrap().1;
            let column = facts(&[&reply]).choices[0].token_columns[0].clone();
            assert_eq!(column.name, "routed_experts");
            (lists.rest.len().max(rest.len()), column.json)
        };
        let expected = format!("[\"{long}\"]");
        for (choice, more) in [
            (format!(r#","routed_experts":"{long}""#), String::new()),
            (format!(r#","meta_info":{{"a":1,"routed_experts":"{long}","b":[]}}"#), String::new()),
            (String::new(), format!(r#","sglext":{{"routed_experts":"{long}"}}"#)),
        ] {
            let (read, json) = of(&choice, &more);
            assert!(read < 200, "{read} bytes are read");
            assert_eq!(json, expected);
        }
        // Anything else is read as before.
        let odd = r#","routed_experts":"QUJD\u0044""#;
        assert_eq!(of(odd, "").1, r#"["QUJD\u0044"]"#);
        assert_eq!(of(r#","routed_experts":[[[1]],[[2]]]"#, "").1, "[[[1]],[[2]]]");
    }

    #[test]
    fn counts_and_indices_are_read_however_they_are_spelled() {
        for (prompt, completion) in [("2.0", "4.0"), ("\"2\"", "\"4\""), ("2e0", "0.4e1")] {
            let found = changed(5, |_| {
                format!(
                    r#"{{"choices":null,"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion}}}}}"#
                )
            });
            assert_eq!(found, facts(&STREAM), "{prompt}");
        }
        for index in ["1.0", "\"1\"", "1e0"] {
            let found =
                changed(2, |event| event.replace("\"index\":1", &format!("\"index\":{index}")));
            assert_eq!(found, facts(&STREAM), "{index}");
        }
        for other in ["-1", "{}", "\"many\"", "1.5"] {
            let usage = format!(r#"{{"usage":{{"prompt_tokens":{other},"completion_tokens":9}}}}"#);
            let found = facts(&[&usage]);
            assert_eq!((found.usage.prompt, found.usage.completion), (None, Some(9)), "{other}");
        }
    }

    #[test]
    fn lost_ids_cost_their_choice_and_lost_logprobs_no_ids() {
        let ids =
            |found: &Facts| found.choices.iter().map(|c| c.token_ids.clone()).collect::<Vec<_>>();
        for lost in ["[-1]", "[null]", "\"3\"", "{}", "[1 2]", "[\"x\"]"] {
            let found = changed(1, |event| event.replace("[3]", lost));
            assert_eq!(ids(&found), [None, Some(vec![5, 6])], "{lost}");
            assert_eq!(found.choices[0].logprobs, [-0.5, -0.25], "{lost}");
        }
        for prompt in ["[1,-2]", "\"x\"", "{}", "[1 2]"] {
            let found = changed(0, |event| event.replace("[1,2]", prompt));
            assert_eq!(ids(&found), ids(&facts(&STREAM)), "{prompt}");
            assert!(found.prompts.concat().is_empty(), "{prompt}");
        }
        let entry = r#"{"content":[{"token":"a","logprob":-0.5}]}"#;
        for lost in ["false", "[]", "\"no\"", r#"{"content":"no"}"#, r#"{"content":[1 2]}"#] {
            let found = changed(1, |event| event.replace(entry, lost));
            assert_eq!(ids(&found), ids(&facts(&STREAM)), "{lost}");
            // Which of the two is missing is not known, though the last is that of the stop.
            assert!(found.choices[0].logprobs.iter().all(|logprob| logprob.is_nan()), "{lost}");
        }
        for unread in ["null", "7", "{}", r#"{"logprob":"x","token":7}"#, r#"{"logprob":1e999}"#] {
            let lost = format!(r#"{{"content":[{unread}]}}"#);
            let logprobs =
                changed(1, |event| event.replace(entry, &lost)).choices.remove(0).logprobs;
            assert!(logprobs[0].is_nan() && logprobs[1] == -0.25, "{unread}");
        }
        let unknown = changed(1, |event| event.replace("\"index\":0", "\"index\":\"first\""));
        assert_eq!(ids(&unknown), [None, None], "it may have been of either");
    }

    #[test]
    fn half_a_pair_of_surrogates_in_a_token_is_no_loss() {
        let half = r#"{"choices":[{"token_ids":[3],"logprobs":{"content":[{"token":"\ud83d","logprob":-0.5,"bytes":[240,159]}]},"delta":{"content":"\ud83d"},"finish_reason":"stop"}]}"#;
        let found = facts(&[half]);
        let choice = &found.choices[0];
        assert_eq!(
            (choice.token_ids.as_deref(), &choice.logprobs[..]),
            (Some(&[3][..]), &[-0.5][..])
        );
        assert_eq!((choice.fidelity, found.unread), (Fidelity::Exact, 0));
    }

    #[test]
    fn a_failure_is_found_wherever_it_is_told() {
        let down = r#"{"message":"down","code":502}"#;
        let choice = |members: &str| format!(r#"{{"choices":[{{"index":0,{members}}}]}}"#);
        for (event, told) in [
            (format!(r#"{{"error":{down}}}"#), "down"),
            (format!(r#"{{"choices":[],"error":{down}}}"#), "down"),
            (format!(r#"{{"type":"error","error":{down}}}"#), "down"),
            (r#"{"object":"error","message":"down"}"#.to_owned(), "down"),
            (r#"{"type":"error","message":"down"}"#.to_owned(), "down"),
            (r#"{"detail":"down"}"#.to_owned(), "down"),
            (choice(&format!(r#""finish_reason":"stop","error":{down}"#)), "down"),
            (choice(r#""finish_reason":"error""#), "the engine ended the answer with `error`"),
            (choice(r#""finish_reason":"abort""#), "the engine ended the answer with `abort`"),
            (
                choice(r#""finish_reason":"stop","native_finish_reason":"network_error""#),
                "the engine ended the answer with `network_error`",
            ),
        ] {
            assert_eq!(facts(&[STREAM[1], &event]).error.as_deref(), Some(told), "{event}");
        }
        let both = [&choice(r#""finish_reason":"error""#)[..], &format!(r#"{{"error":{down}}}"#)];
        assert_eq!(facts(&both).error.as_deref(), Some("down"), "a message says more");
        for none in ["false", "\"\"", "{}", "[]", "0", "null"] {
            let event = format!(r#"{{"error":{none},"choices":[{{"error":{none}}}]}}"#);
            assert_eq!(facts(&[&event]).error, None, "{none}");
        }
    }

    #[test]
    fn an_answer_is_finished_with_its_last_finish_reason() {
        let finished = |count: usize| facts(&STREAM[..count]).is_finished;
        assert_eq!([0, 1, 4, 5, 6].map(finished), [false, false, false, true, true]);
        assert!(
            !facts(&[r#"{"choices":[{"message":{"content":"hi"},"finish_reason":0}]}"#])
                .is_finished
        );
    }

    #[test]
    fn choices_without_an_index_are_in_order() {
        let found = facts(&[r#"{"choices":[{"token_ids":[1]},{"index":null,"token_ids":[2]}]}"#]);
        let ids: Vec<_> = found.choices.iter().map(|c| (c.index, c.token_ids.clone())).collect();
        assert_eq!(ids, [(0, Some(vec![1])), (1, Some(vec![2]))]);
    }

    #[test]
    fn digits_beyond_64_bits_stay() {
        let digits = "123456789012345678901234567890";
        let found = facts(&[&format!(
            r#"{{"choices":[{{"token_ids":[1],"stop_reason":{digits}}}],"metadata":{{"weight_version":{digits}}}}}"#
        )]);
        assert_eq!(found.choices[0].stop_reason.as_deref(), Some(digits));
        assert_eq!(found.choices[0].versions[0].version, digits);
    }
}
