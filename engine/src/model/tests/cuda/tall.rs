//! Prompts by tall tiles on an emulated GPU: the bits of those by other tiles.

use super::*;

/// The pages of the long sequence; the other one has the rest.
const LONG_PAGES: u32 = 48;

/// The rows of the long prompt in each step: across the border of a split, and with ends inside of
/// tiles. The last ones are too few for tall tiles on the emulated device.
const CHUNKS: [usize; 3] = [330, 270, 30];

/// The rows of the other prompt, which decodes in further steps.
const SHORT: usize = 70;

/// A model for more positions than a split has.
fn long_model(options: &CudaOptions) -> Model<Cuda> {
    let (_keep, path) = config(json!({"max_position_embeddings": 1024}));
    made(crate::emulated::open(options, HEADS), &path)
}

/// The logits after the last rows of both sequences, in steps of [`CHUNKS`].
fn logits_of_steps(model: &mut Model<Cuda>) -> Vec<Vec<u32>> {
    let mut caches = [0..LONG_PAGES, LONG_PAGES..PAGES as u32]
        .map(|pages| SequenceCache { pages: pages.collect(), ..SequenceCache::default() });
    let ids: Vec<u32> = (0..CHUNKS.iter().sum::<usize>() as u32).map(|i| i * 37 % 1999).collect();
    let mut found = Vec::new();
    let mut done = 0;
    for rows in CHUNKS {
        let short = if done == 0 { &ids[100..100 + SHORT] } else { &ids[done..done + 1] };
        let tokens = [&ids[done..done + rows], short];
        let mut chunks: Vec<SequenceChunk<'_>> = tokens
            .into_iter()
            .zip(&mut caches)
            .map(|(tokens, cache)| SequenceChunk {
                logit_rows: LogitRows::Last,
                ..chunk(tokens, cache)
            })
            .collect();
        found.push(bits(&model.forward(&mut chunks).unwrap()));
        done += rows;
    }
    found
}

#[test]
fn prompts_by_tall_tiles_have_the_same_bits() {
    let emulated = exclusive_gpu();
    let mut launches = Vec::new();
    let mut run = |variant| {
        let options = CudaOptions { deterministic: true, variant, ..CudaOptions::default() };
        let mut gpu = long_model(&options);
        let before = [emulated.get("launches"), emulated.get("early_launches")];
        let found = logits_of_steps(&mut gpu);
        let after = [emulated.get("launches"), emulated.get("early_launches")];
        launches.push([after[0] - before[0], after[1] - before[1]]);
        found
    };
    let serving = Variant::SERVING;
    let expected = run(Variant { tall: false, ..serving });
    for variant in [serving, Variant { joined: false, ..serving }] {
        assert_eq!(run(variant), expected, "{variant:?}");
    }
    // In each of two layers, the second step has a launch for the prompt and one for the other row.
    assert_eq!(launches[1][0], launches[0][0] + 2);
    // Where prompts are computed, no kernel begins early.
    assert!(launches.iter().all(|[_, early]| *early == 0), "{launches:?}");
}

#[test]
fn chunks_by_tall_tiles_have_the_bits_of_a_whole_prompt() {
    let _emulated = exclusive_gpu();
    let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
    // 65 rows are tall tiles, nine are not.
    check_chunks(&mut model(&options), 140, [70, 65, 9]);
}

#[test]
fn prompts_by_warpgroups_are_near_those_of_other_kernels() {
    let _emulated = exclusive_gpu();
    let (_keep, path) = config(json!({"head_dim": 64}));
    let ids: Vec<u32> = (0..140).map(|i| i * 37 % 1999).collect();
    let run = |deterministic, warpgroups| {
        let variant = Variant { warpgroups, ..Variant::SERVING };
        let options = CudaOptions { deterministic, variant, ..CudaOptions::default() };
        let heads = Heads { dim: 64, ..HEADS };
        let mut gpu = made(crate::emulated::open(&options, heads), &path);
        logits_of(&mut gpu, &ids, ids.len())
    };
    let (found, expected) = (run(false, true), run(false, false));
    assert_ne!(bits(&found), bits(&expected), "it was not taken");
    for (found, expected) in found.chunks(2000).zip(expected.chunks(2000)) {
        for (found, expected) in logprobs(found).iter().zip(logprobs(expected)) {
            assert!((found - expected).abs() < NEAR, "{found} for {expected}");
        }
    }
    // What has to have the bits of decoded rows is not computed by it.
    assert_eq!(bits(&run(true, true)), bits(&run(true, false)));
}

#[test]
fn a_device_with_wrong_warpgroups_does_without_them() {
    let emulated = exclusive_gpu();
    let heads = Heads { dim: 64, ..HEADS };
    assert!(!crate::emulated::open(&CudaOptions::default(), heads).warpgroups_are_wrong());

    // Such as a device that reads descriptors otherwise.
    assert!(emulated.set("wrong_products", 1));
    assert!(crate::emulated::open(&CudaOptions::default(), heads).warpgroups_are_wrong());

    let (_keep, path) = config(json!({"head_dim": 64}));
    let ids: Vec<u32> = (0..140).map(|i| i * 37 % 1999).collect();
    let logits = |options: &CudaOptions| {
        let mut gpu = made(crate::emulated::open(options, heads), &path);
        bits(&logits_of(&mut gpu, &ids, ids.len()))
    };
    let without = Variant { warpgroups: false, ..Variant::SERVING };
    let without = CudaOptions { variant: without, ..CudaOptions::default() };
    assert_eq!(logits(&CudaOptions::default()), logits(&without));
}
