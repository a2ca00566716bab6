//! Keys and values in FP8: replies are the same, however they come about.

use kernels::KvFormat;

use super::drafts::{told, twice};
use super::host::{FEW, hits, keeping};
use super::*;

fn fp8(room: TestSizes, overlap: bool) -> TestEngine<Cuda> {
    let kv = KvFormat::Fp8;
    gpu(&CudaOptions { deterministic: true, kv, ..CudaOptions::default() }, room, overlap)
}

#[test]
fn replies_are_the_same_overlapped_guessed_and_from_the_host() {
    let _emulated = shared_gpu();
    let requests: Vec<Request> = twice(mixed().into_iter().map(told).collect());
    let expected = lasting(fp8(SIZES, false).say(requests.clone()));
    assert_eq!(lasting(fp8(SIZES, true).say(requests.clone())), expected);
    let mut engine = keeping(fp8(FEW, true), 24, 6).drafting(5);
    assert_eq!(lasting(engine.say(requests.clone())), expected);
    assert!(engine.drafted().1 > 0 && hits(&engine) > 0, "{}", hits(&engine));
    // They are not those of bf16.
    assert_ne!(lasting(exact(SIZES, false).say(requests)), expected);
}

#[test]
fn a_prefix_from_the_cache_is_that_which_would_be_computed() {
    let _emulated = shared_gpu();
    let asked = || Request { prompt: beginning().into(), ..of_length(1, 6) };
    for overlap in [false, true] {
        let mut engine = fp8(SIZES, overlap);
        let (first, again) = (engine.say_alone(asked()), engine.say_alone(asked()));
        assert_eq!((first.cached, again.cached), (0, 64), "overlap: {overlap}");
        assert_eq!(again.tokens, first.tokens, "overlap: {overlap}");
    }
}
