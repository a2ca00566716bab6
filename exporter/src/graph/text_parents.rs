//! Finds the history that a call continues in text but not token for token.
//!
//! A text parent never joins tokens. It shows which turn a row left, and that its answer was used.

use episode::CallKind;
use serde_json::Value;

use crate::graph::forest::Forest;
use crate::graph::message_ids::MessageIds;
use crate::graph::node::{Node, NodeId, PerNode, PromptKey, prompt_choices};
use crate::graph::prefix_index::PrefixIndex;
use crate::graph::resolve::{Resolution, resolve};

/// Finds the node that each node's text continues, where its parent is not that node.
pub(crate) fn text_parents(forest: &Forest<'_>) -> PerNode<Option<NodeId>> {
    let mut found = PerNode::filled(forest.nodes.len(), None);
    let unexplained = unexplained(forest);
    let search = TextSearch::new(forest);
    for choices in prompt_choices(&forest.nodes) {
        if unexplained[choices.first()] {
            let text_parent = search.text_parent(choices.first());
            choices.ids().for_each(|node| found[node] = text_parent);
        }
    }
    found
}

/// Marks the nodes whose parent may not explain their whole history: those without a parent, and
/// those whose parent has children of several calls.
pub(crate) fn unexplained(forest: &Forest<'_>) -> PerNode<bool> {
    let count = forest.nodes.len();
    let mut last_child: PerNode<Option<PromptKey>> = PerNode::filled(count, None);
    let mut forks = PerNode::filled(count, false);
    for (id, node) in forest.nodes.entries() {
        let Some(parent) = forest.parent(id) else { continue };
        let before = last_child[parent].replace(node.prompt_key());
        forks[parent] |= before.is_some_and(|before| before != node.prompt_key());
    }

    let unexplained = forest.nodes.ids().map(|node| match forest.parent(node) {
        Some(parent) => forks[parent],
        None => !forest.is_ambiguous(node),
    });
    unexplained.collect()
}

/// The indexes in which the text parents of a forest are searched.
struct TextSearch<'f, 'a> {
    forest: &'f Forest<'a>,
    /// Histories with their answers.
    answered: PrefixIndex<'f>,
    /// Histories without their answers.
    prompts: PrefixIndex<'f>,
    summaries: Vec<Summary>,
}

/// A summary of a conversation, and the node that wrote it.
struct Summary {
    node: NodeId,
    text: String,
}

impl<'f, 'a> TextSearch<'f, 'a> {
    fn new(forest: &'f Forest<'a>) -> Self {
        Self {
            forest,
            answered: PrefixIndex::new(forest.message_ids.iter().map(MessageIds::path)),
            prompts: PrefixIndex::new(forest.message_ids.iter().map(MessageIds::prompt_path)),
            summaries: forest.nodes.entries().filter_map(summary).collect(),
        }
    }

    fn text_parent(&self, node: NodeId) -> Option<NodeId> {
        // The parent explains its own path; only what comes behind that path is new.
        let explained = self.forest.parent(node).map(|parent| self.conversation(parent).len());
        let is_new = |found: &NodeId| {
            explained.is_none_or(|explained| self.conversation(*found).len() > explained)
        };

        self.quoted(node).filter(is_new).or_else(|| {
            let left = self.answered_otherwise(node).filter(is_new);
            // An agent that keeps its first messages puts the summary where an answer was.
            let ended = |node: NodeId| self.forest.nodes[node].ended.ended_at;
            let summary = self.quoted_summary(node);
            left.into_iter().chain(summary).max_by_key(|found| ended(*found))
        })
    }

    fn conversation(&self, node: NodeId) -> &'f [u32] {
        self.forest.message_ids[node].conversation()
    }

    /// Returns the node whose history and answer `node` quotes the most of.
    fn quoted(&self, node: NodeId) -> Option<NodeId> {
        self.unambiguous(self.answered.longest_prefixes(self.conversation(node)), node)
    }

    /// Returns the node whose prompt the history of `node` begins with, followed by another text
    /// than its answer: the agent repaired or cut the answer.
    fn answered_otherwise(&self, node: NodeId) -> Option<NodeId> {
        let (_, before) = self.conversation(node).split_last()?;
        self.unambiguous(self.prompts.longest_prefixes(before), node)
    }

    /// Returns the one candidate that `node` continues. An ambiguous one is left open, not guessed.
    fn unambiguous(&self, candidates: Vec<NodeId>, node: NodeId) -> Option<NodeId> {
        let nodes = &self.forest.nodes;
        match resolve(nodes, candidates, &nodes[node]) {
            Resolution::One { parent, .. } => Some(parent),
            Resolution::Nothing | Resolution::Ambiguous(_) => None,
        }
    }

    /// Returns the newest earlier summary that the messages of `node` contain.
    fn quoted_summary(&self, node: NodeId) -> Option<NodeId> {
        let nodes = &self.forest.nodes;
        let begun = &nodes[node].call.begun;
        let is_earlier = |summary: &&Summary| {
            summary.node != node && nodes[summary.node].ended.ended_at <= begun.started_at
        };
        let mut earlier = self.summaries.iter().filter(is_earlier).peekable();
        // The body is read only where there is a summary to look for.
        earlier.peek()?;

        let sent = wire::conversation(begun.route, &nodes[node].request.read())?;
        let texts: Vec<String> = sent.messages.iter().filter_map(message_text).collect();
        earlier
            .filter(|summary| texts.iter().any(|text| text.contains(&summary.text)))
            .max_by_key(|summary| nodes[summary.node].ended.ended_at)
            .map(|summary| summary.node)
    }
}

/// The tags between which Claude Code and qwen-code quote a summary; they leave out the rest.
const QUOTED: [&str; 2] = ["summary", "state_snapshot"];

/// Returns what `text` has between a pair of tags.
fn inside<'t>(text: &'t str, tag: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

/// Returns the text of a message, and what a server sealed and an agent sends back as it came:
/// Codex has its history compacted so.
fn message_text(message: &Value) -> Option<String> {
    let sealed = wire::sealed_texts(message);
    let text = wire::content_text(message.get("content"));
    match sealed.is_empty() {
        true => text,
        false => Some(sealed.into_iter().chain(text.as_deref()).collect::<Vec<_>>().join("\n")),
    }
}

/// Reads the summary that a compaction call wrote.
fn summary((id, node): (NodeId, &Node<'_>)) -> Option<Summary> {
    if node.agent_task().kind != CallKind::Compaction {
        return None;
    }
    let answers = wire::answers(node.call.begun.route, &node.ended.reply.read());
    let answer = answers.into_iter().find(|answer| answer.index == node.index)?;
    let whole = message_text(&answer.message)?;
    let tagged = QUOTED.iter().find_map(|tag| inside(&whole, tag));
    let text = tagged.unwrap_or(&whole).trim();
    (!text.is_empty()).then(|| Summary { node: id, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use episode::Call;
    use serde_json::json;

    use crate::graph::node::NodeId;
    use crate::graph::scan::choice_nodes;
    use crate::graph::thread::thread;
    use crate::tests::fixture::{call, episode, rows_of, with_bodies};

    fn worded(n: u32, ids: (&[u32], &[u32]), words: &[&str], answer: &str) -> Call {
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(role, text)| json!({ "role": role, "content": text });
        let messages: Vec<_> = roles.zip(words).map(message).collect();
        with_bodies(call(n, ids.0, &[ids.1]), &messages, answer)
    }

    fn found(calls: &[Call]) -> Vec<(Option<usize>, Option<usize>)> {
        let (forest, _) = thread(choice_nodes(calls).0);
        let number = |node: NodeId| node.0;
        let links = forest.links.iter();
        links.map(|link| (link.parent.map(number), link.text_parent.map(number))).collect()
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
    fn a_row_names_the_path_that_its_words_left() {
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
            let mut sent: serde_json::Value =
                serde_json::from_slice(&call.begun.request.read()).unwrap();
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
