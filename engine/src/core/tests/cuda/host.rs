//! Pages in the host's memory: replies are the same as without them.

use super::*;
use crate::core::message::SleepTags;

/// Fewer pages than what the replies of a test need, so that pages are reused.
pub(super) const FEW: TestSizes = TestSizes { pages: 14, ..SIZES };

/// The engine with places for so many pages on the host.
pub(super) fn keeping(
    mut engine: TestEngine<Cuda>,
    places: usize,
    ahead: usize,
) -> TestEngine<Cuda> {
    engine.core.model.keep_host_pages(places).unwrap();
    engine.core.scheduler.keep_host_pages(places, ahead);
    engine
}

pub(super) fn hits(engine: &TestEngine<Cuda>) -> u64 {
    engine.stats.host_hits.load(Ordering::Relaxed)
}

/// A prompt of five pages and some tokens.
fn long(number: u32) -> Request {
    let prompt: Vec<u32> = (0..90).map(|i| (i * 17 + number * 91) % 380).collect();
    Request { prompt: prompt.into(), ..of_length(number, 6) }
}

#[test]
fn a_prompt_that_left_the_device_comes_back_from_the_host() {
    let _emulated = shared_gpu();
    for (overlap, ahead) in [(false, 0), (true, 0), (true, 8)] {
        let mut engine = keeping(exact(FEW, overlap), 32, ahead);
        let first = engine.say_alone(long(1));
        assert_eq!(first.cached, 0);
        // Others take all pages of the device.
        for number in 2..5 {
            engine.say_alone(long(number));
        }
        assert_eq!(hits(&engine), 0);
        let again = engine.say_alone(long(1));
        assert_eq!(again.tokens, first.tokens, "overlap: {overlap}, ahead: {ahead}");
        assert_eq!((again.cached, hits(&engine)), (80, 80), "overlap: {overlap}, ahead: {ahead}");
    }
}

#[test]
fn replies_are_the_same_with_pages_on_the_host() {
    let _emulated = shared_gpu();
    let twice = || [mixed(), mixed()].concat();
    let expected = lasting(exact(SIZES, false).say(twice()));
    for (places, ahead, overlap) in [(3, 2, true), (24, 0, true), (24, 6, true), (24, 6, false)] {
        let mut engine = keeping(exact(FEW, overlap), places, ahead);
        let found = lasting(engine.say(twice()));
        assert_eq!(found, expected, "{places} places, {ahead} ahead, overlap: {overlap}");
        assert!(places == 3 || hits(&engine) > 0, "{places} places, {ahead} ahead");
    }
}

#[test]
fn a_mixture_keeps_the_experts_of_pages_on_the_host() {
    let _emulated = shared_gpu();
    let mixture = || {
        json!({
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "norm_topk_prob": true,
        })
    };
    let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
    let routed = |number| Request { routed_experts: true, ..long(number) };
    for overlap in [false, true] {
        let mut engine = keeping(changed_gpu(mixture(), &options, FEW, overlap), 32, 4);
        let first = engine.say_alone(routed(1));
        (2..5).for_each(|number| drop(engine.say_alone(long(number))));
        let again = engine.say_alone(routed(1));
        assert_eq!((again.cached, hits(&engine)), (80, 80), "overlap: {overlap}");
        assert!(first.experts.is_some());
        assert_eq!((again.tokens, again.experts), (first.tokens, first.experts));
    }
}

#[test]
fn other_weights_find_nothing_on_the_host() {
    let _emulated = shared_gpu();
    for keep_cache in [false, true] {
        let mut engine = keeping(exact(FEW, true), 32, 4);
        (1..5).for_each(|number| drop(engine.say_alone(long(number))));
        engine.renumber(1, keep_cache);
        let found = engine.say_alone(long(1));
        assert_eq!((found.cached, hits(&engine)), (0, 0));
        let mut fresh = exact(SIZES, true);
        fresh.renumber(1, keep_cache);
        assert_eq!(found.tokens, fresh.say_alone(long(1)).tokens);
    }
}

#[test]
fn sleep_forgets_the_host_and_pages_go_there_again() {
    let _emulated = shared_gpu();
    let mut engine = keeping(exact(FEW, true), 32, 4);
    let first = engine.say_alone(long(1));
    (2..5).for_each(|number| drop(engine.say_alone(long(number))));
    let parts = SleepTags { cache: true, ..SleepTags::default() };
    let (done, mut answer) = oneshot::channel();
    engine.command(Command::Sleep { parts, drop: false, done });
    answer.try_recv().unwrap().unwrap();
    let (done, mut answer) = oneshot::channel();
    engine.command(Command::Wake { parts, done });
    answer.try_recv().unwrap().unwrap();

    assert_eq!((engine.say_alone(long(1)).cached, hits(&engine)), (0, 0));
    (2..5).for_each(|number| drop(engine.say_alone(long(number))));
    let again = engine.say_alone(long(1));
    assert_eq!((again.cached, again.tokens), (80, first.tokens));
}

#[test]
fn a_prompt_that_was_preempted_comes_back_from_the_host() {
    let _emulated = shared_gpu();
    let requests = || (1..4).map(|number| Request { ..long(number) }).collect::<Vec<_>>();
    let grow = |request| Request { stops: of_length(0, 60).stops, ..request };
    let expected =
        lasting(exact(SIZES, false).say_together(requests().into_iter().map(grow).collect()));
    let mut engine = keeping(exact(FEW, true), 32, 4);
    let found = lasting(engine.say_together(requests().into_iter().map(grow).collect()));
    assert_eq!(found, expected);
    assert!(engine.preemptions() > 0 && hits(&engine) > 0, "{}", hits(&engine));
}
