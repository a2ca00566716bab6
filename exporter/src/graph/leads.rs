//! Leads: where a history was left that goes on in words but not token for token.
//!
//! A lead never joins tokens. It says which turn a row left, and that its answer was used.

use episode::CallKind;
use serde_json::Value;

use crate::graph::forest::{Forest, groups};
use crate::graph::index::Index;
use crate::graph::message_ids::Said;
use crate::graph::node::Node;
use crate::graph::resolve::{Resolved, resolve};

/// For each node the one that its words go on from, where its parent is not that one.
pub(crate) fn leads(forest: &Forest<'_>) -> Vec<Option<usize>> {
    let mut leads = vec![None; forest.nodes.len()];
    let loose = is_loose(forest);
    let answered = Index::new(forest.said.iter().map(Said::path));
    let asked = Index::new(forest.said.iter().map(Said::heard));
    let summaries = summaries(&forest.nodes);
    for siblings in groups(&forest.nodes).into_iter().filter(|group| loose[group.start]) {
        let start = siblings.start;
        // The parent explains what stands in its own path; only what comes after it is a lead.
        let held = forest.parents[start].map(|parent| forest.said[parent].spoken().len());
        let is_new = |found: &usize| held.is_none_or(|n| forest.said[*found].spoken().len() > n);
        let lead = quoted(forest, &answered, start)
            .filter(is_new)
            .or_else(|| answered_otherwise(forest, &asked, start).filter(is_new))
            .or_else(|| summary_of(&forest.nodes, &summaries, start));
        leads[siblings].fill(lead);
    }
    leads
}

/// For each node whether its parent may not be all that it goes on from: it has none, or its
/// parent has children of several calls.
pub(crate) fn is_loose(forest: &Forest<'_>) -> Vec<bool> {
    let mut children = vec![None; forest.nodes.len()];
    let mut forks = vec![false; forest.nodes.len()];
    for (node, parent) in forest.nodes.iter().zip(&forest.parents) {
        let Some(parent) = *parent else { continue };
        forks[parent] |= children[parent].is_some_and(|other| other != node.group());
        children[parent] = Some(node.group());
    }
    let loose = |i: usize| match forest.parents[i] {
        Some(parent) => forks[parent],
        None => forest.unclear[i].is_empty(),
    };
    (0..forest.nodes.len()).map(loose).collect()
}

/// The node whose history and answer `node` quotes the most of.
fn quoted(forest: &Forest<'_>, answered: &Index<'_>, node: usize) -> Option<usize> {
    only(forest, answered.longest(forest.said[node].spoken()), node)
}

/// The node that was asked what the history of `node` begins with, and whose answer stands there in
/// other words: the agent repaired it, or cut it.
fn answered_otherwise(forest: &Forest<'_>, asked: &Index<'_>, node: usize) -> Option<usize> {
    let (_, before) = forest.said[node].spoken().split_last()?;
    only(forest, asked.longest(before), node)
}

/// A lead is told or left open, never guessed.
fn only(forest: &Forest<'_>, found: Vec<usize>, node: usize) -> Option<usize> {
    match resolve(&forest.nodes, found, &forest.nodes[node]) {
        Resolved::One(found, _) => Some(found),
        Resolved::Nothing | Resolved::Unclear(_) => None,
    }
}

/// The text of every summary of a history, and the node that wrote it.
fn summaries(nodes: &[Node<'_>]) -> Vec<(usize, String)> {
    let is_one = |i: &usize| nodes[*i].strand().0 == CallKind::Compaction;
    let text = |i: usize| {
        let answers = wire::answers(nodes[i].call.begun.route, &nodes[i].ended.reply);
        let answer = answers.into_iter().find(|a| a.index == nodes[i].index)?;
        let text = wire::content_text(answer.message.get("content"))?;
        // Claude Code quotes what stands between these marks, and leaves out the rest.
        let inner =
            text.split_once("<summary>").and_then(|(_, rest)| rest.split_once("</summary>"));
        let text = inner.map_or(text.as_str(), |(inner, _)| inner).trim();
        (!text.is_empty()).then(|| (i, text.to_owned()))
    };
    (0..nodes.len()).filter(is_one).filter_map(text).collect()
}

/// The newest summary that a conversation begins with.
fn summary_of(nodes: &[Node<'_>], of: &[(usize, String)], node: usize) -> Option<usize> {
    let begun = &nodes[node].call.begun;
    let before =
        |(i, _): &&(usize, String)| *i != node && nodes[*i].ended.ended_at <= begun.started_at;
    let mut before = of.iter().filter(before).peekable();
    before.peek()?;
    let sent = wire::conversation(begun.route, &nodes[node].request)?;
    let text = |message: &Value| wire::content_text(message.get("content"));
    let texts: Vec<String> = sent.messages.iter().filter_map(text).collect();
    let quoted = before.filter(|(_, summary)| texts.iter().any(|text| text.contains(summary)));
    quoted.max_by_key(|(i, _)| nodes[*i].ended.ended_at).map(|(i, _)| *i)
}

#[cfg(test)]
mod tests {
    use episode::Call;
    use serde_json::json;

    use crate::fixture::{call, episode, rows_of, with_bodies};
    use crate::graph::scan::nodes;
    use crate::graph::thread::thread;

    fn worded(n: u32, ids: (&[u32], &[u32]), words: &[&str], answer: &str) -> Call {
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(role, text)| json!({ "role": role, "content": text });
        let messages: Vec<_> = roles.zip(words).map(message).collect();
        with_bodies(call(n, ids.0, &[ids.1]), &messages, answer)
    }

    fn found(calls: &[Call]) -> Vec<(Option<usize>, Option<usize>)> {
        let (forest, _) = thread(nodes(calls).0);
        forest.parents.into_iter().zip(forest.leads).collect()
    }

    /// The third call has the tokens of the first turn, and then other tokens for the second.
    fn cut_in_the_second_turn() -> [Call; 3] {
        [
            worded(1, (&[1], &[2]), &["a"], "b"),
            worded(2, (&[1, 2, 3], &[30, 4]), &["a", "b", "c"], "d"),
            worded(3, (&[1, 2, 3, 4, 5], &[6]), &["a", "b", "c", "d", "e"], "f"),
        ]
    }

    #[test]
    fn a_turn_that_is_left_below_the_parent_is_found() {
        let calls = cut_in_the_second_turn();
        let expected = [(None, None), (Some(0), None), (Some(0), Some(1))];
        assert_eq!(found(&calls), expected);
        let rows = rows_of(&episode(calls.to_vec()));
        assert_eq!((rows[1].kind_reason, rows[1].fork_position), ("rewritten_history", Some(3)));
        let continued: Vec<_> = rows[0].turns.iter().map(|turn| turn.continued).collect();
        assert_eq!(continued, [Some(true), Some(true)]);
    }

    #[test]
    fn an_answer_that_was_repaired_below_the_parent_is_found() {
        let mut calls = cut_in_the_second_turn();
        calls[2] = worded(3, (&[1, 2, 3, 4, 5], &[6]), &["a", "b", "c", "repaired", "e"], "f");
        assert_eq!(found(&calls)[2], (Some(0), Some(1)));
    }

    #[test]
    fn another_message_to_the_same_answer_leads_nowhere() {
        let mut calls = cut_in_the_second_turn();
        calls[2] = worded(3, (&[1, 2, 8], &[6]), &["a", "b", "other"], "f");
        assert_eq!(found(&calls)[2], (Some(0), None));
        let rows = rows_of(&episode(calls.to_vec()));
        assert_eq!((rows[1].kind_reason, rows[1].fork_position), ("left_history", Some(2)));
    }

    #[test]
    fn equal_turns_that_nothing_tells_apart_are_no_lead() {
        let mut calls = [
            worded(1, (&[1], &[2]), &["a"], "b"),
            worded(2, (&[1], &[2]), &["a"], "b"),
            worded(3, (&[7], &[8]), &["a", "b", "c"], "d"),
        ];
        assert_eq!(found(&calls)[2], (None, Some(1)));
        calls[0].ended.as_mut().unwrap().ended_at = 25;
        assert_eq!(found(&calls)[2], (None, None));
    }

    #[test]
    fn a_row_names_the_path_that_its_words_left_and_not_only_the_main_one() {
        let calls = [
            worded(1, (&[1], &[2]), &["a"], "b"),
            worded(2, (&[1, 2, 3], &[4]), &["a", "b", "c"], "d"),
            worded(3, (&[1, 2, 8, 8], &[30, 9]), &["a", "b", "x"], "y"),
            worded(4, (&[1, 2, 8, 8, 9, 7], &[6]), &["a", "b", "x", "y", "z"], "f"),
            worded(5, (&[1, 2, 3, 4, 5], &[6]), &["a", "b", "c", "d", "e"], "f"),
        ];
        assert_eq!(found(&calls)[3], (Some(0), Some(2)));
        let rows = rows_of(&episode(calls.to_vec()));
        let left: Vec<_> = rows.iter().map(|r| (r.trajectory_index, r.fork_position)).collect();
        assert_eq!(left, [(0, None), (1, Some(2)), (2, Some(4))]);
        assert_eq!(rows[2].parent_trajectory_id, Some(rows[1].trajectory_id.clone()));
        assert_eq!(rows[1].turns[1].call_id, calls[2].begun.call_id.to_string());
    }

    #[test]
    fn instructions_may_change_from_call_to_call() {
        let told = |n, ids, words: &[&str], role: &str| {
            let mut call = worded(n, ids, words, "b");
            let mut sent: serde_json::Value = serde_json::from_slice(&call.begun.request).unwrap();
            let clock = json!({ "role": role, "content": format!("it is {n}") });
            sent["messages"].as_array_mut().unwrap().insert(0, clock);
            call.begun.request = sent.to_string().into();
            call
        };
        for role in ["system", "developer"] {
            let calls = [
                told(1, (&[1], &[2]), &["a"], role),
                told(2, (&[7], &[8]), &["a", "b", "c"], role),
            ];
            assert_eq!(found(&calls)[1], (None, Some(0)));
        }
    }

    #[test]
    fn two_hundred_turns_that_all_drift_are_led_at_once() {
        let words: Vec<String> = (0..400).map(|n| format!("{n} {}", "x".repeat(500))).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let calls: Vec<Call> = (0..200)
            .map(|n| {
                let ids = [&[n + 1_000_000][..], &(0..10_000).collect::<Vec<u32>>()].concat();
                let (heard, said) = words.split_at(2 * n as usize + 1);
                worded(n, (&ids, &[n]), heard, said[0])
            })
            .collect();
        let begin = std::time::Instant::now();
        let found = found(&calls);
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
        assert!((1..200).all(|n| found[n] == (None, Some(n - 1))));
    }
}
