//! Tests of which calls left a history, where, and what it cost.
use episode::{Call, CallKind, Outcome};
use serde_json::{Value, json};

use super::*;
use crate::forks::builder::forks;
use crate::forks::token_texts::ForkTexts;
use crate::graph::derive::derive;
use crate::tests::fixture::{call, episode, reply, text_call, with_bodies};

fn found_with(calls: Vec<Call>, texts: Option<&ForkTexts>) -> Vec<Fork> {
    let episode = episode(calls);
    forks(&episode, &derive(&episode.calls), texts)
}

fn found(calls: Vec<Call>) -> Vec<Fork> {
    found_with(calls, None)
}

/// Messages of a user and an assistant in turn.
fn messages(words: &[&str]) -> Vec<Value> {
    let roles = ["user", "assistant"].into_iter().cycle();
    roles.zip(words).map(|(role, text)| json!({ "role": role, "content": text })).collect()
}

fn worded(n: u32, ids: (&[u32], &[u32]), words: &[&str], answer: &str) -> Call {
    with_bodies(call(n, ids.0, &[ids.1]), &messages(words), answer)
}

fn id(n: u32) -> String {
    call(n, &[], &[]).begun.call_id.to_string()
}

/// The calls, the place, and the costs of a fork: prefill, lost, lost and sampled.
type Brief = (String, String, Option<u32>, [Option<u32>; 3]);

fn brief(fork: &Fork) -> Brief {
    let costs = [fork.prefill_tokens, fork.lost_tokens, fork.lost_sampled_tokens];
    (fork.call_id.clone(), fork.parent_call_id.clone(), fork.position, costs)
}

fn at(call: u32, parent: u32, position: u32, costs: [u32; 3]) -> Brief {
    (id(call), id(parent), Some(position), costs.map(Some))
}

#[test]
fn a_history_that_goes_on_has_no_fork() {
    let calls = vec![
        call(1, &[1], &[&[2]]),
        call(2, &[1, 2, 3], &[&[4], &[5]]),
        call(3, &[1, 2, 3], &[&[6]]),
        call(4, &[1, 2, 3, 5, 7], &[&[8]]),
    ];
    assert_eq!(found(calls), []);
}

#[test]
fn the_place_and_the_cost_are_those_of_the_history_at_the_time() {
    let calls = vec![
        worded(1, (&[1], &[2]), &["a"], "b"),
        worded(2, (&[1, 2, 3], &[4, 5]), &["a", "b", "c"], "d"),
        worded(3, (&[1, 2, 3, 4, 5, 6], &[7]), &["a", "b", "c", "d", "e"], "f"),
        // In the answer of the second call one token is another.
        worded(4, (&[1, 2, 3, 4, 50, 6, 7, 8], &[9]), &["a", "b", "c", "d", "e", "f", "g"], "h"),
    ];
    let forks = found(calls);
    assert_eq!(forks.iter().map(brief).collect::<Vec<_>>(), [at(4, 2, 4, [4, 3, 2])]);
    let fork = &forks[0];
    assert_eq!((fork.in_sampled, fork.kind), (Some(true), "main"));
    assert_eq!(
        (fork.trajectory_id.as_str(), fork.parent_trajectory_id.as_str()),
        ("e/0/1", "e/0/0")
    );
    assert_eq!((&fork.ids_known[..], &fork.ids_sent[..]), (&[5, 6, 7][..], &[50, 6, 7, 8][..]));
    assert_eq!((fork.text_before.as_str(), fork.text_source), ("1 2 3 4", "ids"));
    assert_eq!(fork.cause, Cause::Seam);
}

#[test]
fn the_later_call_leaves_whichever_path_is_the_main_one() {
    let calls = vec![
        worded(1, (&[1], &[2]), &["a"], "b"),
        worded(2, (&[1, 2, 3], &[4]), &["a", "b", "c"], "d"),
        worded(3, (&[1, 2, 8], &[9]), &["a", "b", "x"], "y"),
        worded(4, (&[1, 2, 8, 9, 8], &[7]), &["a", "b", "x", "y", "z"], "w"),
    ];
    let forks = found(calls);
    assert_eq!(forks.iter().map(brief).collect::<Vec<_>>(), [at(3, 2, 2, [1, 2, 1])]);
    assert_eq!((forks[0].cause, forks[0].kind), (Cause::Branched, "main"));
    let sides = (forks[0].text_known.as_str(), forks[0].text_sent.as_str());
    assert_eq!((sides, forks[0].text_before.as_str()), (("c", "x"), "user: "));
}

#[test]
fn only_a_root_that_begins_like_another_is_a_fork() {
    let calls = vec![
        worded(1, (&[1, 5, 5], &[2]), &["a"], "b"),
        worded(2, (&[1, 7, 7], &[2]), &["x"], "y"),
        worded(3, (&[9, 7, 7], &[2]), &["z"], "w"),
    ];
    let forks = found(calls);
    assert_eq!(forks.iter().map(brief).collect::<Vec<_>>(), [at(2, 1, 1, [2, 3, 1])]);
    assert_eq!(forks[0].cause, Cause::OtherConversation);
}

#[test]
fn a_lead_is_told_even_if_no_token_is_shared() {
    let calls = vec![
        worded(1, (&[1], &[2]), &["a"], "b"),
        worded(2, (&[9, 2, 3], &[4]), &["a", "b", "c"], "d"),
    ];
    assert_eq!(found(calls).iter().map(brief).collect::<Vec<_>>(), [at(2, 1, 0, [3, 2, 1])]);
}

#[test]
fn a_subagent_and_a_summary_leave_on_purpose() {
    let by = |kind: CallKind, mut call: Call| {
        call.begun.lineage.kind = kind;
        call
    };
    let calls = vec![
        call(1, &[1], &[&[2]]),
        call(2, &[1, 2, 3], &[&[4]]),
        by(CallKind::Subagent, call(3, &[1, 2, 8], &[&[9]])),
        by(CallKind::Compaction, call(4, &[1, 2, 3, 7], &[&[9]])),
        // It holds the whole history: nothing is left.
        by(CallKind::Compaction, call(5, &[1, 2, 3, 4, 7], &[&[9]])),
    ];
    let causes: Vec<_> = found(calls).iter().map(|f| (f.call_id.clone(), f.cause)).collect();
    assert_eq!(causes, [(id(3), Cause::OtherAgent), (id(4), Cause::Compaction)]);
}

#[test]
fn words_without_ids_have_causes_and_no_places() {
    let calls =
        vec![text_call(1, &messages(&["a"]), "b"), text_call(2, &messages(&["a", "b ", "c"]), "d")];
    let forks = found(calls);
    assert_eq!(forks.len(), 1);
    assert_eq!(brief(&forks[0]), (id(2), id(1), None, [None; 3]));
    assert_eq!((forks[0].cause, forks[0].text_source), (Cause::WhitespaceChanged, "messages"));
    assert_eq!(forks[0].in_sampled, None);
}

#[test]
fn nothing_is_told_of_a_call_whose_parent_is_not_clear() {
    let mut calls =
        vec![call(1, &[1], &[&[2]]), call(2, &[1], &[&[2]]), call(3, &[1, 2, 3], &[&[4]])];
    reply(&mut calls[0]).ended_at = 99;
    reply(&mut calls[1]).ended_at = 99;
    assert_eq!(found(calls), []);
}

#[test]
fn token_names_in_replies_show_the_text_around_the_place() {
    let named = |mut call: Call, tokens: &[&str]| {
        let entries: Vec<_> = tokens.iter().map(|token| json!({ "token": token })).collect();
        let body = json!({ "choices": [{ "index": 0, "message": { "content": tokens.concat() },
            "logprobs": { "content": entries } }] });
        reply(&mut call).reply = body.to_string().into();
        call
    };
    let words = ["a", "so it is", "c"];
    let calls = vec![
        named(worded(1, (&[1], &[2, 3, 4]), &["a"], ""), &["so", " it", " is"]),
        named(worded(2, (&[5], &[34, 2, 3]), &["z"], ""), &[" it is", "so", " it"]),
        worded(3, (&[1, 2, 34, 6], &[7]), &words, "d"),
    ];
    let forks = found(calls.clone());
    assert_eq!((forks.len(), forks[0].cause), (1, Cause::Retokenized));
    // The token after them stands in no reply.
    let sides = (forks[0].text_known.as_str(), forks[0].text_sent.as_str());
    assert_eq!((sides, forks[0].text_source), ((" it is", " it is"), "logprobs"));
    let texts = [(2, "so"), (3, " it"), (4, " is"), (34, " it is"), (6, ".")];
    let texts = texts.map(|(id, text)| (id, text.as_bytes().to_vec())).into_iter().collect();
    let forks = found_with(calls, Some(&ForkTexts::Known(texts)));
    assert_eq!(forks[0].text_sent, " it is.");
}

#[test]
fn a_failed_try_that_was_cut_short_is_no_history_to_leave() {
    let mut cut = call(2, &[1, 2, 3], &[&[4, 5]]);
    reply(&mut cut).outcome = Outcome::ClientGone;
    let calls = vec![call(1, &[1], &[&[2]]), cut, call(3, &[1, 2, 3], &[&[6]])];
    assert_eq!(found(calls), []);
}

#[test]
fn hundreds_of_forks_of_a_long_history_are_told_at_once() {
    let head: Vec<u32> = (0..5_000).collect();
    let calls = (0..300).map(|n| call(n, &[head.as_slice(), &[n + 10_000]].concat(), &[&[1]]));
    let begin = std::time::Instant::now();
    let forks = found(calls.clone().collect());
    assert_eq!(forks.len(), 299);
    let shared = call(5_000, &head, &[&[9]]);
    let from_one = calls.map(|mut call| {
        reply(&mut call).prompts[0].insert(5_000, 9);
        call.begun.started_at += 1_000_000;
        call
    });
    assert_eq!(found([shared].into_iter().chain(from_one).collect()).len(), 299);
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}

#[test]
fn a_long_conversation_that_forks_at_every_turn_is_told_at_once() {
    let words: Vec<String> = (0..400).map(|n| format!("{n} {}", "word ".repeat(100))).collect();
    let calls = (0..200_u32).map(|n| {
        let turns = 2 * n as usize + 1;
        let mut messages = messages(&words[..turns].iter().map(String::as_str).collect::<Vec<_>>());
        messages.insert(0, json!({ "role": "system", "content": format!("at 12:{n:03}") }));
        let prompt: Vec<u32> = [1, 1_000 + n].into_iter().chain(2_000..2_000 + 50 * n).collect();
        with_bodies(call(n + 1, &prompt, &[&[7]]), &messages, &words[turns])
    });
    let calls = calls.collect();
    let begin = std::time::Instant::now();
    let forks = found(calls);
    assert_eq!(forks.len(), 199);
    assert!(forks.iter().all(|fork| fork.cause == Cause::NonceOrDate && fork.position == Some(1)));
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}
