//! Keys and values in FP8 on an emulated GPU: near those in bf16, and equal bits in any batch.

use kernels::KvFormat;

use super::hybrid::hybrid;
use super::*;

/// The bound of logprobs beside those with bf16, of random weights and heads of 16: the worst, and
/// the mean. A trained model is some thirty times as near (`serve/tests/gpu/fp8.rs`).
const FP8_NEAR: f32 = 1.5;
const FP8_NEAR_MEAN: f64 = 0.15;

fn options(deterministic: bool, variant: Variant) -> CudaOptions {
    CudaOptions { deterministic, kv: KvFormat::Fp8, variant, ..CudaOptions::default() }
}

/// A model for more positions than a split has.
fn long_model(options: &CudaOptions) -> Model<Cuda> {
    let (_keep, path) = config(json!({"max_position_embeddings": 1024}));
    made(crate::emulated::open(options, HEADS), &path)
}

#[test]
fn logprobs_are_near_those_with_bf16() {
    let _emulated = exclusive_gpu();
    for (name, (_keep, path)) in [("dense", shape()), ("hybrid", hybrid())] {
        let opened = |kv| {
            let options = CudaOptions { deterministic: true, kv, ..CudaOptions::default() };
            made(crate::emulated::open(&options, HEADS), &path)
        };
        let mut native = opened(KvFormat::Native);
        let vocab = native.vocab();
        let ids: Vec<u32> = (0..48).map(|i| i * 53 % (vocab as u32 - 1)).collect();
        let expected = logits_of(&mut native, &ids, ids.len());
        // In pieces, so that later rows read what earlier steps have stored.
        let found = logits_of(&mut opened(KvFormat::Fp8), &ids, 7);

        let (mut total, mut worst) = (0.0, 0.0_f32);
        for (found, expected) in found.chunks(vocab).zip(expected.chunks(vocab)) {
            for (found, expected) in logprobs(found).iter().zip(logprobs(expected)) {
                worst = worst.max((found - expected).abs());
                total += f64::from((found - expected).abs());
            }
        }
        let mean = total / found.len() as f64;
        println!("{name}: differences of logprobs: mean {mean:.4}, worst {worst:.4}");
        assert!(worst < FP8_NEAR && mean < FP8_NEAR_MEAN, "{name}: {worst}, {mean}");
        assert!(mean > 1e-4, "{name}: the numbers are those of bf16");
    }
}

#[test]
fn bits_are_the_same_in_any_batch_and_chunks_and_by_any_kernel() {
    let _emulated = exclusive_gpu();
    let serving = Variant::SERVING;
    let mut gpu = long_model(&options(true, serving));
    let prompts = prompts(5);
    let together = decode(&mut gpu, &prompts, 6);
    assert!(gpu.ops.recorded() > 0);
    for (index, prompt) in prompts.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let alone = decode(&mut gpu, std::slice::from_ref(prompt), 6);
        let same = together.iter().zip(&alone).all(|(all, one)| all[index] == one[0]);
        assert!(same, "sequence {index}");
    }
    for variant in [Variant { rotating: false, ..serving }, Variant { joined: false, ..serving }] {
        let found = decode(&mut long_model(&options(true, variant)), &prompts, 6);
        assert_eq!(found, together, "{variant:?}");
    }

    // The whole prompt and its first pieces have tall tiles, the last pieces and one row have not.
    check_chunks(&mut gpu, 140, [70, 9, 1]);
    let ids: Vec<u32> = (0..140).map(|i| i * 7 % 61).collect();
    let whole = bits(&logits_of(&mut gpu, &ids, ids.len()));
    let mut wide = long_model(&options(true, Variant { tall: false, ..serving }));
    assert_eq!(bits(&logits_of(&mut wide, &ids, ids.len())), whole);
}

#[test]
fn prompts_need_no_warpgroups() {
    let _emulated = exclusive_gpu();
    let (_keep, path) = config(json!({"head_dim": 64}));
    let heads = Heads { dim: 64, ..HEADS };
    let opened = |variant| made(crate::emulated::open(&options(false, variant), heads), &path);
    let ids: Vec<u32> = (0..140).map(|i| i * 7 % 61).collect();
    let serving = Variant::SERVING;
    let found = bits(&logits_of(&mut opened(serving), &ids, ids.len()));
    let by_mma = Variant { warpgroups: false, ..serving };
    assert_eq!(found, bits(&logits_of(&mut opened(by_mma), &ids, ids.len())));
}

#[test]
fn the_same_memory_has_nearly_twice_the_pages() {
    let _emulated = exclusive_gpu();
    for dim in [64, 128, 256] {
        let heads = Heads { query: 16, kv: 8, dim };
        let bytes = |kv| {
            let options = CudaOptions { kv, ..CudaOptions::default() };
            crate::emulated::open(&options, heads).page_bytes(heads)
        };
        let (native, fp8) = (bytes(KvFormat::Native), bytes(KvFormat::Fp8));
        assert_eq!((native, fp8), (2 * 8 * 16 * dim * 2, 2 * 8 * 16 * (dim + 1)));
        assert!(native as f64 / fp8 as f64 > 1.96, "{dim}");
    }
}
