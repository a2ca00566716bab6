//! From logits to a token.
//!
//! [`sample`] applies temperature, `min_p`, `top_k` and `top_p` in that order, as vLLM does, and
//! draws by a counter: the same seed and position give the same token whatever else runs.

use serde_json::Value;

use crate::config::{self, ConfigError};

/// Temperatures below this are greedy.
const GREEDY_BELOW: f32 = 1e-5;

/// Which distribution a reported logprob belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The one that was sampled from: after temperature and filters.
    #[default]
    ProcessedLogprobs,
    /// The model's own: temperature one, the whole vocabulary.
    RawLogprobs,
}

/// Sampling parameters of requests that do not give their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Defaults {
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) top_k: usize,
    pub(crate) min_p: f32,
}

impl Defaults {
    /// Reads `generation_config.json`; fields that it lacks are neutral.
    pub(crate) fn parse(config: &Value) -> Result<Defaults, ConfigError> {
        let number = |field, neutral: f64| Ok(config::number(config, field)?.unwrap_or(neutral));
        let penalty = number("repetition_penalty", 1.0)?;
        if penalty != 1.0 {
            tracing::warn!(penalty, "`repetition_penalty` of the model is not applied");
        }
        Ok(Defaults {
            temperature: number("temperature", 1.0)?.max(0.0) as f32,
            top_p: number("top_p", 1.0)? as f32,
            top_k: number("top_k", 0.0)?.max(0.0) as usize,
            min_p: number("min_p", 0.0)? as f32,
        })
    }
}

/// How to choose the tokens of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Params {
    /// Zero is greedy.
    pub(crate) temperature: f32,
    /// In (0, 1]; one is off.
    pub(crate) top_p: f32,
    /// Zero is off.
    pub(crate) top_k: usize,
    /// In [0, 1]; zero is off.
    pub(crate) min_p: f32,
    pub(crate) seed: u64,
    /// How many of the likeliest tokens to report.
    pub(crate) top: usize,
}

/// A token and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) id: u32,
    /// Natural logarithm, in the mode that was asked for.
    pub(crate) logprob: f32,
    /// The likeliest tokens, likeliest first, in the same mode.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Chooses the token at `position` of a reply from `logits`, one for each id; not empty.
pub(crate) fn sample(
    logits: &[f32],
    params: &Params,
    position: usize,
    mode: LogprobsMode,
) -> Sampled {
    if params.temperature < GREEDY_BELOW {
        let raw = Distribution::whole(logits, 1.0);
        return raw.report(raw.likeliest(), params.top);
    }
    let processed = Distribution::filtered(logits, params);
    let id = processed.draw(uniform(params.seed, position as u64));
    match mode {
        LogprobsMode::ProcessedLogprobs => processed.report(id, params.top),
        LogprobsMode::RawLogprobs => Distribution::whole(logits, 1.0).report(id, params.top),
    }
}

/// The probabilities of all ids whose scaled logit is not below a floor.
struct Distribution<'a> {
    logits: &'a [f32],
    temperature: f32,
    floor: f32,
    highest: f32,
    /// Sum of `exp(scaled - highest)` over what is kept.
    sum: f64,
}

impl<'a> Distribution<'a> {
    fn whole(logits: &'a [f32], temperature: f32) -> Distribution<'a> {
        let scaled = logits.iter().map(|logit| logit / temperature);
        let highest = scaled.fold(f32::NEG_INFINITY, f32::max);
        Distribution { logits, temperature, floor: f32::NEG_INFINITY, highest, sum: 0.0 }.summed()
    }

    fn filtered(logits: &'a [f32], params: &Params) -> Distribution<'a> {
        let mut this = Distribution::whole(logits, params.temperature);
        if params.min_p > 0.0 {
            this.floor = this.highest + params.min_p.ln();
        }
        if params.top_k > 0 && params.top_k < logits.len() {
            let mut scaled: Vec<f32> = this.kept().map(|(_, scaled)| scaled).collect();
            if params.top_k < scaled.len() {
                let (_, last, _) =
                    scaled.select_nth_unstable_by(params.top_k - 1, |a, b| b.total_cmp(a));
                this.floor = *last;
            }
        }
        if params.top_p < 1.0 {
            this.floor = this.summed().nucleus(params.top_p);
        }
        this.summed()
    }

    /// The scaled logit of the last token that is needed to reach `top_p`.
    fn nucleus(&mut self, top_p: f32) -> f32 {
        let mut scaled: Vec<f32> = self.kept().map(|(_, scaled)| scaled).collect();
        scaled.sort_unstable_by(|a, b| b.total_cmp(a));
        let enough = f64::from(top_p) * self.sum;
        let mut sum = 0.0;
        for scaled in scaled {
            sum += self.weight(scaled);
            if sum >= enough {
                return scaled;
            }
        }
        self.floor
    }

    fn summed(&self) -> Distribution<'a> {
        let sum = self.kept().map(|(_, scaled)| self.weight(scaled)).sum();
        Distribution { sum, ..*self }
    }

    fn weight(&self, scaled: f32) -> f64 {
        f64::from(scaled - self.highest).exp()
    }

    /// Ids and scaled logits that are not filtered out, by id. Not-a-number is out.
    fn kept(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let scaled = self.logits.iter().map(|logit| logit / self.temperature);
        (0..).zip(scaled).filter(|(_, scaled)| *scaled >= self.floor)
    }

    /// The id with the highest logit; the lowest of equals.
    fn likeliest(&self) -> u32 {
        let mut best = (0, f32::NEG_INFINITY);
        for (id, scaled) in self.kept() {
            if scaled > best.1 {
                best = (id, scaled);
            }
        }
        best.0
    }

    /// The id at which the sum over ids in order passes the fraction `at`, in [0, 1).
    fn draw(&self, at: f64) -> u32 {
        let mut left = at * self.sum;
        let mut last = 0;
        for (id, scaled) in self.kept() {
            let weight = self.weight(scaled);
            if weight > 0.0 {
                last = id;
                left -= weight;
                if left < 0.0 {
                    break;
                }
            }
        }
        // Rounding may leave a crumb behind the last id.
        last
    }

    fn logprob(&self, scaled: f32) -> f32 {
        if scaled < self.floor {
            return f32::NEG_INFINITY;
        }
        (f64::from(scaled - self.highest) - self.sum.ln()) as f32
    }

    fn report(&self, id: u32, top: usize) -> Sampled {
        let logit = self.logits[id as usize];
        Sampled { id, logprob: self.logprob(logit / self.temperature), top: self.top(top) }
    }

    /// The `count` likeliest ids of the whole vocabulary; of equals the lower id first.
    fn top(&self, count: usize) -> Vec<(u32, f32)> {
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
        for (id, logit) in (0..).zip(self.logits) {
            let scaled = logit / self.temperature;
            if top.len() < count || top.last().is_some_and(|(_, lowest)| scaled > *lowest) {
                let at = top.partition_point(|(_, other)| *other >= scaled);
                top.insert(at, (id, scaled));
                top.truncate(count);
            }
        }
        top.iter().map(|(id, scaled)| (*id, self.logprob(*scaled))).collect()
    }
}

/// A number in [0, 1) for each seed and counter.
fn uniform(seed: u64, counter: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(counter.wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads a number over all bits (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Params =
        Params { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 7, top: 0 };
    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    fn drawn(params: &Params, count: usize) -> Vec<f64> {
        let mut counts = vec![0.0; LOGITS.len()];
        for position in 0..count {
            let sampled = sample(&LOGITS, params, position, LogprobsMode::ProcessedLogprobs);
            counts[sampled.id as usize] += 1.0 / count as f64;
        }
        counts
    }

    #[test]
    fn frequencies_are_the_reported_probabilities() {
        let hot = Params { temperature: 1.5, top_k: 4, min_p: 0.1, ..PLAIN };
        for params in [PLAIN, hot, Params { top_p: 0.8, ..PLAIN }] {
            let frequencies = drawn(&params, 20_000);
            let all = Params { top: LOGITS.len(), ..params };
            for (id, logprob) in sample(&LOGITS, &all, 0, LogprobsMode::ProcessedLogprobs).top {
                let error = frequencies[id as usize] - f64::from(logprob).exp();
                assert!(error.abs() < 0.015, "{params:?}: id {id} is off by {error}");
            }
        }
    }

    #[test]
    fn a_seed_fixes_the_token_of_a_position() {
        let tokens = |seed| {
            let params = Params { seed, ..PLAIN };
            let one =
                |position| sample(&LOGITS, &params, position, LogprobsMode::ProcessedLogprobs).id;
            (0..64).map(one).collect::<Vec<u32>>()
        };
        assert_eq!(tokens(1), tokens(1));
        assert_ne!(tokens(1), tokens(2));
    }

    #[test]
    fn the_lowest_of_equals_is_greedy() {
        let greedy =
            sample(&LOGITS, &Params { temperature: 0.0, ..PLAIN }, 3, LogprobsMode::RawLogprobs);
        assert_eq!(greedy.id, 1);
        let first = Params { top_k: 1, temperature: 0.3, ..PLAIN };
        // Ties at the cut are kept, so the one token is taken from a model without them.
        let logits = [0.0, 2.0, 1.0, 1.9, -3.0];
        for position in 0..50 {
            let sampled = sample(&logits, &first, position, LogprobsMode::ProcessedLogprobs);
            assert_eq!((sampled.id, sampled.logprob), (1, 0.0));
        }
    }

    #[test]
    fn filters_cut_where_vllm_cuts() {
        let kept = |params: Params| {
            let distribution = Distribution::filtered(&LOGITS, &params);
            distribution.kept().map(|(id, _)| id).collect::<Vec<u32>>()
        };
        assert_eq!(kept(Params { top_k: 3, ..PLAIN }), [1, 2, 3]);
        assert_eq!(kept(Params { top_p: 0.75, ..PLAIN }), [1, 3]);
        assert_eq!(kept(Params { top_p: 0.85, ..PLAIN }), [1, 2, 3]);
        assert_eq!(kept(Params { min_p: 0.3, ..PLAIN }), [1, 2, 3]);
        assert_eq!(kept(Params { top_p: 1e-9, ..PLAIN }), [1, 3]);
    }

    #[test]
    fn raw_logprobs_ignore_temperature_and_filters() {
        let params = Params { temperature: 0.5, top_k: 2, top: 3, ..PLAIN };
        let raw = sample(&LOGITS, &params, 0, LogprobsMode::RawLogprobs);
        let sum: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
        assert!((f64::from(raw.logprob) - (2.0 - sum.ln())).abs() < 1e-6);
        assert_eq!(raw.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
        let processed = sample(&LOGITS, &params, 0, LogprobsMode::ProcessedLogprobs);
        assert!((f64::from(processed.logprob) + 2_f64.ln()).abs() < 1e-6);
        assert_eq!(processed.top[2], (2, f32::NEG_INFINITY));
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mean = (0..10_000).map(|i| uniform(3, i)).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
