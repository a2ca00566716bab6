//! The time of the sampler for a row of Qwen3's vocabulary: `cargo test --release -p engine --
//! --ignored --nocapture sampler`. A step of a 0.6B model with 32 sequences takes some 100 ms on a
//! CPU of two cores, and the rows of a step are sampled one after the other.

use std::io::Write;
use std::time::Instant;

use super::*;

const VOCAB: usize = 151_936;

/// The least microseconds of some runs.
fn least(mut run: impl FnMut(usize)) -> f64 {
    let mut least = f64::INFINITY;
    for position in 0..30 {
        let start = Instant::now();
        run(position);
        least = least.min(start.elapsed().as_secs_f64() * 1e6);
    }
    least
}

#[test]
#[ignore = "measures and does not check"]
fn sampler_at_the_vocabulary_of_qwen3() {
    let model = row(VOCAB, 3);
    let flat: Vec<f32> = model.iter().map(|logit| logit * 0.05).collect();
    let quiet = SamplingParams { logprobs: None, ..plain() };
    let usual = SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.95, ..quiet.clone() };
    let cases = [
        ("greedy", SamplingParams { temperature: 0.0, ..quiet.clone() }),
        ("temperature 1", quiet.clone()),
        ("temperature 0.7", SamplingParams { temperature: 0.7, ..quiet.clone() }),
        ("temperature 1, logprobs 0", plain()),
        ("temperature 0.7, logprobs 0", SamplingParams { temperature: 0.7, ..plain() }),
        ("temperature 0.7, logprobs 20", SamplingParams { logprobs: Some(20), ..usual.clone() }),
        ("top_k 20", SamplingParams { top_k: 20, ..quiet.clone() }),
        ("top_p 0.95", SamplingParams { top_p: 0.95, ..quiet.clone() }),
        ("min_p 0.05", SamplingParams { min_p: 0.05, ..quiet.clone() }),
        ("temperature 0.7, top_k 20, top_p 0.95", usual.clone()),
        ("repetition 1.1, presence 1", SamplingParams { repetition_penalty: 1.1, ..quiet.clone() }),
    ];
    for (name, params) in cases {
        for (kind, logits) in [("peaked", &model), ("flat", &flat)] {
            let prompt: Vec<u32> = (0..1000).map(|i| i * 97).collect();
            let mut sampler = Sampler::new(params.clone(), &prompt, no_ends());
            let mut scratch = logits.clone();
            let mode = LogprobsMode::ProcessedLogprobs;
            let time = least(|position| {
                scratch.copy_from_slice(logits);
                sampler.sample(&mut scratch, position, mode);
            });
            writeln!(std::io::stdout(), "{name:<40} {kind:<7} {time:8.0} us").unwrap();
        }
    }
    let copy = least(|_| drop(std::hint::black_box(model.clone())));
    writeln!(std::io::stdout(), "{:<48} {copy:8.0} us", "a copy of the row").unwrap();
}
