//! Logits processors: masks and penalties, and the history of the reply that they need.

use std::collections::{HashMap, HashSet};

use super::params::SamplingParams;

/// The tokens of a sequence, as far as its parameters need them.
#[derive(Debug, Default)]
pub(super) struct TokenHistory {
    /// True if any penalty is on.
    pub(super) has_penalties: bool,
    /// The ids of the prompt, for the repetition penalty.
    prompt: HashSet<u32>,
    /// The number of places of each id in the reply.
    counts: HashMap<u32, u32>,
    /// The last ids of the reply, with which a bad word could begin.
    tail: Vec<u32>,
    /// The most ids that `tail` holds.
    tail_len: usize,
}

impl TokenHistory {
    /// The history before the first token of a reply to `prompt`.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> TokenHistory {
        let has_repetition = params.repetition_penalty != 1.0;
        let has_others = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let longest = params.bad_words.iter().map(Vec::len).max().unwrap_or(0);
        TokenHistory {
            has_penalties: has_repetition || has_others,
            prompt: if has_repetition { prompt.iter().copied().collect() } else { HashSet::new() },
            counts: HashMap::new(),
            tail: Vec::new(),
            tail_len: longest.saturating_sub(1),
        }
    }

    /// Appends a token of the reply.
    pub(super) fn push(&mut self, id: u32) {
        if self.has_penalties {
            *self.counts.entry(id).or_default() += 1;
        }
        if self.tail_len > 0 {
            if self.tail.len() == self.tail_len {
                self.tail.remove(0);
            }
            self.tail.push(id);
        }
    }

    /// Excludes the last id of each word whose other ids end the reply so far.
    pub(super) fn forbid_bad_words(&self, logits: &mut [f32], words: &[Vec<u32>]) {
        let completing = words.iter().filter_map(|word| {
            let (last, start) = word.split_last()?;
            self.tail.ends_with(start).then_some(*last)
        });
        forbid(logits, completing);
    }

    /// Applies the repetition penalty, then the frequency and the presence penalty.
    pub(super) fn penalize(&self, logits: &mut [f32], params: &SamplingParams) {
        if !self.has_penalties {
            return;
        }

        let penalty = params.repetition_penalty;
        let prompt_only = self.prompt.iter().filter(|id| !self.counts.contains_key(id));
        for id in self.counts.keys().chain(prompt_only) {
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

/// Excludes these ids.
pub(super) fn forbid(logits: &mut [f32], ids: impl Iterator<Item = u32>) {
    for id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Excludes all ids but the `allowed` ones, which ascend.
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
