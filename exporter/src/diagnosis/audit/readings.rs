//! Readings of recorded logprobs: what the numbers may be, and how well each reading fits them.

use std::fmt;

use wire::TokenScore;

use super::estimate::{Cutoff, Estimate, at_temperature, truncated};
use crate::scoring::paths::{SampledSpan, StatedSampling};

/// The largest difference of one token that counts, in nats: an outlier is one outlier.
const GAP_MAX: f64 = 3.0;
/// The largest slack with which a token is compared, in nats.
const SLACK_MAX: f64 = 0.02;
/// Logprobs below are what servers send for a token that cannot be.
const LOGPROB_MIN: f64 = -60.0;

/// One reading of recorded logprobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// The model's own distribution at a temperature; at 1 it is the raw one.
    Temperature(f64),
    /// That after a truncation.
    Truncated(f64, Cutoff),
    /// The logprobs at a temperature of the tokens some places on.
    Shifted(f64, isize),
}

impl Reading {
    pub(super) const RAW: Self = Self::Temperature(1.0);

    /// Returns the reading that a call states; none where it states no kind, or its temperature is
    /// needed and not known.
    pub(super) fn stated(sampling: &StatedSampling) -> Option<Self> {
        let temperature = sampling.temperature;
        match sampling.kind.as_str() {
            "raw" => Some(Self::RAW),
            "temperature" => temperature.map(Self::Temperature),
            "processed" => {
                let cut = truncation(sampling);
                temperature.map(|temperature| match cut.is_none() {
                    true => Self::Temperature(temperature),
                    false => Self::Truncated(temperature, cut),
                })
            }
            _ => None,
        }
    }

    /// Returns the logprob of a span's token by this reading.
    fn expected(self, scored: &ScoredSpan<'_>, token: usize) -> Option<Estimate> {
        match self {
            Self::Temperature(temperature) => {
                Some(at_temperature(scored.score(token, 0)?, temperature))
            }
            Self::Truncated(temperature, cut) => {
                truncated(scored.score(token, 0)?, temperature, &cut)
            }
            Self::Shifted(temperature, by) => {
                Some(at_temperature(scored.score(token, by)?, temperature))
            }
        }
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temperature(1.0) => write!(f, "logprobs before temperature"),
            Self::Temperature(temperature) => write!(f, "logprobs at temperature {temperature}"),
            Self::Shifted(_, by) => write!(f, "logprobs of the token {by:+} places on"),
            Self::Truncated(temperature, cut) => {
                write!(f, "logprobs at temperature {temperature}")?;
                let number = |name, value: f64| format!(", {name} {value}");
                let words = [
                    cut.top_p.map(|p| number("top_p", p)),
                    cut.top_k.map(|k| number("top_k", k as f64)),
                    cut.min_p.map(|p| number("min_p", p)),
                ];
                words.into_iter().flatten().try_for_each(|word| f.write_str(&word))
            }
        }
    }
}

/// Returns the truncation that a call states.
pub(super) fn truncation(sampling: &StatedSampling) -> Cutoff {
    let StatedSampling { top_p, top_k, min_p, .. } = *sampling;
    Cutoff { top_p, top_k, min_p }
}

/// A span with the scores of its tokens.
#[derive(Debug, Clone)]
pub(super) struct ScoredSpan<'a> {
    pub(super) span: &'a SampledSpan,
    /// Index of the path.
    pub(super) path: usize,
    /// The scores of the tokens, of one before them, and of one after them.
    scores: Vec<Option<TokenScore>>,
}

impl<'a> ScoredSpan<'a> {
    /// Takes the scores of a span out of those of its path.
    pub(super) fn new(span: &'a SampledSpan, path: usize, scores: &[Option<TokenScore>]) -> Self {
        let places = (span.start..span.end() + 2).map(|place| place.checked_sub(1));
        let scores = places.map(|place| scores.get(place?)?.clone()).collect();
        Self { span, path, scores }
    }

    /// Returns the score of the token that stands `by` places after a token of the span.
    pub(super) fn score(&self, token: usize, by: isize) -> Option<&TokenScore> {
        self.scores.get((token + 1).checked_add_signed(by)?)?.as_ref()
    }

    /// Returns the recorded logprob of a token less that of a reading; none where one of the two is
    /// not known well enough. What cannot be is [`GAP_MAX`] away.
    pub(super) fn gap(&self, token: usize, reading: Reading) -> Option<f64> {
        let recorded = f64::from(*self.span.recorded.get(token)?);
        if recorded.is_nan() || recorded < LOGPROB_MIN {
            return None;
        }
        let expected = reading.expected(self, token)?;
        if expected.logprob < LOGPROB_MIN {
            return Some(GAP_MAX);
        }
        let gap = recorded - expected.logprob;
        // A gap that is far larger than the slack is a gap.
        let is_known = expected.slack <= SLACK_MAX.max(gap.abs() / 10.0);
        is_known.then(|| gap.clamp(-GAP_MAX, GAP_MAX))
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.span.recorded.len()
    }
}

/// The sum of the gaps of many tokens by two readings: what is stated, and another. Only tokens
/// that both tell count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Contest {
    pub(super) tokens: u64,
    stated: f64,
    other: f64,
}

impl Contest {
    /// Adds one token.
    pub(super) fn add(&mut self, stated: f64, other: f64) {
        self.tokens += 1;
        self.stated += stated.abs();
        self.other += other.abs();
    }

    /// Lets two readings compete on some spans.
    pub(super) fn of(spans: &[&ScoredSpan<'_>], stated: Reading, other: Reading) -> Self {
        let mut contest = Self::default();
        for scored in spans {
            for token in 0..scored.len() {
                let gaps = scored.gap(token, stated).zip(scored.gap(token, other));
                gaps.into_iter().for_each(|(stated, other)| contest.add(stated, other));
            }
        }
        contest
    }

    /// Lets the stated reading of some tokens compete under two sets of scores.
    pub(super) fn of_scores(pairs: &[(&ScoredSpan<'_>, &ScoredSpan<'_>, Reading)]) -> Self {
        let mut contest = Self::default();
        for (here, there, reading) in pairs {
            for token in 0..here.len() {
                let gaps = here.gap(token, *reading).zip(there.gap(token, *reading));
                gaps.into_iter().for_each(|(stated, other)| contest.add(stated, other));
            }
        }
        contest
    }

    /// Returns the mean amount of the stated reading's gaps, in nats.
    pub(super) fn stated(&self) -> f64 {
        self.stated / self.tokens.max(1) as f64
    }

    /// Returns that of the other reading's.
    pub(super) fn other(&self) -> f64 {
        self.other / self.tokens.max(1) as f64
    }

    /// Returns true where the other reading explains what the stated one does not: gaps of at
    /// least `floor`, of which it leaves less than a third.
    pub(super) fn explains(&self, tokens_min: u64, floor: f64) -> bool {
        let is_seen = self.tokens >= tokens_min && self.stated() >= floor;
        is_seen && self.other() <= LEFT_MAX * self.stated()
    }
}

/// Share of the gaps that an explanation may leave.
const LEFT_MAX: f64 = 0.3;
