//! Tokens that the device samples.

use kernels::{DrawParams, DrawnToken, TOP_MAX};

use super::Sampler;
use super::params::{LogprobsMode, SampledToken, TokenCandidate, TokenScores};

impl Sampler {
    /// Returns the parameters with which the device samples the token at `position`. None if only
    /// the host can: for masks, penalties, biases, grammars, and more alternatives than the device
    /// reports.
    pub(crate) fn draw(&self, position: usize, mode: LogprobsMode) -> Option<DrawParams> {
        let params = &self.params;
        let needs_host = self.masks(position)
            || self.shifts_logits()
            || mode.is_logits()
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
