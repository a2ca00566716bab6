//! What changes single logits: masks and penalties, and the history that they need.

use std::collections::{HashMap, HashSet};

use super::Params;

/// What a sequence has said, as far as its parameters ask.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Whether any penalty is on.
    pub(super) penalties: bool,
    /// Ids of the prompt, for the repetition penalty.
    prompt: HashSet<u32>,
    /// How often each id stands in the reply.
    counts: HashMap<u32, u32>,
    /// The ids of the reply that a bad word could start with.
    tail: Vec<u32>,
    /// Ids of `tail` that are kept.
    reach: usize,
}

impl History {
    /// The history before the first token of a reply to `prompt`.
    pub(super) fn new(params: &Params, prompt: &[u32]) -> History {
        let repetition = params.repetition_penalty != 1.0;
        let others = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let longest = params.bad_words.iter().map(Vec::len).max().unwrap_or(0);
        History {
            penalties: repetition || others,
            prompt: if repetition { prompt.iter().copied().collect() } else { HashSet::new() },
            counts: HashMap::new(),
            tail: Vec::new(),
            reach: longest.saturating_sub(1),
        }
    }

    /// Takes in a token of the reply.
    pub(super) fn push(&mut self, id: u32) {
        if self.penalties {
            *self.counts.entry(id).or_default() += 1;
        }
        if self.reach > 0 {
            if self.tail.len() == self.reach {
                self.tail.remove(0);
            }
            self.tail.push(id);
        }
    }

    /// Forbids the last id of each word whose other ids end the reply so far.
    pub(super) fn forbid_bad_words(&self, logits: &mut [f32], words: &[Vec<u32>]) {
        let complete = words.iter().filter_map(|word| {
            let (last, start) = word.split_last()?;
            self.tail.ends_with(start).then_some(*last)
        });
        forbid(logits, complete);
    }

    /// Applies the repetition penalty, then the frequency and the presence penalty.
    pub(super) fn penalize(&self, logits: &mut [f32], params: &Params) {
        if !self.penalties {
            return;
        }
        let penalty = params.repetition_penalty;
        let fresh = self.prompt.iter().filter(|id| !self.counts.contains_key(id));
        for id in self.counts.keys().chain(fresh) {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        for (id, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit -= params.frequency_penalty * *count as f32;
                *logit -= params.presence_penalty;
            }
        }
    }
}

/// Takes ids out of the choice.
pub(super) fn forbid(logits: &mut [f32], ids: impl Iterator<Item = u32>) {
    for id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Takes all ids but the `allowed`, which ascend, out of the choice.
pub(super) fn allow_only(logits: &mut [f32], allowed: &[u32]) {
    let mut next = 0;
    for id in allowed.iter().map(|id| *id as usize) {
        if let Some(between) = logits.get_mut(next..id) {
            between.fill(f32::NEG_INFINITY);
        }
        next = id + 1;
    }
    if let Some(rest) = logits.get_mut(next..) {
        rest.fill(f32::NEG_INFINITY);
    }
}
