//! The model on an emulated GPU, against the CPU and against itself.

mod experts;
mod fp8;
mod hybrid;
mod long;
mod tall;

use kernels::cuda::variant::{ProductChoice, Variant};
use kernels::cuda::{Cuda, CudaOptions};
use kernels::{Cpu, DrawParams, DrawnToken, Heads};
use serde_json::json;
use tempfile::TempDir;

use super::super::forward::LogitRows;
use super::*;
use crate::emulated::exclusive_gpu;
use crate::model::random::tests::config;

/// The tolerance of logprobs in bf16 for such a small model: the worst of 70,000, and the mean.
const NEAR: f32 = 0.2;
const NEAR_MEAN: f64 = 0.03;

/// The heads of `config` in the tests of random weights.
const HEADS: Heads = Heads { query: 4, kv: 2, dim: 16 };

fn shape() -> (TempDir, PathBuf) {
    config(json!({}))
}

fn model(options: &CudaOptions) -> Model<Cuda> {
    let (_keep, path) = shape();
    made(crate::emulated::open(options, HEADS), &path)
}

fn logprobs(logits: &[f32]) -> Vec<f32> {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - highest).exp()).sum();
    logits.iter().map(|x| (f64::from(x - highest) - sum.ln()) as f32).collect()
}

/// The sequences of a test: each with pages and a slot of its own.
fn caches(count: usize) -> Vec<SequenceCache> {
    let each = (PAGES / count) as u32;
    (0..count as u32)
        .map(|i| SequenceCache {
            pages: (i * each..(i + 1) * each).collect(),
            state: SequenceState { own: Some(i), ..SequenceState::default() },
            ..SequenceCache::default()
        })
        .collect()
}

/// Prompts, then greedy tokens that the device samples: ids and logprobs, `[steps][sequences]`.
fn decode<O: Ops>(
    model: &mut Model<O>,
    prompts: &[Vec<u32>],
    steps: usize,
) -> Vec<Vec<DrawnToken>> {
    let mut caches = caches(prompts.len());
    let mut tokens: Vec<Vec<u32>> = prompts.to_vec();
    (0..steps).map(|step| decode_step(model, &mut tokens, &mut caches, step)).collect()
}

/// One step with all tokens that are not computed yet. Appends the tokens that it samples.
fn decode_step<O: Ops>(
    model: &mut Model<O>,
    tokens: &mut [Vec<u32>],
    caches: &mut [SequenceCache],
    step: usize,
) -> Vec<DrawnToken> {
    let chunks = tokens.iter().zip(caches).enumerate();
    let mut chunks: Vec<SequenceChunk<'_>> = chunks
        .map(|(index, (tokens, cache))| {
            let draw = draw(index, step);
            let rest = &tokens[cache.len..];
            SequenceChunk {
                tokens: rest,
                cache,
                logit_rows: LogitRows::Last,
                adapter: None,
                draw: Some(draw),
                feedback: None,
            }
        })
        .collect();
    model.run(&mut chunks).unwrap();
    let drawn: Vec<DrawnToken> = model.drawn_tokens().unwrap().into_iter().flatten().collect();
    for (tokens, drawn) in tokens.iter_mut().zip(&drawn) {
        tokens.push(drawn.id);
    }
    drawn
}

/// Parameters that are greedy for even sequences, and sample for odd ones.
fn draw(index: usize, position: usize) -> DrawParams {
    let temperature = if index.is_multiple_of(2) { 0.0 } else { 1.0 };
    let seed = index as u64;
    DrawParams {
        temperature,
        top_p: 0.9,
        min_p: 0.0,
        top_k: 50,
        top: Some(3),
        raw: false,
        seed,
        position,
    }
}

fn prompts(count: u32) -> Vec<Vec<u32>> {
    (1..=count).map(|n| (0..n * 7 % 23 + 1).map(|i| (i * 37 + n * 101) % 1999).collect()).collect()
}

/// Checks that a prompt of `count` tokens has equal bits in chunks of each of `sizes`.
fn check_chunks(model: &mut Model<Cuda>, count: u32, sizes: [usize; 3]) {
    let ids: Vec<u32> = (0..count).map(|i| i * 7 % 61).collect();
    let whole = bits(&logits_of(model, &ids, ids.len()));
    for size in sizes {
        assert_eq!(bits(&logits_of(model, &ids, size)), whole, "chunks of {size}");
    }
}

#[test]
fn logits_of_the_gpu_are_near_those_of_the_cpu() {
    let _emulated = exclusive_gpu();
    let (_keep, path) = shape();
    let ids: Vec<u32> = (0..37).map(|i| i * 53 % 1999).collect();
    let mut cpu = made(Cpu::default(), &path);
    let expected = logits_of(&mut cpu, &ids, ids.len());
    for deterministic in [false, true] {
        let mut gpu = model(&CudaOptions { deterministic, ..CudaOptions::default() });
        let found = logits_of(&mut gpu, &ids, ids.len());
        let vocab = gpu.vocab();
        let mut total = 0.0;
        for (found, expected) in found.chunks(vocab).zip(expected.chunks(vocab)) {
            for (found, expected) in logprobs(found).iter().zip(logprobs(expected)) {
                assert!((found - expected).abs() < NEAR, "{found} for {expected}");
                total += f64::from((found - expected).abs());
            }
        }
        let mean = total / found.len() as f64;
        println!("mean difference of a logprob {mean:.4}, deterministic: {deterministic}");
        assert!(mean < NEAR_MEAN, "{mean}");
    }
}

fn logits_of<O: Ops>(model: &mut Model<O>, ids: &[u32], size: usize) -> Vec<f32> {
    let mut cache = cache();
    let parts = ids.chunks(size);
    parts.flat_map(|tokens| model.forward(&mut [chunk(tokens, &mut cache)]).unwrap()).collect()
}

#[test]
fn recorded_steps_give_the_bits_of_steps_that_are_asked_for() {
    let emulated = exclusive_gpu();
    let prompts = prompts(5);
    let eager =
        decode(&mut model(&CudaOptions { eager: true, ..CudaOptions::default() }), &prompts, 12);
    let mut recorded = model(&CudaOptions::default());
    let before = emulated.get("graph_launches");
    assert_eq!(decode(&mut recorded, &prompts, 12), eager);
    assert!(recorded.ops.recorded() > 0);
    assert!(emulated.get("graph_launches") > before);
}

#[test]
fn kernels_that_take_each_others_place_give_the_same_bits() {
    let emulated = exclusive_gpu();
    let prompts = prompts(5);
    let mut launches = Vec::new();
    let mut run = |variant| {
        let options = CudaOptions { deterministic: true, variant, ..CudaOptions::default() };
        let mut gpu = model(&options);
        let before = emulated.get("launches");
        let found = decode(&mut gpu, &prompts, 12);
        launches.push(emulated.get("launches") - before);
        found
    };
    let serving = Variant::SERVING;
    let expected = run(serving);
    assert_eq!(run(Variant { joined: false, ..serving }), expected);
    let products = ProductChoice::Own;
    assert_eq!(run(Variant { products, ..serving }), expected);
    for joined in [true, false] {
        let variant = Variant { rotating: false, joined, ..serving };
        assert_eq!(run(variant), expected, "two launches, joined: {joined}");
    }
    // In each of two layers a product applies the gate, and attention folds the splits of decoded
    // rows, which the first step has none of.
    assert_eq!(launches[1] - launches[0], 2 * (12 + 11));
    // It also rotates them, which saves a launch.
    assert_eq!(launches[3] - launches[0], 2 * 11);
}

/// The steps of a model whose kernels begin early. The third of a shape is replayed.
const EARLY_STEPS: usize = 5;

/// Checks that a model gives the same bits when its kernels begin early: launched and recorded,
/// with products by the library and without, and with attention that rotates.
fn check_early(model: impl Fn(&CudaOptions) -> Model<Cuda>, prompts: &[Vec<u32>]) {
    let emulated = exclusive_gpu();
    for (eager, deterministic) in [(true, false), (false, false), (false, true)] {
        let run = |early| {
            let early_bytes = if early { usize::MAX } else { 0 };
            let variant = Variant { early_bytes, rotating: deterministic, ..Variant::SERVING };
            let options = CudaOptions { eager, deterministic, variant, ..CudaOptions::default() };
            let before = [emulated.get("launches"), emulated.get("early_launches")];
            let mut gpu = model(&options);
            let found = decode(&mut gpu, prompts, EARLY_STEPS);
            assert_eq!(gpu.ops.recorded() > 0, !eager);
            let counts = [emulated.get("launches"), emulated.get("early_launches")];
            (found, [counts[0] - before[0], counts[1] - before[1]])
        };
        let ((expected, usual), (found, early)) = (run(false), run(true));
        assert_eq!(found, expected, "eager: {eager}, deterministic: {deterministic}");
        assert_eq!((usual[1], early[0]), (0, usual[0]));
        // The first kernel of a step is behind a copy.
        assert!(early[1] > early[0] / 2 && early[1] <= early[0] - EARLY_STEPS as i64, "{early:?}");
    }
}

#[test]
fn kernels_that_begin_early_give_the_same_bits() {
    // The library multiplies the first rows, where it may.
    check_early(model, &prompts(5));
}

#[test]
fn products_of_many_bytes_begin_behind_the_kernel_in_front() {
    let emulated = exclusive_gpu();
    let prompts = prompts(5);
    let run = |early_bytes| {
        let variant = Variant { early_bytes, ..Variant::SERVING };
        let options =
            CudaOptions { eager: true, deterministic: true, variant, ..CudaOptions::default() };
        let (mut gpu, mut tokens, mut caches) = (model(&options), prompts.clone(), caches(5));
        let (mut found, mut before) = (Vec::new(), 0);
        for step in 0..EARLY_STEPS {
            // Memory grows in the first steps, and a launch behind that is not early.
            if step == 2 {
                before = emulated.get("early_launches");
            }
            found.push(decode_step(&mut gpu, &mut tokens, &mut caches, step));
        }
        (found, emulated.get("early_launches") - before)
    };
    let (expected, all) = run(usize::MAX);
    // There are four products in each of two layers, and that of the head, which has the most
    // bytes.
    let steps = EARLY_STEPS as i64 - 2;
    assert_eq!(run(1), (expected.clone(), all - 9 * steps));
    let head_bytes = 2 * 64 * 2000;
    assert_eq!(run(head_bytes), (expected, all - steps));
}

#[test]
fn products_of_32_rows_are_summed_in_parts() {
    let emulated = exclusive_gpu();
    let (_keep, path) = config(json!({"intermediate_size": 1024}));
    let prompts = prompts(20);
    let run = |eager, split_bytes| {
        let variant = Variant { split_bytes, ..Variant::SERVING };
        let options = CudaOptions { eager, variant, ..CudaOptions::default() };
        let mut gpu = made(crate::emulated::open(&options, HEADS), &path);
        let before = emulated.get("launches");
        (decode(&mut gpu, &prompts, 4), emulated.get("launches") - before)
    };
    let (found, launches) = run(true, usize::MAX);
    // Counters are zero again behind each product, also in recorded steps.
    assert_eq!(run(false, usize::MAX).0, found);
    // In three steps that decode, the library makes one product less of each of two layers.
    let (whole, fewer) = run(true, 0);
    assert_eq!(launches - fewer, 2 * 3);
    let first = |steps: &[Vec<DrawnToken>]| steps[1][0].scores.as_ref().unwrap().raw;
    assert!((first(&whole) - first(&found)).abs() < NEAR);
}

#[test]
fn bits_are_the_same_in_any_batch_and_chunks() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions { deterministic: true, ..CudaOptions::default() });
    let prompts = prompts(5);
    let together = decode(&mut gpu, &prompts, 6);
    for (index, prompt) in prompts.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let alone = decode(&mut gpu, std::slice::from_ref(prompt), 6);
        let same = together.iter().zip(&alone).all(|(all, one)| all[index] == one[0]);
        assert!(same, "sequence {index}");
    }
    check_chunks(&mut gpu, 40, [1, 7, 16]);
}

#[test]
fn a_token_that_nobody_has_read_is_taken_from_the_step_before() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions::default());
    let prompt = prompts(1);
    let expected = decode(&mut gpu, &prompt, 3);
    let mut cache = caches(1).remove(0);
    let mut run = |gpu: &mut Model<Cuda>, tokens: &[u32], feedback, position| {
        let (logit_rows, draw) = (LogitRows::Last, Some(draw(0, position)));
        let cache = &mut cache;
        gpu.run(&mut [SequenceChunk { tokens, cache, logit_rows, adapter: None, draw, feedback }])
            .unwrap();
    };
    run(&mut gpu, &prompt[0], None, 0);
    run(&mut gpu, &[0], Some(0), 1);
    let first = gpu.drawn_tokens().unwrap();
    run(&mut gpu, &[0], Some(0), 2);
    let found = [first, gpu.drawn_tokens().unwrap(), gpu.drawn_tokens().unwrap()];
    let ids = found.map(|drawn| drawn[0].clone().unwrap());
    assert_eq!(ids.to_vec(), expected.concat());
}

#[test]
fn a_gpu_without_room_says_so_and_goes_on() {
    let _emulated = exclusive_gpu();
    let mut gpu = model(&CudaOptions::default());
    let expected = decode(&mut gpu, &prompts(2), 2);
    let error = gpu.ops.pages(HEADS, 1 << 10, 1 << 20).unwrap_err();
    assert!(error.to_string().starts_with("`pages`: no memory for"), "{error}");
    assert_eq!(decode(&mut gpu, &prompts(2), 2), expected);
}
