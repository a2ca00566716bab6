//! A test for each reason that a call has by its place among others, and for verdicts.

use episode::Body;
use episode::{Call, ContinueReason, Continued, Outcome, VersionSpan};
use serde_json::json;

use super::*;
use crate::graph::derive::derive;
use crate::tests::fixture::{call, episode, reply, rows_of, text_call, with_bodies};

/// The reasons of each row, and the verdict on the episode.
fn found(calls: Vec<Call>) -> (Vec<Vec<&'static str>>, &'static str) {
    let episode = episode(calls);
    let rows = rows_of(&episode);
    let words = |reasons: &BTreeSet<Reason>| reasons.iter().map(|r| r.as_str()).collect();
    let derived = derive(&episode.calls);
    let (verdict, _) = Verdicts::new(&episode, &derived).of_episode();
    assert!(rows.iter().all(|row| row.episode_verdict == verdict));
    (rows.iter().map(|row| words(&row.reasons)).collect(), verdict)
}

fn asked(words: &[&str]) -> Vec<Value> {
    let roles = ["user", "assistant"].into_iter().cycle();
    roles.zip(words).map(|(role, text)| json!({ "role": role, "content": text })).collect()
}

fn worded(n: u32, ids: (&[u32], &[u32]), words: &[&str], answer: &str) -> Call {
    with_bodies(call(n, ids.0, &[ids.1]), &asked(words), answer)
}

fn lost(mut call: Call) -> Call {
    call.ended = None;
    call
}

#[test]
fn an_episode_is_as_good_as_all_its_paths() {
    let good = || call(1, &[1], &[&[2]]);
    let mut gone = call(2, &[1, 2, 3], &[&[4]]);
    reply(&mut gone).outcome = Outcome::ClientGone;
    assert_eq!(found(vec![good()]), (vec![vec![]], "exact"));
    let tried = vec![good(), gone.clone(), call(3, &[1, 2, 3], &[&[4]])];
    assert_eq!(found(tried), (vec![vec![], vec!["client_gone"]], "usable"));
    let mut alone = gone;
    reply(&mut alone).prompts[0] = vec![7];
    assert_eq!(found(vec![alone]), (vec![vec!["client_gone"]], "unusable"));
}

#[test]
fn a_prompt_that_says_more_than_the_template_is_named_and_exact() {
    let with = |reason| {
        let mut second = call(2, &[1, 2, 3], &[&[4]]);
        reply(&mut second).continued = Some(Continued { tokens: 2, reason });
        let third = call(3, &[1, 2, 3, 4, 5], &[&[6]]);
        found(vec![call(1, &[1], &[&[2]]), second, third])
    };
    let told = (vec![vec!["as_sampled"]], "exact");
    assert_eq!(with(Some(ContinueReason::AsSampled)), told);
    assert_eq!(with(Some(ContinueReason::StopCut)), (vec![vec![]], "exact"));
    assert_eq!(with(None), (vec![vec![]], "exact"));
}

#[test]
fn an_episode_without_a_row_has_a_verdict_too() {
    let episode = episode(vec![lost(call(1, &[1], &[&[2]]))]);
    let derived = derive(&episode.calls);
    let verdicts = Verdicts::new(&episode, &derived);
    assert_eq!(verdicts.of_episode(), ("unusable", [Reason::LostCall].into()));
}

#[test]
fn a_reply_that_was_tried_again_may_not_have_arrived() {
    let mut again = call(2, &[1], &[&[3]]);
    again.begun.lineage.retry = 1;
    let tries = vec![call(1, &[1], &[&[2]]), again.clone()];
    assert_eq!(found(tries.clone()).0, [vec![], vec!["delivery_uncertain"]]);
    // A call that quotes it says that it did arrive.
    let quoting = call(3, &[1, 2, 4], &[&[5]]);
    assert_eq!(found([tries, vec![quoting]].concat()).0, [vec![], vec![""; 0]]);
    again.begun.lineage.retry = 0;
    assert_eq!(found(vec![call(1, &[1], &[&[2]]), again]).0, [vec![""; 0], vec![]]);
}

#[test]
fn an_unrecorded_answer_is_a_hole_where_a_call_was_lost() {
    let first = worded(1, (&[1], &[2]), &["a"], "b");
    let second = || lost(worded(2, (&[], &[]), &["a", "b", "c"], ""));
    let third = worded(3, (&[1, 2, 3, 4, 5], &[6]), &["a", "b", "c", "d", "e"], "f");
    let calls = vec![first.clone(), second(), third.clone()];
    assert_eq!(found(calls).0, [["hole_after_lost_call", "lost_call"]]);
    // Nothing was lost: the agent put the words there itself.
    assert_eq!(found(vec![first.clone(), third]).0, [[""; 0]]);
    // The lost call was tried again, so its answer stands nowhere.
    let again = worded(3, (&[1, 2, 3], &[4]), &["a", "b", "c"], "d");
    assert_eq!(found(vec![first, second(), again]).0, [["lost_call"]]);
}

#[test]
fn what_was_sent_to_a_lost_call_is_not_its_answer() {
    // The agent begins with an example of its own.
    let example = ["a", "example", "b"];
    let sent = lost(worded(1, (&[], &[]), &example, ""));
    assert_eq!(
        found(vec![sent.clone(), worded(2, (&[1], &[2]), &example, "c")]).0,
        [["lost_call"]]
    );
    let answered = ["a", "example", "b", "answer", "c"];
    let next = worded(2, (&[1], &[2]), &answered, "d");
    assert_eq!(found(vec![sent, next]).0, [["hole_after_lost_call", "lost_call"]]);
}

#[test]
fn fewer_ids_than_counted_were_lost_by_a_parser() {
    let said = |message: Value, counted: u64| {
        let mut call = call(1, &[1], &[&[2, 3]]);
        reply(&mut call).usage.completion = Some(counted);
        let body = json!({ "choices": [{ "index": 0, "message": message }] });
        reply(&mut call).reply = Body::from(body.to_string());
        found(vec![call])
    };
    let plain = json!({ "content": "b" });
    let thought = json!({ "content": "b", "reasoning_content": "hm" });
    let called = json!({ "tool_calls": [{ "function": { "name": "f", "arguments": "{}" } }] });
    let differs = vec!["token_count_differs"];
    let lost = vec!["parser_lost_ids", "token_count_differs"];
    assert_eq!(said(plain, 5), (vec![differs.clone()], "usable"));
    assert_eq!(said(thought.clone(), 5), (vec![lost.clone()], "unusable"));
    assert_eq!(said(called, 5), (vec![lost], "unusable"));
    assert_eq!(said(thought.clone(), 2), (vec![vec![]], "exact"));
    assert_eq!(said(thought, 1), (vec![differs], "usable"));
}

#[test]
fn a_version_is_missing_where_others_are_known() {
    let second = |versions: Vec<VersionSpan>| {
        let mut call = call(2, &[1, 2, 3], &[&[4, 5, 6]]);
        reply(&mut call).choices[0].versions = versions;
        found(vec![crate::tests::fixture::call(1, &[1], &[&[2]]), call]).0
    };
    let span = |start, end| VersionSpan { version: "7".to_owned(), start, end };
    let whole = [[""; 0]];
    assert_eq!(second(vec![]), [["version_missing"]]);
    assert_eq!(second(vec![span(1, 3)]), [["version_missing"]]);
    assert_eq!(second(vec![span(2, 3), span(0, 1)]), [["version_missing"]]);
    assert_eq!(second(vec![span(1, 3), span(0, 1)]), whole);
    let mut silent = call(1, &[1], &[&[2]]);
    reply(&mut silent).choices[0].versions.clear();
    assert_eq!(found(vec![silent]).0, whole);
}

#[test]
fn words_without_ids_are_unusable() {
    assert_eq!(found(vec![text_call(1, &asked(&["a"]), "b")]).1, "unusable");
}
