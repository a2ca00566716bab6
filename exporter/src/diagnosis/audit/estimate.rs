//! The logprob of a token under another temperature or a truncation, from the scores of a server:
//! the token's own logprob at temperature 1, and those of the most probable ids.

use wire::TokenScore;

/// A logprob that is known within a slack, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) logprob: f64,
    /// Half the width of what is possible.
    pub(super) slack: f64,
}

/// A truncation of the distribution after temperature. What does nothing is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cutoff {
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<usize>,
    pub(super) min_p: Option<f64>,
}

/// Number of ids of a vocabulary beyond the most probable ones, as a bound. Larger vocabularies
/// are rare, and the bound grows with a small power of it only.
const TAIL_IDS: f64 = 262_144.0;
/// The lowest temperature that is not greedy.
const GREEDY_BELOW: f64 = 1e-5;

impl Cutoff {
    /// Returns true where nothing is cut off.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the logprob of the token at a temperature. At temperature 0 the most probable id has
/// all.
pub(super) fn at_temperature(score: &TokenScore, temperature: f64) -> Estimate {
    let own = f64::from(score.logprob);
    if temperature < GREEDY_BELOW {
        let is_first = score.top.first().is_none_or(|(_, top)| score.logprob >= *top);
        let logprob = if is_first { 0.0 } else { f64::NEG_INFINITY };
        return Estimate { logprob, slack: 0.0 };
    }
    let Estimate { logprob: normalizer, slack } = log_normalizer(score, temperature);
    Estimate { logprob: own / temperature - normalizer, slack }
}

/// Returns the logprob of the token at a temperature, after a truncation; none where the ids that
/// are kept are not all told. What the truncation cuts off has minus infinity.
pub(super) fn truncated(score: &TokenScore, temperature: f64, cut: &Cutoff) -> Option<Estimate> {
    let full = at_temperature(score, temperature);
    if cut.is_none() || temperature < GREEDY_BELOW {
        return Some(full);
    }
    let normalizer = log_normalizer(score, temperature).logprob;
    let told = score.top.iter().map(|(_, l)| (f64::from(*l) / temperature - normalizer).exp());
    let told: Vec<f64> = told.collect();
    let KeptCounts { least, most } = kept(&told, cut)?;
    let own = full.logprob.exp() * (1.0 + 1e-6);
    let is_among = |count: usize| count.checked_sub(1).is_some_and(|last| own >= told[last]);
    if !is_among(least) {
        // At the edge it may have been kept or not.
        let impossible = Estimate { logprob: f64::NEG_INFINITY, slack: 0.0 };
        return (!is_among(most)).then_some(impossible);
    }

    let mass = |count: usize| told[..count].iter().sum::<f64>();
    let (low, high) = (mass(least).ln(), mass(most).ln());
    let slack = full.slack + (high - low) / 2.0;
    Some(Estimate { logprob: full.logprob - f64::midpoint(low, high), slack })
}

/// The numbers of ids that a truncation keeps at least and at most.
struct KeptCounts {
    least: usize,
    most: usize,
}

/// The distance to the mass of a nucleus within which ids at its edge are in doubt.
const EDGE: f64 = 0.01;

/// Returns those of the falling probabilities that a truncation keeps: first by the least
/// probability and by the number, then by the mass of what is left, as vLLM does. None where more
/// may be kept than is told.
fn kept(told: &[f64], cut: &Cutoff) -> Option<KeptCounts> {
    let least = cut.min_p.map_or(0.0, |share| share * told.first().copied().unwrap_or_default());
    let by_size = told.iter().position(|p| *p < least);
    let by_number = cut.top_k.filter(|k| *k <= told.len());
    let count = [by_size, by_number].into_iter().flatten().min();
    if count.is_none() && (cut.min_p.is_some() || cut.top_k.is_some()) {
        return None;
    }
    let Some(share) = cut.top_p else {
        return count.map(|count| KeptCounts { least: count, most: count });
    };

    let left = &told[..count.unwrap_or(told.len())];
    let whole = if count.is_some() { left.iter().sum() } else { 1.0 };
    let nucleus = |wanted: f64| {
        let mut sum = 0.0;
        let last = left.iter().position(|p| {
            sum += p;
            sum >= wanted * whole
        });
        last.map(|last| last + 1).or(count)
    };
    Some(KeptCounts { least: nucleus(share - EDGE)?, most: nucleus(share + EDGE)? })
}

/// Returns the mean and the variance that the raw logprob of a token has when it is sampled at a
/// temperature.
pub(super) fn raw_moments(score: &TokenScore, temperature: f64) -> (f64, f64) {
    let normalizer = log_normalizer(score, temperature).logprob;
    let told = score.top.iter().map(|(_, logprob)| f64::from(*logprob));
    let mut weighed: Vec<(f64, f64)> =
        told.map(|raw| ((raw / temperature - normalizer).exp(), raw)).collect();
    // The ids that are not told are a little less probable than the last one.
    let left = 1.0 - weighed.iter().map(|(weight, _)| weight).sum::<f64>();
    if let Some((_, last)) = weighed.last().copied() {
        weighed.push((left.max(0.0), last - 1.0));
    }

    let mean: f64 = weighed.iter().map(|(weight, raw)| weight * raw).sum();
    let square: f64 = weighed.iter().map(|(weight, raw)| weight * raw * raw).sum();
    (mean, (square - mean * mean).max(0.0))
}

/// The part of the difference between two models of the tail within which the truth is.
const TAIL_DOUBT: f64 = 0.4;

/// Returns the logarithm of the sum of p^(1/T) over all ids. The ids that are not told are taken to
/// fall by a power of their rank, from the last one told and to the mass that is left.
fn log_normalizer(score: &TokenScore, temperature: f64) -> Estimate {
    let power = 1.0 / temperature;
    if (power - 1.0).abs() < 1e-9 {
        return Estimate { logprob: 0.0, slack: 0.0 };
    }
    let told = || score.top.iter().map(|(_, logprob)| f64::from(*logprob));
    let count = score.top.len().max(1) as f64;
    let mass: f64 = told().map(f64::exp).sum();
    let sum: f64 = told().map(|logprob| (logprob * power).exp()).sum();

    let rest = (1.0 - mass).max(1e-12);
    let last = told().next_back().map_or(1.0, f64::exp).min(rest).max(1e-30);
    // What is left is at least as long as the last id told fits into it.
    let exponent = 1.0 + count * last / rest;
    let falls = power * exponent - 1.0;
    let longest = (TAIL_IDS / count).powf(-falls);
    let tail = last.powf(power) * count * (1.0 - longest) / falls;
    // All ids that are left are as probable as the last one told.
    let dense = rest * last.powf(power - 1.0);

    let (middle, other) = ((sum + tail).ln(), (sum + dense).ln());
    Estimate { logprob: middle, slack: TAIL_DOUBT * (middle - other).abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The score of one id of a distribution over all ids, of which the most probable are told.
    fn score(logits: &[f64], id: usize, told: usize) -> TokenScore {
        let all = softmax(logits, 1.0);
        let mut top: Vec<_> =
            all.iter().enumerate().map(|(id, p)| (id as u32, p.ln() as f32)).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1));
        top.truncate(told);
        TokenScore { logprob: all[id].ln() as f32, top }
    }

    fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
        let powers: Vec<f64> = logits.iter().map(|l| (l / temperature).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|p| p / sum).collect()
    }

    fn logits() -> Vec<f64> {
        (0..200).map(|id| 6.0 * (1.0 - f64::from(id) / 12.0).max(-1.5)).collect()
    }

    #[test]
    fn temperatures_are_within_the_slack() {
        for temperature in [0.3, 0.7, 0.95, 1.0, 1.1] {
            for id in [0, 3, 9] {
                let exact = softmax(&logits(), temperature)[id].ln();
                let found = at_temperature(&score(&logits(), id, 20), temperature);
                let gap = (found.logprob - exact).abs();
                assert!(gap <= found.slack + 1e-4, "{temperature} {id} {gap} {found:?}");
                assert!(temperature > 1.0 || found.slack < 0.02, "{temperature} {found:?}");
            }
        }
        let greedy = at_temperature(&score(&logits(), 0, 20), 0.0);
        assert_eq!(greedy, Estimate { logprob: 0.0, slack: 0.0 });
        assert!(at_temperature(&score(&logits(), 1, 20), 0.0).logprob.is_infinite());
    }

    /// Logits of 500 ids that fall by so much from id to id.
    fn falling(by: f64) -> Vec<f64> {
        (0..500).map(|id| -by * f64::from(id)).collect()
    }

    #[test]
    fn the_doubt_of_a_tail_covers_the_truth_and_is_hardly_wider() {
        // Most of the mass is untold: the truth is at the edge of the doubt.
        for temperature in [0.5, 0.7, 0.8] {
            let exact = softmax(&falling(0.05), temperature)[3].ln();
            let found = at_temperature(&score(&falling(0.05), 3, 20), temperature);
            let gap = (found.logprob - exact).abs();
            assert!(gap > 0.03 && gap <= found.slack, "{temperature} {gap} {found:?}");
        }
        let found = at_temperature(&score(&falling(0.05), 3, 20), 0.8);
        let exact = softmax(&falling(0.05), 0.8)[3].ln();
        assert!((found.logprob - exact).abs() > 0.9 * found.slack, "{found:?}");
        // A seventh is untold: tokens are still compared.
        let found = at_temperature(&score(&falling(0.1), 3, 20), 0.7);
        assert!((0.01..0.015).contains(&found.slack), "{found:?}");
    }

    #[test]
    fn truncations_keep_what_servers_keep() {
        let all = softmax(&logits(), 0.7);
        let kept = |count: usize| all[..count].iter().sum::<f64>().ln();
        let of = |id, cut: &Cutoff| truncated(&score(&logits(), id, 20), 0.7, cut);
        let near = |found: Option<Estimate>, exact: f64| {
            let found = found.unwrap().logprob;
            assert!((found - exact).abs() < 0.02, "{found} {exact}");
        };
        let top_k = Cutoff { top_k: Some(3), ..Cutoff::default() };
        near(of(1, &top_k), all[1].ln() - kept(3));
        assert!(of(4, &top_k).unwrap().logprob.is_infinite());
        let top_p = Cutoff { top_p: Some(0.8), ..Cutoff::default() };
        let count = (1..).find(|count| all[..*count].iter().sum::<f64>() >= 0.8).unwrap();
        let found = of(0, &top_p).unwrap();
        assert!((found.logprob - all[0].ln() + kept(count)).abs() <= found.slack + 1e-3);
        let min_p = Cutoff { min_p: Some(0.2), ..Cutoff::default() };
        let count = all.iter().filter(|p| **p >= 0.2 * all[0]).count();
        near(of(0, &min_p), all[0].ln() - kept(count));
        // Not all of the ids that are kept are told.
        let wide = Cutoff { top_k: Some(30), ..Cutoff::default() };
        assert_eq!(of(0, &wide), None);
    }
}
