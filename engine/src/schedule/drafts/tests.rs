//! Guesses over texts that repeat themselves, and what they cost.

use std::sync::atomic::AtomicBool;

use super::super::request::StopRules;
use super::*;
use crate::sample::mix;
use crate::sample::tests::plain;

/// Tokens of a text: a number for each word and each mark, with the space in front of it.
fn tokens(text: &str) -> Vec<u32> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut parts: Vec<String> = Vec::new();
    for c in text.chars() {
        match parts.last_mut() {
            Some(part) if part.trim().is_empty() || part.ends_with(is_word) && is_word(c) => {
                part.push(c);
            }
            _ => parts.push(c.to_string()),
        }
    }
    let hash = |part: &String| part.bytes().fold(7, |hash, byte| mix(hash ^ u64::from(byte)));
    parts.iter().map(|part| (hash(part) % 100_000) as u32).collect()
}

fn request(prompt: &[u32], salt: Option<&str>) -> Request {
    Request {
        index: 0,
        prompt: prompt.into(),
        params: plain(),
        stops: Arc::new(StopRules::default()),
        priority: 0,
        cache_salt: salt.map(Arc::from),
        prompt_logprobs: None,
        scored_from: 0,
        routed_experts: false,
        aborted: Arc::new(AtomicBool::new(false)),
        adapter: None,
        attempt: None,
    }
}

/// The steps in which a reply is said, and the guesses that were wrong.
fn steps(drafts: &mut Drafts, request: &Request, reply: &[u32]) -> (usize, usize) {
    let (mut of, mut text) = (SequenceDrafts::default(), request.prompt.to_vec());
    let (mut steps, mut wrong, mut said) = (0, 0, 0);
    while said < reply.len() {
        drafts.note(&mut of, request, &text);
        let guesses = drafts.guess(&of, &text, reply.len() - said - 1);
        let right = guesses.iter().zip(&reply[said..]).take_while(|(one, other)| one == other);
        let right = right.count();
        text.extend(&reply[said..=said + right]);
        said += right + 1;
        steps += 1;
        if !guesses.is_empty() {
            wrong += guesses.len() - right;
            of.settle(right, text.len());
        }
    }
    drafts.note(&mut of, request, &text);
    (steps, wrong)
}

/// A file that an agent has read, and what it writes: the file with another name in it.
fn rewritten() -> (Vec<u32>, Vec<u32>) {
    let file = include_str!("../../core/watch.rs");
    let read = tokens(&format!("<user> rename `limit` to `bound` in this file:\n{file}"));
    (read, tokens(&format!("<edit>\n{}</edit>", file.replace("limit", "bound"))))
}

#[test]
fn a_file_that_is_written_anew_takes_a_fraction_of_the_steps() {
    let (prompt, reply) = rewritten();
    let request = request(&prompt, None);
    let (alone, wrong) = steps(&mut Drafts::new(8, 64), &request, &reply);
    // Eight guesses and the token behind them are the most.
    assert!(alone * 9 >= reply.len() && alone * 4 < reply.len(), "{alone} of {}", reply.len());
    assert!(wrong * 4 < reply.len(), "{wrong} wrong of {}", reply.len());

    // What the prompt does not have, siblings have said.
    let mut drafts = Drafts::new(8, 64);
    let plan = tokens("I will look for the name first, then change each place, and run the tests.");
    let (first, _) = steps(&mut drafts, &request, &plan);
    let (second, _) = steps(&mut drafts, &request, &plan);
    assert!(first + 2 > plan.len(), "{first} of {}", plan.len());
    assert!(second * 3 < plan.len(), "{second} of {}", plan.len());
}

#[test]
fn text_without_repetition_costs_few_guesses() {
    let mut number = 1_u64;
    let mut random = || {
        number = mix(number);
        (number % 40) as u32
    };
    // Of 40 tokens, three in a row come again now and then, and nothing follows from them.
    let reply: Vec<u32> = (0..20_000).map(|_| random()).collect();
    let prompt: Vec<u32> = (0..64).collect();
    let (steps, wrong) = steps(&mut Drafts::new(8, 64), &request(&prompt, None), &reply);
    assert!(steps + reply.len() / 100 > reply.len(), "{steps}");
    assert!(wrong * 15 < reply.len(), "{wrong}");
}

#[test]
fn requests_of_other_salts_and_beginnings_are_no_siblings() {
    let (prompt, reply) = rewritten();
    let plan = &reply[..60];
    let of =
        |drafts: &mut Drafts, prompt: &[u32], salt| steps(drafts, &request(prompt, salt), plan).0;
    let short = &prompt[..20];
    let mut drafts = Drafts::new(8, 64);
    let alone = of(&mut drafts, short, None);
    assert!(of(&mut drafts, &prompt[..24], None) * 3 < alone);
    assert_eq!(of(&mut drafts, short, Some("salt")), alone);
    assert!(of(&mut drafts, &[&[1], &prompt[..19]].concat(), None) >= alone);

    // Groups that nobody asks for are forgotten.
    for first in 2..2 + SIBLING_GROUPS_MAX as u32 {
        of(&mut drafts, &[&[first], &prompt[..19]].concat(), None);
    }
    assert_eq!(drafts.groups.len(), SIBLING_GROUPS_MAX);
    assert_eq!(of(&mut drafts, short, None), alone);
}

#[test]
fn guesses_grow_with_right_ones_and_rest_after_wrong_ones() {
    let mut pace = DraftPace::default();
    assert_eq!(pace.width(10), 3);
    pace.settle(3, 14);
    assert_eq!(pace.width(14), 7);
    pace.settle(2, 17);
    assert_eq!(pace.width(17), 5);
    let mut len = 18;
    for rest in [1, 3, 7, 15, 31, 32, 32] {
        pace.settle(0, len);
        assert_eq!((pace.width(len + rest - 1), pace.width(len + rest)), (0, 1));
        len += rest;
    }
    pace.settle(1, len);
    assert_eq!(pace.width(len), 3);
}
