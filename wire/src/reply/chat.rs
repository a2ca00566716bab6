//! Chat and text completions, in the spellings of every server we know.

use std::borrow::Cow;
use std::ops::Range;

use episode::{TokenCounts, VersionSpan};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Collector;
use super::choice::{ChoiceDraft, SampledToken};
use super::entries::{PlainEntry, plain_entries};
use super::list::{Capped, each, filled, short_value};
use super::versions::{Spans, version_name};
use crate::bounds::{PROMPT_TOKENS_MAX, STOP_BYTES_MAX};
use crate::json::{Ends, Malformed, Member, Outline, each_element, members, root};

/// Spans that all choices share are copied to each. If the copies were more than this in all, they
/// are not read.
const SHARED_SPANS_MAX: usize = 4096;

/// Choices of a chunk that could not be read, beyond which all choices count as damaged.
const GAP_CHOICES_MAX: usize = 4096;

/// The long lists of a reply, and the reply without them. They are read apart, because serde passes
/// over a value once before it hands it on.
#[derive(Default)]
struct LongLists<'a> {
    /// The place of a list of [`ChatChoice`], read one by one.
    choices: Option<Range<usize>>,
    prompt_ids: Option<&'a [u8]>,
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
    token_ids: Option<Capped<u32>>,
    prompt_ids: Option<PromptIds>,
    content: Option<Vec<PlainEntry<'a>>>,
}

impl<'a> ChoiceLists<'a> {
    /// The lists of the choice at a place of a document, and the choice without them; `None` if it
    /// must be read as a whole.
    fn of(document: &'a Outline<'_>, place: Range<usize>) -> Option<(Self, Vec<u8>)> {
        let json = document.bytes();
        let (mut token_ids, mut prompt_ids, mut content) = (None, None, None);
        let mut cut = Vec::new();
        for member in members(document, &place).ok()? {
            let value = &json[member.value.clone()];
            let is_new = match member.name(json).as_ref() {
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

        let mut found = Self::default();
        if let Some(list) = token_ids {
            found.token_ids = Capped::of_ids(list).ok()?;
        }
        if let Some(list) = prompt_ids {
            found.prompt_ids = PromptIds::of_ids(list).ok()?;
        }
        if let Some(list) = content {
            found.content = Some(plain_entries(list)?);
        }
        Some((found, without(json, place, &cut)))
    }
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
#[derive(Deserialize)]
struct ChatReply<'a> {
    model: Option<String>,
    usage: Option<ChatUsage>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// SGLang's flat errors have `error` here.
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    /// The reply of `count_tokens`.
    input_tokens: Option<u64>,
    #[serde(borrow)]
    metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    sglext: Option<Sglext<'a>>,
    timings: Option<Timings>,
    #[serde(borrow)]
    __verbose: Option<Verbose<'a>>,
}

/// The ids of a prompt.
pub(super) type PromptIds = Capped<u32, PROMPT_TOKENS_MAX>;

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<String>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    matched_stop: Option<&'a RawValue>,
    token_ids: Option<Capped<u32>>,
    response_token_ids: Option<Capped<u32>>,
    prompt_token_ids: Option<PromptIds>,
    #[serde(borrow)]
    weight_versions: Option<Spans<'a>>,
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
    content: Option<Capped<LogprobEntry<'a>>>,
    #[serde(borrow)]
    refusal: Option<Capped<LogprobEntry<'a>>>,
    token_logprobs: Option<Capped<Option<f64>>>,
    #[serde(borrow)]
    tokens: Option<Capped<TokenText<'a>>>,
    token_ids: Option<Capped<u32>>,
    #[serde(borrow)]
    top_logprobs: Option<Capped<&'a RawValue>>,
}

/// One token in a list of logprobs.
#[derive(Deserialize)]
pub(super) struct LogprobEntry<'a> {
    logprob: Option<f64>,
    id: Option<u32>,
    #[serde(borrow)]
    token: Option<TokenText<'a>>,
    #[serde(borrow)]
    bytes: Option<&'a RawValue>,
    #[serde(borrow)]
    top_logprobs: Option<&'a RawValue>,
}

/// The text of a token, borrowed from the reply unless it has escapes. A field of type
/// `Option<Cow<str>>` would be copied always.
#[derive(Deserialize)]
struct TokenText<'a>(#[serde(borrow)] Cow<'a, str>);

/// A triple of SGLang's lists of logprobs: logprob, id and text.
pub(super) type LogprobTriple = (Option<f64>, u32, IgnoredAny);

/// SGLang: the tokens of a choice.
#[derive(Deserialize)]
struct MetaInfo<'a> {
    output_token_logprobs: Option<Capped<LogprobTriple>>,
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
struct Metadata<'a> {
    #[serde(borrow)]
    weight_version: Option<&'a RawValue>,
    #[serde(borrow)]
    weight_versions: Option<Spans<'a>>,
}

/// SGLang: ids and experts of a streamed reply.
#[derive(Deserialize)]
struct Sglext<'a> {
    input_ids: Option<PromptIds>,
    /// A list of lists, read one by one.
    #[serde(borrow)]
    output_ids: Option<&'a RawValue>,
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
struct Verbose<'a> {
    #[serde(default)]
    index: u32,
    /// All sampled ids; empty unless they were asked for.
    tokens: Option<Capped<u32>>,
    /// False on the steps of a streamed text.
    stop: Option<bool>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    stop_type: Option<String>,
}

/// The indices of the choices in a chunk that could not be read as a whole; `None` if one of them
/// is not known.
pub(super) fn choice_indices(json: &[u8]) -> Option<Vec<u32>> {
    let fields = members(json, &root(json).ok()?).ok()?;
    let choices = fields.iter().rev().find(|field| field.key(json) == "choices")?;
    let mut indices = Vec::new();
    each_element(json, &choices.value, |choice| {
        let fields = members(json, &choice)?;
        let index = fields.iter().rev().find(|field| field.key(json) == "index");
        let read = |field: &Member| serde_json::from_slice(&json[field.value.clone()]).ok();
        indices.push(index.map_or(Some(0), read).ok_or(Malformed)?);
        if indices.len() > GAP_CHOICES_MAX { Err(Malformed) } else { Ok(()) }
    })
    .ok()?;
    Some(indices)
}

impl Collector {
    pub(super) fn take_chat(&mut self, document: &Outline<'_>) -> Option<()> {
        // llama.cpp begins a streamed batch with it.
        if document.bytes().trim_ascii() == b"null" {
            return Some(());
        }
        let lists = LongLists::of(document).ok()?;
        let reply: ChatReply<'_> = serde_json::from_slice(&lists.rest).ok()?;

        self.set_model(reply.model);
        // Beside timings, the usage is that of one choice.
        if let Some(usage) = reply.usage.filter(|_| reply.timings.is_none()) {
            self.set_usage(usage.prompt_tokens, usage.completion_tokens);
        }
        self.set_usage(reply.input_tokens, None);
        if let Some(error) = filled(reply.error) {
            self.set_raw_error(error);
        } else if reply.object.is_some_and(|object| object.get() == "\"error\"") {
            self.set_raw_error(reply.message.unwrap_or(RawValue::NULL));
        }
        if let Some(list) = lists.prompt_ids
            && let Some(ids) = PromptIds::of_ids(list).ok()?
        {
            self.set_prompt(0, ids);
        }

        let mut first = None;
        if let Some(choices) = lists.choices {
            first = self.take_choices(document, choices)?;
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
        self.change(index, |choice| choice.set_count(completion));
        if let Some(tokens) = prompt {
            self.missing.set_prompt_tokens(prompt_index, tokens);
        }
    }

    fn take_verbose(&mut self, verbose: Verbose<'_>) {
        if verbose.stop == Some(false) {
            return;
        }

        let prompt_index = self.prompt_of(verbose.index);
        if let Some(tokens) = verbose.tokens_evaluated {
            self.missing.set_prompt_tokens(prompt_index, tokens);
        }
        if let Some(prompt) = verbose.prompt.filter(|_| prompt_index == 0)
            && let Ok(text) = serde_json::from_str(prompt.get())
        {
            self.missing.text = Some(text);
        }

        self.change(verbose.index, |choice| {
            choice.set_count(verbose.tokens_predicted);
            if let Some(ids) = verbose.tokens.filter(|ids| !ids.items.is_empty()) {
                choice.add_ids(ids);
            }
            if verbose.stop_type.as_deref() == Some("eos") {
                choice.set_stopped_by_end_token();
            }
        });
    }

    /// Takes the choices at a place of a document. Returns the index of the first one; `None` if
    /// they are no list of choices.
    fn take_choices(&mut self, document: &Outline<'_>, place: Range<usize>) -> Option<Option<u32>> {
        let (mut first, mut has_room, mut is_cut) = (None, true, false);
        each_element(document, &place, |element| {
            let json = &document.bytes()[element.clone()];
            if !has_room {
                is_cut = true;
                return serde_json::from_slice(json).map(|IgnoredAny| ()).map_err(|_| Malformed);
            }
            let (lists, rest) = ChoiceLists::of(document, element).unzip();
            let choice = rest.as_deref().unwrap_or(json);
            let choice: ChatChoice<'_> = serde_json::from_slice(choice).map_err(|_| Malformed)?;
            first.get_or_insert(choice.index);
            has_room = self.take_choice(choice, lists.unwrap_or_default());
            Ok(())
        })
        .ok()?;
        self.note_cut(is_cut);
        Some(first)
    }

    /// Takes a choice, or a piece of one. Returns false if the reply has no room for further ones.
    fn take_choice(&mut self, part: ChatChoice<'_>, lists: ChoiceLists<'_>) -> bool {
        let prompt_index = self.prompt_of(part.index);
        if let Some(ids) = lists.prompt_ids.or(part.prompt_token_ids) {
            self.set_prompt(prompt_index, ids);
        }

        // Read before the choice is borrowed.
        let (keeps_bytes, keeps_alternatives) =
            (self.vocabulary.is_some(), self.keeps_alternatives);
        self.change(part.index, |choice| {
            if let Some(ids) = lists.token_ids.or(part.token_ids).or(part.response_token_ids) {
                choice.add_ids(ids);
            }
            if let Some(entries) = lists.content {
                add_entries(choice, &entries, keeps_bytes, keeps_alternatives);
            }
            if let Some(logprobs) = part.logprobs {
                logprobs.add_to(choice, keeps_bytes, keeps_alternatives);
            }
            if let Some(spans) = part.weight_versions {
                choice.add_spans(spans);
            }
            if let Some(meta) = part.meta_info {
                meta.add_to(choice);
            }
            // vLLM's name for the stop, then SGLang's.
            let stop = filled(part.stop_reason).or(filled(part.matched_stop));
            let stop = stop.map(|stop| short_value(stop, STOP_BYTES_MAX));
            choice.set_finish(part.finish_reason, stop);
            add_side(choice, "routed_experts", part.routed_experts);
            add_side(choice, "sampling_mask", part.sampling_mask);
        })
    }

    fn take_metadata(&mut self, metadata: Option<Metadata<'_>>) {
        let Some(metadata) = metadata else { return };
        self.version = filled(metadata.weight_version).map(version_name).or(self.version.take());
        if let Some(spans) = metadata.weight_versions {
            self.note_cut(spans.is_cut);
            self.take_spans_of_one(spans.items.into_iter().map(VersionSpan::from).collect());
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
            self.set_prompt(0, ids);
        }
        if let Some(lists) = filled(sglext.output_ids) {
            let mut index = 0;
            let is_cut = each(lists, |ids: Capped<u32>| {
                let has_room = self.change(index, |choice| choice.add_ids(ids));
                index += 1;
                has_room
            });
            // The outer list was read with the chunk; an inner one may hold other things than ids.
            self.note_cut(is_cut.unwrap_or(true));
        }
        if let Some(raw) = sglext.routed_experts {
            self.change(0, |choice| add_side(choice, "routed_experts", Some(raw)));
        }
    }
}

impl Logprobs<'_> {
    fn add_to(self, choice: &mut ChoiceDraft, keeps_bytes: bool, keeps_alternatives: bool) {
        // Chat: a list of entries.
        for entries in self.content.into_iter().chain(self.refusal) {
            choice.note_cut(entries.is_cut);
            let plain: Vec<_> = entries.items.iter().map(LogprobEntry::plain).collect();
            add_entries(choice, &plain, keeps_bytes, keeps_alternatives);
        }

        // Text completions: parallel lists.
        let names = self.tokens.unwrap_or_default().items;
        let ids = self.token_ids.unwrap_or_default().items;
        let numbers = self.token_logprobs.unwrap_or_default();
        choice.note_cut(numbers.is_cut);
        choice.add_tokens(numbers.items.into_iter().enumerate().map(|(at, logprob)| {
            let name = names.get(at);
            let id = ids.get(at).copied();
            SampledToken {
                logprob,
                id: id.or_else(|| name.and_then(id_in_name)),
                bytes: name.filter(|_| keeps_bytes).map(|name| name.0.as_bytes().to_vec()),
            }
        }));
        if let Some(tops) = self.top_logprobs.filter(|_| keeps_alternatives) {
            choice.add_side("top_logprobs", tops.items.into_iter().map(RawValue::get));
        }
    }
}

impl LogprobEntry<'_> {
    /// The entry as it would be if it were spelled as servers spell it.
    pub(super) fn plain(&self) -> PlainEntry<'_> {
        PlainEntry {
            logprob: self.logprob,
            id: self.id,
            token: self.token.as_ref().map(|token| &*token.0),
            bytes: self.bytes.map(RawValue::get),
            top_logprobs: self.top_logprobs.map(RawValue::get),
        }
    }

    pub(super) fn token(self, keeps_bytes: bool) -> SampledToken {
        self.plain().sampled(keeps_bytes)
    }
}

impl MetaInfo<'_> {
    fn add_to(self, choice: &mut ChoiceDraft) {
        if let Some(triples) = self.output_token_logprobs {
            choice.note_cut(triples.is_cut);
            choice.add_pairs(triples.items.into_iter().map(|(logprob, id, _)| (id, logprob)));
        }
        choice.set_count(self.completion_tokens);
        add_side(choice, "sampling_mask", self.output_token_sampling_mask);
        add_side(choice, "sampling_logprobs", self.output_token_sampling_logprobs);
        add_side(choice, "routed_experts", self.routed_experts);
    }
}

/// Adds tokens of a list of logprobs, with their alternatives.
fn add_entries(
    choice: &mut ChoiceDraft,
    entries: &[PlainEntry<'_>],
    keeps_bytes: bool,
    keeps_alternatives: bool,
) {
    if keeps_alternatives && !entries.is_empty() {
        let tops = entries.iter().map(|entry| entry.top_logprobs.unwrap_or("[]"));
        choice.add_side("top_logprobs", tops);
    }
    choice.add_tokens(entries.iter().map(|entry| entry.sampled(keeps_bytes)));
}

/// Adds a value that covers the whole choice, or a list with an element for each new token.
fn add_side(choice: &mut ChoiceDraft, name: &'static str, raw: Option<&RawValue>) {
    let Some(value) = filled(raw) else { return };
    let added = if value.get().starts_with('[') {
        choice.add_side(name, []);
        each(value, |element: &RawValue| {
            choice.add_side(name, [element.get()]);
            true
        })
    } else {
        choice.add_side(name, [value.get()]);
        Ok(false)
    };
    debug_assert!(added.is_ok(), "the value was read as JSON before");
}

/// The id in a token that is spelled `token_id:N`.
fn id_in_name(name: &TokenText<'_>) -> Option<u32> {
    name.0.strip_prefix("token_id:")?.parse().ok()
}
