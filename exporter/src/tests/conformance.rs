//! Conformance: cases met in the field, one test each, and the table that names them.
//!
//! `docs/conformance.md` has one line a case: its number, what it is, what is done, and the tests
//! that show it. Tests of this crate are named alone and stand in `tests`; those of others by file.

mod tests;

use std::path::Path;

use episode::Body;
use episode::Call;
use serde_json::{Value, json};

use crate::rows::row::Row;
use crate::tests::fixture::{call, episode, rows_of};

/// A call with ids whose history is `words`: the user's and the assistant's in turn, the system's
/// first where they start with `system:`.
fn said(n: u32, (prompt, sampled): (&[u32], &[u32]), words: &[&str], answer: &str) -> Call {
    with_messages(call(n, prompt, &[sampled]), &messages(words), &json!(answer))
}

/// The same call of a server that reports no ids.
fn said_without_ids(n: u32, words: &[&str], answer: &str) -> Call {
    without_ids(said(n, (&[], &[]), words, answer))
}

fn without_ids(mut call: Call) -> Call {
    let ended = call.ended.as_mut().unwrap();
    ended.prompts.clear();
    ended.choices.iter_mut().for_each(|choice| choice.token_ids = None);
    call
}

fn messages(words: &[&str]) -> Vec<Value> {
    let system = words.first().filter(|word| word.starts_with("system:"));
    let spoken = &words[usize::from(system.is_some())..];
    let turns = spoken.iter().zip(["user", "assistant"].into_iter().cycle());
    let turns = turns.map(|(words, role)| json!({ "role": role, "content": words }));
    system
        .map(|words| json!({ "role": "system", "content": words }))
        .into_iter()
        .chain(turns)
        .collect()
}

/// The call with these bodies; `answer` is the content of the reply's message, or all of it.
fn with_messages(mut call: Call, messages: &[Value], answer: &Value) -> Call {
    let plain = json!({ "role": "assistant", "content": answer });
    let message = if answer.is_object() { answer } else { &plain };
    let request = json!({ "messages": messages });
    let choices = call.ended.as_ref().unwrap().choices.iter();
    let choices = choices.map(|c| json!({ "index": c.index, "message": message }));
    let reply = json!({ "choices": choices.collect::<Vec<_>>() });
    call.begun.request = Body::from(request.to_string());
    call.ended.as_mut().unwrap().reply = Body::from(reply.to_string());
    call
}

/// The call with another list of tools.
fn with_tools(mut call: Call, tools: &Value) -> Call {
    let mut request: Value = serde_json::from_slice(&call.begun.request.read()).unwrap();
    request["tools"] = tools.clone();
    call.begun.request = Body::from(request.to_string());
    call
}

/// Compares the rows of an episode with lines such as
///
/// ```text
/// 1 fork (left_history) from 0 at 3, weighs 0.25, usable: client_gone
///   1 2 [3] 4 (5)
/// ```
///
/// `[...]` is trained, `(...)` sampled but not trained here, the rest is prompt.
#[track_caller]
fn check(calls: Vec<Call>, expected: &str) {
    let rows = rows_of(&episode(calls));
    let found: Vec<String> = rows.iter().flat_map(shown).collect();
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert_eq!(found, expected, "\n{}\n", found.join("\n"));
}

/// The likely causes of the forks of an episode, with the place where it is known.
#[track_caller]
fn check_causes(calls: Vec<Call>, expected: &[(&str, Option<u32>)]) {
    let record = episode(Vec::new()).record;
    let forks = crate::diagnose(record, calls).forks;
    let found: Vec<_> = forks.iter().map(|fork| (fork.cause.as_str(), fork.position)).collect();
    assert_eq!(found, expected, "{forks:#?}");
}

fn shown(row: &Row) -> [String; 2] {
    let from = row.parent_trajectory_id.as_deref().and_then(|id| id.rsplit('/').next());
    let at = row.fork_position.unwrap_or_default();
    let from = from.map(|from| format!(" from {from} at {at}")).unwrap_or_default();
    let reasons: Vec<&str> = row.reasons.iter().map(|r| r.as_str()).collect();
    let reasons =
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
    let (kind, cue) = (row.kind, row.kind_reason);
    let (weight, verdict) = (row.row_weight, row.verdict);
    let head = format!(
        "{} {kind} ({cue}){from}, weighs {weight:.2}, {verdict}{reasons}",
        row.trajectory_index
    );
    [head, if row.fidelity.is_some() { tokens(row) } else { texts(row) }]
}

fn tokens(row: &Row) -> String {
    let sampled = |i: usize| row.turns.iter().position(|t| (t.start..t.end).contains(&(i as i32)));
    let mark = |i: usize| (sampled(i), row.tokens.loss_mask[i]);
    let ids = &row.tokens.input_ids;
    let runs: Vec<usize> = (0..ids.len()).collect();
    let run = |run: &[usize]| {
        let text: Vec<String> = run.iter().map(|i| ids[*i].to_string()).collect();
        match mark(run[0]) {
            (None, _) => text.join(" "),
            (_, 1) => format!("[{}]", text.join(" ")),
            _ => format!("({})", text.join(" ")),
        }
    };
    runs.chunk_by(|a, b| mark(*a) == mark(*b)).map(run).collect::<Vec<_>>().join(" ")
}

fn texts(row: &Row) -> String {
    let messages = row.dialogue.prompt.iter().chain(&row.dialogue.completion);
    let text = |m: &crate::rows::messages::RowMessage| {
        format!("{}: {}", m.role, m.content.as_deref().unwrap_or_default())
    };
    messages.map(text).collect::<Vec<_>>().join(" | ")
}

/// A line of the table.
struct Line {
    number: usize,
    done: String,
    shown_by: String,
}

fn table() -> Vec<Line> {
    let page = include_str!("../../../docs/conformance.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let lines = page.lines().filter(|line| line.starts_with("| ")).map(cells);
    let line = |cells: Vec<String>| {
        let [number, _, done, shown_by] = cells.as_slice() else { panic!("{cells:?}") };
        let number = number.parse().ok()?;
        Some(Line { number, done: done.clone(), shown_by: shown_by.clone() })
    };
    lines.filter_map(line).collect()
}

/// Looks whether `file` has a test of that name.
fn has_test(file: &str, name: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let Ok(text) = std::fs::read_to_string(root.join(file)) else { return false };
    let mut lines = text.lines().map(str::trim_start).peekable();
    while let Some(line) = lines.next() {
        let is_marked = line == "#[test]" || line.starts_with("#[tokio::test");
        let next = if is_marked { lines.peek().copied().unwrap_or_default() } else { line };
        let starts = [format!("fn {name}("), format!("async fn {name}(")];
        let is_rust = is_marked && starts.iter().any(|start| next.starts_with(start.as_str()));
        if is_rust || next.starts_with(&format!("def {name}(")) {
            return true;
        }
    }
    false
}

const HERE: &str = "exporter/src/tests/conformance/tests.rs";

#[test]
fn the_table_has_every_case_and_names_tests_that_are_there() {
    let table = table();
    let numbers: Vec<usize> = table.iter().map(|line| line.number).collect();
    assert_eq!(numbers, (1..=95).collect::<Vec<_>>());
    for Line { number, done, shown_by } in table {
        assert!(!done.is_empty(), "row {number} does not say what is done");
        if shown_by.strip_prefix("not shown: ").is_some_and(|why| !why.is_empty()) {
            continue;
        }
        for test in shown_by.split(", ") {
            let name = test.trim_matches('`');
            let (file, name) = name.split_once("::").unwrap_or((HERE, name));
            assert!(has_test(file, name), "row {number} names {test}, which is not there");
            let is_own = file != HERE || name.starts_with(&format!("row_{number:02}_"));
            assert!(is_own, "row {number} names the test of another row: {test}");
        }
    }
}

#[test]
fn every_test_of_a_case_is_in_the_table() {
    let page = include_str!("../../../docs/conformance.md");
    let tests = include_str!("conformance/tests.rs");
    let names = tests.lines().filter_map(|line| line.strip_prefix("fn row_")?.split_once('('));
    let mut count = 0;
    for (name, _) in names {
        assert!(page.contains(&format!("`row_{name}`")), "row_{name} is not in the table");
        count += 1;
    }
    assert!(count > 30, "the tests were not read");
}

#[test]
fn a_test_that_is_not_there_is_told() {
    assert!(has_test("exporter/src/tests/conformance.rs", "a_test_that_is_not_there_is_told"));
    assert!(has_test("tests/it/tags.rs", "a_closed_episode_takes_no_more_calls"));
    assert!(!has_test("exporter/src/tests/conformance.rs", "has_test"));
    assert!(!has_test("exporter/src/none.rs", "has_test"));
}
