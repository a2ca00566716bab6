//! Lines of a trace, and what is in none of them.

use episode::TokenCounts;
use serde_json::{Value, json};

use super::*;
use crate::output::jsonl;
use crate::tests::fixture::{call, choice, episode, reply, text_call};

/// The lines of a file that holds these calls, in the order in which an export meets them.
fn traced(builder: &mut TraceRecords, calls: Vec<Call>) -> Vec<Value> {
    let attempt = episode(calls);
    attempt.calls.iter().for_each(|call| builder.add_call(&attempt.record, call));
    builder.end_file();

    let mut out = Vec::new();
    while builder.pending().bytes() > 0 {
        jsonl::write(&builder.pending().take_batch().unwrap(), true, &mut out).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A call that arrived this many milliseconds after 1970.
fn at(ms: i64, prompt: &[u32], choices: &[&[u32]]) -> Call {
    let mut call = call(ms as u32 + 1, prompt, choices);
    call.begun.started_at = ms * 1000 + 400;
    call
}

fn ids(of: std::ops::Range<u32>) -> Vec<u32> {
    of.collect()
}

#[test]
fn a_line_has_when_it_came_and_how_long_it_was() {
    let later = at(7005, &ids(0..655), &[&[1; 52]]);
    let first = at(5000, &[9], &[&[1], &[2, 3]]);
    let lines = traced(&mut TraceRecords::new(), vec![later, first]);
    let first = json!({ "timestamp": 0, "input_length": 1, "output_length": 3, "hash_ids": [0] });
    let later =
        json!({ "timestamp": 2005, "input_length": 655, "output_length": 52, "hash_ids": [1, 2] });
    assert_eq!(lines, [first, later]);
}

#[test]
fn a_block_is_known_by_all_before_it() {
    let shared = ids(0..1024);
    let longer = [shared.clone(), ids(5000..5001)].concat();
    let other_start = [ids(9000..9512), ids(512..1024)].concat();
    let calls = [shared, longer, other_start, ids(0..1000)].map(|prompt| prompt.clone());
    let calls = (0..).zip(calls).map(|(ms, prompt)| at(ms, &prompt, &[&[1]])).collect();
    let lines = traced(&mut TraceRecords::new(), calls);
    let numbers: Vec<&Value> = lines.iter().map(|line| &line["hash_ids"]).collect();
    // The second block of the third prompt holds what that of the first does, behind another one.
    // The last block of the fourth has 488 ids of it.
    assert_eq!(numbers, [&json!([0, 1]), &json!([0, 1, 2]), &json!([3, 4]), &json!([0, 5])]);
}

#[test]
fn two_models_share_no_block() {
    let mut other = at(1, &[1, 2], &[&[3]]);
    other.ended.as_mut().unwrap().model = Some("other".to_owned());
    let lines = traced(&mut TraceRecords::new(), vec![at(0, &[1, 2], &[&[3]]), other]);
    assert_eq!((&lines[0]["hash_ids"], &lines[1]["hash_ids"]), (&json!([0]), &json!([1])));
}

#[test]
fn each_prompt_of_a_call_is_a_line() {
    let mut several = at(0, &[1, 2], &[&[3], &[4, 5]]);
    let ended = reply(&mut several);
    ended.prompts.push(ids(0..600));
    ended.choices[1].prompt_index = 1;
    let lines = traced(&mut TraceRecords::new(), vec![several]);
    let told = |line: &Value| (line["input_length"].clone(), line["output_length"].clone());
    let told: Vec<_> = lines.iter().map(told).collect();
    assert_eq!(told, [(json!(2), json!(1)), (json!(600), json!(2))]);
    assert_eq!(lines[1]["hash_ids"], json!([1, 2]));
}

#[test]
fn without_ids_the_server_s_counts_are_taken_and_counted() {
    let mut counted = text_call(1, &[], "hello");
    reply(&mut counted).usage = TokenCounts { prompt: Some(700), completion: Some(30) };
    let mut unsampled = call(2, &[1, 2, 3], &[]);
    let ended = reply(&mut unsampled);
    ended.choices = vec![episode::Choice { token_ids: None, ..choice(0, &[]) }];
    ended.usage.completion = Some(4);
    let mut silent = text_call(3, &[], "hello");
    reply(&mut silent).choices = reply(&mut unsampled.clone()).choices.clone();

    let mut builder = TraceRecords::new();
    let lines = traced(&mut builder, vec![counted, unsampled, silent]);
    let expected = [
        json!({ "timestamp": 0, "input_length": 700, "output_length": 30 }),
        json!({ "timestamp": 0, "input_length": 3, "output_length": 4, "hash_ids": [0] }),
    ];
    assert_eq!(lines, expected);
    let left = |reason| builder.omissions().get(reason).map(|left| left.count);
    assert_eq!(left("calls_without_prompt_ids"), Some(1));
    assert_eq!(left("calls_without_lengths"), Some(1));
}

#[test]
fn a_call_that_no_model_answered_is_no_line() {
    let mut running = call(1, &[1], &[&[2]]);
    running.ended = None;
    let mut refused = call(2, &[1], &[]);
    reply(&mut refused).outcome = Outcome::Refused;
    let mut left_early = call(3, &[1], &[&[2]]);
    reply(&mut left_early).outcome = Outcome::ClientGone;
    let mut left_at_once = call(4, &[1], &[&[]]);
    reply(&mut left_at_once).outcome = Outcome::ClientGone;

    let mut given_again = call(5, &[1], &[&[2]]);
    reply(&mut given_again).replayed = Some(given_again.begun.call_id);

    let mut builder = TraceRecords::new();
    let calls = vec![running, refused, left_early, left_at_once, given_again];
    assert_eq!(traced(&mut builder, calls).len(), 1);
    assert_eq!(builder.omissions()["calls_without_answer"].count, 3);
    assert_eq!(builder.omissions()["calls_given_again"].count, 1);
}

#[test]
fn no_word_and_no_id_is_in_a_trace() {
    let said = json!({ "role": "user", "content": "the secret word" });
    let known = crate::tests::fixture::with_bodies(
        at(0, &[70001, 70002], &[&[70003]]),
        std::slice::from_ref(&said),
        "a secret answer",
    );
    let mut other = at(1, &[70001, 70002, 70003], &[&[70004]]);
    other.begun.model = Some("secret-model".to_owned());
    let lines = traced(&mut TraceRecords::new(), vec![known, other]);

    let numbers = |line: &Value| {
        let line = line.as_object().unwrap();
        let hashes = line["hash_ids"].as_array().unwrap().iter();
        let others = line.iter().filter(|(name, _)| *name != "hash_ids").map(|(_, value)| value);
        others.chain(hashes).map(|number| number.as_i64().unwrap()).collect::<Vec<_>>()
    };
    // All that a line may hold is numbers, none of which is an id; hashes are dense.
    let expected = [vec![0, 2, 1, 0], vec![1, 3, 1, 1]];
    let mut found: Vec<Vec<i64>> = lines.iter().map(numbers).collect();
    found.iter_mut().chain(&mut expected.clone()).for_each(|line| line.sort_unstable());
    assert!(found.iter().flatten().all(|number| *number < 4), "{found:?}");
    let names: Vec<&String> = lines[0].as_object().unwrap().keys().collect();
    assert_eq!(names, ["timestamp", "input_length", "output_length", "hash_ids"]);
}

#[test]
fn a_long_trace_is_several_batches_and_a_file_begins_anew() {
    let calls = |count: i64| (0..count).map(|ms| at(ms, &[ms as u32], &[&[1]])).collect::<Vec<_>>();
    let mut builder = TraceRecords::new();
    let many = traced(&mut builder, calls(BATCH_LINES as i64 + 10));
    let last = many.last().unwrap();
    assert_eq!(many.len(), BATCH_LINES + 10);
    assert_eq!(last["hash_ids"], json!([BATCH_LINES + 9]));
    let mut next = calls(3);
    next.remove(0);
    let lines = traced(&mut builder, next);
    assert_eq!((&lines[0]["timestamp"], &lines[1]["hash_ids"]), (&json!(0), &json!([1])));
}
