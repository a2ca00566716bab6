//! A choice as it grows out of chunks, and how its ids are told from what the server gave.

use episode::{Choice, Fidelity, Side, VersionSpan};
use serde_json::Value;

use crate::vocabulary::Vocabulary;

/// One entry of a list of logprobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Token {
    pub(super) logprob: Option<f64>,
    /// The id, where the server put it beside the logprob.
    pub(super) id: Option<u32>,
    /// The bytes; only kept when there is a vocabulary to find them in.
    pub(super) bytes: Option<Vec<u8>>,
}

/// A choice under way.
#[derive(Debug, Default)]
pub(super) struct Draft {
    index: u32,
    prompt_index: u32,
    /// Ids in a list of their own.
    ids: Option<Vec<u32>>,
    /// Ids with their logprobs, from one list.
    pairs: Option<Vec<(u32, Option<f64>)>>,
    tokens: Vec<Token>,
    /// The same once more, whole, at the end of a stream.
    again: Vec<Token>,
    /// How many tokens the server says it sampled for this choice.
    count: Option<u64>,
    finish_reason: Option<String>,
    stop_reason: Option<Value>,
    versions: Vec<VersionSpan>,
    /// Whether a part of it could not be read.
    has_gap: bool,
    /// Whether the model's end token stopped it.
    at_end: bool,
    /// Elements by name, in the server's spelling.
    sides: Vec<(&'static str, Vec<String>)>,
}

impl Draft {
    pub(super) fn new(index: u32, prompt_index: u32) -> Self {
        Self { index, prompt_index, ..Self::default() }
    }

    pub(super) fn finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Part of the choice is lost: what is known of its tokens does not stand side by side.
    pub(super) fn lose(&mut self) {
        self.has_gap = true;
    }

    pub(super) fn add_ids(&mut self, ids: Vec<u32>) {
        self.ids.get_or_insert_default().extend(ids);
    }

    /// What follows tells all of its ids again.
    pub(super) fn start_over(&mut self) {
        (self.ids, self.pairs) = (None, None);
    }

    pub(super) fn add_pairs(&mut self, pairs: impl IntoIterator<Item = (u32, Option<f64>)>) {
        self.pairs.get_or_insert_default().extend(pairs);
    }

    pub(super) fn add_tokens(&mut self, tokens: impl IntoIterator<Item = Token>) {
        self.tokens.extend(tokens);
    }

    /// Tokens that may have been given before, in pieces.
    pub(super) fn tokens_again(&mut self, tokens: impl IntoIterator<Item = Token>) {
        self.again.extend(tokens);
    }

    pub(super) fn set_count(&mut self, count: Option<u64>) {
        self.count = count.or(self.count);
    }

    pub(super) fn prompt_index(&self) -> u32 {
        self.prompt_index
    }

    /// How many tokens the server says it sampled for this choice.
    pub(super) fn count(&self) -> Option<u64> {
        self.count
    }

    pub(super) fn finish(&mut self, reason: Option<String>, stop: Option<Value>) {
        // Some servers send an empty one with every chunk.
        let reason = reason.filter(|reason| !reason.is_empty());
        self.finish_reason = reason.or(self.finish_reason.take());
        self.stop_reason = stop.filter(|s| !s.is_null()).or(self.stop_reason.take());
    }

    /// The model's end token stopped it, whether or not that is told.
    pub(super) fn stopped_by_end(&mut self) {
        self.at_end = true;
    }

    /// Whether all sampled tokens are known but the end token, which stopped it and was not told.
    pub(super) fn lacks_end(&self) -> bool {
        let told = self.tokens.len() as u64;
        let only_beside = self.ids.is_none() && self.pairs.is_none() && !self.has_gap;
        let all_named = self.tokens.iter().all(|token| token.id.is_some());
        self.at_end && only_beside && all_named && self.count == Some(told + 1)
    }

    pub(super) fn set_versions(&mut self, versions: Vec<VersionSpan>) {
        self.versions = versions;
    }

    /// Appends elements to a side array.
    pub(super) fn side(&mut self, name: &'static str, elements: impl IntoIterator<Item = String>) {
        match self.sides.iter_mut().find(|(known, _)| *known == name) {
            Some((_, list)) => list.extend(elements),
            None => self.sides.push((name, elements.into_iter().collect())),
        }
    }

    /// The choice. `count` is what the server counted of it, `version` which weights it named for
    /// the whole reply.
    pub(super) fn choice(
        mut self,
        count: Option<u64>,
        version: Option<&str>,
        vocabulary: Option<&Vocabulary>,
    ) -> Choice {
        if self.has_gap {
            (self.ids, self.pairs) = (None, None);
            (self.tokens, self.again, self.sides) = Default::default();
        }
        let count = self.count.or(count);
        let known = known_ids(&self, count, vocabulary);
        let (token_ids, fidelity) = known.map_or((None, Fidelity::Exact), |(i, f)| (Some(i), f));
        let logprobs = self.logprobs(token_ids.as_deref());
        let tokens = token_ids.as_ref().map_or(logprobs.len(), Vec::len) as u32;
        let versions = match (self.versions.is_empty(), version) {
            (true, Some(version)) if tokens > 0 => {
                vec![VersionSpan { version: version.to_owned(), start: 0, end: tokens }]
            }
            _ => self.versions,
        };
        Choice {
            index: self.index,
            prompt_index: self.prompt_index,
            token_ids,
            logprobs,
            finish_reason: self.finish_reason,
            stop_reason: self.stop_reason.map(|stop| match stop {
                Value::String(text) => text,
                other => other.to_string(),
            }),
            versions,
            fidelity,
            sides: self
                .sides
                .into_iter()
                .map(|(name, list)| Side {
                    name: name.to_owned(),
                    json: format!("[{}]", list.join(",")),
                })
                .collect(),
        }
    }

    /// One logprob an id. A server that lost some of its entries on the way says nothing about
    /// which; only a missing last one, that of the stop token, can be told.
    fn logprobs(&self, ids: Option<&[u32]>) -> Vec<f32> {
        if let Some(pairs) = &self.pairs {
            return pairs.iter().map(|(_, logprob)| narrow(*logprob)).collect();
        }
        let Some(ids) = ids else {
            return self.tokens.iter().map(|token| narrow(token.logprob)).collect();
        };
        let fits = |list: &&Vec<Token>| list.len() == ids.len();
        if let Some(list) = [&self.tokens, &self.again].into_iter().find(fits) {
            return list.iter().map(|token| narrow(token.logprob)).collect();
        }
        let stopped = self.stop_reason.as_ref().and_then(Value::as_u64);
        let stop_lost = self.tokens.len() + 1 == ids.len()
            && stopped.is_some()
            && stopped == ids.last().map(|id| u64::from(*id));
        match stop_lost {
            true => {
                let given = self.tokens.iter().map(|token| narrow(token.logprob));
                given.chain([f32::NAN]).collect()
            }
            false => vec![f32::NAN; ids.len()],
        }
    }
}

/// The sampled ids and how they are known. Those beside logprobs count only when the server's own
/// count says that none is missing.
fn known_ids(
    draft: &Draft,
    count: Option<u64>,
    vocabulary: Option<&Vocabulary>,
) -> Option<(Vec<u32>, Fidelity)> {
    if let Some(pairs) = &draft.pairs {
        return Some((pairs.iter().map(|(id, _)| *id).collect(), Fidelity::Exact));
    }
    if let Some(ids) = &draft.ids {
        return Some((ids.clone(), Fidelity::Exact));
    }
    let is_whole = count == Some(draft.tokens.len() as u64) && !draft.tokens.is_empty();
    if !is_whole && !draft.lacks_end() {
        return None;
    }
    let beside: Option<Vec<u32>> = draft.tokens.iter().map(|token| token.id).collect();
    if let Some(ids) = beside {
        return Some((ids, Fidelity::Exact));
    }
    let vocabulary = vocabulary?;
    let found = |token: &Token| token.id.or_else(|| vocabulary.id_of(token.bytes.as_deref()?));
    let mapped: Option<Vec<u32>> = draft.tokens.iter().map(found).collect();
    mapped.map(|ids| (ids, Fidelity::Mapped))
}

/// Servers widen float32 to double, so narrowing again loses nothing.
fn narrow(logprob: Option<f64>) -> f32 {
    logprob.map_or(f32::NAN, |value| value as f32)
}
