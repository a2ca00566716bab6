//! Causes that the scores at hand prove: another reading of the same numbers fits them.

use super::causes::AuditCause;
use super::estimate::{Cutoff, raw_moments};
use super::readings::{Contest, Reading, ScoredSpan, truncation};
use crate::scoring::paths::StatedSampling;

/// Gaps below, in nats, are nobody's fault: they are those of arithmetic.
pub(super) const FLOOR: f64 = 1e-3;
/// Tokens that a reading without a fitted number must explain.
const TOKENS_MIN: u64 = 8;
/// Tokens that a fitted number must explain, and the least gaps, in nats: a number that is chosen
/// to fit explains some noise.
const FITTED_TOKENS_MIN: u64 = 16;
const FITTED_FLOOR: f64 = 5e-3;
/// The part of another reading's gaps by which a plainer one may be worse.
const PLAINER: f64 = 1.5;
/// Tokens from which a number is fitted.
const FIT_TOKENS_MAX: usize = 4096;

/// An explanation: the cause, the reading that fits, and what it leaves.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Explanation {
    pub(super) cause: AuditCause,
    pub(super) reading: Reading,
    pub(super) contest: Contest,
}

/// Returns the reading of spans of one sampling. Where the call does not state it, this is the one
/// that fits best, and no cause of a difference.
pub(super) fn stated_reading(spans: &[&ScoredSpan<'_>], sampling: &StatedSampling) -> Reading {
    let stated = Reading::stated(sampling);
    let is_greedy = sampling.temperature.is_some_and(|temperature| temperature < 1e-5);
    match stated {
        // Servers disagree about the logprobs of greedy sampling.
        Some(stated) if is_greedy => best(spans, [stated, Reading::RAW].into_iter()),
        Some(stated) => stated,
        None => best(spans, unstated(sampling).into_iter()),
    }
}

fn unstated(sampling: &StatedSampling) -> Vec<Reading> {
    let cut = truncation(sampling);
    let mut readings = vec![Reading::RAW];
    match sampling.temperature {
        Some(temperature) => readings.push(Reading::Temperature(temperature)),
        None => readings.extend(temperatures().map(Reading::Temperature)),
    }
    let temperature = sampling.temperature.unwrap_or(1.0);
    match cut.is_none() {
        true => readings.extend(truncations().map(|cut| Reading::Truncated(temperature, cut))),
        false => readings.push(Reading::Truncated(temperature, cut)),
    }
    readings
}

/// Returns the reading whose gaps are smallest over the tokens that it shares with the first.
fn best(spans: &[&ScoredSpan<'_>], mut readings: impl Iterator<Item = Reading>) -> Reading {
    let first = readings.next().unwrap_or(Reading::RAW);
    let spans = thinned(spans);
    let contests = readings.map(|reading| (reading, Contest::of(&spans, first, reading)));
    let better = contests.filter(|(_, contest)| contest.tokens > 0);
    let better = better.filter(|(_, contest)| contest.other() < contest.stated());
    better.min_by(|a, b| a.1.other().total_cmp(&b.1.other())).map_or(first, |(reading, _)| reading)
}

/// Returns the explanation of spans of one sampling, whose gaps by the stated reading are at least
/// `floor`; none where no other reading fits.
pub(super) fn explain(
    spans: &[&ScoredSpan<'_>],
    sampling: &StatedSampling,
    stated: Reading,
) -> Option<Explanation> {
    let plain = plain_readings(sampling, stated).into_iter().filter_map(|(cause, reading)| {
        let contest = Contest::of(spans, stated, reading);
        let found = Explanation { cause, reading, contest };
        contest.explains(TOKENS_MIN, FLOOR).then_some(found)
    });
    let fitted = fitted_readings(spans, sampling, stated).into_iter().filter_map(|found| {
        found.contest.explains(FITTED_TOKENS_MIN, FITTED_FLOOR).then_some(found)
    });

    let all: Vec<_> = plain.chain(fitted).collect();
    let least = all.iter().map(|found| found.contest.other()).min_by(f64::total_cmp)?;
    let found =
        all.into_iter().find(|found| found.contest.other() <= PLAINER * least + FLOOR / 5.0)?;
    let is_hotter = found.reading == Reading::RAW && was_sampled_raw(spans, sampling);
    let cause = if is_hotter { AuditCause::Temperature } else { found.cause };
    Some(Explanation { cause, ..found })
}

/// Returns true where tokens that are said to be sampled at a temperature were sampled at 1: then
/// raw logprobs are those of the distribution. The mean of the sampled tokens' raw logprobs tells.
fn was_sampled_raw(spans: &[&ScoredSpan<'_>], sampling: &StatedSampling) -> bool {
    let Some(stated) = sampling.temperature.filter(|temperature| *temperature > 0.02) else {
        return false;
    };
    let distance = |temperature: f64| {
        let (mut sum, mut variance) = (0.0, 1e-9);
        for score in spans.iter().flat_map(|s| (0..s.len()).filter_map(|at| s.score(at, 0))) {
            let (mean, spread) = raw_moments(score, temperature);
            sum += f64::from(score.logprob) - mean;
            variance += spread;
        }
        sum.abs() / variance.sqrt()
    };
    distance(1.0) + SIGMAS < distance(stated)
}

/// Standard errors by which one temperature must be nearer than another.
const SIGMAS: f64 = 1.0;

/// Returns other readings without a fitted number, the plainest first.
fn plain_readings(sampling: &StatedSampling, stated: Reading) -> Vec<(AuditCause, Reading)> {
    let cut = truncation(sampling);
    let temperature = sampling.temperature.unwrap_or(1.0);
    let whole = Reading::Temperature(temperature);
    let shaped = Reading::Truncated(temperature, cut);
    let mut readings = Vec::new();

    let is_raw = stated == Reading::RAW;
    if !is_raw {
        readings.push((AuditCause::RawAgainstProcessed, Reading::RAW));
    }
    if is_raw && whole != stated {
        readings.push((AuditCause::RawAgainstProcessed, whole));
    }
    if !cut.is_none() && stated != shaped {
        let cause = match is_raw && whole != stated {
            true => AuditCause::RawAgainstProcessed,
            false => AuditCause::Truncation,
        };
        readings.push((cause, shaped));
    }
    if !cut.is_none() && stated == shaped {
        readings.push((AuditCause::Truncation, whole));
    }
    for by in [-1, 1] {
        let shifted = match stated {
            Reading::Temperature(temperature) => Reading::Shifted(temperature, by),
            _ => Reading::Shifted(temperature, by),
        };
        readings.push((AuditCause::ShiftedIds, shifted));
    }
    readings
}

/// Returns the best temperature and the best truncation.
fn fitted_readings(
    spans: &[&ScoredSpan<'_>],
    sampling: &StatedSampling,
    stated: Reading,
) -> Vec<Explanation> {
    let thinned = thinned(spans);
    let cut = match stated {
        Reading::Truncated(_, cut) => cut,
        _ => Cutoff::default(),
    };
    let reading = |temperature: f64| match cut.is_none() {
        true => Reading::Temperature(temperature),
        false => Reading::Truncated(temperature, cut),
    };
    let fit = |cause, readings: &mut dyn Iterator<Item = Reading>| {
        let found = readings.map(|reading| {
            let contest = Contest::of(&thinned, stated, reading);
            Explanation { cause, reading, contest }
        });
        // A reading that leaves most tokens out fits the rest by chance.
        let whole = Contest::of(&thinned, stated, stated).tokens;
        let found = found.filter(|found| found.contest.tokens * 2 >= whole);
        found.min_by(|a, b| a.contest.other().total_cmp(&b.contest.other()))
    };

    let coarse = fit(AuditCause::Temperature, &mut temperatures().map(reading));
    let near = |found: &Explanation| match found.reading {
        Reading::Temperature(t) | Reading::Truncated(t, _) | Reading::Shifted(t, _) => t,
    };
    let fine = coarse.as_ref().map(near).and_then(|middle| {
        let steps = (-9..=9).map(|step| middle + f64::from(step) * 0.01).filter(|t| *t > 0.02);
        fit(AuditCause::Temperature, &mut steps.map(reading))
    });

    let temperature = match stated {
        Reading::Temperature(temperature) => temperature,
        _ => sampling.temperature.unwrap_or(1.0),
    };
    let cuts = truncations().filter(|guess| *guess != cut);
    let cut =
        fit(AuditCause::Truncation, &mut cuts.map(|guess| Reading::Truncated(temperature, guess)));
    [fine, cut].into_iter().flatten().collect()
}

/// The temperatures that are tried first.
fn temperatures() -> impl Iterator<Item = f64> {
    (1..=20).map(|tenths| f64::from(tenths) / 10.0)
}

/// The truncations that are tried.
fn truncations() -> impl Iterator<Item = Cutoff> {
    let top_p = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.98];
    let top_k = [1, 2, 3, 4, 5, 8, 10, 15, 20];
    let of_mass = top_p.map(|p| Cutoff { top_p: Some(p), ..Cutoff::default() });
    let of_number = top_k.map(|k| Cutoff { top_k: Some(k), ..Cutoff::default() });
    of_mass.into_iter().chain(of_number)
}

/// Returns as many spans as numbers are fitted from, evenly chosen.
fn thinned<'s, 'a>(spans: &[&'s ScoredSpan<'a>]) -> Vec<&'s ScoredSpan<'a>> {
    let tokens: usize = spans.iter().map(|scored| scored.len()).sum();
    let step = tokens.div_ceil(FIT_TOKENS_MAX).max(1);
    spans.iter().step_by(step).copied().collect()
}
