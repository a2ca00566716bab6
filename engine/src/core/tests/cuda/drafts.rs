//! Guessed tokens on an emulated GPU: the tokens and bits are the same as without, whether steps
//! overlap or not, and whoever samples.

use super::super::drafts::{KINDS, forms, hold};
use super::host::{FEW, hits, keeping};
use super::*;
use crate::emulated::exclusive_gpu;
use crate::grammar::GrammarCompiler;

/// The id that ends a form.
const END: u32 = 383;

/// A request whose prompt tells its siblings.
pub(super) fn told(request: Request) -> Request {
    let prompt = [&beginning()[..16], &request.prompt].concat();
    Request { prompt: prompt.into(), ..request }
}

/// Requests of every kind and form.
fn every_kind(engine: &TestEngine<Cuda>) -> Vec<Request> {
    let grammars = GrammarCompiler::new(&engine.core.tokenizer, 384, &[END]).unwrap();
    let mut requests: Vec<Request> = Vec::new();
    // Whether the host samples the first token of a scored prompt depends on how the prompt is cut.
    for (number, (_, change)) in (40..).zip(KINDS).filter(|(_, (name, _))| *name != "scored") {
        let mut request = told(of_length(number, 14));
        change(&mut request);
        requests.push(request);
    }
    for (number, form) in (60..).zip(forms()) {
        let mut request = told(of_length(number, 14));
        request.params.frequency_penalty = if number == 61 { 0.4 } else { 0.0 };
        hold(&mut request, form, &grammars, END);
        requests.push(request);
    }
    requests
}

/// The requests, and all of them again.
pub(super) fn twice(requests: Vec<Request>) -> Vec<Request> {
    [requests.clone(), requests].concat()
}

#[test]
fn mixed_requests_say_the_same_with_drafts() {
    let _emulated = shared_gpu();
    let requests: Vec<Request> = twice(mixed().into_iter().map(told).collect());
    let expected = lasting(exact(SIZES, false).say(requests.clone()));
    for (overlap, eager, pages) in [(true, false, 96), (false, true, 96), (true, false, 14)] {
        let options = CudaOptions { deterministic: true, eager, ..CudaOptions::default() };
        let mut engine = gpu(&options, TestSizes { pages, ..SIZES }, overlap).drafting(5);
        let replies = lasting(engine.say(requests.clone()));
        for (index, (found, expected)) in replies.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "request {index}, overlap: {overlap}, eager: {eager}");
        }
        assert_eq!(engine.preemptions() > 0, pages == 14);
        let (guessed, right) = engine.drafted();
        assert!(right > 30 && right < guessed, "{right} of {guessed}");
    }
}

#[test]
fn drafts_say_the_same_with_pages_on_the_host() {
    let _emulated = shared_gpu();
    let requests: Vec<Request> = twice(mixed().into_iter().map(told).collect());
    let expected = lasting(exact(SIZES, false).say(requests.clone()));
    for (overlap, ahead) in [(true, 6), (true, 0), (false, 6)] {
        let mut engine = keeping(exact(FEW, overlap), 24, ahead).drafting(5);
        let found = lasting(engine.say(requests.clone()));
        assert_eq!(found, expected, "overlap: {overlap}, {ahead} ahead");
        assert!(engine.drafted().1 > 0 && hits(&engine) > 0, "{}", hits(&engine));
    }
}

#[test]
fn every_kind_of_request_says_the_same_with_drafts_on_a_gpu() {
    let _emulated = shared_gpu();
    let runs: [(LogprobsMode, &[(bool, usize)]); 2] = [
        (LogprobsMode::ProcessedLogprobs, &[(true, 2), (false, 6)]),
        (LogprobsMode::RawLogprobs, &[(true, 6)]),
    ];
    for (mode, runs) in runs {
        let of = |overlap, most| {
            let mut engine = exact(SIZES, overlap).drafting(most);
            engine.core.logprobs_mode = mode;
            engine
        };
        let mut without = of(false, 0);
        let requests = twice(every_kind(&without));
        let expected = lasting(without.say(requests.clone()));
        for &(overlap, most) in runs {
            let mut engine = of(overlap, most);
            let replies = lasting(engine.say(requests.clone()));
            for (index, (found, expected)) in replies.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "request {index}, overlap: {overlap}, {most} guesses");
            }
            let (guessed, right) = engine.drafted();
            assert!(right > 40 && right < guessed, "{right} of {guessed}");
        }
    }
}

#[test]
fn a_mixture_has_the_same_experts_with_drafts() {
    let _emulated = shared_gpu();
    let say = |most| {
        let mixture = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "norm_topk_prob": true,
        });
        let options = CudaOptions { deterministic: true, ..CudaOptions::default() };
        let mut engine = changed_gpu(mixture, &options, SIZES, true).drafting(most);
        let routed = |request| told(Request { routed_experts: true, ..request });
        let requests = twice(mixed().into_iter().map(routed).collect());
        (lasting(engine.say(requests)), engine.drafted().1)
    };
    let (expected, _) = say(0);
    let (found, right) = say(5);
    assert_eq!(found, expected);
    assert!(right > 30, "{right}");
}

#[test]
fn steps_overlap_where_nothing_is_guessed() {
    let _emulated = shared_gpu();
    let mut engine = exact(SIZES, true).drafting(4);
    let _new = engine.send(vec![told(of_length(3, 20))]);
    engine.steps(4);
    assert!(engine.core.in_flight.is_some(), "nothing repeats yet");
    engine.finish();
    let (request, before) = (told(of_length(3, 20)), engine.drafted().1);
    let expected = exact(SIZES, false).say_alone(request.clone());
    let mut outputs = engine.send(vec![request]);
    let mut steps = 0;
    while !engine.core.scheduler.is_idle() {
        engine.steps(1);
        steps += 1;
    }
    assert_eq!(hear(&mut outputs, 1).remove(0).0.tokens, expected.tokens);
    assert!(steps <= 14, "{steps}");
    assert!(engine.drafted().1 > before);
}

#[test]
fn weights_that_change_between_guesses_leave_their_labels() {
    let _emulated = shared_gpu();
    let say = |most| {
        let mut engine = exact(SIZES, true).drafting(most);
        engine.say_alone(told(of_length(5, 24)));
        let mut outputs = engine.send(vec![told(of_length(5, 24))]);
        while engine.core.scheduler.running.first().is_none_or(|one| one.sampled() < 9) {
            engine.steps(1);
        }
        let known = engine.core.scheduler.running[0].sampled();
        engine.renumber(1, false);
        engine.finish();
        (hear(&mut outputs, 1).remove(0), known)
    };
    let ((results, spans), known) = say(4);
    assert!(known > 9, "several tokens come at once");
    assert_eq!(spans.iter().map(|span| span.end).collect::<Vec<_>>(), [known, 24]);
    let ((first, _), _) = say(0);
    assert_eq!(results.tokens[..9], first.tokens[..9]);
}

#[test]
fn the_host_samples_guesses_that_the_device_has_no_memory_for() {
    let emulated = exclusive_gpu();
    // The same token again and again, from logits that are changed.
    let biased = || {
        let mut request = told(of_length(7, 16));
        request.params.logit_bias = [(3, 90.0)].into();
        request
    };
    let expected = exact(SIZES, false).say_alone(biased());
    let mut engine = exact(SIZES, true).drafting(6);
    let call = engine.send(vec![biased()]);
    while engine.drafted().0 == 0 {
        engine.steps(1);
        emulated.fail_allocation(i64::from(engine.core.scheduler.running[0].sampled() == 3));
    }
    engine.finish();
    let found = &replies(vec![call])[0].0;
    assert_eq!(found.finish, expected.finish);
    let ids = |one: &ChoiceResult| one.tokens.iter().map(|token| token.0).collect::<Vec<_>>();
    assert_eq!(ids(found), ids(&expected));
}
