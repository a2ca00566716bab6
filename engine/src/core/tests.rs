//! Equal bits in any batch, with any chunks of prompts, and through preemptions.

#[cfg(feature = "emulated")]
mod cuda;
mod drafts;
mod hybrid;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kernels::Cpu;
use proptest::prelude::*;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::*;
use crate::core::message::{Command, NewWeights, PauseMode};
use crate::model::ModelCapacity;
use crate::model::folder::ModelFolder;
use crate::model::forward::Scratch;
use crate::model::parameters::ModelParameters;
use crate::sample::tests::plain;
use crate::sample::{SamplingParams, TokenScores};
use crate::schedule::StepLimits;
use crate::schedule::drafts::Drafts;
use crate::schedule::pace::{QueuePace, QueuePlace};
use crate::schedule::pages::PagePool;
use crate::schedule::request::Submission;
use crate::schedule::request::{Output, OutputSender, Request, StopRules, VersionSpan};
use crate::schedule::routed::RoutedExperts;
use crate::stats::EngineStats;
use crate::update::tests::{Truth, folder_of, loaded, variant};
use crate::weights::TensorSource;
use crate::weights::files::WeightFiles;

/// An engine thread that is stepped by hand.
struct TestEngine<O: Ops = Cpu> {
    core: EngineCore<O>,
    stats: Arc<EngineStats>,
}

/// The sizes of a test engine.
#[derive(Clone, Copy)]
struct TestSizes {
    limits: StepLimits,
    pages: usize,
    /// True if prefixes are shared.
    sharing: bool,
    /// Slots of recurrent states, in a hybrid.
    states: usize,
}

/// The result of a choice: ids with the bits of their logprobs, and the reason of the end.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct ChoiceResult {
    tokens: Vec<(u32, u32, u32)>,
    /// Alternatives of all tokens, with the bits of their logprobs.
    top: Vec<(u32, u32)>,
    /// Bits of the scores of the prompt.
    prompt: Vec<u32>,
    cached: usize,
    finish: Option<FinishReason>,
    experts: Option<Arc<RoutedExperts>>,
}

#[derive(Clone, Debug)]
struct TestRequest {
    prompt: Vec<u32>,
    max_tokens: usize,
    seed: u64,
    priority: i64,
    scored: bool,
}

impl TestRequest {
    /// A request that differs from others of other numbers in prompt, length and seed.
    fn numbered(number: u32) -> TestRequest {
        let len = 3 + number * 7 % 90;
        TestRequest {
            prompt: (0..len).map(|i| (i * (number + 3) * 13 + number) % 380).collect(),
            max_tokens: 4 + number as usize % 21,
            seed: u64::from(number) * 77,
            priority: 0,
            scored: false,
        }
    }

    fn request(&self, index: usize) -> Request {
        Request {
            index,
            prompt: self.prompt.clone().into(),
            params: SamplingParams { seed: self.seed, logprobs: Some(2), ..plain() },
            stops: Arc::new(StopRules { max_tokens: self.max_tokens, ..StopRules::default() }),
            priority: self.priority,
            cache_salt: None,
            attempt: None,
            prompt_logprobs: self.scored.then_some(1),
            scored_from: 0,
            routed_experts: false,
            aborted: Arc::new(AtomicBool::new(false)),
            adapter: None,
        }
    }
}

impl TestEngine {
    fn new(sequences: usize, tokens: usize, pages: usize, sharing: bool) -> TestEngine {
        let limits = StepLimits { sequences, tokens, prompts: tokens, scored: 24 };
        TestEngine::of("tiny", TestSizes { limits, pages, sharing, states: 0 })
    }

    fn of(model: &str, sizes: TestSizes) -> TestEngine {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models").join(model);
        let (parts, weights) =
            (ModelFolder::open(&folder).unwrap(), WeightFiles::open(&folder).unwrap());
        TestEngine::on(Cpu::default(), (parts, &weights), sizes, true)
    }

    /// Exchanges the weights for those of this number; their label is the number.
    fn push(&mut self, number: u32, keep_cache: bool) {
        let parameters = loaded(folder_of(&variant(number)).path()).0;
        self.exchange(parameters, number, keep_cache);
    }
}

impl<O: Ops> TestEngine<O> {
    fn on(
        ops: O,
        (parts, weights): (ModelFolder, &impl TensorSource),
        TestSizes { limits, pages, sharing, states }: TestSizes,
        overlap: bool,
    ) -> TestEngine<O> {
        let parameters = ModelParameters::load(&ops, weights, &parts.model).unwrap();
        let scratch = Scratch::new(&ops, &parts.model, limits.tokens, limits.sequences).unwrap();
        let size = ModelCapacity { positions: 1024, pages, adapters: 0, states };
        let model = Model::new(ops, parameters, parts.model, scratch, size).unwrap();
        let device = model.second_device().unwrap();
        let staging = Arc::new(WeightStaging::new(device, model.config().clone()));
        let stats = Arc::new(EngineStats::default());
        let tokenizer = Arc::new(parts.tokenizer);
        let pool = PagePool::new(pages, sharing).with_states(states);
        let scheduler = Scheduler::new(limits, pool, Arc::clone(&stats));
        let status = Arc::new(SharedStatus::new(Arc::from("default"), None));
        let logprobs_mode = LogprobsMode::default();
        let settings = CoreSettings { logprobs_mode, async_scheduling: overlap };
        let shared = SharedState { status, staging };
        let core = EngineCore::new(model, tokenizer, scheduler, shared, settings);
        TestEngine { core, stats }
    }

    /// The engine with so many guesses for a sequence, whatever else a step has.
    fn drafting(mut self, most: usize) -> TestEngine<O> {
        self.core.scheduler.set_drafts(Drafts::new(most, 64));
        self
    }

    /// Guessed tokens, and those of them that were right.
    fn drafted(&self) -> (u64, u64) {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.stats.draft_tokens), count(&self.stats.accepted_tokens))
    }

    /// Queues one call. Returns the receiver of the outputs of all its choices.
    fn submit(&mut self, requests: &[TestRequest]) -> mpsc::Receiver<Output> {
        self.send(
            requests.iter().enumerate().map(|(index, request)| request.request(index)).collect(),
        )
    }

    fn send(&mut self, requests: Vec<Request>) -> mpsc::Receiver<Output> {
        let (sender, outputs) = mpsc::channel(requests.len() + 4);
        let choice = |request| {
            let last = sender.clone().try_reserve_owned().unwrap();
            (request, OutputSender { sender: sender.clone(), last })
        };
        let choices = requests.into_iter().map(choice).collect();
        self.core.scheduler.enqueue(Submission { choices, place: Arc::new(place()) });
        outputs
    }

    /// Steps until nothing is left to do.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.core.scheduler.is_idle() {
                return;
            }
            self.core.step();
        }
        panic!("the engine does not come to an end");
    }

    /// Runs calls side by side, each with its choices.
    fn run(&mut self, calls: &[Vec<TestRequest>]) -> Vec<Vec<ChoiceResult>> {
        let outputs: Vec<_> = calls.iter().map(|requests| self.submit(requests)).collect();
        self.finish();
        let results = calls.iter().zip(outputs).map(|(requests, mut outputs)| {
            let mut results = vec![ChoiceResult::default(); requests.len()];
            while let Ok(output) = outputs.try_recv() {
                take(&mut results, output);
            }
            results
        });
        results.collect()
    }

    fn run_each(&mut self, requests: &[TestRequest]) -> Vec<ChoiceResult> {
        let calls: Vec<Vec<TestRequest>> =
            requests.iter().map(|request| vec![request.clone()]).collect();
        self.run(&calls).concat()
    }

    fn pages_used(&self) -> usize {
        self.stats.pages_used.load(Ordering::Relaxed)
    }

    fn preemptions(&self) -> u64 {
        self.stats.preemptions.load(Ordering::Relaxed)
    }
}

fn place() -> QueuePlace {
    let permit = || Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    QueuePlace::new(Arc::new(QueuePace::new(Instant::now())), [permit(), permit()])
}

fn take(results: &mut [ChoiceResult], output: Output) {
    let one = &mut results[output.index];
    if let Some(facts) = output.prompt {
        one.cached = facts.cached_tokens;
        one.prompt = facts.scores.iter().flatten().map(|s| s.raw.to_bits()).collect();
    }
    for token in output.tokens {
        let bits =
            |of: fn(&TokenScores) -> f32| token.scores.as_ref().map_or(0, |s| of(s).to_bits());
        one.tokens.push((token.id, bits(|s| s.processed), bits(|s| s.raw)));
        let top = token.scores.iter().flat_map(|scores| &scores.top);
        one.top.extend(top.map(|other| (other.id, other.logprob.to_bits())));
    }
    if let Some(end) = output.end {
        assert_eq!(one.finish, None);
        one.finish = Some(end.finish);
        one.experts = end.routed_experts;
    }
}

/// The results without the counts of cached tokens.
fn same(results: &[ChoiceResult]) -> Vec<ChoiceResult> {
    results.iter().map(|one| ChoiceResult { cached: 0, ..one.clone() }).collect()
}

/// Each request by itself on a fresh engine, computed in one piece.
fn alone(requests: &[TestRequest]) -> Vec<ChoiceResult> {
    let mut engine = TestEngine::new(1, 4096, 64, false);
    requests.iter().flat_map(|request| engine.run_each(std::slice::from_ref(request))).collect()
}

fn numbered(count: u32) -> Vec<TestRequest> {
    (0..count).map(TestRequest::numbered).collect()
}

#[test]
fn a_request_has_the_same_bits_alone_and_in_batches_of_2_to_64() {
    let requests = numbered(64);
    let expected = alone(&requests);
    for count in [2, 3, 8, 17, 32, 64] {
        let mut engine = TestEngine::new(64, 4096, 1024, true);
        let results = engine.run_each(&requests[..count]);
        assert_eq!(same(&results), expected[..count], "{count} at once");
        assert!(results.iter().all(|one| one.finish == Some(FinishReason::Length)));
    }
}

#[test]
fn a_request_has_the_same_bits_however_steps_are_cut() {
    let mut requests = numbered(24);
    requests[3].scored = true;
    requests[11].scored = true;
    let expected = alone(&requests);
    assert_eq!(expected[3].prompt.len() + 1, requests[3].prompt.len());
    for tokens in [1, 5, 16, 64, 512] {
        let results = TestEngine::new(64, tokens, 512, true).run_each(&requests);
        assert_eq!(same(&results), expected, "{tokens} tokens a step");
    }
}

#[test]
fn a_short_prompt_and_its_reply_do_not_wait_for_a_long_prompt() {
    let long = TestRequest {
        prompt: (0..900).map(|i| i * 7 % 380).collect(),
        max_tokens: 1,
        ..TestRequest::numbered(1)
    };
    let short = TestRequest { max_tokens: 4, ..TestRequest::numbered(2) };
    let expected = alone(&[long.clone(), short.clone()]);

    let limits = StepLimits { sequences: 8, tokens: 64, prompts: 32, scored: 24 };
    let sizes = TestSizes { limits, pages: 512, sharing: true, states: 0 };
    let mut engine = TestEngine::of("tiny", sizes);
    let mut slow = engine.submit(std::slice::from_ref(&long));
    engine.core.step();
    assert_eq!(engine.core.scheduler.running[0].cache.len, 64);
    let mut fast = engine.submit(std::slice::from_ref(&short));
    // Of its 17 tokens, 16 go in one step, and the long prompt has as many rows. Then it has all 32
    // beside those of the reply.
    let rows = [80, 112, 144, 176, 208].map(|long_rows| {
        engine.core.step();
        (engine.core.scheduler.running[0].cache.len, long_rows)
    });
    assert_eq!(rows.map(|(found, _)| found), rows.map(|(_, expected)| expected));

    let mut results = vec![ChoiceResult::default(); 2];
    engine.finish();
    while let Ok(output) = fast.try_recv() {
        take(&mut results[1..], output);
    }
    while let Ok(output) = slow.try_recv() {
        take(&mut results[..1], output);
    }
    assert_eq!(same(&results), expected);
}

#[test]
fn a_long_scored_prompt_goes_on_beside_short_ones() {
    let scored = |prompt: Vec<u32>, number| TestRequest {
        prompt,
        max_tokens: 1,
        scored: true,
        ..TestRequest::numbered(number)
    };
    let long = scored((0..900).map(|i| i * 7 % 380).collect(), 1);
    let mut engine = TestEngine::new(8, 512, 512, true);
    let mut outputs = vec![engine.submit(std::slice::from_ref(&long))];
    engine.core.step();
    for number in 0..6 {
        let before = engine.core.scheduler.running[0].cache.len;
        let short = scored((0..60).map(|i| (i * 11 + number) % 380).collect(), number);
        outputs.push(engine.submit(std::slice::from_ref(&short)));
        engine.core.step();
        assert_eq!(engine.core.scheduler.running[0].cache.len, before + 24, "step {number}");
    }
}

#[test]
fn scored_prompts_share_the_rows_of_a_step() {
    let requests: Vec<TestRequest> = (0..5)
        .map(|n| TestRequest { scored: true, ..TestRequest::numbered(11 + 13 * n) })
        .collect();
    let expected = alone(&requests);
    let mut engine = TestEngine::new(8, 512, 512, true);
    let outputs: Vec<_> =
        requests.iter().map(|request| engine.submit(std::slice::from_ref(request))).collect();
    let lens = |engine: &TestEngine<Cpu>| -> HashMap<u64, usize> {
        engine.core.scheduler.running.iter().map(|one| (one.started, one.cache.len)).collect()
    };
    while !engine.core.scheduler.is_idle() {
        let before = lens(&engine);
        engine.core.step();
        let grown = |(one, len): (u64, usize)| len - before.get(&one).copied().unwrap_or(0);
        let rows: usize = lens(&engine).into_iter().map(grown).sum();
        assert!(rows <= 24 + requests.len(), "{rows} rows of logits in a step");
    }
    let mut results = vec![ChoiceResult::default(); requests.len()];
    for (one, mut outputs) in results.chunks_mut(1).zip(outputs) {
        while let Ok(output) = outputs.try_recv() {
            take(one, output);
        }
    }
    assert_eq!(same(&results), expected);
}

#[test]
fn a_request_has_the_same_bits_with_and_without_a_prefix_hit() {
    let mut requests = numbered(8);
    let system: Vec<u32> = (0..50).map(|i| i * 31 % 380).collect();
    for request in &mut requests {
        request.prompt.splice(0..0, system.iter().copied());
    }
    requests[5].scored = true;
    let expected = alone(&requests);
    let mut engine = TestEngine::new(8, 512, 512, true);
    let results = engine.run_each(&requests);
    assert_eq!(same(&results), expected);
    // All at once: the first computes the common pages, the others wait for them.
    let cached: Vec<usize> = results.iter().map(|one| one.cached).collect();
    assert_eq!(cached, [0, 48, 48, 48, 48, 0, 48, 48]);
    // Again, everything but the last tokens is there; what is scored is computed all the same.
    let again = engine.run_each(&requests);
    assert_eq!(same(&again), expected);
    for (one, request) in again.iter().zip(&requests) {
        let whole = (request.prompt.len() - 1) / 16 * 16;
        assert_eq!(one.cached, if request.scored { 0 } else { whole });
    }
    // A conversation that goes on finds its own reply.
    let mut next = requests[1].clone();
    next.prompt.extend(results[1].tokens.iter().map(|(id, ..)| *id));
    let longer = next.prompt.len();
    next.prompt.extend([5, 6, 7]);
    let found = engine.run_each(std::slice::from_ref(&next));
    assert_eq!(found[0].cached, (longer - 1) / 16 * 16);
    assert_eq!(same(&found), alone(&[next]));
}

#[test]
fn a_request_has_the_same_bits_after_it_gave_way() {
    let mut requests = numbered(24);
    requests[7].scored = true;
    let expected = alone(&requests);
    for (pages, sharing) in [(9, false), (9, true), (16, true)] {
        let mut engine = TestEngine::new(16, 64, pages, sharing);
        assert_eq!(same(&engine.run_each(&requests)), expected, "{pages} pages");
        assert!(engine.preemptions() > 0, "{pages} pages are enough for all");
        assert_eq!(engine.pages_used(), 0);
    }
}

#[test]
fn the_lowest_priority_gives_way_and_the_highest_goes_first() {
    let request = |priority| TestRequest { max_tokens: 40, priority, ..TestRequest::numbered(9) };
    let mut engine = TestEngine::new(4, 64, 8, false);
    let mut order = Vec::new();
    let mut calls: Vec<_> =
        [5, 5, -1, 5].map(request).iter().map(|a| engine.submit(std::slice::from_ref(a))).collect();
    while !engine.core.scheduler.is_idle() {
        engine.core.step();
        for (index, outputs) in calls.iter_mut().enumerate() {
            while let Ok(output) = outputs.try_recv() {
                order.extend(output.end.map(|_| index));
            }
        }
    }
    assert_eq!(order, [2, 0, 1, 3]);
    assert!(engine.preemptions() > 0);
}

#[test]
fn choices_of_one_prompt_share_its_pages() {
    let mut engine = TestEngine::new(16, 512, 64, true);
    let request =
        TestRequest { prompt: (0..100).map(|i| i * 3 % 380).collect(), ..TestRequest::numbered(1) };
    let requests: Vec<TestRequest> =
        (0..8).map(|seed| TestRequest { seed, ..request.clone() }).collect();
    let outputs = engine.submit(&requests);
    (0..4).for_each(|_| engine.core.step());
    assert_eq!(engine.core.scheduler.running.len(), 8);
    // Six pages are full; what follows each choice has for itself.
    assert_eq!(engine.pages_used(), 6 + 8);
    drop(outputs);
    engine.finish();
    assert_eq!(same(&engine.run(std::slice::from_ref(&requests))[0]), alone(&requests));
}

#[test]
fn equal_requests_do_not_wait_for_one_another_once_they_speak() {
    let request = TestRequest { max_tokens: 40, ..TestRequest::numbered(6) };
    let steps = |count: usize| {
        let mut engine = TestEngine::new(16, 512, 256, true);
        let calls: Vec<_> =
            (0..count).map(|_| engine.submit(std::slice::from_ref(&request))).collect();
        let steps = (0..10_000).take_while(|_| {
            engine.core.step();
            !engine.core.scheduler.is_idle()
        });
        let steps = steps.count();
        drop(calls);
        steps
    };
    // One step more: all but the first begin when its pages are there.
    assert_eq!(steps(12), steps(1) + 1);
}

#[test]
fn a_large_call_does_not_keep_others_waiting() {
    let many: Vec<TestRequest> =
        (0..64).map(|n| TestRequest { max_tokens: 200, ..TestRequest::numbered(n % 9) }).collect();
    let mut engine = TestEngine::new(8, 256, 512, true);
    let large = engine.submit(&many);
    engine.core.step();
    assert_eq!(engine.core.scheduler.running.len(), 8);
    let mut small: Vec<_> = (0..5).map(|n| engine.submit(&[TestRequest::numbered(n)])).collect();
    let mut steps = 0;
    while small.iter_mut().any(|outputs| !outputs.is_closed()) {
        engine.core.step();
        for outputs in &mut small {
            while let Ok(output) = outputs.try_recv() {
                if output.end.is_some() {
                    outputs.close();
                }
            }
        }
        steps += 1;
        assert!(steps < 60, "a small call waits behind a large one");
    }
    drop(large);
    engine.finish();
}

#[test]
fn what_nobody_waits_for_is_dropped_wherever_it_is() {
    let mut engine = TestEngine::new(2, 64, 16, true);
    let long = |n| TestRequest { max_tokens: 300, ..TestRequest::numbered(n) };
    let running = engine.submit(&[long(1), long(2), long(3)]);
    let waiting = engine.submit(&[long(4), long(5)]);
    let kept = engine.submit(&[TestRequest::numbered(6)]);
    (0..20).for_each(|_| engine.core.step());
    drop((running, waiting));
    engine.core.step();
    assert_eq!(engine.core.scheduler.running.len(), 1);
    assert_eq!(engine.stats.aborted.load(Ordering::Relaxed), 5);
    engine.finish();
    drop(kept);
    assert_eq!(engine.pages_used(), 0);
}

/// An action of a random run between two steps.
#[derive(Clone, Debug)]
enum Act {
    Submit { numbers: Vec<u32>, priority: i64 },
    Step { count: usize },
    Leave { which: usize },
    Abort { which: usize },
}

fn act() -> impl Strategy<Value = Act> {
    let numbers = proptest::collection::vec(0..12_u32, 1..5);
    prop_oneof![
        3 => (numbers, -1..2_i64)
            .prop_map(|(numbers, priority)| Act::Submit { numbers, priority }),
        4 => (1..12_usize).prop_map(|count| Act::Step { count }),
        1 => any::<usize>().prop_map(|which| Act::Leave { which }),
        1 => any::<usize>().prop_map(|which| Act::Abort { which }),
    ]
}

impl<O: Ops> TestEngine<O> {
    /// Does what the acts say. Returns the calls that nobody left, with the numbers of their
    /// requests.
    fn perform(&mut self, acts: Vec<Act>) -> Vec<(mpsc::Receiver<Output>, Vec<u32>)> {
        let mut calls = Vec::new();
        for act in acts {
            match act {
                Act::Submit { numbers, priority } => {
                    let request = |n: &u32| {
                        let scored = *n == 7;
                        TestRequest { priority, scored, ..TestRequest::numbered(*n) }
                    };
                    let requests: Vec<_> = numbers.iter().map(request).collect();
                    calls.push((self.submit(&requests), numbers));
                }
                Act::Step { count } => (0..count).for_each(|_| self.core.step()),
                Act::Leave { which } if !calls.is_empty() => {
                    calls.swap_remove(which % calls.len());
                }
                Act::Abort { which } => {
                    let running = &self.core.scheduler.running;
                    if let Some(one) = running.get(which % running.len().max(1)) {
                        one.request.aborted.store(true, Ordering::Relaxed);
                    }
                }
                Act::Leave { .. } => {}
            }
        }
        calls
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn replies_have_the_same_bits_whatever_comes_and_goes(
        acts in proptest::collection::vec(act(), 1..30),
        sequences in 1..9_usize,
        tokens in 1..80_usize,
        pages in 8..40_usize,
        sharing in any::<bool>(),
        drafts in 0..9_usize,
    ) {
        let expected = expected();
        let mut engine = TestEngine::new(sequences, tokens, pages, sharing).drafting(drafts);
        let calls = engine.perform(acts);
        engine.finish();
        prop_assert_eq!(engine.pages_used(), 0);
        for (mut outputs, numbers) in calls {
            let mut results = vec![ChoiceResult::default(); numbers.len()];
            while let Ok(output) = outputs.try_recv() {
                take(&mut results, output);
            }
            for (one, number) in results.iter().zip(numbers) {
                let whole = &expected[number as usize];
                prop_assert!(one.finish.is_some());
                let aborted = one.finish == Some(FinishReason::Aborted);
                prop_assert!(aborted || one.tokens.len() == whole.tokens.len());
                prop_assert_eq!(&one.tokens[..], &whole.tokens[..one.tokens.len()]);
                prop_assert!(aborted || one.prompt == whole.prompt);
            }
        }
    }
}

/// The results of the requests of the random run, each alone on an engine.
fn expected() -> &'static [ChoiceResult] {
    static EXPECTED: std::sync::OnceLock<Vec<ChoiceResult>> = std::sync::OnceLock::new();
    EXPECTED.get_or_init(|| {
        let request = |n| TestRequest { scored: n == 7, ..TestRequest::numbered(n) };
        alone(&(0..12).map(request).collect::<Vec<TestRequest>>())
    })
}

impl<O: Ops> TestEngine<O> {
    /// Exchanges the weights for others whose label is the number.
    fn exchange(&mut self, parameters: ModelParameters<O>, number: u32, keep_cache: bool) {
        self.core.staging.put_back(Some(Arc::new(parameters)));
        let clear = !keep_cache;
        let (done, _) = oneshot::channel();
        self.command(Command::Pause { mode: PauseMode::Keep, clear, done });
        let (done, mut answer) = oneshot::channel();
        let version = Arc::from(number.to_string());
        self.command(Command::Exchange { version, weights: NewWeights::Staged, done });
        answer.try_recv().unwrap().unwrap();
        let (done, _) = oneshot::channel();
        self.command(Command::Resume { done });
    }

    fn command(&mut self, command: Command) {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        self.core.receive(EngineMessage::Command(command, permit));
    }
}

/// Collects the results of choices, and the labels of their tokens.
fn hear(
    outputs: &mut mpsc::Receiver<Output>,
    count: usize,
) -> Vec<(ChoiceResult, Vec<VersionSpan>)> {
    let mut results = vec![(ChoiceResult::default(), Vec::new()); count];
    while let Ok(output) = outputs.try_recv() {
        if let Some(end) = &output.end {
            results[output.index].1.clone_from(&end.versions);
        }
        let mut one = [std::mem::take(&mut results[output.index].0)];
        let index = output.index;
        take(&mut one, Output { index: 0, ..output });
        results[index].0 = one.into_iter().next().unwrap();
    }
    results
}

#[test]
fn after_an_exchange_every_token_is_what_its_own_version_says() {
    let mut truth = Truth::new(3);
    let mut engine = TestEngine::new(16, 64, 48, true);
    let mut requests: Vec<TestRequest> =
        (0..20).map(|n| TestRequest { max_tokens: 30, ..TestRequest::numbered(n) }).collect();
    requests[4].scored = true;
    requests[9].prompt = requests[3].prompt.clone();
    engine.core.rename(Arc::from("0"));
    let mut calls: Vec<_> =
        requests.iter().map(|request| engine.submit(std::slice::from_ref(request))).collect();
    for number in [1, 2, 0, 2] {
        (0..9).for_each(|_| engine.core.step());
        engine.push(number, false);
    }
    engine.finish();
    let mut several = 0;
    for (request, outputs) in requests.iter().zip(&mut calls) {
        let (results, spans) = hear(outputs, 1).remove(0);
        assert_eq!(results.tokens.len(), 30);
        several += usize::from(spans.len() > 1);
        check_spans(&mut truth, &request.prompt, &results, &spans);
        if request.scored {
            let whole: Vec<u32> = request.prompt.clone();
            let under: Vec<Vec<u32>> = (0..3).map(|which| truth.scores(which, &whole)).collect();
            assert!(under.contains(&results.prompt), "scores of a prompt are of two versions");
        }
    }
    assert!(several > 8, "{several} replies have tokens of several versions");
}

/// Checks that spans cover all tokens, and that each token has the bits of its version.
fn check_spans(truth: &mut Truth, prompt: &[u32], results: &ChoiceResult, spans: &[VersionSpan]) {
    let mut end = 0;
    let ids: Vec<u32> = results.tokens.iter().map(|(id, ..)| *id).collect();
    let tokens = [prompt, &ids].concat();
    for span in spans {
        assert!(span.start == end && span.end > span.start, "{spans:?}");
        end = span.end;
        let scores = truth.scores(span.version.parse().unwrap(), &tokens);
        let expected = &scores[prompt.len() - 1 + span.start..][..span.end - span.start];
        let found: Vec<u32> = results.tokens[span.start..end].iter().map(|token| token.2).collect();
        assert_eq!(found, expected, "{span:?}");
    }
    assert_eq!(end, results.tokens.len());
}

#[test]
fn old_keys_and_values_are_kept_if_asked_for_but_not_shared() {
    let mut truth = Truth::new(2);
    let mut engine = TestEngine::new(16, 512, 64, true);
    engine.core.rename(Arc::from("0"));
    let request = TestRequest { max_tokens: 60, ..TestRequest::numbered(9) };
    let mut first = engine.submit(std::slice::from_ref(&request));
    (0..20).for_each(|_| engine.core.step());
    let before = engine.preemptions();
    engine.push(1, true);
    (0..20).for_each(|_| engine.core.step());
    assert_eq!(engine.preemptions(), before);
    // The same prompt again finds nothing that the first one has computed, of either kind.
    let mut second = engine.submit(std::slice::from_ref(&request));
    engine.finish();
    let (results, spans) = hear(&mut second, 1).remove(0);
    assert_eq!(results.cached, 0);
    check_spans(&mut truth, &request.prompt, &results, &spans);
    let (results, spans) = hear(&mut first, 1).remove(0);
    let labels: Vec<&str> = spans.iter().map(|span| &*span.version).collect();
    assert_eq!(labels, ["0", "1"]);
    // The new weights with what the old ones computed are neither of the two.
    let first_new = [spans[1].clone()];
    let ids: Vec<u32> = results.tokens.iter().map(|(id, ..)| *id).collect();
    let scores = truth.scores(1, &[&request.prompt[..], &ids].concat());
    let at = first_new[0].start;
    assert_ne!(results.tokens[at].2, scores[request.prompt.len() - 1 + at]);
    // A reply that went on with both leaves nothing behind for a third.
    let mut third = TestRequest { max_tokens: 4, ..request.clone() };
    third.prompt.extend(&ids);
    let mut outputs = engine.submit(std::slice::from_ref(&third));
    engine.finish();
    let (results, spans) = hear(&mut outputs, 1).remove(0);
    check_spans(&mut truth, &third.prompt, &results, &spans);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn wherever_weights_change_spans_and_bits_agree(
        acts in proptest::collection::vec((0..14_usize, 0..3_u32, 0..12_u32), 1..8),
        tokens in 8..80_usize,
        pages in 10..40_usize,
        sharing in any::<bool>(),
        drafts in 0..9_usize,
    ) {
        let mut truth = Truth::new(3);
        let mut engine = TestEngine::new(6, tokens, pages, sharing).drafting(drafts);
        engine.core.rename(Arc::from("0"));
        let mut calls = Vec::new();
        for (steps, weights, number) in acts {
            let requests = vec![TestRequest::numbered(number), TestRequest::numbered(number + 3)];
            calls.push((engine.submit(&requests), requests));
            (0..steps).for_each(|_| engine.core.step());
            engine.push(weights, false);
        }
        engine.finish();
        prop_assert_eq!(engine.pages_used(), 0);
        for (mut outputs, requests) in calls {
            let heard = hear(&mut outputs, requests.len());
            for ((results, spans), request) in heard.iter().zip(&requests) {
                prop_assert_eq!(results.tokens.len(), request.max_tokens);
                check_spans(&mut truth, &request.prompt, results, spans);
            }
        }
    }
}
