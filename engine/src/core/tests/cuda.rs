//! Steps that are launched before the tokens of the previous step are read, on an emulated GPU: the
//! tokens and bits are the same as without overlap.

mod drafts;
mod fp8;
mod host;
mod shaped;

use kernels::cuda::{Cuda, CudaOptions, emulated};
use serde_json::{Value, json};

use super::*;
use crate::emulated::{exclusive_gpu, shared_gpu};
use crate::error::LoadError;
use crate::model::random::tests::config;
use crate::model::random::{RandomWeights, model_folder};
use crate::weights::Tensor;

const SIZES: TestSizes = TestSizes {
    limits: StepLimits { sequences: 8, tokens: 48, prompts: 48, scored: 24 },
    pages: 96,
    sharing: true,
    states: 0,
};

/// Random weights, different ones for every number.
struct Numbered(u32);

impl TensorSource for Numbered {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        RandomWeights.take(&format!("{}.{name}", self.0), shape)
    }
}

/// The result of a reply, and the labels of its tokens.
type Reply = (ChoiceResult, Vec<VersionSpan>);

fn gpu(options: &CudaOptions, room: TestSizes, overlap: bool) -> TestEngine<Cuda> {
    changed_gpu(json!({}), options, room, overlap)
}

/// An engine with other fields in its configuration.
fn changed_gpu(
    changes: Value,
    options: &CudaOptions,
    room: TestSizes,
    overlap: bool,
) -> TestEngine<Cuda> {
    emulated::load().unwrap();
    // As small as kernels take it: an emulated product is slow.
    let mut small = json!({
        "vocab_size": 384, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": 383,
    });
    small.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let (_keep, path) = config(small);
    let parts = model_folder(&path).unwrap();
    let ops = crate::emulated::open(options, parts.model.heads);
    TestEngine::on(ops, (parts, &Numbered(0)), room, overlap)
}

/// An engine whose rows have the same bits in every batch: overlap changes batches.
fn exact(room: TestSizes, overlap: bool) -> TestEngine<Cuda> {
    gpu(&CudaOptions { deterministic: true, ..CudaOptions::default() }, room, overlap)
}

impl TestEngine<Cuda> {
    /// Exchanges the weights for those of this number.
    fn renumber(&mut self, number: u32, keep_cache: bool) {
        let model = &self.core.model;
        let ops = model.second_device().unwrap();
        let parameters = ModelParameters::load(&ops, &Numbered(number), model.config()).unwrap();
        self.exchange(parameters, number, keep_cache);
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.core.step());
    }

    /// Returns true if the step in flight has rows of a sequence that does not run any more.
    fn has_rows_of_nobody(&self) -> bool {
        let flight = self.core.in_flight.as_ref();
        let mut rows = flight.into_iter().flat_map(|step| &step.sequences);
        let running = &self.core.scheduler.running;
        rows.any(|rows| running.iter().all(|one| one.rank() != rows.rank))
    }

    /// The results of requests that come one after the other, a step apart.
    fn say(&mut self, requests: Vec<Request>) -> Vec<Reply> {
        let mut calls = Vec::new();
        for request in requests {
            calls.push(self.send(vec![request]));
            self.steps(1);
        }
        self.finish();
        assert_eq!(self.pages_used(), 0);
        replies(calls)
    }

    /// The results of requests that come at once.
    fn say_together(&mut self, requests: Vec<Request>) -> Vec<Reply> {
        let calls = requests.into_iter().map(|request| self.send(vec![request])).collect();
        self.finish();
        replies(calls)
    }

    /// Steps until the reply has ended, and no further.
    fn say_alone(&mut self, request: Request) -> ChoiceResult {
        let mut outputs = self.send(vec![request]);
        let mut results = [ChoiceResult::default()];
        while results[0].finish.is_none() {
            self.steps(1);
            while let Ok(output) = outputs.try_recv() {
                take(&mut results, output);
            }
        }
        results.into_iter().next().unwrap()
    }
}

fn replies(calls: Vec<mpsc::Receiver<Output>>) -> Vec<Reply> {
    calls.into_iter().map(|mut outputs| hear(&mut outputs, 1).remove(0)).collect()
}

/// The results without the counts of cached tokens.
fn lasting(replies: Vec<Reply>) -> Vec<Reply> {
    replies
        .into_iter()
        .map(|(results, spans)| (ChoiceResult { cached: 0, ..results }, spans))
        .collect()
}

fn request(number: u32) -> Request {
    TestRequest::numbered(number).request(0)
}

/// The request with other stop rules.
fn ruled(number: u32, change: impl FnOnce(StopRules) -> StopRules) -> Request {
    let request = request(number);
    let stops = Arc::new(change(StopRules::clone(&request.stops)));
    Request { stops, ..request }
}

fn of_length(number: u32, max_tokens: usize) -> Request {
    ruled(number, |rules| StopRules { max_tokens, ..rules })
}

/// A request that ends soon, because many ids end it.
fn ending(number: u32) -> Request {
    ruled(number, |rules| StopRules { eos: (0..100).collect(), max_tokens: 14, ..rules })
}

/// A beginning that several requests share.
fn beginning() -> Vec<u32> {
    (0..70).map(|i| i * 31 % 380).collect()
}

/// Different calls: prompts in chunks, ends at ids, texts and lengths, tokens that only the host
/// can sample, some of them only at first, and a scored prompt.
fn mixed() -> Vec<Request> {
    let mut requests: Vec<Request> = (0..4).map(ending).collect();
    let (mut greedy, mut penalized, mut scored) =
        (of_length(30, 9), of_length(31, 5), of_length(32, 5));
    greedy.params.temperature = 0.0;
    penalized.params.frequency_penalty = 0.7;
    scored.prompt_logprobs = Some(1);
    requests.extend([greedy, penalized, scored, of_length(33, 1), of_length(34, 12)]);
    let late: Arc<[u32]> = (0..200).collect();
    let rules = |rules| StopRules { min_tokens: 4, max_tokens: 20, late: late.clone(), ..rules };
    requests.push(ruled(35, |old| StopRules { ids: late.clone(), ..rules(old) }));
    let texts = (' '..='~').map(String::from).collect();
    requests.push(ruled(36, |rules| StopRules { texts, max_tokens: 20, ..rules }));
    let shared = |number| Request { prompt: beginning().into(), ..ending(number) };
    requests.extend((37..39).map(shared));
    requests
}

#[test]
fn mixed_requests_say_the_same_whether_steps_overlap_or_not() {
    let _emulated = shared_gpu();
    let expected = lasting(exact(SIZES, false).say(mixed()));
    let ends: Vec<_> = expected.iter().filter_map(|(results, _)| results.finish.as_ref()).collect();
    let count = |of: fn(&FinishReason) -> bool| ends.iter().filter(|one| of(one)).count();
    assert!(count(|one| *one == FinishReason::Eos) >= 3, "{ends:?}");
    assert!(count(|one| *one == FinishReason::Length) >= 5, "{ends:?}");
    assert_eq!(count(|one| matches!(one, FinishReason::StopId(_))), 1, "{ends:?}");
    assert_eq!(count(|one| matches!(one, FinishReason::StopText { .. })), 1, "{ends:?}");
    for eager in [false, true] {
        let options = CudaOptions { deterministic: true, eager, ..CudaOptions::default() };
        let replies = lasting(gpu(&options, SIZES, true).say(mixed()));
        for (index, (found, expected)) in replies.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "request {index}, eager: {eager}");
        }
    }
}

#[test]
fn a_mixture_has_the_same_experts_whether_steps_overlap_or_not() {
    let _emulated = shared_gpu();
    let say = |overlap, pages| {
        let mixture = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "norm_topk_prob": true,
        });
        let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
        let mut engine = changed_gpu(mixture, &options, TestSizes { pages, ..SIZES }, overlap);
        let routed = |request| Request { routed_experts: true, ..request };
        let replies = engine.say(mixed().into_iter().map(routed).collect());
        (lasting(replies), engine.preemptions())
    };
    let (expected, _) = say(false, SIZES.pages);
    assert!(expected.iter().all(|(results, _)| results.experts.is_some()));
    assert_eq!(say(true, SIZES.pages).0, expected);
    // With few pages, some give way and are computed again.
    let (found, preemptions) = say(true, 12);
    assert_eq!(found, expected);
    assert!(preemptions > 0);
}

/// A step may fail behind its draws, when the copy of its experts cannot be started.
#[test]
fn tokens_of_a_step_that_failed_are_not_those_of_a_later_one() {
    let emulated = exclusive_gpu();
    let mixture = || {
        let changes = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "norm_topk_prob": true,
        });
        let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
        changed_gpu(changes, &options, SIZES, true)
    };
    let expected = mixture().say(vec![request(3)]);
    let mut engine = mixture();
    // One of these copies is that of the experts, behind those of the tokens.
    for copy in 1..=4 {
        let call = engine.send(vec![request(2)]);
        engine.steps(3);
        assert!(emulated.set("fail_read", copy));
        engine.steps(4);
        assert!(emulated.set("fail_read", 0));
        let finish = replies(vec![call]).remove(0).0.finish;
        assert!(matches!(finish, Some(FinishReason::Failed(_))), "copy {copy}: {finish:?}");
        assert_eq!(engine.say(vec![request(3)]), expected, "copy {copy}");
    }
}

/// A layer with a recurrent state before one with attention.
fn hybrid(room: TestSizes, overlap: bool) -> TestEngine<Cuda> {
    let fields = json!({
        "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1,
        "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    });
    let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
    changed_gpu(fields, &options, room, overlap)
}

#[test]
fn a_hybrid_says_the_same_whether_steps_overlap_or_not() {
    let _emulated = shared_gpu();
    let say = |overlap, pages, states| {
        let mut engine = hybrid(TestSizes { pages, states, ..SIZES }, overlap);
        let replies = lasting(engine.say(mixed()));
        let scheduler = &engine.core.scheduler;
        assert_eq!(scheduler.states_available(), scheduler.states_total());
        (replies, engine.preemptions())
    };
    let (expected, _) = say(false, SIZES.pages, 64);
    assert_eq!(say(true, SIZES.pages, 64).0, expected);
    // With few pages, some give way; with few slots, hardly any state is kept.
    let (found, preemptions) = say(true, 12, 18);
    assert_eq!(found, expected);
    assert!(preemptions > 0);
}

#[test]
fn states_of_a_reply_are_kept_although_its_tokens_come_late() {
    let _emulated = shared_gpu();
    for overlap in [false, true] {
        let mut engine = hybrid(TestSizes { states: 34, ..SIZES }, overlap);
        let results = engine.say_alone(Request { prompt: beginning().into(), ..of_length(1, 30) });
        let ids: Vec<u32> = results.tokens.iter().map(|token| token.0).collect();
        let next = [&beginning()[..], &ids, &[7]].concat();
        let next = |salt: &str| {
            let cache_salt = (!salt.is_empty()).then(|| salt.into());
            Request { prompt: next.clone().into(), cache_salt, ..of_length(2, 4) }
        };
        let found = engine.say_alone(next(""));
        // The last page was full before the last token but two was computed.
        assert_eq!(found.cached, 96, "overlap: {overlap}");
        let whole = engine.say_alone(next("of its own"));
        assert_eq!((whole.cached, &whole.tokens), (0, &found.tokens), "overlap: {overlap}");
        // Those are kept: at the ends of prompts and of what was computed on the way.
        let scheduler = &engine.core.scheduler;
        assert_eq!(scheduler.states_available(), scheduler.states_total());
        assert!(scheduler.states_kept() >= 2);
    }
}

#[test]
fn the_same_batches_say_the_same_with_a_library_too() {
    let _emulated = shared_gpu();
    // Nobody ends before the others do, so batches are the same ones.
    let say = |eager, overlap| {
        let options = CudaOptions { eager, ..CudaOptions::default() };
        let requests = (1..5).map(|number| of_length(number, 8)).collect();
        gpu(&options, SIZES, overlap).say_together(requests)
    };
    let expected = say(true, false);
    for (eager, overlap) in [(true, true), (false, false), (false, true)] {
        assert_eq!(say(eager, overlap), expected, "eager: {eager}, overlap: {overlap}");
    }
}

#[test]
fn the_next_step_is_under_way_when_an_end_is_read() {
    let _emulated = shared_gpu();
    let mut without = exact(SIZES, false);
    let expected = without.say_alone(ending(3));
    assert_eq!(expected.finish, Some(FinishReason::Eos));
    assert!(without.core.in_flight.is_none());
    let mut engine = exact(SIZES, true);
    assert_eq!(engine.say_alone(ending(3)), expected);
    // Its row of the next step is nobody's, and its pages are free.
    assert!(engine.has_rows_of_nobody());
    assert_eq!(engine.pages_used(), 0);
    // An end that can be foreseen has no such row.
    let length = expected.tokens.len() - 1;
    let results = engine.say_alone(of_length(3, length));
    assert_eq!(results.tokens, expected.tokens[..length]);
    assert!(!engine.has_rows_of_nobody());
}

#[test]
fn tokens_come_a_step_later_and_all_of_them_before_a_command() {
    let _emulated = shared_gpu();
    for late in [0, 1] {
        let mut engine = exact(SIZES, late == 1);
        let mut outputs = engine.send(vec![request(2)]);
        let mut heard = || {
            let outputs = std::iter::from_fn(|| outputs.try_recv().ok());
            outputs.map(|output| output.tokens.len()).sum::<usize>()
        };
        engine.steps(4);
        assert_eq!(heard(), 4 - late);
        let (done, mut answer) = oneshot::channel();
        engine.command(Command::Pause { mode: PauseMode::Keep, clear: false, done });
        assert!(answer.try_recv().unwrap());
        assert_eq!(heard(), late);
        assert!(engine.core.in_flight.is_none());
    }
}

#[test]
fn a_beginning_that_others_wait_for_is_computed_once() {
    let _emulated = shared_gpu();
    let say = |overlap| {
        let mut engine = exact(SIZES, overlap);
        let with = |prompt: Vec<u32>, seed| {
            let mut request = Request { prompt: prompt.into(), ..of_length(1, 12) };
            request.params.seed = seed;
            request
        };
        let group = (0..3).map(|seed| with(beginning(), seed)).collect();
        let mut results = engine.say_together(group);
        // A conversation that goes on finds what was said.
        let mut next = beginning();
        next.extend(results[2].0.tokens.iter().map(|token| token.0));
        next.extend([5; 16]);
        results.extend(engine.say_together(vec![with(next, 9)]));
        results
    };
    let expected = say(false);
    let cached: Vec<usize> = expected.iter().map(|(results, _)| results.cached).collect();
    assert_eq!(cached, [0, 64, 64, 80]);
    assert_eq!(say(true), expected);
}

#[test]
fn a_beginning_is_known_once_its_step_is_launched() {
    let _emulated = shared_gpu();
    for overlap in [false, true] {
        // Whoever computes it says one token, so it is in no step but that one.
        let one = || Request { prompt: beginning()[..40].into(), ..of_length(1, 1) };
        let replies = exact(SIZES, overlap).say_together(vec![one(), one(), one()]);
        let cached = replies.iter().map(|(results, _)| results.cached);
        assert_eq!(cached.collect::<Vec<usize>>(), [0, 32, 32], "overlap: {overlap}");
    }
}

#[test]
fn whole_pages_of_a_reply_are_known_afterwards() {
    let _emulated = shared_gpu();
    for overlap in [false, true] {
        let mut engine = exact(SIZES, overlap);
        // The last page is full once the last token but one is computed, in the last step.
        let results = engine.say_alone(Request { prompt: beginning().into(), ..of_length(1, 11) });
        let ids: Vec<u32> = results.tokens.iter().map(|token| token.0).collect();
        let next = [&beginning()[..], &ids, &[7]].concat();
        let next = Request { prompt: next.into(), ..of_length(2, 1) };
        assert_eq!(engine.say_alone(next).cached, 80, "overlap: {overlap}");
    }
}

#[test]
fn who_gives_way_says_the_same() {
    let _emulated = shared_gpu();
    let say = |pages, overlap| {
        let mut engine = exact(TestSizes { pages, ..SIZES }, overlap);
        let replies = engine.say((0..5).map(|number| of_length(number, 20)).collect());
        (lasting(replies), engine.preemptions())
    };
    let (expected, none) = say(200, false);
    assert_eq!(none, 0);
    for overlap in [false, true] {
        let (replies, preemptions) = say(9, overlap);
        assert_eq!(replies, expected, "overlap: {overlap}");
        assert!(preemptions > 0);
    }
}

#[test]
fn a_call_without_a_place_gets_that_of_another_call() {
    let _emulated = shared_gpu();
    let many: Vec<TestRequest> =
        (0..5).map(|n| TestRequest { max_tokens: 9, ..TestRequest::numbered(n) }).collect();
    let say = |overlap| {
        let limits = StepLimits { sequences: 3, ..SIZES.limits };
        let mut engine = exact(TestSizes { limits, ..SIZES }, overlap);
        let mut large = engine.submit(&many);
        engine.steps(4);
        let small = (0..2)
            .map(|n| {
                engine.submit(&[TestRequest { max_tokens: 5, ..TestRequest::numbered(n + 40) }])
            })
            .collect();
        engine.finish();
        assert!(engine.preemptions() > 0);
        lasting([hear(&mut large, 5), replies(small)].concat())
    };
    assert_eq!(say(true), say(false));
}

#[test]
fn who_leaves_takes_nothing_along() {
    let _emulated = shared_gpu();
    let run = |leave, overlap| {
        let mut engine = exact(SIZES, overlap);
        let aborted = of_length(4, 12);
        let flag = Arc::clone(&aborted.aborted);
        let mut calls = vec![engine.send(vec![aborted]), engine.send(vec![of_length(5, 12)])];
        let third = engine.send(vec![of_length(6, 12)]);
        engine.steps(5);
        if leave {
            flag.store(true, Ordering::Relaxed);
            drop(third);
        }
        // Pages that come free are used again at once.
        engine.steps(1);
        calls.push(engine.send(vec![of_length(7, 12)]));
        engine.finish();
        assert_eq!(engine.pages_used(), 0);
        lasting(replies(calls))
    };
    let whole = run(false, false);
    for overlap in [false, true] {
        let some = run(true, overlap);
        assert_eq!(some[1..], whole[1..], "overlap: {overlap}");
        let results = &some[0].0;
        assert_eq!(results.finish, Some(FinishReason::Aborted));
        assert_eq!(results.tokens.len(), 5 - usize::from(overlap));
        assert_eq!(results.tokens[..], whole[0].0.tokens[..results.tokens.len()]);
    }
}

#[test]
fn weights_that_come_during_a_step_sample_what_follows() {
    let _emulated = shared_gpu();
    for keep_cache in [false, true] {
        let say = |overlap| {
            let mut engine = exact(SIZES, overlap);
            engine.core.rename(Arc::from("0"));
            let calls = (0..3).map(|number| engine.send(vec![of_length(number, 12)])).collect();
            for number in [1, 2, 0] {
                engine.steps(3);
                engine.renumber(number, keep_cache);
            }
            engine.finish();
            lasting(replies(calls))
        };
        let expected = say(false);
        assert!(expected.iter().all(|(_, spans)| spans.len() > 2));
        assert_eq!(say(true), expected, "the cache is kept: {keep_cache}");
    }
}

#[test]
fn what_was_drawn_is_told_before_a_step_fails() {
    let _emulated = shared_gpu();
    let mut engine = exact(SIZES, true);
    let call = engine.send(vec![request(2)]);
    engine.steps(4);
    engine.core.model.parameters = None;
    engine.steps(1);
    let results = replies(vec![call]).remove(0).0;
    let failed = matches!(results.finish, Some(FinishReason::Failed(_)));
    assert_eq!((results.tokens.len(), failed), (4, true));
    assert!(engine.core.in_flight.is_none());
    assert_eq!(engine.pages_used(), 0);
}

#[test]
fn room_for_more_tokens_loses_none_that_are_under_way() {
    let _emulated = shared_gpu();
    let limits = StepLimits { tokens: 400, prompts: 400, scored: 400, ..SIZES.limits };
    let say = |overlap| {
        let mut engine = exact(TestSizes { limits, ..SIZES }, overlap);
        let first = engine.send(vec![request(4)]);
        engine.steps(3);
        // More wanted rows than any step before had room for.
        let long: Vec<u32> = (0..300).map(|i| i * 7 % 380).collect();
        let prompt_logprobs = Some(1);
        let scored = Request { prompt: long.into(), prompt_logprobs, ..request(5) };
        let second = engine.send(vec![scored]);
        engine.finish();
        replies(vec![first, second])
    };
    assert_eq!(say(true), say(false));
}
