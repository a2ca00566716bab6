//! Tokens that the device samples.

use std::sync::Arc;

use kernels::{DrawParams, DrawnToken, POSITION_MAX, Penalties, ShapedDraw, TOP_MAX};

use super::Sampler;
use super::params::{LogprobsMode, SampledToken, TokenCandidate, TokenScores};
use crate::id_set::IdSet;

/// The place of a token that the device samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawPlace {
    /// A number that no other reply has.
    pub(crate) reply: u64,
    pub(crate) position: usize,
    /// Ids of the vocabulary.
    pub(crate) vocab: usize,
}

impl Sampler {
    /// Returns the parameters with which the device samples the token at `position`. None if only
    /// the host can: for logits in place of logprobs, for named alternatives or more of them than
    /// the device reports, and for penalties of longer replies than it counts.
    pub(crate) fn draw(&self, position: usize, mode: LogprobsMode) -> Option<DrawParams> {
        let params = &self.params;
        let needs_host = mode.is_logits()
            || self.history.has_penalties && position > POSITION_MAX
            || params.logprob_ids.is_some()
            || params.logprobs.is_some_and(|count| count > TOP_MAX);
        if needs_host {
            return None;
        }
        Some(DrawParams {
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            top_k: params.top_k,
            top: params.logprobs,
            raw: mode.is_raw(),
            seed: params.seed,
            position,
        })
    }

    /// Returns true if the logits at `position` may have to be changed before the device samples.
    pub(crate) fn is_shaped(&self, position: usize) -> bool {
        self.masks(position) || self.shifts_logits()
    }

    /// Returns what the device samples with at the place of the next token, of which all tokens
    /// before are known. None if only the host can sample it.
    pub(crate) fn shaped_draw(
        &mut self,
        place: DrawPlace,
        mode: LogprobsMode,
    ) -> Option<ShapedDraw<'_>> {
        let DrawPlace { reply, position, vocab } = place;
        let params = self.draw(position, mode)?;
        let allowed = self.allowed_ids(position, vocab).map(IdSet::into_words);
        let penalties = self.history.has_penalties.then_some(Penalties {
            repetition: self.params.repetition_penalty,
            frequency: self.params.frequency_penalty,
            presence: self.params.presence_penalty,
            reply,
            history: &self.history,
        });
        Some(ShapedDraw { params, allowed, biases: &self.params.logit_bias, penalties })
    }

    /// Returns the samplers behind each of these guesses, as far as the form allows them.
    pub(crate) fn behind(&self, drafts: &[u32]) -> Vec<Sampler> {
        let mut behind: Vec<Sampler> = Vec::with_capacity(drafts.len());
        for id in drafts {
            let mut next = behind.last().unwrap_or(self).clone();
            if !next.params.grammar.as_mut().is_none_or(|form| Arc::make_mut(form).may_follow(*id))
            {
                break;
            }
            next.push(*id);
            if next.is_over() || next.has_failed() {
                break;
            }
            behind.push(next);
        }
        behind
    }

    /// Accepts a token that the device sampled with the parameters of [`Sampler::draw`]. None if
    /// its logprobs, where they are reported, show that the logits were no distribution.
    pub(crate) fn accept(&mut self, drawn: DrawnToken, mode: LogprobsMode) -> Option<SampledToken> {
        let numbers = drawn.scores.as_ref().map(|scores| [scores.processed, scores.raw]);
        if numbers.is_some_and(|numbers| numbers.iter().any(|number| !number.is_finite())) {
            return None;
        }

        self.push(drawn.id);
        let scores = drawn.scores.map(|scores| TokenScores {
            logprob: select(mode, scores.processed, scores.raw),
            processed: scores.processed,
            raw: scores.raw,
            rank: scores.rank,
            top: (1..)
                .zip(scores.top)
                .map(|(rank, (id, processed, raw))| TokenCandidate {
                    id,
                    logprob: select(mode, processed, raw),
                    rank,
                })
                .collect(),
        });
        Some(SampledToken { id: drawn.id, scores })
    }
}

/// Selects the logprob that the mode reports.
fn select(mode: LogprobsMode, processed: f32, raw: f32) -> f32 {
    if mode.is_raw() { raw } else { processed }
}
