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
pub(super) struct Truncation {
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<usize>,
    pub(super) min_p: Option<f64>,
}

/// Number of ids of a vocabulary beyond the most probable ones, as a bound. Larger vocabularies
/// are rare, and the bound grows with a small power of it only.
const TAIL_IDS: f64 = 262_144.0;
/// The lowest temperature that is not greedy.
const GREEDY_BELOW: f64 = 1e-5;

impl Truncation {
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
pub(super) fn truncated(
    score: &TokenScore,
    temperature: f64,
    cut: &Truncation,
) -> Option<Estimate> {
    let full = at_temperature(score, temperature);
    if cut.is_none() || temperature < GREEDY_BELOW {
        return Some(full);
    }
    let normalizer = log_normalizer(score, temperature).logprob;
    let told = score.top.iter().map(|(_, l)| (f64::from(*l) / temperature - normalizer).exp());
    let told: Vec<f64> = told.collect();
    let kept = kept(&told, cut)?;
    let last = *kept.last()?;

    let is_kept = full.logprob.exp() >= last * (1.0 - 1e-6);
    let mass: f64 = kept.iter().sum();
    let logprob = if is_kept { full.logprob - mass.ln() } else { f64::NEG_INFINITY };
    Some(Estimate { logprob, slack: full.slack })
}

/// Returns those of the falling probabilities that a truncation keeps: first by the least
/// probability and by the number, then by the mass of what is left, as vLLM does. None where more
/// may be kept than is told.
fn kept<'a>(told: &'a [f64], cut: &Truncation) -> Option<&'a [f64]> {
    let least = cut.min_p.map_or(0.0, |share| share * told.first().copied().unwrap_or_default());
    let by_size = told.iter().position(|p| *p < least);
    let by_number = cut.top_k.filter(|k| *k <= told.len());
    let count = [by_size, by_number].into_iter().flatten().min();
    if count.is_none() && (cut.min_p.is_some() || cut.top_k.is_some()) {
        return None;
    }
    let Some(share) = cut.top_p else { return told.get(..count?) };

    let left = &told[..count.unwrap_or(told.len())];
    let mass = if count.is_some() { left.iter().sum() } else { 1.0 };
    let mut sum = 0.0;
    let nucleus = left.iter().position(|p| {
        sum += p;
        sum >= share * mass
    });
    left.get(..=nucleus?)
}

/// Returns the logarithm of the sum of p^(1/T) over all ids. What the ids told do not show lies
/// between two bounds: the rest of the mass in ids as probable as the last one told, and the same
/// mass spread over a whole vocabulary.
fn log_normalizer(score: &TokenScore, temperature: f64) -> Estimate {
    if (temperature - 1.0).abs() < 1e-9 {
        return Estimate { logprob: 0.0, slack: 0.0 };
    }
    let power = 1.0 / temperature;
    let told = || score.top.iter().map(|(_, logprob)| f64::from(*logprob));
    let mass: f64 = told().map(f64::exp).sum();
    let sum: f64 = told().map(|logprob| (logprob * power).exp()).sum();

    let rest = (1.0 - mass).max(0.0);
    // Without any id told, the token itself is all that is known.
    let last = told().next_back().map_or(1.0, f64::exp).min(rest.max(f64::MIN_POSITIVE));
    let dense = rest * last.powf(power - 1.0);
    let sparse = TAIL_IDS * (rest / TAIL_IDS).powf(power);
    let (low, high) = (sum + dense.min(sparse), sum + dense.max(sparse));
    let (low, high) = (low.max(f64::MIN_POSITIVE).ln(), high.max(f64::MIN_POSITIVE).ln());
    Estimate { logprob: f64::midpoint(low, high), slack: (high - low) / 2.0 }
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

    #[test]
    fn truncations_keep_what_servers_keep() {
        let all = softmax(&logits(), 0.7);
        let kept = |count: usize| all[..count].iter().sum::<f64>().ln();
        let of = |id, cut: &Truncation| truncated(&score(&logits(), id, 20), 0.7, cut);
        let near = |found: Option<Estimate>, exact: f64| {
            let found = found.unwrap().logprob;
            assert!((found - exact).abs() < 0.02, "{found} {exact}");
        };
        let top_k = Truncation { top_k: Some(3), ..Truncation::default() };
        near(of(1, &top_k), all[1].ln() - kept(3));
        assert!(of(3, &top_k).unwrap().logprob.is_infinite());
        let top_p = Truncation { top_p: Some(0.8), ..Truncation::default() };
        let count = (1..).find(|count| all[..*count].iter().sum::<f64>() >= 0.8).unwrap();
        near(of(0, &top_p), all[0].ln() - kept(count));
        let min_p = Truncation { min_p: Some(0.2), ..Truncation::default() };
        let count = all.iter().filter(|p| **p >= 0.2 * all[0]).count();
        near(of(0, &min_p), all[0].ln() - kept(count));
        // Not all of the ids that are kept are told.
        let wide = Truncation { top_k: Some(30), ..Truncation::default() };
        assert_eq!(of(0, &wide), None);
    }
}
