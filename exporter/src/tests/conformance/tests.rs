//! One test or more for each case that an exporter meets; the numbers are those of the table.

use arrow::array::AsArray;
use arrow::datatypes::Int32Type;
use episode::Body;
use episode::{Call, CallKind, Outcome, Reward, RewardScope, Route, TokenColumn, VersionSpan};
use serde_json::{Value, json};

use super::{
    check, check_causes, messages, said, said_without_ids, with_messages, with_tools, without_ids,
};
use crate::formats::records::record_builder;
use crate::input::plan::AttemptNumbers;
use crate::options::format::Format;
use crate::rows::builder::RowExtras;
use crate::rows::row::Row;
use crate::tests::fixture::{beside, call, choice, chosen, episode, reply, rows_of};
use crate::{DropReason, Reason, SharedTokens, trajectories};

fn rows(calls: Vec<Call>) -> Vec<Row> {
    rows_of(&episode(calls))
}

/// The same call by an agent of that name.
fn by(agent: &str, kind: CallKind, mut call: Call) -> Call {
    call.begun.lineage.agent = (!agent.is_empty()).then(|| agent.to_owned());
    call.begun.lineage.kind = kind;
    call
}

fn ended(outcome: Outcome, mut call: Call) -> Call {
    reply(&mut call).outcome = outcome;
    call
}

#[test]
fn row_01_reasoning_left_out_makes_a_row_of_its_own() {
    // 30 and 31 are the reasoning, 9 the end of the turn.
    let calls = vec![
        said(1, (&[1, 2], &[30, 31, 3, 9]), &["a"], "b"),
        said(2, (&[1, 2, 3, 9, 4], &[30, 5, 9]), &["a", "b", "c"], "d"),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.57, exact
           1 2 [30 31 3 9]
         1 main (rewritten_history) from 0 at 2, weighs 0.43, exact
           1 2 3 9 4 [30 5 9]",
    );
    // The agent went on from the first row, though not token for token.
    let continued: Vec<_> = rows(calls).iter().map(|row| row.turns[0].continued).collect();
    assert_eq!(continued, [Some(true), Some(false)]);
}

#[test]
fn row_01_dropped_reasoning_is_told_from_cut_reasoning() {
    let thought = json!({ "role": "assistant", "content": "b", "reasoning_content": "hm" });
    let first = || with_messages(call(1, &[1, 2], &[&[30, 31, 3, 9]]), &messages(&["a"]), &thought);
    let next = |answer: &serde_json::Value| {
        let [user, more] = [&messages(&["a"])[0], &messages(&["c"])[0]].map(Clone::clone);
        with_messages(
            call(2, &[1, 2, 3, 9, 4], &[&[5]]),
            &[user, answer.clone(), more],
            &json!("d"),
        )
    };
    let dropped = next(&json!({ "role": "assistant", "content": "b" }));
    check_causes(vec![first(), dropped], &[("thinking_stripped", Some(2))]);
    check_causes(vec![first(), next(&thought)], &[("thinking_cut_by_template", Some(2))]);
}

#[test]
fn row_02_other_ids_for_the_same_text_are_never_glued() {
    // The server sampled 2 3; the template's tokenizer reads the same text as 23.
    let calls = vec![
        said(1, (&[1], &[2, 3]), &["a"], "b"),
        said(2, (&[1, 23, 4], &[5]), &["a", "b", "c"], "d"),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.67, exact
           1 [2 3]
         1 main (rewritten_history) from 0 at 1, weighs 0.33, exact
           1 23 4 [5]",
    );
    check_causes(calls, &[("retokenized", Some(1))]);
}

fn tool_call(id: &str, arguments: &str) -> serde_json::Value {
    json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": id, "type": "function",
        "function": { "name": "f", "arguments": arguments } }] })
}

/// A call that answers with a tool call, and the next one, which writes it in its own way.
fn respelled(sent: &str, quoted: &str) -> [Call; 2] {
    let first = messages(&["a"]);
    let told = json!({ "role": "tool", "tool_call_id": "x", "content": "ok" });
    let history = [first[0].clone(), tool_call("x", quoted), told];
    [
        with_messages(call(1, &[1], &[&[2]]), &first, &tool_call("x", sent)),
        with_messages(call(2, &[1, 2, 3], &[&[4]]), &history, &json!("done")),
    ]
}

#[test]
fn row_03_respelled_arguments_do_not_fork() {
    let calls = respelled("{\"x\": 1, \"y\": 2}", "{\"y\":2,\"x\":1}");
    check(
        calls.to_vec(),
        "0 main (first_conversation), weighs 1.00, exact
           1 [2] 3 [4]",
    );
    check(
        calls.map(without_ids).to_vec(),
        "0 main (first_conversation), weighs 0.00, unusable: no_token_ids
           user: a | assistant:  | tool: ok | assistant: done",
    );
}

#[test]
fn row_03_arguments_in_other_tokens_are_the_cause() {
    let [first, mut next] = respelled("{\"x\": 1, \"y\": 2}", "{\"y\":2,\"x\":1}");
    reply(&mut next).prompts[0] = vec![1, 20, 3];
    check_causes(vec![first, next], &[("arguments_reserialized", Some(1))]);
}

#[test]
fn row_04_arguments_as_a_string_are_exported_as_an_object() {
    let calls = respelled("{\"x\": 1}", "{\"x\":1}").to_vec();
    let sent = calls[1].begun.request.clone();
    let said = rows(calls.clone()).remove(0).dialogue.completion[0].tool_calls.clone().unwrap();
    assert!(said[0].contains(r#""arguments":{"x":1}"#), "{said:?}");
    assert_eq!(calls[1].begun.request, sent, "the agent's bytes are not touched");
}

#[test]
fn row_05_a_default_that_appears_in_a_tool_is_another_prompt() {
    let [loose, strict] = [json!([{ "name": "f" }]), json!([{ "name": "f", "strict": false }])];
    let calls = vec![
        with_tools(said(1, (&[70, 1], &[2]), &["a"], "b"), &loose),
        with_tools(said(2, (&[71, 1, 2, 3], &[4]), &["a", "b", "c"], "d"), &strict),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.50, exact
           70 1 [2]
         1 main (rewritten_history) from 0 at 0, weighs 0.50, exact
           71 1 2 3 [4]",
    );
    check_causes(calls.clone(), &[("tools_changed", Some(0))]);
    let tools: Vec<_> = rows(calls).into_iter().map(|row| row.dialogue.tools).collect();
    assert_eq!(tools, [loose, strict].map(|tools| vec![tools[0].to_string()]));
}

#[test]
fn row_06_another_set_of_tools_begins_another_row() {
    let [one, two] = [json!([{ "name": "f" }]), json!([{ "name": "f" }, { "name": "g" }])];
    let calls = vec![
        with_tools(said_without_ids(1, &["a"], "b"), &one),
        with_tools(said_without_ids(2, &["a", "b", "c"], "d"), &two),
        with_tools(said_without_ids(3, &["a", "b", "c", "d", "e"], "f"), &two),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.00, unusable: no_token_ids
           user: a | assistant: b
         1 main (rewritten_history) from 0 at 0, weighs 0.00, unusable: no_token_ids
           user: a | assistant: b | user: c | assistant: d | user: e | assistant: f",
    );
    check_causes(calls, &[("tools_changed", None)]);
}

#[test]
fn row_07_the_seam_between_two_turns_is_prompt() {
    // 9 ends a turn, 10 is the newline after it, 11 the next header. The server reports 9 as
    // sampled in the first turn, and stops without it in the second.
    let calls = vec![
        call(1, &[1], &[&[2, 9]]),
        call(2, &[1, 2, 9, 10, 11], &[&[3]]),
        call(3, &[1, 2, 9, 10, 11, 3, 9, 10, 11], &[&[4, 9]]),
    ];
    check(
        calls,
        "0 main (first_conversation), weighs 1.00, exact
           1 [2 9] 10 11 [3] 9 10 11 [4 9]",
    );
}

#[test]
fn row_08_a_stop_token_that_begins_the_next_role_stands_once() {
    // 91 says that the user speaks, 92 that a tool does. Both end what was sampled.
    let calls = vec![
        said(1, (&[1], &[2, 91]), &["a"], "b"),
        said(2, (&[1, 2, 91, 3], &[4, 92]), &["a", "b", "c"], "d"),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 1.00, exact
           1 [2 91] 3 [4 92]",
    );
    // The model waited for a tool and the agent spoke: what was sampled is not what was sent.
    let spoken = said(3, (&[1, 2, 91, 3, 4, 91, 5], &[6]), &["a", "b", "c", "d", "e"], "f");
    check(
        [calls.clone(), vec![spoken.clone()]].concat(),
        "0 main (first_conversation), weighs 0.80, exact
           1 [2 91] 3 [4 92]
         1 main (rewritten_history) from 0 at 5, weighs 0.20, exact
           1 (2 91) 3 4 91 5 [6]",
    );
    check_causes([calls, vec![spoken]].concat(), &[("seam", Some(5))]);
}

#[test]
fn row_09_the_server_says_where_sampling_began() {
    // 60 opens the reasoning: by the template in one call, sampled in the other.
    check(
        vec![call(1, &[1, 60], &[&[2]]), call(2, &[1], &[&[60, 3]])],
        "0 main (first_conversation), weighs 0.33, exact
           1 60 [2]
         1 fork (new_conversation), weighs 0.67, exact
           1 [60 3]",
    );
}

#[test]
fn row_10_a_turn_cut_by_its_length_says_so_and_may_go_on() {
    let mut cut = call(1, &[1], &[&[2, 3]]);
    reply(&mut cut).choices[0].finish_reason = Some("length".to_owned());
    let calls = vec![cut.clone(), call(2, &[1, 2, 3], &[&[4, 9]])];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 1.00, exact
           1 [2 3] [4 9]",
    );
    let row = rows(calls).remove(0);
    assert_eq!(row.turns[0].finish_reason.as_deref(), Some("length"));
    assert_eq!(row.status, "completed");
    assert_eq!(rows(vec![cut])[0].status, "truncated");
}

#[test]
fn row_11_all_choices_are_kept_the_continued_one_is_marked() {
    let calls = vec![call(1, &[1], &[&[2], &[3], &[4]]), call(2, &[1, 3, 5], &[&[6]])];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.50, exact
           1 [3] 5 [6]
         1 sibling (same_prompt) from 0 at 1, weighs 0.25, exact
           1 [2]
         2 sibling (same_prompt) from 0 at 1, weighs 0.25, exact
           1 [4]",
    );
    let marks: Vec<_> =
        rows(calls).iter().map(|r| (r.turns[0].choice, r.turns[0].continued)).collect();
    assert_eq!(marks, [(1, Some(true)), (0, Some(false)), (2, Some(false))]);
}

#[test]
fn row_12_one_prompt_asked_many_times_is_not_deduplicated() {
    let same = || vec![call(1, &[1], &[&[2]]), call(2, &[1], &[&[2]]), call(3, &[1], &[&[4]])];
    check(
        same(),
        "0 main (first_conversation), weighs 0.33, exact
           1 [2]
         1 sibling (same_prompt) from 0 at 1, weighs 0.33, exact
           1 [2]
         2 sibling (same_prompt) from 0 at 1, weighs 0.33, exact
           1 [4]",
    );
    // The one that was continued leads; where two equal ones may be, nothing is guessed.
    check(
        [same(), vec![call(4, &[1, 4, 5], &[&[6]])]].concat(),
        "0 main (first_conversation), weighs 0.50, exact
           1 [4] 5 [6]
         1 sibling (same_prompt) from 0 at 1, weighs 0.25, exact
           1 [2]
         2 sibling (same_prompt) from 0 at 1, weighs 0.25, exact
           1 [2]",
    );
    let mut unclear = [same(), vec![call(4, &[1, 2, 5], &[&[6]])]].concat();
    unclear.iter_mut().take(2).for_each(|call| reply(call).ended_at = 30);
    check(
        unclear.clone(),
        "0 main (first_conversation), weighs 0.25, exact
           1 [2]
         1 sibling (same_prompt) from 0 at 1, weighs 0.25, exact
           1 [2]
         2 sibling (same_prompt) from 0 at 1, weighs 0.25, exact
           1 [4]
         3 fork (ambiguous_parent), weighs 0.25, usable: ambiguous_parent
           1 2 5 [6]",
    );
    let marks: Vec<_> = rows(unclear).iter().map(|row| row.turns[0].continued).collect();
    assert_eq!(marks, [None, None, Some(false), Some(false)]);
}

#[test]
fn row_13_a_retry_takes_the_place_of_the_try_before_it() {
    let lost = ended(Outcome::ClientGone, call(2, &[1, 2, 3], &[&[4, 5]]));
    let mut counted = call(3, &[1, 2, 3], &[&[6]]);
    counted.begun.lineage.retry = 1;
    check(
        vec![call(1, &[1], &[&[2]]), lost.clone(), counted.clone()],
        "0 main (first_conversation), weighs 1.00, exact
           1 [2] 3 [6]
         1 retry (after_failure) from 0 at 3, weighs 0.00, unusable: client_gone
           1 (2) 3 (4 5)",
    );
    // Whole for the server, but the client counts another try.
    check(
        vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 3], &[&[4]]), counted],
        "0 main (first_conversation), weighs 0.67, exact
           1 [2] 3 [6]
         1 retry (retry_count) from 0 at 3, weighs 0.33, usable: delivery_uncertain
           1 (2) 3 [4]",
    );
    // Two at once are not one after the other, even if one of them fails.
    let mut long = lost.clone();
    reply(&mut long).ended_at = 99;
    check(
        vec![call(1, &[1], &[&[2]]), long, call(3, &[1, 2, 3], &[&[6]])],
        "0 main (first_conversation), weighs 1.00, exact
           1 [2] 3 [6]
         1 sibling (same_prompt) from 0 at 3, weighs 0.00, unusable: client_gone
           1 (2) 3 (4 5)",
    );
    // The last try failed too: nothing of it is trained.
    check(
        vec![call(1, &[1], &[&[2]]), lost],
        "0 main (first_conversation), weighs 1.00, usable: client_gone
           1 [2] 3 (4 5)",
    );
}

#[test]
fn row_14_a_client_that_starts_over_is_not_refused() {
    check(
        vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 3], &[&[4]]),
            call(3, &[1], &[&[5]]),
            call(4, &[1, 5, 3], &[&[6]]),
        ],
        "0 main (first_conversation), weighs 0.50, exact
           1 [2] 3 [4]
         1 fork (left_history) from 0 at 1, weighs 0.50, exact
           1 [5] 3 [6]",
    );
}

#[test]
fn row_15_an_unawaited_reply_is_kept_and_not_trained() {
    let gone = ended(Outcome::ClientGone, call(2, &[1, 2, 3], &[&[4]]));
    let calls = vec![call(1, &[1], &[&[2]]), gone];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 1.00, usable: client_gone
           1 [2] 3 (4)",
    );
    assert_eq!(rows(calls)[0].status, "aborted");
}

#[test]
fn row_16_quotes_tell_which_reply_arrived() {
    let calls = vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 3], &[&[4]])];
    let continued: Vec<_> = rows(calls)[0].turns.iter().map(|turn| turn.continued).collect();
    assert_eq!(continued, [Some(true), Some(false)]);
}

#[test]
fn row_19_a_call_that_still_runs_marks_its_episode() {
    let mut running = call(2, &[1, 2, 3], &[&[4]]);
    running.ended = None;
    check(
        vec![call(1, &[1], &[&[2]]), running],
        "0 main (first_conversation), weighs 1.00, usable: lost_call
           1 [2]",
    );
}

#[test]
fn row_20_attempts_do_not_mix() {
    let mut second = episode(vec![call(1, &[1], &[&[2]])]);
    second.record.attempt = 1;
    let row = &rows_of(&second)[0];
    assert_eq!((row.attempt, row.trajectory_id.as_str(), row.row_weight), (1, "e/1/0", 1.0));
}

/// An episode whose history is replaced by a summary, and that goes on.
fn compacted() -> Vec<Call> {
    let summary = "text <summary>so far</summary>";
    let compacted = said(3, (&[1, 2, 3, 4, 8], &[9]), &["a", "b", "c", "d", "sum up"], summary);
    vec![
        said(1, (&[1], &[2]), &["a"], "b"),
        said(2, (&[1, 2, 3], &[4]), &["a", "b", "c"], "d"),
        by("", CallKind::Compaction, compacted),
        said(4, (&[1, 9, 5], &[6]), &["it was: so far. go on"], "e"),
        said(5, (&[1, 9, 5, 6, 7], &[8]), &["it was: so far. go on", "e", "f"], "g"),
    ]
}

#[test]
fn row_21_a_summary_is_a_path_beside_the_main_one() {
    check(
        compacted(),
        "0 main (first_conversation), weighs 0.40, exact
           1 [2] 3 [4]
         1 compaction (lineage) from 0 at 4, weighs 0.20, exact
           1 (2) 3 (4) 8 [9]
         2 main (after_summary) from 1 at 1, weighs 0.40, exact
           1 9 5 [6] 7 [8]",
    );
    // A summary that nothing follows is a path all the same, and can be left out by its kind.
    let rejected = by("", CallKind::Compaction, call(2, &[1, 2, 8], &[&[9]]));
    check(
        vec![call(1, &[1], &[&[2]]), rejected, call(3, &[1, 2, 3], &[&[4]])],
        "0 main (first_conversation), weighs 0.67, exact
           1 [2] 3 [4]
         1 compaction (lineage) from 0 at 2, weighs 0.33, exact
           1 (2) 8 [9]",
    );
}

#[test]
fn row_21_one_place_a_prompt_gets_the_row_that_trains_most() {
    let mut builder = record_builder(Format::Trl, 0.0);
    for attempt in 0..8 {
        let plain = || vec![said(1, (&[1], &[2]), &["a"], "b")];
        let calls = if attempt == 2 { compacted() } else { plain() };
        for row in chosen(&episode(calls), Format::Trl.kinds(), SharedTokens::Once) {
            builder.add_row(row, AttemptNumbers::default());
        }
        builder.end_attempt();
    }
    builder.end_file();
    let left = crate::Omission { count: 1, trained_tokens: 2 };
    assert_eq!(builder.omissions(), [("rows_that_train_less", left)].into());
    let found = builder.pending().take_batch().unwrap();
    assert_eq!(found.num_rows(), 8, "a row for each attempt");
    let ids = |column: &str, row| {
        let ids = found[column].as_list::<i32>().value(row);
        ids.as_primitive::<Int32Type>().values().to_vec()
    };
    assert!((0..8).all(|row| ids("prompt_ids", row) == [1]), "all answer the group's prompt");
    assert_eq!(ids("completion_ids", 2), [2, 3, 4]);
}

#[test]
fn row_22_headers_or_instructions_tell_a_subagent() {
    let main = || said(1, (&[1], &[2]), &["system: lead", "a"], "b");
    let sub = said(2, (&[5], &[6]), &["system: search", "c"], "d");
    check(
        vec![main(), by("s", CallKind::Subagent, sub.clone())],
        "0 main (first_conversation), weighs 0.50, exact
           1 [2]
         1 subagent (lineage), weighs 0.50, exact
           5 [6]",
    );
    // Of a conversation without instructions nothing is known.
    check(
        vec![main(), said(2, (&[5], &[6]), &["c"], "d")],
        "0 main (first_conversation), weighs 0.50, exact
           1 [2]
         1 fork (new_conversation), weighs 0.50, exact
           5 [6]",
    );
    check(
        vec![main(), sub],
        "0 main (first_conversation), weighs 0.50, exact
           1 [2]
         1 subagent (other_instructions), weighs 0.50, exact
           5 [6]",
    );
}

#[test]
fn row_23_a_subagent_with_history_trains_its_own_tokens() {
    check(
        vec![
            call(1, &[1], &[&[2]]),
            by("s", CallKind::Subagent, call(2, &[1, 2, 8], &[&[9]])),
            by("s", CallKind::Subagent, call(3, &[1, 2, 8, 9, 8], &[&[7]])),
            call(4, &[1, 2, 3], &[&[4]]),
        ],
        "0 main (first_conversation), weighs 0.50, exact
           1 [2] 3 [4]
         1 subagent (lineage) from 0 at 2, weighs 0.50, exact
           1 (2) 8 [9] 8 [7]",
    );
}

#[test]
fn row_24_parallel_subagents_are_told_apart_by_content() {
    let calls = vec![
        call(1, &[1], &[&[2]]),
        by("s", CallKind::Subagent, call(2, &[5], &[&[6]])),
        by("t", CallKind::Subagent, call(3, &[7], &[&[8]])),
        by("t", CallKind::Subagent, call(4, &[7, 8, 0], &[&[8]])),
        call(5, &[1, 2, 3], &[&[4]]),
        by("s", CallKind::Subagent, call(6, &[5, 6, 0], &[&[6]])),
    ];
    check(
        calls,
        "0 main (first_conversation), weighs 0.33, exact
           1 [2] 3 [4]
         1 subagent (lineage), weighs 0.33, exact
           5 [6] 0 [6]
         2 subagent (lineage), weighs 0.33, exact
           7 [8] 0 [8]",
    );
}

#[test]
fn row_25_parallel_tool_calls_are_joined_by_their_index() {
    let delta = |index: u32, rest: serde_json::Value| {
        let mut call = rest;
        call["index"] = json!(index);
        let choice = json!({ "index": 0, "delta": { "tool_calls": [call] } });
        format!("data: {}\n\n", json!({ "choices": [choice] }))
    };
    let named = |id: &str, name: &str| json!({ "id": id, "function": { "name": name } });
    let piece = |text: &str| json!({ "function": { "arguments": text } });
    let mut call = said(1, (&[1], &[2]), &["a"], "");
    reply(&mut call).reply = Body::from(
        [
            delta(0, named("x", "f")),
            delta(1, named("y", "g")),
            delta(1, piece("{\"m\":")),
            delta(0, piece("{\"n\":1}")),
            delta(1, piece("2}")),
            "data: [DONE]\n\n".to_owned(),
        ]
        .concat(),
    );
    let calls = rows(vec![call])[0].dialogue.completion[0].tool_calls.clone().unwrap();
    let called: Vec<serde_json::Value> =
        calls.iter().map(|call| serde_json::from_str(call).unwrap()).collect();
    assert_eq!(called[0]["function"], json!({ "name": "f", "arguments": { "n": 1 } }));
    assert_eq!(called[1]["function"], json!({ "name": "g", "arguments": { "m": 2 } }));
}

#[test]
fn row_26_calls_beside_the_conversation_are_told() {
    let tools = json!([{ "name": "f" }]);
    let mut quota = said(1, (&[7], &[8]), &["quota"], "x");
    quota.begun.sampling = Some(r#"{"max_tokens":1}"#.to_owned());
    let mut small = said(3, (&[6], &[5]), &["name this: a"], "t");
    small.begun.model = Some("small".to_owned());
    let title = by("", CallKind::Auxiliary, said(4, (&[6, 6], &[5]), &["title of a"], "t"));
    let mut count = call(5, &[1], &[&[2]]);
    count.begun.route = episode::Route::CountTokens;
    let main = with_tools(said(2, (&[1], &[2]), &["a"], "b"), &tools);
    let calls = vec![quota, main, small, title, count];
    check(
        calls.clone(),
        "0 auxiliary (one_token), weighs 0.25, exact
           7 [8]
         1 main (first_conversation), weighs 0.25, exact
           1 [2]
         2 auxiliary (other_model_without_tools), weighs 0.25, exact
           6 [5]
         3 auxiliary (lineage), weighs 0.25, exact
           6 6 [5]",
    );
    assert_eq!(trajectories(&calls).1.dropped, [(DropReason::OtherRoute, 1)].into());
}

#[test]
fn row_27_a_nonce_in_the_first_block_shows_where_it_stands() {
    let calls = vec![
        said(1, (&[1, 50, 2], &[3]), &["system: cch=50", "a"], "b"),
        said(2, (&[1, 51, 2, 3, 4], &[5]), &["system: cch=51", "a", "b", "c"], "d"),
        said(3, (&[1, 52, 2, 3, 4, 5, 6], &[7]), &["system: cch=52", "a", "b", "c", "d", "e"], "f"),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.33, exact
           1 50 2 [3]
         1 main (rewritten_history) from 0 at 1, weighs 0.33, exact
           1 51 2 3 4 [5]
         2 main (rewritten_history) from 1 at 1, weighs 0.33, exact
           1 52 2 3 4 5 6 [7]",
    );
    check_causes(calls, &[("nonce_or_date", Some(1)), ("nonce_or_date", Some(1))]);
}

#[test]
fn row_28_a_clock_in_the_instructions_is_not_another_agent() {
    let at = |time: &str| format!("system: it is {time}");
    let calls = vec![
        said(1, (&[1, 50, 2], &[3]), &[&at("noon"), "a"], "b"),
        said(2, (&[1, 51, 2, 3, 4], &[5]), &[&at("one"), "a", "b", "c"], "d"),
    ];
    check(
        calls,
        "0 main (first_conversation), weighs 0.50, exact
           1 50 2 [3]
         1 main (rewritten_history) from 0 at 1, weighs 0.50, exact
           1 51 2 3 4 [5]",
    );
}

#[test]
fn row_28_a_clock_of_digits_is_named_as_the_cause() {
    let at = |time: &str| format!("system: it is {time}");
    let first = said(1, (&[1, 50, 2], &[3]), &[&at("2026-11-21 09:15"), "a"], "b");
    let next = |time: &str| said(2, (&[1, 51, 2, 3, 4], &[5]), &[&at(time), "a", "b", "c"], "d");
    let calls = |time: &str| vec![first.clone(), next(time)];
    check_causes(calls("2026-11-21 09:16"), &[("nonce_or_date", Some(1))]);
    check_causes(calls("late"), &[("instructions_changed", Some(1))]);
}

#[test]
fn row_29_a_system_message_is_exported_where_it_stands() {
    let note = json!({ "role": "system", "content": "be brief" });
    let first = messages(&["a"]);
    let history =
        [first.clone(), vec![json!({ "role": "assistant", "content": "b" }), note]].concat();
    let calls = vec![
        said_without_ids(1, &["a"], "b"),
        without_ids(with_messages(call(2, &[], &[&[]]), &history, &json!("c"))),
    ];
    check(
        calls,
        "0 main (first_conversation), weighs 0.00, unusable: no_token_ids
           user: a | assistant: b | system: be brief | assistant: c",
    );
}

#[test]
fn row_30_spellings_of_one_message_are_one() {
    let answer = json!({ "role": "assistant", "content": null, "reasoning_content": "hm",
        "tool_calls": [{ "id": "x", "type": "function",
            "function": { "name": "f", "arguments": "{}" } }] });
    let quoted = json!({ "role": "assistant", "content": "", "reasoning": "hm",
        "tool_calls": [{ "id": "call_9", "type": "function",
            "function": { "name": "f", "arguments": "{}" } }] });
    let told = json!({ "role": "tool", "tool_call_id": "call_9", "content": "ok" });
    let history = [messages(&["a"]), vec![quoted, told]].concat();
    let calls = vec![
        without_ids(with_messages(call(1, &[], &[&[]]), &messages(&["a"]), &answer)),
        without_ids(with_messages(call(2, &[], &[&[]]), &history, &json!("done"))),
    ];
    check(
        calls,
        "0 main (first_conversation), weighs 0.00, unusable: no_token_ids
           user: a | assistant:  | tool: ok | assistant: done",
    );
}

#[test]
fn row_31_the_names_of_agents_tell_equal_paths_apart() {
    let calls = vec![
        by("s", CallKind::Subagent, call(1, &[1], &[&[2]])),
        by("t", CallKind::Subagent, call(2, &[1], &[&[2]])),
        by("s", CallKind::Subagent, call(3, &[1, 2, 3], &[&[4]])),
    ];
    check(
        calls,
        "0 subagent (lineage), weighs 0.67, exact
           1 [2] 3 [4]
         1 subagent (lineage), weighs 0.33, exact
           1 [2]",
    );
}

#[test]
fn row_33_an_overflow_that_was_refused_leaves_the_rest_as_it_is() {
    let mut refused = ended(Outcome::Refused, call(2, &[], &[]));
    reply(&mut refused).status = Some(400);
    reply(&mut refused).prompts.clear();
    let calls = vec![call(1, &[1], &[&[2]]), refused];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 1.00, exact
           1 [2]",
    );
    assert_eq!(trajectories(&calls).1.dropped, [(DropReason::NoReply, 1)].into());
}

#[test]
fn row_34_sampling_that_an_agent_set_itself_is_told() {
    let mut warm = call(2, &[1, 2, 3], &[&[4]]);
    warm.begun.sampling = Some(r#"{"temperature":0.5}"#.to_owned());
    reply(&mut warm).logprob_kind = "raw".to_owned();
    let calls = vec![call(1, &[1], &[&[2]]), warm];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 1.00, usable: logprobs_not_of_sampling_distribution
           1 [2] 3 [4]",
    );
    let temperatures: Vec<_> = rows(calls)[0].turns.iter().map(|turn| turn.temperature).collect();
    assert_eq!(temperatures, [None, Some(0.5)]);
}

#[test]
fn row_35_weights_that_change_in_mid_reply_are_told_by_token() {
    let mut swapped = call(1, &[1], &[&[2, 3, 4]]);
    let span = |version: &str, start, end| VersionSpan { version: version.to_owned(), start, end };
    reply(&mut swapped).choices[0].versions = vec![span("7", 0, 1), span("8", 1, 3)];
    let row = rows(vec![swapped]).remove(0);
    assert_eq!(row.tokens.versions, [-1, 7, 8, 8]);
    assert_eq!((row.turns[0].version_start, row.turns[0].version_end), (Some(7), Some(8)));
    assert_eq!(row.tokens.trained_versions().min(), Some(7));
    assert_eq!(row.tokens.trained_versions().max(), Some(8));
    assert_eq!(row.mixed_versions, Some(true));
    assert_eq!(rows(vec![call(1, &[1], &[&[2]])])[0].mixed_versions, Some(false));
}

#[test]
fn row_36_ids_that_a_server_swallowed_are_told_by_its_counts() {
    let mut short = call(1, &[1], &[&[2, 3]]);
    reply(&mut short).usage.completion = Some(5);
    check(
        vec![short],
        "0 main (first_conversation), weighs 1.00, usable: token_count_differs
           1 [2 3]",
    );
    let mut uneven = call(1, &[1], &[&[2, 3]]);
    reply(&mut uneven).choices[0].logprobs.pop();
    check(
        vec![uneven],
        "0 main (first_conversation), weighs 0.00, unusable: logprob_count_differs
           1 (2 3)",
    );
}

#[test]
fn row_36_ids_that_a_parser_held_back_are_not_trained() {
    let mut short =
        with_messages(call(1, &[1], &[&[2, 3]]), &messages(&["a"]), &tool_call("x", "{}"));
    reply(&mut short).usage.completion = Some(5);
    check(
        vec![short],
        "0 main (first_conversation), weighs 0.00, unusable: parser_lost_ids, token_count_differs
           1 (2 3)",
    );
}

#[test]
fn row_37_an_answer_of_a_lost_call_is_a_hole_in_what_follows() {
    let mut lost = said(2, (&[], &[]), &["a", "b", "c"], "");
    lost.ended = None;
    let next = said(3, (&[1, 2, 3, 4, 5], &[6]), &["a", "b", "c", "d", "e"], "f");
    check(
        vec![said(1, (&[1], &[2]), &["a"], "b"), lost, next],
        "0 main (first_conversation), weighs 1.00, usable: hole_after_lost_call, lost_call
           1 [2] 3 4 5 [6]",
    );
}

#[test]
fn row_37_a_turn_without_ids_is_prompt_to_what_follows() {
    let calls = vec![
        said(1, (&[1], &[2]), &["a"], "b"),
        without_ids(said(2, (&[], &[]), &["a", "b", "c"], "d")),
        said(3, (&[1, 2, 3, 4, 5], &[6]), &["a", "b", "c", "d", "e"], "f"),
    ];
    // 4 was sampled by the second call, but no server said so: it is not trained.
    check(
        calls,
        "0 main (first_conversation), weighs 1.00, usable: call_without_token_ids
           1 [2] 3 4 5 [6]
         1 main (ids_missing) from 0 at 0, weighs 0.00, unusable: no_token_ids
           user: a | assistant: b | user: c | assistant: d",
    );
}

#[test]
fn row_38_a_server_without_ids_still_gives_messages() {
    check(
        vec![said_without_ids(1, &["a"], "b"), said_without_ids(2, &["a", "b", "c"], "d")],
        "0 main (first_conversation), weighs 0.00, unusable: no_token_ids
           user: a | assistant: b | user: c | assistant: d",
    );
}

#[test]
fn row_42_a_page_of_a_proxy_is_no_turn() {
    let mut page = ended(Outcome::UpstreamFailed, call(2, &[], &[]));
    reply(&mut page).status = Some(502);
    reply(&mut page).reply = Body::from("<html>Bad Gateway</html>");
    check(
        vec![call(1, &[1], &[&[2]]), page, call(3, &[1, 2, 3], &[&[4]])],
        "0 main (first_conversation), weighs 1.00, exact
           1 [2] 3 [4]",
    );
}

#[test]
fn row_43_an_empty_reply_is_kept_and_nothing_of_it_is_trained() {
    check(
        vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 3], &[&[]])],
        "0 main (first_conversation), weighs 1.00, usable: nothing_sampled
           1 [2] 3",
    );
    check(
        vec![call(1, &[1], &[&[]])],
        "0 main (first_conversation), weighs 0.00, unusable: nothing_sampled
           1",
    );
}

#[test]
fn row_44_experts_have_one_row_less_than_tokens_and_are_padded() {
    let with = |mut call: Call, experts: serde_json::Value| {
        let side = TokenColumn { name: "routed_experts".to_owned(), json: experts.to_string() };
        reply(&mut call).choices[0].token_columns.push(side);
        call
    };
    // Of 1 2 and of 1 2 3 4: the last token of the first turn is read by the second call.
    let calls = vec![
        with(call(1, &[1], &[&[2, 3]]), json!([[[5]], [[6]]])),
        with(call(2, &[1, 2, 3], &[&[4, 0]]), json!([[[5]], [[6]], [[7]], [[8]]])),
    ];
    let experts = rows(calls).remove(0).token_data.experts.unwrap();
    assert_eq!((experts.values, experts.known), (vec![5, 6, 7, 8, 0], vec![1, 1, 1, 1, 0]));
}

#[test]
fn row_46_what_an_agent_repaired_is_its_own() {
    let broken =
        with_messages(call(1, &[1], &[&[2, 3]]), &messages(&["a"]), &tool_call("x", "{n:1}"));
    let told = json!({ "role": "tool", "tool_call_id": "x", "content": "ok" });
    let history = [messages(&["a"]), vec![tool_call("x", "{\"n\":1}"), told]].concat();
    let next = with_messages(call(2, &[1, 2, 4, 5], &[&[6]]), &history, &json!("done"));
    let calls = vec![broken, next];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.67, exact
           1 [2 3]
         1 main (rewritten_history) from 0 at 2, weighs 0.33, exact
           1 2 4 5 [6]",
    );
    check_causes(calls, &[("message_edited", Some(2))]);
}

#[test]
fn row_47_what_a_judge_did_not_score_is_null_wherever_it_counts() {
    let mut episode = episode(vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 3], &[&[4]])]);
    let call = episode.calls[1].begun.call_id;
    let leaf = RewardScope::Trajectory { call, choice: 0 };
    let span = RewardScope::Tokens { call, choice: 0, start: 0, end: 1 };
    let said = |scope, value, at| Reward {
        scope,
        name: "reward".to_owned(),
        value,
        source: "judge".to_owned(),
        at,
        provenance: episode::Provenance::default(),
    };
    let scopes = [RewardScope::Episode, leaf, RewardScope::Call(call), span];
    // Each was scored, and the judge failed when it was asked again.
    let both = |scope| [said(scope, Some(1.0), 1), said(scope, None, 2)];
    episode.rewards = scopes.into_iter().flat_map(both).collect();
    let told = RowExtras { gamma: Some(1.0), ..RowExtras::default() };
    let row = beside(&episode, told).remove(0);
    assert_eq!((row.reward, row.trajectory_reward, row.turns[1].reward), (None, None, None));
    assert_eq!(row.token_rewards, Some(vec![None; 4]));
    assert!(row.turns.iter().all(|turn| turn.mc_return.is_none()));
    assert_eq!(row.rewards.matches("judge").count(), 8, "all are kept");
    // As of a time before that they count.
    episode.rewards.retain(|reward| reward.at < 2);
    let row = beside(&episode, told).remove(0);
    assert_eq!((row.reward, row.trajectory_reward), (Some(1.0), Some(1.0)));
    assert_eq!(row.token_rewards, Some(vec![None, None, None, Some(2.0)]));
    assert_eq!(row.turns[0].mc_return, Some(3.0));
}

#[test]
fn row_48_a_field_not_sent_back_is_a_rewritten_history() {
    let thought = json!({ "role": "assistant", "content": "b", "reasoning_content": "hm" });
    let again = json!({ "role": "assistant", "content": "d", "reasoning_content": "so" });
    let calls = vec![
        with_messages(call(1, &[1], &[&[30, 2]]), &messages(&["a"]), &thought),
        with_messages(call(2, &[1, 2, 3], &[&[30, 4]]), &messages(&["a", "b", "c"]), &again),
        said(3, (&[1, 2, 3, 4, 5], &[30, 6]), &["a", "b", "c", "d", "e"], "f"),
    ];
    check(
        calls.clone(),
        "0 main (first_conversation), weighs 0.33, exact
           1 [30 2]
         1 main (rewritten_history) from 0 at 1, weighs 0.33, exact
           1 2 3 [30 4]
         2 main (rewritten_history) from 1 at 3, weighs 0.33, exact
           1 2 3 4 5 [30 6]",
    );
    check_causes(calls, &[("thinking_stripped", Some(1)), ("thinking_stripped", Some(3))]);
}

#[test]
fn row_11_choices_are_told_apart_by_the_ids_of_their_tool_calls() {
    let mut both = call(1, &[1], &[&[2], &[2]]);
    reply(&mut both).choices = vec![choice(0, &[2]), choice(1, &[2])];
    let mut both = with_messages(both, &messages(&["a"]), &json!(""));
    let said = |index: u32, id: &str| json!({ "index": index, "message": tool_call(id, "{}") });
    reply(&mut both).reply = json!({ "choices": [said(0, "x"), said(1, "y")] }).to_string().into();
    let told = json!({ "role": "tool", "tool_call_id": "y", "content": "ok" });
    let history = [messages(&["a"]), vec![tool_call("y", "{}"), told]].concat();
    let next = with_messages(call(2, &[1, 2, 3], &[&[4]]), &history, &json!("done"));
    let row = rows(vec![both, next]).remove(0);
    assert_eq!(row.turns.iter().map(|turn| turn.choice).collect::<Vec<_>>(), [1, 0]);
}

/// The calls of an agent on another wire, each with its request and its reply, without ids.
fn on_wire(route: Route, bodies: &[(Value, Value)]) -> Vec<Call> {
    let call_of = |(n, (request, answered)): (u32, &(Value, Value))| {
        let mut call = without_ids(call(n, &[], &[&[]]));
        call.begun.route = route;
        call.begun.request = Body::from(request.to_string());
        reply(&mut call).reply = Body::from(answered.to_string());
        call
    };
    (1..).zip(bodies).map(call_of).collect()
}

/// Checks that a conversation in which `parts` stand beside the words of the user, and `run` beside
/// those of the assistant, is one row of whole words that counts them.
#[track_caller]
fn check_unread(calls: Vec<Call>, unread: &Value) {
    let rows = rows(calls);
    let texts: Vec<String> = rows.iter().map(super::texts).collect();
    assert_eq!(texts, ["user: one | assistant: two | user: three | assistant: four"], "{rows:?}");
    assert_eq!(rows[0].kind, "main");
    assert_eq!(rows[0].dialogue.unread_parts, unread.to_string());
    let is_named = rows[0].reasons.contains(&Reason::UnreadParts);
    assert_eq!(is_named, unread != &json!({}), "{:?}", rows[0].reasons);
}

#[test]
fn row_49_a_block_that_chat_has_no_form_for_costs_only_itself() {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let user = |words: &str, parts: &[Value]| {
        let content: Vec<Value> =
            std::iter::once(text(words)).chain(parts.iter().cloned()).collect();
        json!({ "role": "user", "content": content })
    };
    let calls = |parts: &[Value], run: &[Value], sent_back: &[Value]| {
        let with = |run: &[Value], words: &str| {
            let mut content = run.to_vec();
            content.push(text(words));
            content
        };
        let first = json!({ "messages": [user("one", parts)] });
        let said = json!({ "role": "assistant", "content": with(sent_back, "two") });
        let next = json!({ "messages": [user("one", parts), said, user("three", &[])] });
        on_wire(
            Route::Messages,
            &[
                (first, json!({ "content": with(run, "two") })),
                (next, json!({ "content": [text("four")] })),
            ],
        )
    };
    let pdf = json!({ "type": "document", "source": { "type": "base64", "data": "AA==" } });
    check_unread(calls(std::slice::from_ref(&pdf), &[], &[]), &json!({ "document": 1 }));
    for kind in ["search_result", "future_block", "container_upload", "cache_edits"] {
        let part = json!({ "type": kind, "x": [1] });
        check_unread(calls(&[part], &[], &[]), &json!({ kind: 1 }));
    }
    for kind in ["server_tool_use", "web_search_tool_result", "mcp_tool_result", "compaction"] {
        let part = json!({ "type": kind, "input": { "q": 1 }, "page_age": null });
        // An agent need not send it back as it came, or at all.
        let changed = json!({ "type": kind });
        check_unread(calls(&[], std::slice::from_ref(&part), &[changed]), &json!({ kind: 1 }));
        check_unread(calls(&[], &[part], &[]), &json!({ kind: 1 }));
    }
}

#[test]
fn row_49_an_item_that_chat_has_no_form_for_costs_only_itself() {
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    for kind in ["compaction", "web_search_call", "mcp_call", "item_reference", "future"] {
        let item = json!({ "type": kind, "id": "i", "encrypted_content": "x" });
        let answer = |text: &str, run: &[Value]| {
            let mut output = run.to_vec();
            output.push(json!({ "type": "message", "role": "assistant",
                "content": [{ "type": "output_text", "text": text }] }));
            json!({ "object": "response", "output": output })
        };
        let [one, two, three] =
            [said("user", "one"), said("assistant", "two"), said("user", "three")];
        let next = json!({ "input": [one, item, two, three] });
        let bodies = [
            (json!({ "input": [said("user", "one")] }), answer("two", std::slice::from_ref(&item))),
            (next, answer("four", &[])),
        ];
        check_unread(on_wire(Route::Responses, &bodies), &json!({ kind: 1 }));

        // At the end of a request it belongs to no message that a later one changes.
        let bodies = [
            (json!({ "input": [said("user", "one"), item] }), answer("two", &[])),
            (
                json!({ "input": [said("user", "one"), item, said("assistant", "two"),
                    said("user", "three")] }),
                answer("four", &[]),
            ),
        ];
        check_unread(on_wire(Route::Responses, &bodies), &json!({ kind: 1 }));
    }
}

#[test]
fn row_55_failed_tokens_train_where_a_prompt_goes_on_from_them() {
    let failed = |n, ids, words: &[&str], answer| {
        ended(Outcome::UpstreamFailed, said(n, ids, words, answer))
    };
    check(
        vec![
            failed(1, (&[1], &[2, 3]), &["a"], "b"),
            said(2, (&[1, 2, 3, 4], &[5]), &["a", "b", "c"], "d"),
        ],
        "0 main (first_conversation), weighs 1.00, usable: upstream_failed
           1 [2 3] 4 [5]",
    );
    check(
        vec![failed(1, (&[1], &[2, 3]), &["a"], "b"), said(2, (&[1], &[5]), &["a"], "d")],
        "0 main (first_conversation), weighs 1.00, exact
           1 [5]
         1 retry (after_failure) from 0 at 1, weighs 0.00, unusable: upstream_failed
           1 (2 3)",
    );
}

#[test]
fn row_49_a_summary_that_the_server_sealed_is_followed() {
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let sealed = json!({ "type": "compaction", "id": "c", "encrypted_content": "gAAAsealed" });
    let answer = |text: &str| {
        json!({ "output": [{ "type": "message", "role": "assistant",
        "content": [{ "type": "output_text", "text": text }] }] })
    };
    let [one, two, more] = [said("user", "one"), said("assistant", "two"), said("user", "more")];
    let trigger = json!({ "type": "compaction_trigger" });
    let mut calls = on_wire(
        Route::Responses,
        &[
            (json!({ "input": [one] }), answer("two")),
            (json!({ "input": [one, two, trigger] }), json!({ "output": [sealed] })),
            // Codex keeps the user's messages, so that the prompt reads as the first one did.
            (json!({ "input": [one, sealed] }), answer("four")),
            (json!({ "input": [one, sealed, said("assistant", "four"), more] }), answer("six")),
        ],
    );
    calls[1].begun.lineage.kind = CallKind::Compaction;
    let kinds: Vec<_> = rows(calls).iter().map(|row| (row.kind, row.kind_reason)).collect();
    assert_eq!(
        kinds,
        [("main", "first_conversation"), ("compaction", "lineage"), ("main", "after_summary")]
    );
}

#[test]
fn row_49_tokens_beside_an_unread_part_are_exact() {
    let part = json!({ "role": "assistant", "content": [{ "type": "text", "text": "b" },
        { "type": "future" }] });
    let row = rows(vec![with_messages(call(1, &[1], &[&[2]]), &messages(&["a"]), &part)]).remove(0);
    assert_eq!((row.verdict, row.reasons.len()), ("exact", 1), "{:?}", row.reasons);
    assert_eq!(row.dialogue.completion[0].content.as_deref(), Some("b"));
}

#[test]
fn row_50_an_answer_in_two_messages_comes_back_as_one() {
    let item = |text: &str| {
        json!({ "type": "message", "role": "assistant",
        "content": [{ "type": "output_text", "text": text }] })
    };
    let user = |text: &str| json!({ "role": "user", "content": text });
    let search = json!({ "type": "web_search_call" });
    let said = [item("t"), search, item("wo")];
    let history = [user("one"), said[0].clone(), said[1].clone(), said[2].clone(), user("three")];
    let bodies = [
        (json!({ "input": [user("one")] }), json!({ "output": said })),
        (json!({ "input": history }), json!({ "output": [item("four")] })),
    ];
    check_unread(on_wire(Route::Responses, &bodies), &json!({ "web_search_call": 1 }));
}

#[test]
fn row_50_a_mark_for_the_cache_that_moves_parts_nothing() {
    let user = |mark: bool| {
        let mut pdf = json!({ "type": "document", "title": null, "source": { "type": "base64" } });
        if mark {
            pdf["cache_control"] = json!({ "type": "ephemeral" });
        }
        json!({ "role": "user", "content": [{ "type": "text", "text": "one" }, pdf] })
    };
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let said = json!({ "role": "assistant", "content": text("two") });
    let more = json!({ "role": "user", "content": text("three") });
    let bodies = [
        (json!({ "messages": [user(true)] }), json!({ "content": text("two") })),
        (json!({ "messages": [user(false), said, more] }), json!({ "content": text("four") })),
    ];
    check_unread(on_wire(Route::Messages, &bodies), &json!({ "document": 1 }));
}

#[test]
fn row_50_answers_of_all_forms_are_words() {
    let row = |message: Value| {
        let call = with_messages(call(1, &[1], &[&[2]]), &messages(&["a"]), &message);
        rows(vec![call]).remove(0).dialogue.completion.remove(0)
    };
    let refused = row(json!({ "content": null, "refusal": "cannot" }));
    assert_eq!(refused.content.as_deref(), Some("cannot"));
    let thought = row(json!({ "content": [
        { "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
        { "type": "text", "text": "so" }] }));
    assert_eq!(
        (thought.reasoning.as_deref(), thought.content.as_deref()),
        (Some("hm"), Some("so"))
    );
    let older = row(json!({ "content": null, "function_call": {
        "name": "f", "arguments": "{\"n\":123456789012345678901234567890}" } }));
    let calls = older.tool_calls.unwrap();
    assert!(calls[0].contains(r#""arguments":{"n":123456789012345678901234567890}"#), "{calls:?}");
}
