//! Drafts: guesses of the next tokens of a reply, from what it and its siblings said before.
//!
//! - [`Drafts`]: the guesses of all replies; [`SequenceDrafts`] is what one sequence has of them.
//! - [`DraftPace`]: how many tokens are worth guessing.
//!
//! The siblings of a sequence are those whose prompts begin with the same page: in training, the
//! episodes of a group. A guess decides no token, so it does not matter under which weights a text
//! was sampled.

use std::collections::HashMap;
use std::sync::Arc;

use kernels::PAGE;

use super::ngrams::{LikelyNext, NGRAM, OwnText, SiblingTexts};
use super::request::Request;
use crate::bounds::SIBLING_GROUPS_MAX;

/// Drafts of a reply at first.
const FIRST_WIDTH: usize = 3;

/// The most tokens of a reply that are not guessed after guesses that were all wrong.
const REST_MAX: usize = 32;

/// The key that siblings share. Requests of other salts and adapters are none.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct SiblingKey {
    salt: Option<Arc<str>>,
    adapter: Option<u64>,
    /// The first page of the prompt.
    ids: [u32; PAGE],
}

impl SiblingKey {
    /// The key of a request; none if its prompt is too short to tell its siblings.
    fn of(request: &Request) -> Option<Arc<SiblingKey>> {
        let ids = *request.prompt.first_chunk::<PAGE>()?;
        let adapter = request.adapter.as_ref().map(|adapter| adapter.number);
        Some(Arc::new(SiblingKey { salt: request.cache_salt.clone(), adapter, ids }))
    }
}

/// The number of tokens that are worth guessing: twice as many as were right, and one. After
/// guesses that were all wrong the reply goes on without for some tokens, each time for more.
#[derive(Debug)]
pub(crate) struct DraftPace {
    width: usize,
    rest: usize,
    /// The length of the sequence from which on tokens are guessed.
    from: usize,
}

impl Default for DraftPace {
    fn default() -> DraftPace {
        DraftPace { width: FIRST_WIDTH, rest: 0, from: 0 }
    }
}

impl DraftPace {
    /// The most tokens to guess behind a sequence of `len` tokens.
    fn width(&self, len: usize) -> usize {
        if len < self.from { 0 } else { self.width }
    }

    /// Notes that the first `accepted` guesses were right, and that the sequence has `len` tokens.
    fn settle(&mut self, accepted: usize, len: usize) {
        self.rest = if accepted > 0 { 0 } else { (2 * self.rest + 1).min(REST_MAX) };
        self.from = len + self.rest;
        self.width = 2 * accepted + 1;
    }
}

/// The drafts of one sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceDrafts {
    own: OwnText,
    siblings: Option<Arc<SiblingKey>>,
    /// The number of its text among those of its siblings.
    number: Option<u64>,
    /// Tokens that its siblings know.
    told: usize,
    pace: DraftPace,
    /// The tokens of the next step: the last one and those that are guessed; empty without guesses.
    pub(crate) rows: Vec<u32>,
}

impl SequenceDrafts {
    /// Notes that the first `accepted` guesses were right, and that the sequence has `len` tokens.
    pub(super) fn settle(&mut self, accepted: usize, len: usize) {
        self.pace.settle(accepted, len);
    }
}

/// The guesses of all replies.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    /// The most tokens that are guessed for a sequence; zero for none at all.
    most: usize,
    /// The rows of logits of a step for which there is memory.
    pub(super) logit_rows: usize,
    groups: HashMap<Arc<SiblingKey>, SiblingTexts>,
    /// A counter of moments.
    moments: u64,
}

impl Drafts {
    /// At most `most` guesses for a sequence, within steps of so many rows of logits.
    pub(crate) fn new(most: usize, logit_rows: usize) -> Drafts {
        Drafts { most, logit_rows, ..Drafts::default() }
    }

    /// Returns true if anything is guessed.
    pub(super) fn are_on(&self) -> bool {
        self.most > 0
    }

    /// Notes the new tokens of a sequence, of which the last ones are its reply.
    pub(super) fn note(&mut self, of: &mut SequenceDrafts, request: &Request, tokens: &[u32]) {
        of.own.note(tokens);
        if of.siblings.is_none() {
            of.siblings = SiblingKey::of(request);
            // The first tokens of a reply are found by the last ones of its prompt.
            of.told = request.prompt.len().saturating_sub(NGRAM);
        }
        let Some(key) = of.siblings.clone().filter(|_| tokens.len() > of.told) else { return };
        if !self.groups.contains_key(&key) {
            self.make_room();
        }

        self.moments += 1;
        let group = self.groups.entry(key).or_insert_with(SiblingTexts::new);
        group.used = self.moments;
        of.number = Some(group.note(of.number, &tokens[of.told..]));
        of.told = tokens.len();
    }

    /// Returns at most `most` guesses of the tokens behind `tokens`, which were noted.
    pub(super) fn guess(&self, of: &SequenceDrafts, tokens: &[u32], most: usize) -> Vec<u32> {
        let most = most.min(self.most).min(of.pace.width(tokens.len()));
        if most == 0 {
            return Vec::new();
        }
        let own = of.own.continuation(tokens, most).unwrap_or_default();
        let group = of.siblings.as_ref().and_then(|key| self.groups.get(key));
        let LikelyNext { ids, ending } =
            group.and_then(|group| group.continuation(tokens, most)).unwrap_or_default();
        // The longer the common ending, the likelier the guess.
        if ending > own.ending { ids } else { own.ids }
    }

    /// Drops the siblings that nobody has asked for the longest, if there are too many.
    fn make_room(&mut self) {
        if self.groups.len() < SIBLING_GROUPS_MAX {
            return;
        }
        let oldest = self.groups.iter().min_by_key(|(_, group)| group.used);
        if let Some(key) = oldest.map(|(key, _)| Arc::clone(key)) {
            self.groups.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
