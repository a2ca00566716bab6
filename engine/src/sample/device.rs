//! Tokens that the device draws: which ones it can, and what they are once drawn.

use kernels::{Draw, Drawn, TOP_MAX};

use super::{Candidate, LogprobsMode, Sampled, Sampler, Scores};

impl Sampler {
    /// How the device is to choose the token at `position`; none if only the host can: masks,
    /// penalties, biases, grammars, and more to report than the device tells.
    pub(crate) fn draw(&self, position: usize, mode: LogprobsMode) -> Option<Draw> {
        let params = &self.params;
        let host = self.masks(position)
            || self.changes()
            || mode.is_logits()
            || params.logprob_ids.is_some()
            || params.logprobs.is_some_and(|count| count > TOP_MAX);
        let draw = Draw {
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            top_k: params.top_k,
            top: params.logprobs,
            raw: mode.is_raw(),
            seed: params.seed,
            position,
        };
        (!host).then_some(draw)
    }

    /// Takes a token in that the device drew as [`Sampler::draw`] said.
    pub(crate) fn take(&mut self, drawn: Drawn, mode: LogprobsMode) -> Sampled {
        self.history.push(drawn.id);
        let shown = |processed: f32, raw: f32| if mode.is_raw() { raw } else { processed };
        let scores = drawn.scores.map(|scores| Scores {
            logprob: shown(scores.processed, scores.raw),
            processed: scores.processed,
            raw: scores.raw,
            rank: scores.rank,
            top: (1..)
                .zip(scores.top)
                .map(|(rank, (id, processed, raw))| Candidate {
                    id,
                    logprob: shown(processed, raw),
                    rank,
                })
                .collect(),
        });
        Sampled { id: drawn.id, scores }
    }
}
