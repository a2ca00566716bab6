//! Draws against reported probabilities, and filters and penalties against plain code.

mod speed;

use super::params::TokenCandidate;
use super::*;

/// Plain sampling with everything off.
pub(crate) fn plain() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        logit_bias: Arc::default(),
        allowed: None,
        bad_words: Arc::default(),
        seed: 7,
        logprobs: Some(0),
        logprob_ids: None,
        grammar: None,
        thought: None,
    }
}

const PROCESSED: LogprobsMode = LogprobsMode::ProcessedLogprobs;
const RAW: LogprobsMode = LogprobsMode::RawLogprobs;
const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

/// The token at `position` of a reply to nothing.
fn sampled(
    logits: &[f32],
    params: &SamplingParams,
    position: usize,
    mode: LogprobsMode,
) -> SampledToken {
    let mut sampler = Sampler::new(params.clone(), &[], no_ends());
    sampler.sample(&mut logits.to_vec(), position, mode).unwrap()
}

fn scores(logits: &[f32], params: &SamplingParams, mode: LogprobsMode) -> TokenScores {
    sampled(logits, params, 0, mode).scores.unwrap()
}

/// Logits that look like a model's: most of the weight on a few ids.
pub(crate) fn row(count: usize, seed: u64) -> Vec<f32> {
    let one = |id| {
        let normal: f64 = (0..6).map(|i| draw::uniform(seed, id * 6 + i)).sum::<f64>() - 3.0;
        (normal * 4.0) as f32
    };
    (0..count as u64).map(one).collect()
}

/// The probabilities of all ids by plain code, in 64-bit floats.
fn oracle(logits: &[f32], params: &SamplingParams, prompt: &[u32], said: &[u32]) -> Vec<f64> {
    let mut scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    for (id, logit) in scaled.iter_mut().enumerate() {
        let id = id as u32;
        let bias = params.logit_bias.iter().find(|(other, _)| *other == id);
        *logit += bias.map_or(0.0, |(_, bias)| f64::from(*bias));
        if prompt.contains(&id) || said.contains(&id) {
            let penalty = f64::from(params.repetition_penalty);
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        let count = said.iter().filter(|other| **other == id).count() as f64;
        *logit -= count * f64::from(params.frequency_penalty);
        *logit -= if count > 0.0 { f64::from(params.presence_penalty) } else { 0.0 };
        *logit /= f64::from(params.temperature);
    }
    let highest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scaled.iter().map(|logit| (logit - highest).exp()).collect();
    let keep = |weights: &mut Vec<f64>, least: f64| {
        weights.iter_mut().filter(|weight| **weight < least).for_each(|weight| *weight = 0.0);
    };
    keep(&mut weights, f64::from(params.min_p));
    let sorted = |weights: &[f64]| {
        let mut sorted = weights.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted
    };
    if params.top_k > 0 && params.top_k < weights.len() {
        let least = sorted(&weights)[params.top_k - 1];
        keep(&mut weights, least);
    }
    let enough = f64::from(params.top_p) * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let last = sorted(&weights).into_iter().find(|weight| {
        sum += weight;
        sum >= enough * (1.0 - 1e-12)
    });
    keep(&mut weights, last.unwrap());
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Parameters of many kinds.
fn many() -> Vec<SamplingParams> {
    let bias: Arc<[(u32, f32)]> = [(3, 4.0), (900, -100.0), (17, 9.5)].into();
    vec![
        plain(),
        SamplingParams { temperature: 0.6, ..plain() },
        SamplingParams { temperature: 1.7, top_p: 0.9, ..plain() },
        SamplingParams { top_p: 0.3, ..plain() },
        SamplingParams { top_k: 1, ..plain() },
        SamplingParams { top_k: 20, top_p: 0.95, temperature: 0.6, ..plain() },
        SamplingParams { top_k: 300, min_p: 0.001, ..plain() },
        SamplingParams { min_p: 0.05, top_p: 0.99, ..plain() },
        SamplingParams { logit_bias: bias, top_p: 0.8, ..plain() },
        SamplingParams { repetition_penalty: 1.3, ..plain() },
        SamplingParams { presence_penalty: 1.5, frequency_penalty: -0.5, top_k: 50, ..plain() },
        SamplingParams { repetition_penalty: 0.8, frequency_penalty: 1.0, top_p: 0.97, ..plain() },
    ]
}

fn no_ends() -> EndTokens {
    ends_after(0, &[])
}

fn ends_after(min_tokens: usize, ids: &[u32]) -> EndTokens {
    EndTokens { ids: ids.into(), min_tokens }
}

#[test]
fn probabilities_are_those_of_plain_code() {
    let prompt = [3, 5, 900, 5];
    for (index, params) in many().into_iter().enumerate() {
        let params = SamplingParams { logprobs: Some(1000), ..params };
        let mut sampler = Sampler::new(params.clone(), &prompt, no_ends());
        let mut said = Vec::new();
        for position in 0..12 {
            let logits = row(1000, (index * 100 + position) as u64);
            let expected = oracle(&logits, &params, &prompt, &said);
            let token = sampler.sample(&mut logits.clone(), position, PROCESSED).unwrap();
            let scores = token.scores.unwrap();
            assert_eq!(scores.top.len(), 1000);
            for one in &scores.top {
                let (found, expected) = (f64::from(one.logprob).exp(), expected[one.id as usize]);
                let error = (found - expected).abs();
                assert!(error < 2e-6, "{params:?}: id {} is off by {error}", one.id);
            }
            let raw = oracle(&logits, &plain(), &[], &[])[token.id as usize];
            assert!((f64::from(scores.raw) - raw.ln()).abs() < 5e-6, "{params:?}");
            said.push(token.id);
        }
    }
}

#[test]
fn frequencies_are_the_reported_probabilities() {
    const DRAWS: usize = 20_000;
    let logits = row(1000, 4242);
    for params in many() {
        let all = SamplingParams { logprobs: Some(1000), ..params.clone() };
        let mut counts = vec![0.0; logits.len()];
        for position in 0..DRAWS {
            let quiet = SamplingParams { logprobs: None, ..params.clone() };
            let id = sampled(&logits, &quiet, position, PROCESSED).id;
            counts[id as usize] += 1.0 / DRAWS as f64;
        }
        for one in scores(&logits, &all, PROCESSED).top {
            let (found, expected) = (counts[one.id as usize], f64::from(one.logprob).exp());
            // Five standard deviations, and a draw or so for what is rare.
            let fits = 5.0 * (expected / DRAWS as f64).sqrt() + 3.0 / DRAWS as f64;
            assert!((found - expected).abs() < fits, "{params:?}: id {} {found}", one.id);
            assert!(one.logprob > f32::NEG_INFINITY || found == 0.0);
        }
    }
}

#[test]
fn a_seed_fixes_the_token_of_a_position() {
    let tokens = |seed| {
        let params = SamplingParams { seed, ..plain() };
        (0..64).map(|at| sampled(&LOGITS, &params, at, PROCESSED).id).collect::<Vec<u32>>()
    };
    assert_eq!(tokens(1), tokens(1));
    assert_ne!(tokens(1), tokens(2));
}

#[test]
fn what_is_reported_does_not_change_what_is_sampled() {
    for params in many() {
        for position in 0..50 {
            let logits = row(500, position as u64);
            let ids = [None, Some(0), Some(5)].map(|logprobs| {
                let params = SamplingParams { logprobs, ..params.clone() };
                [PROCESSED, RAW].map(|mode| sampled(&logits, &params, position, mode).id)
            });
            assert!(ids.iter().flatten().all(|id| *id == ids[0][0]));
        }
    }
}

#[test]
fn the_lowest_of_equals_is_greedy() {
    let greedy = SamplingParams { temperature: 0.0, ..plain() };
    assert_eq!(sampled(&LOGITS, &greedy, 3, RAW).id, 1);
    let first = SamplingParams { top_k: 1, temperature: 0.3, ..plain() };
    // Ties at the cut are kept, so the one token is taken from a model without them.
    let logits = [0.0, 2.0, 1.0, 1.9, -3.0];
    for position in 0..50 {
        let sampled = sampled(&logits, &first, position, PROCESSED);
        assert_eq!((sampled.id, sampled.scores.unwrap().logprob), (1, 0.0));
    }
}

#[test]
fn filters_cut_where_vllm_cuts() {
    let kept = |params: SamplingParams| {
        let top = scores(&LOGITS, &SamplingParams { logprobs: Some(5), ..params }, PROCESSED).top;
        let kept = top.iter().filter(|one| one.logprob > f32::NEG_INFINITY);
        let mut ids: Vec<u32> = kept.map(|one| one.id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(kept(SamplingParams { top_k: 3, ..plain() }), [1, 2, 3]);
    assert_eq!(kept(SamplingParams { top_p: 0.75, ..plain() }), [1, 3]);
    assert_eq!(kept(SamplingParams { top_p: 0.85, ..plain() }), [1, 2, 3]);
    assert_eq!(kept(SamplingParams { min_p: 0.3, ..plain() }), [1, 2, 3]);
    assert_eq!(kept(SamplingParams { top_p: 1e-9, ..plain() }), [1, 3]);
}

#[test]
fn raw_logprobs_ignore_temperature_and_filters() {
    let params = SamplingParams { temperature: 0.5, top_k: 2, logprobs: Some(3), ..plain() };
    let raw = scores(&LOGITS, &params, RAW);
    let sum: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
    assert!((f64::from(raw.logprob) - (2.0 - sum.ln())).abs() < 1e-6);
    assert_eq!(raw.top.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 3, 2]);
    let processed = scores(&LOGITS, &params, PROCESSED);
    assert!((f64::from(processed.logprob) + 2_f64.ln()).abs() < 1e-6);
    assert_eq!((processed.raw, raw.processed), (raw.logprob, processed.logprob));
    let last = TokenCandidate { id: 2, logprob: f32::NEG_INFINITY, rank: 3 };
    assert_eq!(processed.top[2], last);
    assert_eq!((processed.rank, raw.rank), (2, 2));
}

#[test]
fn modes_of_logits_report_what_probabilities_are_made_of() {
    let params = SamplingParams { temperature: 0.5, top_k: 2, logprobs: Some(3), ..plain() };
    let raw = scores(&LOGITS, &params, LogprobsMode::RawLogits);
    assert_eq!(raw.top.iter().map(|one| one.logprob).collect::<Vec<_>>(), [2.0, 2.0, 1.0]);
    let processed = scores(&LOGITS, &params, LogprobsMode::ProcessedLogits);
    let shown: Vec<f32> = processed.top.iter().map(|one| one.logprob).collect();
    assert_eq!(shown, [4.0, 4.0, f32::NEG_INFINITY]);
    // The two logprobs are the same in every mode.
    assert_eq!((raw.raw, raw.processed), (processed.raw, processed.processed));
    assert_eq!(scores(&LOGITS, &params, RAW).logprob, raw.raw);
}

#[test]
fn ids_that_are_asked_for_come_with_their_ranks() {
    let ids = Some([4, 0, 3].into());
    let params = SamplingParams { logprob_ids: ids, temperature: 0.0, ..plain() };
    let top = scores(&LOGITS, &params, RAW).top;
    let found: Vec<(u32, usize)> = top.iter().map(|one| (one.id, one.rank)).collect();
    assert_eq!(found, [(4, 5), (0, 4), (3, 2)]);
}

#[test]
fn ranks_and_alternatives_of_a_large_row_are_those_of_a_sort() {
    let logits = row(30_011, 5);
    let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    for count in [1, 7, 100, 300, 30_011] {
        let params = SamplingParams { logprobs: Some(count), ..plain() };
        let scores = scores(&logits, &params, RAW);
        let ids: Vec<u32> = scores.top.iter().map(|one| one.id).collect();
        assert!(ids.iter().eq(sorted[..count].iter().map(|(id, _)| id)));
        assert!((1..).zip(&scores.top).all(|(rank, one)| one.rank == rank));
        let token = sampled(&logits, &params, 0, RAW).id;
        let rank = sorted.iter().position(|(id, _)| *id == token).unwrap() + 1;
        assert_eq!(scores.rank, rank);
    }
}

#[test]
fn a_flat_distribution_is_cut_at_the_right_place() {
    let logits: Vec<f32> = (0..40_000).map(|i| (i % 20_000) as f32 * 1e-5).collect();
    let params = SamplingParams { top_p: 0.5, logprobs: Some(40_000), ..plain() };
    let expected = oracle(&logits, &params, &[], &[]);
    let kept = scores(&logits, &params, PROCESSED).top;
    let kept = kept.iter().filter(|one| one.logprob > f32::NEG_INFINITY).count();
    let count = expected.iter().filter(|probability| **probability > 0.0).count();
    assert!(kept.abs_diff(count) <= 2, "{kept} are kept, {count} expected");
}

#[test]
fn only_allowed_ids_are_sampled() {
    let allowed = Some([0, 2, 4].into());
    let params = SamplingParams { allowed, ..plain() };
    for position in 0..200 {
        let id = sampled(&LOGITS, &params, position, PROCESSED).id;
        assert!([0, 2, 4].contains(&id));
    }
    let top = scores(&LOGITS, &SamplingParams { logprobs: Some(5), ..params }, PROCESSED);
    assert_eq!(top.top.iter().filter(|one| one.logprob > f32::NEG_INFINITY).count(), 3);
    // The model's own distribution is the one without the mask.
    let id =
        sampled(&LOGITS, &SamplingParams { allowed: Some([0, 2, 4].into()), ..plain() }, 0, RAW).id;
    let whole = oracle(&LOGITS, &plain(), &[], &[])[id as usize];
    assert!((f64::from(top.raw) - whole.ln()).abs() < 1e-6);
}

#[test]
fn ends_do_not_come_before_their_time() {
    let mut sampler = Sampler::new(plain(), &[], ends_after(30, &[1, 3]));
    for position in 0..200 {
        let id = sampler.sample(&mut LOGITS.to_vec(), position, PROCESSED).unwrap().id;
        assert!(position >= 30 || ![1, 3].contains(&id));
    }
    // Where ends are all that is allowed, something has to be sampled all the same.
    let only = SamplingParams { allowed: Some([1].into()), ..plain() };
    let mut sampler = Sampler::new(only, &[], ends_after(5, &[1]));
    assert_eq!(sampler.sample(&mut LOGITS.to_vec(), 0, PROCESSED).unwrap().id, 1);
}

#[test]
fn bad_words_are_never_completed() {
    let words: Arc<[Vec<u32>]> = [vec![2], vec![1, 3], vec![0, 1, 1]].into();
    let mut sampler = Sampler::new(SamplingParams { bad_words: words, ..plain() }, &[1], no_ends());
    let mut said = Vec::new();
    for position in 0..3000 {
        said.push(sampler.sample(&mut LOGITS.to_vec(), position, PROCESSED).unwrap().id);
    }
    let has = |word: &[u32]| said.windows(word.len()).any(|window| window == word);
    assert!(!has(&[2]) && !has(&[1, 3]) && !has(&[0, 1, 1]));
    // What only starts like one is said. The prompt is no part of a word.
    assert!(has(&[1, 1]) && has(&[0, 1]) && has(&[3, 1]));
}

#[test]
fn a_prompt_is_scored_by_the_model_alone() {
    let found = score(&LOGITS, 2, 2);
    assert_eq!((found.rank, found.top.len()), (3, 2));
    let expected = oracle(&LOGITS, &plain(), &[], &[])[2].ln();
    assert!((f64::from(found.logprob) - expected).abs() < 1e-6);
}

#[test]
fn no_token_is_sampled_from_logits_that_are_no_distribution() {
    let wrong = [
        vec![0.0, f32::NAN, 1.0, 2.0],
        vec![0.0, f32::INFINITY, 1.0, 2.0],
        vec![f32::NEG_INFINITY; 4],
        vec![f32::NAN; 4],
    ];
    let params = [
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { logprobs: Some(1), ..plain() },
        SamplingParams { allowed: Some(Arc::from([0, 2])), ..plain() },
    ];
    for logits in &wrong {
        for params in &params {
            let ends = EndTokens { ids: Arc::from([]), min_tokens: 0 };
            let mut sampler = Sampler::new(params.clone(), &[], ends);
            assert!(sampler.sample(&mut logits.clone(), 0, PROCESSED).is_none(), "{logits:?}");
        }
    }
    // Some ids may have no probability, but one of those that are allowed has to have some.
    let some = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    for (params, is_sampled) in params.iter().zip([true, true, false]) {
        let ends = EndTokens { ids: Arc::from([]), min_tokens: 0 };
        let mut sampler = Sampler::new(params.clone(), &[], ends);
        assert_eq!(sampler.sample(&mut some.to_vec(), 0, PROCESSED).is_some(), is_sampled);
    }
}
