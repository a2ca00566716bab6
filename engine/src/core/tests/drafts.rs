//! Guessed tokens change no bit, whatever a request asks for.

use kernels::PAGE;

use super::*;
use crate::error::LoadError;
use crate::grammar::{GrammarCompiler, GrammarSpec, JsonWhitespace, LeadingThought};
use crate::options::EngineOptions;
use crate::schedule::sequence::Sequence;

/// A kind of requests: what it asks for.
type Kind = (&'static str, fn(&mut Request));

pub(super) const KINDS: [Kind; 16] = [
    ("plain", |_| {}),
    ("greedy", |one| one.params.temperature = 0.0),
    ("filtered", |one| {
        (one.params.temperature, one.params.top_k, one.params.top_p) = (0.7, 30, 0.9);
    }),
    ("without logprobs", |one| one.params.logprobs = None),
    ("named alternatives", |one| one.params.logprob_ids = Some([5, 6, 300].into())),
    ("presence", |one| one.params.presence_penalty = 1.5),
    ("all penalties", |one| {
        one.params.presence_penalty = -0.4;
        one.params.frequency_penalty = 0.3;
        one.params.repetition_penalty = 0.8;
    }),
    ("bias", |one| one.params.logit_bias = [(3, 6.0), (9, 5.5), (380, -100.0)].into()),
    ("bad words", |one| {
        one.params.allowed = Some([7, 8, 9].into());
        one.params.bad_words = [vec![9], vec![7, 7], vec![8, 7, 8]].into();
    }),
    ("min_tokens", |one| {
        let late: Arc<[u32]> = (0..200).collect();
        rules(one, |old| StopRules { ids: late.clone(), late: late.clone(), min_tokens: 9, ..old });
    }),
    ("stop texts", |one| {
        let texts = ('g'..='m').map(String::from).collect();
        rules(one, |old| StopRules { texts, ..old });
    }),
    ("stop ids", |one| rules(one, |old| StopRules { ids: (0..25).collect(), ..old })),
    ("scored", |one| one.prompt_logprobs = Some(1)),
    ("urgent", |one| one.priority = -1),
    ("salted", |one| one.cache_salt = Some("salt".into())),
    ("experts", |one| one.routed_experts = true),
];

/// Forms that a reply may be held to.
pub(super) fn forms() -> [GrammarSpec; 3] {
    [
        GrammarSpec::object(JsonWhitespace::Any),
        GrammarSpec::Regex("([a-c]{2}-){12}".to_owned()),
        GrammarSpec::Choice(vec!["yes, certainly".to_owned(), "no, never".to_owned()]),
    ]
}

/// Changes the stop rules of a request.
fn rules(request: &mut Request, change: impl FnOnce(StopRules) -> StopRules) {
    request.stops = Arc::new(change(StopRules::clone(&request.stops)));
}

/// A request of a number, 30 tokens long, with a prompt that tells its siblings.
fn long(number: u32) -> Request {
    let prompt = (0..20 + number).map(|i| i * 29 % 380).collect();
    TestRequest { prompt, max_tokens: 30, ..TestRequest::numbered(number) }.request(0)
}

/// Holds the reply of a request to a form.
pub(super) fn hold(request: &mut Request, form: GrammarSpec, grammars: &GrammarCompiler, end: u32) {
    let grammar = grammars.compile(form, LeadingThought::None).unwrap();
    request.params.grammar = Some(Arc::new(grammar));
    rules(request, |old| StopRules { eos: vec![end], late: [end].into(), ..old });
}

/// Requests of every kind and form, each of them again in a second round, and once with another
/// seed.
fn every_kind<O: Ops>(engine: &TestEngine<O>) -> Vec<Request> {
    let (vocab, tokenizer) = (engine.core.model.vocab(), &engine.core.tokenizer);
    let end = vocab as u32 - 1;
    let grammars = GrammarCompiler::new(tokenizer, vocab, &[end]).unwrap();
    let mut requests: Vec<Request> = Vec::new();
    for (number, (_, change)) in (0..).zip(KINDS) {
        requests.push(long(number));
        requests.last_mut().into_iter().for_each(change);
    }
    for (number, form) in (30..).zip(forms()) {
        let mut request = long(number);
        hold(&mut request, form, &grammars, end);
        requests.push(request);
    }
    let others = requests.clone().into_iter().map(|mut request| {
        request.params.seed += 1;
        request
    });
    let others: Vec<Request> = others.collect();
    [requests.clone(), requests, others].concat()
}

/// The part of a reply that is the same with drafts and without.
fn lasting(results: (ChoiceResult, Vec<VersionSpan>)) -> (ChoiceResult, Vec<VersionSpan>) {
    (ChoiceResult { cached: 0, ..results.0 }, results.1)
}

impl<O: Ops> TestEngine<O> {
    /// Says the requests, a few steps apart; checks after each step that nothing is held that no
    /// known token needs.
    fn say_apart(&mut self, requests: Vec<Request>) -> Vec<(ChoiceResult, Vec<VersionSpan>)> {
        let mut calls = Vec::new();
        for request in requests {
            calls.push(self.send(vec![request]));
            (0..3).for_each(|_| self.step_and_check());
        }
        while !self.core.scheduler.is_idle() {
            self.step_and_check();
        }
        assert_eq!(self.pages_used(), 0);
        calls.into_iter().map(|mut outputs| lasting(hear(&mut outputs, 1).remove(0))).collect()
    }

    fn step_and_check(&mut self) {
        self.core.step();
        if self.core.in_flight.is_none() {
            self.core.scheduler.running.iter().for_each(check_cache);
        }
    }
}

fn check_cache(sequence: &Sequence) {
    let cache = &sequence.cache;
    assert!(sequence.in_flight == 0 && cache.len < sequence.tokens.len());
    assert_eq!(cache.pages.len(), cache.len.div_ceil(PAGE));
}

fn engine_of(model: &str, pages: usize) -> TestEngine {
    let limits = StepLimits { sequences: 8, tokens: 64, prompts: 64, scored: 24 };
    TestEngine::of(model, TestSizes { limits, pages, sharing: true, states: 0 })
}

#[test]
fn every_kind_of_request_says_the_same_with_drafts() {
    for (model, pages) in [("tiny", 64), ("tiny", 12), ("tiny-moe", 64)] {
        let mut without = engine_of(model, pages);
        let requests = every_kind(&without);
        let expected = without.say_apart(requests.clone());
        assert_eq!(without.drafted(), (0, 0));
        for most in [1, 3, 8] {
            let mut engine = engine_of(model, pages).drafting(most);
            let found = engine.say_apart(requests.clone());
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "request {index} of {model}, {most} guesses");
            }
            assert_eq!(engine.preemptions() > 0, pages == 12);
            let (guessed, right) = engine.drafted();
            assert!(right > 200 && right < guessed, "{right} of {guessed}");
        }
    }
}

/// Steps until a reply has ended, and its tokens.
fn steps_of(engine: &mut TestEngine, request: &Request) -> (usize, ChoiceResult) {
    let mut outputs = engine.send(vec![request.clone()]);
    let mut steps = 0;
    while !engine.core.scheduler.is_idle() {
        engine.step_and_check();
        steps += 1;
    }
    (steps, hear(&mut outputs, 1).remove(0).0)
}

#[test]
fn a_reply_that_was_said_before_takes_few_steps() {
    let mut engine = engine_of("tiny", 64).drafting(8);
    let (request, mut salted) = (long(3), long(3));
    let (first, whole) = steps_of(&mut engine, &request);
    assert!(first > 20, "{first}");
    let (second, again) = steps_of(&mut engine, &request);
    assert_eq!(again.tokens, whole.tokens);
    // 3, 7, and then 8 guesses at once: 4, 8 and 9 tokens a step, behind that of the prompt.
    assert!(second <= 6, "{second}");
    // The last page that guesses filled is there for the next turn.
    let ids: Vec<u32> = whole.tokens.iter().map(|token| token.0).collect();
    let mut next = long(3);
    next.prompt = [&request.prompt[..], &ids, &[7]].concat().into();
    let (_, next) = steps_of(&mut engine, &next);
    assert_eq!(next.cached, (request.prompt.len() + ids.len() - 1) / PAGE * PAGE);
    // What others said is of no use to requests of another salt.
    salted.cache_salt = Some("another".into());
    assert!(steps_of(&mut engine, &salted).0 >= first);
}

#[test]
fn guesses_take_no_more_rows_of_logits_than_there_are() {
    let said = |rows| {
        let mut engine = engine_of("tiny", 64);
        engine.core.scheduler.set_drafts(Drafts::new(8, rows));
        let requests = vec![long(1), long(2), long(1), long(2)];
        let replies = engine.say_apart(requests);
        (replies, engine.drafted().0)
    };
    let (expected, none) = said(1);
    assert_eq!(none, 0);
    let (replies, few) = said(4);
    let (_, many) = said(64);
    assert_eq!(replies, expected);
    assert!(0 < few && few < many, "{few}, {many}");
}

#[test]
fn a_model_with_states_refuses_drafts() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny-hybrid");
    let options = EngineOptions { drafts: 4, ..EngineOptions::default() };
    let refused = crate::Engine::load(&folder, options.clone());
    assert!(matches!(refused, Err(LoadError::DraftsOfHybrid)));
    let refused = crate::Engine::load(&folder, EngineOptions { drafts: 65, ..options });
    assert!(matches!(refused, Err(LoadError::Drafts { found: 65 })));
}
