//! Sampling parameters, and the tokens that they lead to.

use std::sync::Arc;

use serde_json::Value;

use super::thought::ThoughtBudget;
use crate::config::fields::number;
use crate::error::ConfigError;
use crate::grammar::Grammar;

/// Temperatures below this are greedy.
pub(super) const GREEDY_BELOW: f32 = 1e-5;

/// The quantity that is reported as logprobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// Log-probabilities of the sampling distribution: after masks, penalties, temperature and
    /// filters.
    #[default]
    ProcessedLogprobs,
    /// Log-probabilities of the model's own distribution: temperature one, the whole vocabulary.
    RawLogprobs,
    /// Logits after masks, penalties, temperature and filters; minus infinity where filtered.
    ProcessedLogits,
    /// Logits of the model.
    RawLogits,
}

impl LogprobsMode {
    /// Returns true if the numbers are the model's own.
    pub(super) fn is_raw(self) -> bool {
        matches!(self, LogprobsMode::RawLogprobs | LogprobsMode::RawLogits)
    }

    pub(super) fn is_logits(self) -> bool {
        matches!(self, LogprobsMode::ProcessedLogits | LogprobsMode::RawLogits)
    }
}

/// Defaults of the sampling parameters, from `generation_config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SamplingDefaults {
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) top_k: usize,
    pub(crate) min_p: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) repetition_penalty: f32,
    /// The most tokens of a reply to a request that sets no limit.
    pub(crate) max_new_tokens: Option<usize>,
}

impl SamplingDefaults {
    /// Reads `generation_config.json`; absent fields are neutral.
    pub(crate) fn parse(config: &Value) -> Result<SamplingDefaults, ConfigError> {
        let temperature = number(config, "temperature")?.unwrap_or(1.0);
        let top_k = number(config, "top_k")?.unwrap_or(0.0);
        let max_new_tokens = number(config, "max_new_tokens")?.filter(|count| *count >= 1.0);
        Ok(SamplingDefaults {
            temperature: temperature.max(0.0) as f32,
            top_p: number(config, "top_p")?.unwrap_or(1.0) as f32,
            top_k: top_k.max(0.0) as usize,
            min_p: number(config, "min_p")?.unwrap_or(0.0) as f32,
            presence_penalty: number(config, "presence_penalty")?.unwrap_or(0.0) as f32,
            frequency_penalty: number(config, "frequency_penalty")?.unwrap_or(0.0) as f32,
            repetition_penalty: number(config, "repetition_penalty")?.unwrap_or(1.0) as f32,
            max_new_tokens: max_new_tokens.map(|count| count as usize),
        })
    }
}

/// The sampling parameters of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct SamplingParams {
    /// The temperature; zero is greedy.
    pub(crate) temperature: f32,
    /// In (0, 1]; one is off.
    pub(crate) top_p: f32,
    /// Zero is off.
    pub(crate) top_k: usize,
    /// In [0, 1]; zero is off.
    pub(crate) min_p: f32,
    /// Subtracted from the logit of each token of the reply; zero is off.
    pub(crate) presence_penalty: f32,
    /// Subtracted from the logit of a token for each of its places in the reply; zero is off.
    pub(crate) frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of the tokens of the prompt and the reply;
    /// above zero, one is off.
    pub(crate) repetition_penalty: f32,
    /// Added to the logits of these ids.
    pub(crate) logit_bias: Arc<[(u32, f32)]>,
    /// The only ids that may be sampled, ascending; all if absent.
    pub(crate) allowed: Option<Arc<[u32]>>,
    /// Sequences of ids that may not be completed; none is empty.
    pub(crate) bad_words: Arc<[Vec<u32>]>,
    pub(crate) seed: u64,
    /// The number of likeliest tokens to report beside the sampled one; no scores if absent.
    pub(crate) logprobs: Option<usize>,
    /// Ids to report instead of the likeliest.
    pub(crate) logprob_ids: Option<Arc<[u32]>>,
    /// The grammar that the reply must match.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// The most tokens of reasoning.
    pub(crate) thought: Option<ThoughtBudget>,
}

impl SamplingParams {
    /// Returns true if the likeliest token is taken.
    pub(super) fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledToken {
    pub(crate) id: u32,
    /// Present if the request asked for logprobs.
    pub(crate) scores: Option<TokenScores>,
}

/// The log-probabilities of a token, natural logarithms, and its rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenScores {
    /// In the mode of the engine, as the alternatives are.
    pub(crate) logprob: f32,
    /// Under the sampling distribution.
    pub(crate) processed: f32,
    /// Under the model's own distribution.
    pub(crate) raw: f32,
    /// The number of tokens that are at least as likely, this one included, in the mode of the
    /// engine.
    pub(crate) rank: usize,
    /// The likeliest tokens, likeliest first, or those that the request named.
    pub(crate) top: Vec<TokenCandidate>,
}

/// A token that could have been sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenCandidate {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    /// One for the likeliest. Equally likely ones have different ranks, unless the request named
    /// the ids.
    pub(crate) rank: usize,
}
