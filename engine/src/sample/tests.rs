//! Draws against reported probabilities, filters, and facts.

use super::*;

/// Plain sampling with everything off.
/// Nothing but the model's own distribution.
pub(crate) fn plain() -> Params {
    Params {
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
    }
}

/// The token at `position` of a reply to nothing.
fn sampled(logits: &[f32], params: &Params, position: usize, mode: LogprobsMode) -> Sampled {
    let mut sampler = Sampler::new(params.clone(), &[], (Vec::new(), 0));
    sampler.sample(&mut logits.to_vec(), position, mode)
}

const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

fn drawn(params: &Params, count: usize) -> Vec<f64> {
    let mut counts = vec![0.0; LOGITS.len()];
    for position in 0..count {
        let sampled = sampled(&LOGITS, params, position, LogprobsMode::ProcessedLogprobs);
        counts[sampled.id as usize] += 1.0 / count as f64;
    }
    counts
}

#[test]
fn frequencies_are_the_reported_probabilities() {
    let hot = Params { temperature: 1.5, top_k: 4, min_p: 0.1, ..plain() };
    for params in [plain(), hot, Params { top_p: 0.8, ..plain() }] {
        let frequencies = drawn(&params, 20_000);
        let all = Params { logprobs: Some(LOGITS.len()), ..params.clone() };
        let scores = sampled(&LOGITS, &all, 0, LogprobsMode::ProcessedLogprobs).scores.unwrap();
        for Candidate { id, logprob, .. } in scores.top {
            let error = frequencies[id as usize] - f64::from(logprob).exp();
            assert!(error.abs() < 0.015, "{params:?}: id {id} is off by {error}");
        }
    }
}

#[test]
fn a_seed_fixes_the_token_of_a_position() {
    let tokens = |seed| {
        let params = Params { seed, ..plain() };
        let one =
            |position| sampled(&LOGITS, &params, position, LogprobsMode::ProcessedLogprobs).id;
        (0..64).map(one).collect::<Vec<u32>>()
    };
    assert_eq!(tokens(1), tokens(1));
    assert_ne!(tokens(1), tokens(2));
}

#[test]
fn the_lowest_of_equals_is_greedy() {
    let greedy =
        sampled(&LOGITS, &Params { temperature: 0.0, ..plain() }, 3, LogprobsMode::RawLogprobs);
    assert_eq!(greedy.id, 1);
    let first = Params { top_k: 1, temperature: 0.3, ..plain() };
    // Ties at the cut are kept, so the one token is taken from a model without them.
    let logits = [0.0, 2.0, 1.0, 1.9, -3.0];
    for position in 0..50 {
        let sampled = sampled(&logits, &first, position, LogprobsMode::ProcessedLogprobs);
        assert_eq!((sampled.id, sampled.scores.unwrap().logprob), (1, 0.0));
    }
}

#[test]
fn filters_cut_where_vllm_cuts() {
    let kept = |params: Params| {
        let distribution = Distribution::filtered(&LOGITS, &params);
        distribution.kept().map(|(id, _)| id).collect::<Vec<u32>>()
    };
    assert_eq!(kept(Params { top_k: 3, ..plain() }), [1, 2, 3]);
    assert_eq!(kept(Params { top_p: 0.75, ..plain() }), [1, 3]);
    assert_eq!(kept(Params { top_p: 0.85, ..plain() }), [1, 2, 3]);
    assert_eq!(kept(Params { min_p: 0.3, ..plain() }), [1, 2, 3]);
    assert_eq!(kept(Params { top_p: 1e-9, ..plain() }), [1, 3]);
}

#[test]
fn raw_logprobs_ignore_temperature_and_filters() {
    let params = Params { temperature: 0.5, top_k: 2, logprobs: Some(3), ..plain() };
    let raw = sampled(&LOGITS, &params, 0, LogprobsMode::RawLogprobs).scores.unwrap();
    let sum: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
    assert!((f64::from(raw.logprob) - (2.0 - sum.ln())).abs() < 1e-6);
    assert_eq!(raw.top.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 3, 2]);
    let mode = LogprobsMode::ProcessedLogprobs;
    let processed = sampled(&LOGITS, &params, 0, mode).scores.unwrap();
    assert_eq!((processed.raw, raw.processed), (raw.logprob, processed.logprob));
    assert!((f64::from(processed.logprob) + 2_f64.ln()).abs() < 1e-6);
    let last = Candidate { id: 2, logprob: f32::NEG_INFINITY, rank: 3 };
    assert_eq!(processed.top[2], last);
    assert_eq!((processed.rank, raw.rank), (2, 2));
}
