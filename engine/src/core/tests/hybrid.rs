//! A hybrid has equal bits in any batch, in any chunks, from kept states and through preemptions.

use super::*;
use crate::error::LoadError;

impl TestEngine {
    fn hybrid(sequences: usize, tokens: usize, pages: usize, states: usize) -> TestEngine {
        let limits = StepLimits { sequences, tokens, prompts: tokens, scored: 24 };
        TestEngine::of("tiny-hybrid", TestSizes { limits, pages, sharing: states > 4, states })
    }

    fn states_used(&self) -> usize {
        let scheduler = &self.core.scheduler;
        scheduler.states_total() - scheduler.states_available()
    }
}

/// Each request by itself, computed in one piece, without a prefix cache.
fn alone(requests: &[TestRequest]) -> Vec<ChoiceResult> {
    let mut engine = TestEngine::hybrid(1, 4096, 64, 4);
    requests.iter().flat_map(|request| engine.run_each(std::slice::from_ref(request))).collect()
}

#[test]
fn bits_are_the_same_in_any_batch_and_in_any_chunks() {
    let mut requests = numbered(24);
    requests[3].scored = true;
    let expected = alone(&requests);
    for (sequences, tokens, states) in [(64, 4096, 256), (64, 1, 256), (8, 5, 18), (3, 64, 8)] {
        let mut engine = TestEngine::hybrid(sequences, tokens, 1024, states);
        let results = engine.run_each(&requests);
        assert_eq!(same(&results), expected, "{sequences} sequences, {tokens} tokens a step");
        assert_eq!((engine.pages_used(), engine.states_used()), (0, 0));
    }
}

#[test]
fn a_hybrid_has_the_same_bits_after_it_gave_way() {
    let requests = numbered(24);
    let expected = alone(&requests);
    for (pages, states) in [(9, 4), (9, 34), (16, 34), (9, 8)] {
        let mut engine = TestEngine::hybrid(states / 2 - 1, 64, pages, states);
        assert_eq!(same(&engine.run_each(&requests)), expected, "{pages} pages");
        assert_eq!((engine.pages_used(), engine.states_used()), (0, 0));
    }
}

#[test]
fn replies_and_turns_begin_with_the_states_that_are_kept() {
    let mut engine = TestEngine::hybrid(8, 512, 512, 64);
    let first =
        TestRequest { prompt: (0..100).map(|i| i * 3 % 380).collect(), ..numbered(2)[1].clone() };
    let choices: Vec<TestRequest> =
        (0..4).map(|seed| TestRequest { seed, max_tokens: 40, ..first.clone() }).collect();
    let results = engine.run(std::slice::from_ref(&choices)).remove(0);
    let cached: Vec<usize> = results.iter().map(|one| one.cached).collect();
    // The first computes the prompt, the others begin at the end of its last full page.
    assert_eq!(cached, [0, 96, 96, 96]);
    assert_eq!(same(&results), alone(&choices));
    // What is left is the end of the prompt, and that of each reply.
    assert_eq!(engine.core.scheduler.states_kept(), 1 + 4);

    // The next turn begins at the last full page of prompt and reply.
    let mut turn = first;
    turn.prompt.extend(results[2].tokens.iter().map(|(id, ..)| *id));
    turn.prompt.extend([5, 6, 7]);
    let found = engine.run_each(std::slice::from_ref(&turn));
    assert_eq!(found[0].cached, (100 + 39) / 16 * 16);
    assert_eq!(same(&found), alone(&[turn]));
}

#[test]
fn a_state_is_kept_where_prompts_part() {
    let system: Vec<u32> = (0..50).map(|i| i * 31 % 380).collect();
    let requests: Vec<TestRequest> = (0..5)
        .map(|n| {
            let mut request = TestRequest::numbered(60 + n);
            request.prompt.splice(0..0, system.iter().copied());
            request
        })
        .collect();
    let expected = alone(&requests);
    let mut engine = TestEngine::hybrid(8, 512, 512, 64);
    let results = engine.run_each(&requests);
    assert_eq!(same(&results), expected);
    // The second finds no state where it parts from the first, and keeps one for the others.
    let cached: Vec<usize> = results.iter().map(|one| one.cached).collect();
    assert_eq!(cached, [0, 0, 48, 48, 48]);
    let again = engine.run_each(&requests);
    assert_eq!(same(&again), expected);
    for (one, request) in again.iter().zip(&requests) {
        assert_eq!(one.cached, (request.prompt.len() - 1) / 16 * 16);
    }
}

#[test]
fn kept_states_make_room_for_sequences_that_run() {
    let requests = numbered(40);
    let expected = alone(&requests);
    // Each sequence may hold two slots, so hardly any is left for others.
    let mut engine = TestEngine::hybrid(4, 64, 512, 10);
    for _ in 0..2 {
        assert_eq!(same(&engine.run_each(&requests)), expected);
        assert_eq!(engine.states_used(), 0);
    }
}

#[test]
fn a_hybrid_s_weights_change_while_it_replies() {
    let changed = || {
        let file = WeightFiles::open(&hybrid()).unwrap();
        let config = ModelFolder::open(&hybrid()).unwrap().model;
        ModelParameters::load(&Cpu::default(), &Louder(file), &config).unwrap()
    };
    let requests = numbered(12);
    let before = alone(&requests);
    let mut louder = TestEngine::hybrid(1, 4096, 64, 4);
    louder.exchange(changed(), 1, false);
    let after: Vec<ChoiceResult> =
        requests.iter().flat_map(|one| louder.run_each(std::slice::from_ref(one))).collect();
    assert_ne!(before, after);

    let mut engine = TestEngine::hybrid(16, 64, 256, 64);
    assert_eq!(same(&engine.run_each(&requests)), before);
    let mut calls: Vec<_> =
        requests.iter().map(|request| engine.submit(std::slice::from_ref(request))).collect();
    (0..6).for_each(|_| engine.core.step());
    engine.exchange(changed(), 1, false);
    engine.finish();
    let mut several = 0;
    for (index, outputs) in calls.iter_mut().enumerate() {
        let (result, spans) = hear(outputs, 1).remove(0);
        several += usize::from(spans.len() > 1);
        // What was sampled before is what the old weights say, and the rest was computed again.
        let old = spans.iter().find(|span| &*span.version == "default").map_or(0, |span| span.end);
        assert_eq!(result.tokens[..old], before[index].tokens[..old]);
        let mut turn = requests[index].clone();
        turn.prompt.extend(result.tokens[..old].iter().map(|(id, ..)| *id));
        if old == 0 {
            assert_eq!(result.tokens, after[index].tokens);
        }
    }
    assert!(several > 4, "{several} replies have tokens of both versions");
    // Nothing of the old states is found again.
    assert_eq!(same(&engine.run_each(&requests)), after);
    assert_eq!(engine.states_used(), 0);
}

fn hybrid() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny-hybrid")
}

/// The weights of a folder, with other rates of decay.
struct Louder(WeightFiles);

impl TensorSource for Louder {
    fn take(&self, name: &str, shape: &[usize]) -> Result<crate::weights::Tensor, LoadError> {
        let tensor = self.0.take(name, shape)?;
        if !name.ends_with("A_log") && !name.ends_with("in_proj_qkv.weight") {
            return Ok(tensor);
        }
        let louder = tensor.widen().into_iter().map(|value| value * 0.75).collect();
        Ok(crate::weights::Tensor::F32(louder))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn states_come_back_and_bits_are_the_same_whatever_comes(
        acts in proptest::collection::vec(act(), 1..30),
        sequences in 1..9_usize,
        tokens in 1..80_usize,
        pages in 8..40_usize,
        spare in 0..20_usize,
    ) {
        let expected = expected_of_hybrid();
        let mut engine = TestEngine::hybrid(sequences, tokens, pages, 2 * sequences + 2 + spare);
        let calls = engine.perform(acts);
        engine.finish();
        prop_assert_eq!((engine.pages_used(), engine.states_used()), (0, 0));
        for (mut outputs, numbers) in calls {
            let heard = hear(&mut outputs, numbers.len());
            for ((one, _), number) in heard.iter().zip(numbers) {
                let whole = &expected[number as usize];
                let aborted = one.finish == Some(FinishReason::Aborted);
                prop_assert!(aborted || one.tokens.len() == whole.tokens.len());
                prop_assert_eq!(&one.tokens[..], &whole.tokens[..one.tokens.len()]);
                prop_assert!(aborted || one.prompt == whole.prompt);
            }
        }
    }
}

/// The results of the requests of the random run, each alone on an engine.
fn expected_of_hybrid() -> &'static [ChoiceResult] {
    static EXPECTED: std::sync::OnceLock<Vec<ChoiceResult>> = std::sync::OnceLock::new();
    EXPECTED.get_or_init(|| {
        let request = |n| TestRequest { scored: n == 7, ..TestRequest::numbered(n) };
        alone(&(0..12).map(request).collect::<Vec<TestRequest>>())
    })
}
