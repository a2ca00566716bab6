//! Rows whose logits are changed before the GPU draws: what they say is what the host samples from
//! the same logits, alone, beside others, and whether steps overlap or not.

use super::*;
use crate::emulated::exclusive_gpu;
use crate::grammar::{GrammarCompiler, GrammarSpec, JsonWhitespace, LeadingThought};

/// The id that ends a form.
const END: u32 = 383;

/// The tolerance of logprobs: both sides add up 384 weights, in other orders.
const NEAR: f32 = 1e-5;

/// A kind of rows, and what makes a request one of it.
type Kind = (&'static str, fn(&mut Request));

const KINDS: [Kind; 14] = [
    ("presence", |one| one.params.presence_penalty = 1.5),
    ("frequency", |one| one.params.frequency_penalty = 0.7),
    ("repetition", |one| one.params.repetition_penalty = 1.3),
    ("all penalties, filtered", |one| {
        one.params.presence_penalty = -0.4;
        one.params.frequency_penalty = 0.3;
        one.params.repetition_penalty = 0.8;
        (one.params.temperature, one.params.top_k, one.params.top_p) = (0.6, 40, 0.9);
    }),
    ("greedy penalties", |one| {
        (one.params.temperature, one.params.presence_penalty) = (0.0, 1.5);
    }),
    ("bias", |one| one.params.logit_bias = [(3, 6.0), (9, 5.5), (380, -100.0)].into()),
    ("allowed", |one| one.params.allowed = Some([7, 8, 9, 300].into())),
    ("bad words", |one| {
        one.params.allowed = Some([7, 8, 9].into());
        one.params.bad_words = [vec![9], vec![7, 7], vec![8, 7, 8]].into();
    }),
    ("nothing left", |one| {
        one.params.allowed = Some([7, 8].into());
        one.params.bad_words = [vec![7], vec![8]].into();
    }),
    ("min_tokens", |one| {
        let late: Arc<[u32]> = (0..200).collect();
        let old = StopRules::clone(&one.stops);
        let ids = late.clone();
        one.stops = Arc::new(StopRules { ids, late, min_tokens: 5, max_tokens: 20, ..old });
    }),
    ("JSON", |one| form(one, GrammarSpec::object(JsonWhitespace::Any))),
    ("a pattern with penalties", |one| {
        one.params.frequency_penalty = 0.9;
        form(one, GrammarSpec::Regex("[a-f]{6}".to_owned()));
    }),
    ("required calls", |one| {
        form(one, GrammarSpec::Calls("start: \"<call>\" /[a-z]{2,4}/ \"</call>\"".to_owned()));
    }),
    ("an allowed form", |one| {
        one.params.allowed = Some((0..200).collect());
        form(one, GrammarSpec::Choice(vec!["yes".to_owned(), "no".to_owned()]));
    }),
];

/// Prescribes a form, of the tokenizer that random weights have.
fn form(request: &mut Request, form: GrammarSpec) {
    let (_keep, path) = config(json!({"vocab_size": 384, "eos_token_id": END}));
    let tokenizer = model_folder(&path).unwrap().tokenizer;
    let grammars = GrammarCompiler::new(&tokenizer, 384, &[END]).unwrap();
    let grammar = grammars.compile(form, LeadingThought::None).unwrap();
    request.params.grammar = Some(Arc::new(grammar));
    let old = StopRules::clone(&request.stops);
    let late: Arc<[u32]> = [END].into();
    request.stops = Arc::new(StopRules { eos: late.to_vec(), late, max_tokens: 24, ..old });
}

fn of_kind(number: u32, (_, change): Kind) -> Request {
    let mut request = of_length(number, 12);
    change(&mut request);
    request
}

/// Two requests of every kind, with plain ones between them.
fn every_kind() -> Vec<Request> {
    let of = |from: u32| {
        (from..).zip(KINDS).flat_map(|(number, kind)| match number % 4 {
            0 => vec![of_kind(number, kind), of_length(number + 100, 9)],
            _ => vec![of_kind(number, kind)],
        })
    };
    of(40).chain(of(60)).collect()
}

/// An engine whose host samples all tokens.
fn on_host(room: TestSizes) -> TestEngine<Cuda> {
    let mut engine = exact(room, false);
    engine.core.draws_on_device = false;
    engine
}

/// Checks that a reply has the expected tokens, and nearly the expected logprobs.
fn check(what: &str, found: &ChoiceResult, expected: &ChoiceResult) {
    let ids = |one: &ChoiceResult| one.tokens.iter().map(|token| token.0).collect::<Vec<_>>();
    assert_eq!(ids(found), ids(expected), "{what}, ended by {:?}", found.finish);
    assert_eq!(found.finish, expected.finish, "{what}");
    for (found, expected) in found.tokens.iter().zip(&expected.tokens) {
        for (found, expected) in [(found.1, expected.1), (found.2, expected.2)] {
            let [found, expected] = [found, expected].map(f32::from_bits);
            assert!((found - expected).abs() < NEAR, "{what}: {found} for {expected}");
        }
    }
}

#[test]
fn every_kind_alone_says_what_the_host_samples() {
    let _emulated = shared_gpu();
    for mode in [LogprobsMode::ProcessedLogprobs, LogprobsMode::RawLogprobs] {
        let mut host = on_host(SIZES);
        let mut engines = [false, true].map(|overlap| exact(SIZES, overlap));
        host.core.logprobs_mode = mode;
        for kind in KINDS {
            let expected = host.say_alone(of_kind(50, kind));
            assert!(!expected.tokens.is_empty(), "{}", kind.0);
            let found = engines.each_mut().map(|engine| {
                engine.core.logprobs_mode = mode;
                engine.core.scheduler.reset_prefixes(false);
                engine.say_alone(of_kind(50, kind))
            });
            check(kind.0, &found[0], &expected);
            assert_eq!(found[0], found[1], "{}", kind.0);
        }
    }
}

#[test]
fn all_kinds_at_once_say_what_the_host_samples() {
    let _emulated = shared_gpu();
    let expected = lasting(on_host(SIZES).say(every_kind()));
    // With few pages some give way, and lose the counts of their tokens.
    for (overlap, pages) in [(false, SIZES.pages), (true, SIZES.pages), (true, 12)] {
        let mut engine = exact(TestSizes { pages, ..SIZES }, overlap);
        let replies = lasting(engine.say(every_kind()));
        for (index, (found, expected)) in replies.iter().zip(&expected).enumerate() {
            let what = format!("request {index}, overlap: {overlap}, {pages} pages");
            check(&what, &found.0, &expected.0);
        }
        assert_eq!(engine.preemptions() > 0, pages == 12);
    }
}

#[test]
fn a_step_with_changed_rows_stays_in_flight() {
    let _emulated = shared_gpu();
    for kind in KINDS {
        let mut engine = exact(SIZES, true);
        let _call = engine.send(vec![of_kind(41, kind)]);
        let _plain = engine.send(vec![of_length(5, 12)]);
        engine.steps(4);
        assert!(engine.core.in_flight.is_some(), "{}", kind.0);
    }
}

/// Synchronizations and bytes to the host of eight steps in which four rows decode.
fn costs(emulated: &crate::emulated::ExclusiveGpu, change: impl Fn(&mut Request)) -> [i64; 2] {
    let mut engine = exact(SIZES, true);
    let calls: Vec<_> = (0..4)
        .map(|number| {
            let mut request = of_length(number, 40);
            change(&mut request);
            engine.send(vec![request])
        })
        .collect();
    engine.steps(14);
    let count = || ["synchronizations", "bytes_to_host"].map(|name| emulated.get(name));
    let before = count();
    engine.steps(8);
    assert_eq!(engine.core.scheduler.running.len(), 4);
    let after = count();
    drop(calls);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn changed_rows_cost_no_more_waits_and_bytes_than_plain_ones() {
    let emulated = exclusive_gpu();
    let plain = costs(&emulated, |_| {});
    assert!(plain[0] > 0 && plain[1] > 0);
    for (name, change) in KINDS {
        let found = costs(&emulated, |request| {
            change(request);
            // A form that ends late, and nothing else that ends.
            if request.params.grammar.is_some() {
                form(request, GrammarSpec::Regex("[a-z]{60}".to_owned()));
            }
            let old = StopRules::clone(&request.stops);
            let rules = StopRules { ids: Arc::default(), max_tokens: 40, ..old };
            request.stops = Arc::new(rules);
        });
        assert_eq!(found, plain, "{name}");
    }
}

#[test]
fn the_host_samples_what_the_device_has_no_memory_for() {
    let emulated = exclusive_gpu();
    let expected = on_host(SIZES).say_alone(of_kind(41, KINDS[0]));
    let mut engine = exact(SIZES, true);
    engine.say_alone(of_length(41, 12));
    engine.core.scheduler.reset_prefixes(false);
    emulated.fail_allocation(1);
    let call = engine.send(vec![of_kind(41, KINDS[0])]);
    engine.steps(2);
    assert!(engine.core.in_flight.is_some(), "the next step has memory again");
    engine.finish();
    check("without memory", &replies(vec![call])[0].0, &expected);
}
