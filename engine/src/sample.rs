//! From logits to a token, and what is known about it.
//!
//! - [`Params`]: how to choose the tokens of one sequence.
//! - [`Sampler`]: the parameters with what has been said so far; one for each sequence, and it
//!   stays with the sequence when that has to be computed again.
//! - [`Sampled`]: a token and its [`Scores`].
//!
//! The order is vLLM's: grammar, `allowed_token_ids`, `bad_words`, `min_tokens`, `logit_bias`,
//! penalties, temperature, `min_p`, `top_k`, `top_p`. A draw depends on the seed and the position
//! alone, so a seed gives the same tokens whatever else runs.

mod device;
mod distribution;
mod draw;
mod math;
mod process;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use serde_json::Value;

use crate::config::{self, ConfigError};
use crate::grammar::Grammar;
use distribution::{Distribution, Row};
pub(crate) use draw::mix;
use process::History;

/// Temperatures below this are greedy.
const GREEDY_BELOW: f32 = 1e-5;

/// What the numbers that are reported as logprobs are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// Logarithms of the distribution that was sampled from: after masks, penalties, temperature
    /// and filters.
    #[default]
    ProcessedLogprobs,
    /// Logarithms of the model's own distribution: temperature one, the whole vocabulary.
    RawLogprobs,
    /// What was sampled from, before it is made a distribution; minus infinity where filtered.
    ProcessedLogits,
    /// What the model said.
    RawLogits,
}

impl LogprobsMode {
    /// Whether the numbers are the model's own.
    fn is_raw(self) -> bool {
        matches!(self, LogprobsMode::RawLogprobs | LogprobsMode::RawLogits)
    }

    fn is_logits(self) -> bool {
        matches!(self, LogprobsMode::ProcessedLogits | LogprobsMode::RawLogits)
    }
}

/// Sampling parameters of requests that do not give their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Defaults {
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) top_k: usize,
    pub(crate) min_p: f32,
    pub(crate) repetition_penalty: f32,
}

impl Defaults {
    /// Reads `generation_config.json`; fields that it lacks are neutral.
    pub(crate) fn parse(config: &Value) -> Result<Defaults, ConfigError> {
        let number = |field, neutral: f64| Ok(config::number(config, field)?.unwrap_or(neutral));
        Ok(Defaults {
            temperature: number("temperature", 1.0)?.max(0.0) as f32,
            top_p: number("top_p", 1.0)? as f32,
            top_k: number("top_k", 0.0)?.max(0.0) as usize,
            min_p: number("min_p", 0.0)? as f32,
            repetition_penalty: number("repetition_penalty", 1.0)? as f32,
        })
    }
}

/// How to choose the tokens of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    /// Zero is greedy.
    pub(crate) temperature: f32,
    /// In (0, 1]; one is off.
    pub(crate) top_p: f32,
    /// Zero is off.
    pub(crate) top_k: usize,
    /// In [0, 1]; zero is off.
    pub(crate) min_p: f32,
    /// Taken from the logit of each token of the reply; zero is off.
    pub(crate) presence_penalty: f32,
    /// Taken from the logit of a token each time it is in the reply; zero is off.
    pub(crate) frequency_penalty: f32,
    /// Divides the positive logits, and multiplies the negative, of the tokens of the prompt and
    /// the reply; positive, one is off.
    pub(crate) repetition_penalty: f32,
    /// Added to logits.
    pub(crate) logit_bias: Arc<[(u32, f32)]>,
    /// The only ids that may be sampled, ascending; all if absent.
    pub(crate) allowed: Option<Arc<[u32]>>,
    /// Runs of ids that may not be completed; none is empty.
    pub(crate) bad_words: Arc<[Vec<u32>]>,
    pub(crate) seed: u64,
    /// How many of the likeliest tokens to report beside the sampled one, or no scores at all.
    pub(crate) logprobs: Option<usize>,
    /// Ids to report instead of the likeliest.
    pub(crate) logprob_ids: Option<Arc<[u32]>>,
    /// What the reply must be.
    pub(crate) grammar: Option<Arc<Grammar>>,
}

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) id: u32,
    /// Only where the request asked for logprobs.
    pub(crate) scores: Option<Scores>,
}

/// What is known about a token: natural logarithms of probabilities and the rank among all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scores {
    /// In the mode of the engine, as its alternatives are.
    pub(crate) logprob: f32,
    /// Under the distribution that was sampled from.
    pub(crate) processed: f32,
    /// Under the model's own distribution.
    pub(crate) raw: f32,
    /// Tokens that are at least as likely, itself among them, in the mode of the engine.
    pub(crate) rank: usize,
    /// The likeliest tokens, likeliest first, or those that were asked for.
    pub(crate) top: Vec<Candidate>,
}

/// A token that could have been sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    /// One for the likeliest; equals have different ranks unless their ids were asked for.
    pub(crate) rank: usize,
}

/// Chooses the tokens of one sequence.
#[derive(Debug)]
pub(crate) struct Sampler {
    params: Params,
    history: History,
    /// Ids that end the reply, and the position before which they may not.
    ends: (Arc<[u32]>, usize),
}

impl Sampler {
    /// A sampler for replies to `prompt` in which none of the ids `ends` stands before the
    /// position `min_tokens`.
    pub(crate) fn new(
        params: Params,
        prompt: &[u32],
        (ends, min_tokens): (Arc<[u32]>, usize),
    ) -> Sampler {
        let history = History::new(&params, prompt);
        Sampler { params, history, ends: (ends, min_tokens) }
    }

    /// Whether the reply is complete by its grammar and has nothing left to say.
    pub(crate) fn is_over(&self) -> bool {
        self.params.grammar.as_ref().is_some_and(|grammar| grammar.is_over())
    }

    /// Whether the grammar could not be followed to the end, so that the reply may not go on.
    pub(crate) fn has_failed(&self) -> bool {
        self.params.grammar.as_ref().is_some_and(|grammar| grammar.has_failed())
    }

    /// Chooses the token at `position` of the reply from `logits`, one for each id; not empty.
    ///
    /// To be called once for each position, in order. The logits are scratch afterwards.
    pub(crate) fn sample(
        &mut self,
        logits: &mut [f32],
        position: usize,
        mode: LogprobsMode,
    ) -> Sampled {
        let masked = self.masks(position);
        let greedy = self.params.temperature < GREEDY_BELOW;
        let changed = masked || self.changes() || !(greedy || self.params.temperature == 1.0);
        let wanted = self.params.logprobs.is_some();
        let raw = (masked || wanted && changed).then(|| logits.to_vec());
        if let Some(raw) = raw.as_deref().filter(|_| masked) {
            self.mask(logits, raw, position);
        }
        self.adjust(logits);
        if !greedy && self.params.temperature != 1.0 {
            logits.iter_mut().for_each(|logit| *logit /= self.params.temperature);
        }
        let token = self.choose(logits, raw.as_deref(), position, mode);
        self.history.push(token.id);
        if let Some(grammar) = &mut self.params.grammar {
            Arc::make_mut(grammar).push(token.id);
        }
        token
    }

    /// Chooses by logits that are ready, and looks at those that were there before, if these
    /// differ.
    fn choose(
        &self,
        logits: &[f32],
        raw: Option<&[f32]>,
        position: usize,
        mode: LogprobsMode,
    ) -> Sampled {
        let (params, row) = (&self.params, Row::new(logits));
        let wanted = params.logprobs.is_some();
        let (id, processed) = if params.temperature < GREEDY_BELOW {
            let id = row.likeliest();
            if !wanted {
                return Sampled { id, scores: None };
            }
            (id, Distribution::whole(row))
        } else {
            let processed = Distribution::filtered(row, params);
            (processed.draw(draw::uniform(params.seed, position as u64)), processed)
        };
        let scores = wanted.then(|| {
            if raw.is_none() && processed.is_whole() {
                return scores(params, id, (&processed, &processed), mode);
            }
            let raw = Distribution::whole(Row::new(raw.unwrap_or(logits)));
            scores(params, id, (&processed, &raw), mode)
        });
        Sampled { id, scores }
    }

    /// Whether any id is out of the choice at `position`.
    fn masks(&self, position: usize) -> bool {
        let params = &self.params;
        let request = params.allowed.is_some() || !params.bad_words.is_empty();
        request || params.grammar.is_some() || position < self.ends.1
    }

    /// Takes out of the choice what may not be sampled. The grammar comes before what else the
    /// request wants: where nothing is left of both, the rest of the request is let go.
    fn mask(&mut self, logits: &mut [f32], raw: &[f32], position: usize) {
        if let Some(grammar) = &mut self.params.grammar {
            Arc::make_mut(grammar).mask(logits);
        }
        if let Some(allowed) = &self.params.allowed {
            process::allow_only(logits, allowed);
        }
        self.history.forbid_bad_words(logits, &self.params.bad_words);
        let (ends, min_tokens) = &self.ends;
        if position < *min_tokens {
            process::forbid(logits, ends.iter().copied());
        }
        if math::highest(logits) == f32::NEG_INFINITY {
            logits.copy_from_slice(raw);
            match (&mut self.params.grammar, &self.params.allowed) {
                (Some(grammar), _) => Arc::make_mut(grammar).mask(logits),
                (None, Some(allowed)) => process::allow_only(logits, allowed),
                (None, None) => {}
            }
        }
    }

    /// Whether logits are shifted.
    fn changes(&self) -> bool {
        !self.params.logit_bias.is_empty() || self.history.penalties
    }

    fn adjust(&self, logits: &mut [f32]) {
        for (id, bias) in self.params.logit_bias.iter() {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        self.history.penalize(logits, &self.params);
    }
}

fn scores(
    params: &Params,
    id: u32,
    (processed, raw): (&Distribution<'_>, &Distribution<'_>),
    mode: LogprobsMode,
) -> Scores {
    let shown = if mode.is_raw() { raw } else { processed };
    let count = params.logprobs.unwrap_or(0);
    Scores {
        processed: processed.logprob_of(id),
        raw: raw.logprob_of(id),
        ..shown.scores(id, (count, params.logprob_ids.as_deref()), mode.is_logits())
    }
}

/// The scores of the prompt's token `id` under the `logits` at the position before it, with the
/// `count` likeliest. Always the model's own, whatever the mode is.
pub(crate) fn score(logits: &[f32], id: u32, count: usize) -> Scores {
    Distribution::whole(Row::new(logits)).scores(id, (count, None), false)
}
