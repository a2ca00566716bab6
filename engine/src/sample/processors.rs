//! Penalties, and the history of the reply that they and bad words need.

use std::collections::{HashMap, HashSet};

use kernels::{IN_PROMPT, ReplyCounts};

use super::params::SamplingParams;

/// The tokens of a sequence, as far as its parameters need them.
#[derive(Clone, Debug, Default)]
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

    /// The last id of each word whose other ids end the reply so far.
    pub(super) fn completing(&self, words: &[Vec<u32>]) -> impl Iterator<Item = u32> {
        words.iter().filter_map(|word| {
            let (last, start) = word.split_last()?;
            self.tail.ends_with(start).then_some(*last)
        })
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

impl ReplyCounts for TokenHistory {
    fn counts(&self) -> Vec<(u32, u32)> {
        let in_prompt = |id: &u32| if self.prompt.contains(id) { IN_PROMPT } else { 0 };
        let said = self.counts.iter().map(|(id, count)| (*id, count | in_prompt(id)));
        let prompt_only = self.prompt.iter().filter(|id| !self.counts.contains_key(id));
        said.chain(prompt_only.map(|id| (*id, IN_PROMPT))).collect()
    }
}
