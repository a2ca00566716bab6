//! Logprobs of a choice, in every server's lists.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess};
use serde_json::value::RawValue;

use super::choice::{ChoiceDraft, SampledToken};
use super::entries::PlainEntry;
use super::lenient::{Expected, Held, Lenient};
use super::list::Capped;

/// Logprobs of a choice: chat has a list of entries, text completions have parallel lists.
#[derive(Default, Deserialize)]
pub(super) struct Logprobs<'a> {
    #[serde(borrow)]
    content: Lenient<Entries<'a>>,
    #[serde(borrow)]
    refusal: Lenient<Entries<'a>>,
    token_logprobs: Lenient<Capped<Lenient<f64>>>,
    #[serde(borrow)]
    tokens: Lenient<Capped<Lenient<TokenText<'a>>>>,
    token_ids: Lenient<Capped<Lenient<u32>>>,
    #[serde(borrow)]
    top_logprobs: Lenient<Capped<&'a RawValue>>,
}

/// A list of logprobs. A token is there even if nothing of it can be read.
pub(super) type Entries<'a> = Capped<Held<LogprobEntry<'a>>>;

/// One token in a list of logprobs.
#[derive(Default, Deserialize)]
pub(super) struct LogprobEntry<'a> {
    logprob: Lenient<f64>,
    id: Lenient<u32>,
    #[serde(borrow)]
    token: Lenient<TokenText<'a>>,
    #[serde(borrow)]
    bytes: Option<&'a RawValue>,
    #[serde(borrow)]
    top_logprobs: Option<&'a RawValue>,
}

/// The text of a token, borrowed from the reply unless it has escapes.
struct TokenText<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Expected<'de> for TokenText<'a> {
    fn of_text(text: Cow<'de, str>) -> Option<Self> {
        Some(Self(text))
    }
}

/// A triple of SGLang's lists of logprobs: logprob, id and text.
pub(super) struct LogprobTriple {
    logprob: Option<f64>,
    id: u32,
}

/// SGLang's list of logprobs.
pub(super) type Triples = Capped<Lenient<LogprobTriple>>;

impl<'de> Expected<'de> for LogprobTriple {
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let logprob = list.next_element::<Lenient<f64>>()?.and_then(Lenient::value);
        let id = list.next_element::<Lenient<u32>>()?.and_then(Lenient::value);
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(id.map(|id| Self { logprob, id }))
    }
}

impl Triples {
    /// Returns true if all ids can be read.
    pub(super) fn are_whole(&self) -> bool {
        self.items.iter().all(|triple| triple.as_value().is_some())
    }

    /// The ids with their logprobs; `None` for one that could not be read.
    pub(super) fn pairs(self) -> impl Iterator<Item = Option<(u32, Option<f64>)>> {
        let triples = self.items.into_iter().map(Lenient::value);
        triples.map(|triple| triple.map(|triple| (triple.id, triple.logprob)))
    }
}

impl Logprobs<'_> {
    pub(super) fn add_to(
        self,
        choice: &mut ChoiceDraft,
        keeps_bytes: bool,
        keeps_alternatives: bool,
    ) {
        // Chat: a list of entries.
        for entries in [self.content, self.refusal] {
            choice.note_lost_logprobs(entries.is_other());
            let Some(entries) = entries.value() else { continue };
            choice.note_cut(entries.is_cut);
            choice.note_lost_logprobs(entries.has_others());
            let entries: Vec<_> = entries.items.into_iter().map(known).collect();
            let plain: Vec<_> = entries.iter().map(LogprobEntry::plain).collect();
            add_entries(choice, &plain, keeps_bytes, keeps_alternatives);
        }

        // Text completions: parallel lists.
        let names = self.tokens.value().unwrap_or_default().items;
        let ids = self.token_ids.value().unwrap_or_default().items;
        choice.note_lost_logprobs(self.token_logprobs.is_other());
        let numbers = self.token_logprobs.value().unwrap_or_default();
        choice.note_cut(numbers.is_cut);
        choice.add_tokens(numbers.items.into_iter().enumerate().map(|(at, logprob)| {
            let name = names.get(at).and_then(Lenient::as_value);
            let id = ids.get(at).and_then(Lenient::as_value).copied();
            let text = PlainEntry { token: name.map(|name| &*name.0), ..PlainEntry::default() };
            let named = text.sampled(keeps_bytes);
            SampledToken { logprob: logprob.value(), id: id.or(named.id), bytes: named.bytes }
        }));
        if let Some(tops) = self.top_logprobs.value().filter(|_| keeps_alternatives) {
            choice.add_column("top_logprobs", tops.items.into_iter().map(RawValue::get));
        }
    }
}

fn known(entry: Held<LogprobEntry<'_>>) -> LogprobEntry<'_> {
    entry.members().unwrap_or_default()
}

impl Entries<'_> {
    /// Returns true if something in the list is no entry, and perhaps no token.
    pub(super) fn has_others(&self) -> bool {
        self.items.iter().any(|entry| entry.as_value().is_none())
    }

    /// The tokens of the list.
    pub(super) fn tokens(self, keeps_bytes: bool) -> impl Iterator<Item = SampledToken> {
        self.items.into_iter().map(move |entry| known(entry).plain().sampled(keeps_bytes))
    }
}

impl LogprobEntry<'_> {
    /// The entry as it would be if it were spelled as servers spell it.
    pub(super) fn plain(&self) -> PlainEntry<'_> {
        PlainEntry {
            logprob: self.logprob.as_value().copied(),
            id: self.id.as_value().copied(),
            token: self.token.as_value().map(|token| &*token.0),
            bytes: self.bytes.map(RawValue::get),
            top_logprobs: self.top_logprobs.map(RawValue::get),
        }
    }
}

/// Adds tokens of a list of logprobs, with their alternatives.
pub(super) fn add_entries(
    choice: &mut ChoiceDraft,
    entries: &[PlainEntry<'_>],
    keeps_bytes: bool,
    keeps_alternatives: bool,
) {
    if keeps_alternatives && !entries.is_empty() {
        let tops = entries.iter().map(|entry| entry.top_logprobs.unwrap_or("[]"));
        choice.add_column("top_logprobs", tops);
    }
    choice.add_tokens(entries.iter().map(|entry| entry.sampled(keeps_bytes)));
}
