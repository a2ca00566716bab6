//! Sampling: from logits to a token and its log-probabilities.
//!
//! - [`SamplingParams`]: the parameters of one sequence.
//! - [`Sampler`]: the parameters with the state of one reply. It stays with the sequence through a
//!   preemption.
//! - [`SampledToken`]: a token and its [`TokenScores`].
//!
//! The order is vLLM's: grammar, `allowed_token_ids`, `bad_words`, `min_tokens`, `logit_bias`,
//! penalties, temperature, `min_p`, `top_k`, `top_p`. A draw depends on the seed and the position
//! alone, so a seed gives the same tokens in any batch.

mod device;
mod distribution;
mod draw;
mod math;
mod params;
mod processors;
#[cfg(test)]
pub(crate) mod tests;
mod thought;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use device::DrawPlace;
use distribution::{Distribution, LogitsRow, Reported};
pub(crate) use draw::mix;
pub(crate) use math::is_distribution;
pub use params::LogprobsMode;
pub(crate) use params::{SampledToken, SamplingDefaults, SamplingParams, TokenScores};
use processors::TokenHistory;
pub(crate) use thought::{PromptEnd, ThoughtBudget};

use crate::bounds::SLOW_MASK;
use crate::id_set::IdSet;

/// Ids that end a reply, and the position before which they may not be sampled.
#[derive(Clone, Debug)]
pub(crate) struct EndTokens {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) min_tokens: usize,
}

/// Samples the tokens of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    params: SamplingParams,
    history: TokenHistory,
    ends: EndTokens,
}

impl Sampler {
    /// A sampler for a reply to `prompt`.
    pub(crate) fn new(params: SamplingParams, prompt: &[u32], ends: EndTokens) -> Sampler {
        let history = TokenHistory::new(&params, prompt);
        Sampler { params, history, ends }
    }

    /// Returns true if the grammar is complete and allows nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.params.grammar.as_ref().is_some_and(|grammar| grammar.is_over())
    }

    /// Returns true if the grammar could not be matched any further, so the reply has to end.
    pub(crate) fn has_failed(&self) -> bool {
        self.params.grammar.as_ref().is_some_and(|grammar| grammar.has_failed())
    }

    /// Returns true if the last token of a grammar took so long that it held others up.
    pub(crate) fn is_slow(&self) -> bool {
        self.form_time() > SLOW_MASK
    }

    /// Returns the time that the last token of a grammar took; zero without one.
    pub(crate) fn form_time(&self) -> Duration {
        self.params.grammar.as_ref().map_or(Duration::ZERO, |grammar| grammar.last_time())
    }

    /// Samples the token at `position` of the reply from `logits`, `[vocab]` and not empty.
    ///
    /// To be called once for each position, in order. Overwrites the logits. None if they are no
    /// distribution: if one is NaN or infinite, or if none is left that is more than minus
    /// infinity.
    pub(crate) fn sample(
        &mut self,
        logits: &mut [f32],
        position: usize,
        mode: LogprobsMode,
    ) -> Option<SampledToken> {
        if !is_distribution(logits) {
            return None;
        }
        let is_masked = self.masks(position);
        let has_temperature = !self.params.is_greedy() && self.params.temperature != 1.0;
        let is_changed = is_masked || self.shifts_logits() || has_temperature;

        // Keep the model's own logits where they are reported.
        let wants_scores = self.params.logprobs.is_some();
        let raw = (wants_scores && is_changed).then(|| logits.to_vec());
        if let Some(ids) = self.allowed_ids(position, logits.len()) {
            ids.mask(logits);
        }
        self.shift(logits);
        if has_temperature {
            logits.iter_mut().for_each(|logit| *logit /= self.params.temperature);
        }

        let token = self.choose(logits, raw.as_deref(), position, mode)?;
        self.push(token.id);
        Some(token)
    }

    /// Notes a token of the reply.
    fn push(&mut self, id: u32) {
        self.history.push(id);
        if let Some(thought) = &mut self.params.thought {
            thought.push(id);
        }
        if let Some(grammar) = &mut self.params.grammar {
            Arc::make_mut(grammar).push(id);
        }
    }

    /// Samples from processed logits. `raw` are the model's own, if they differ.
    fn choose(
        &self,
        logits: &[f32],
        raw: Option<&[f32]>,
        position: usize,
        mode: LogprobsMode,
    ) -> Option<SampledToken> {
        let (params, row) = (&self.params, LogitsRow::new(logits));
        if !row.has_numbers() {
            return None;
        }
        let (id, processed) = if params.is_greedy() {
            let id = row.likeliest();
            if params.logprobs.is_none() {
                return Some(SampledToken { id, scores: None });
            }
            (id, Distribution::whole(row))
        } else {
            let processed = Distribution::filtered(row, params);
            (processed.draw(draw::uniform(params.seed, position as u64)), processed)
        };

        if params.logprobs.is_none() {
            return Some(SampledToken { id, scores: None });
        }

        // Without masks, penalties, temperature and filters the two distributions are the same.
        let scores = if raw.is_none() && processed.is_whole() {
            self.scores(id, &processed, &processed, mode)
        } else {
            let raw = Distribution::whole(LogitsRow::new(raw.unwrap_or(logits)));
            self.scores(id, &processed, &raw, mode)
        };
        Some(SampledToken { id, scores: Some(scores) })
    }

    fn scores(
        &self,
        id: u32,
        processed: &Distribution<'_>,
        raw: &Distribution<'_>,
        mode: LogprobsMode,
    ) -> TokenScores {
        let shown = if mode.is_raw() { raw } else { processed };
        let reported = match self.params.logprob_ids.as_deref() {
            Some(ids) => Reported::Ids(ids),
            None => Reported::Likeliest(self.params.logprobs.unwrap_or(0)),
        };
        TokenScores {
            processed: processed.logprob_of(id),
            raw: raw.logprob_of(id),
            ..shown.scores(id, reported, mode.is_logits())
        }
    }

    /// Returns true if any id is excluded at `position`.
    fn masks(&self, position: usize) -> bool {
        let params = &self.params;
        params.allowed.is_some()
            || !params.bad_words.is_empty()
            || params.grammar.is_some()
            || params.thought.as_ref().is_some_and(|thought| thought.may_close_at(position))
            || position < self.ends.min_tokens
    }

    /// Returns the ids that may be sampled, of a vocabulary of `vocab`; none if all may. If nothing
    /// is left, only the grammar counts, or without one only the allowed ids. Reasoning whose
    /// budget is spent has nothing but its closing tag left.
    fn allowed_ids(&mut self, position: usize, vocab: usize) -> Option<IdSet> {
        if !self.masks(position) {
            return None;
        }
        let mut form = IdSet::all(vocab);
        if let Some(grammar) = &mut self.params.grammar {
            Arc::make_mut(grammar).mask(&mut form);
        }

        let allowed = self.params.allowed.as_ref().map(|allowed| IdSet::of(vocab, allowed));
        let mut ids = form.clone();
        allowed.iter().for_each(|allowed| ids.keep_of(allowed));
        ids.remove(self.history.completing(&self.params.bad_words));
        if position < self.ends.min_tokens {
            ids.remove(self.ends.ids.iter().copied());
        }
        if ids.is_empty() {
            ids = allowed.filter(|_| self.params.grammar.is_none()).unwrap_or(form);
        }

        match self.params.thought.as_ref().and_then(ThoughtBudget::closing_id) {
            Some(id) => Some(IdSet::of(vocab, &[id])),
            None => Some(ids),
        }
    }

    /// Returns true if biases or penalties shift logits.
    fn shifts_logits(&self) -> bool {
        !self.params.logit_bias.is_empty() || self.history.has_penalties
    }

    fn shift(&self, logits: &mut [f32]) {
        for (id, bias) in self.params.logit_bias.iter() {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        self.history.penalize(logits, &self.params);
    }
}

/// Scores the prompt's token `id` with the `logits` at the position before it, and reports the
/// `count` likeliest. The scores are the model's own in every [`LogprobsMode`].
pub(crate) fn score(logits: &[f32], id: u32, count: usize) -> TokenScores {
    let distribution = Distribution::whole(LogitsRow::new(logits));
    distribution.scores(id, Reported::Likeliest(count), false)
}
