//! Links each choice to the choice that it continues.
//!
//! A call continues the choice with the longest path (prompt and sampled tokens) that its own
//! prompt starts with. Content decides, never the order in which calls came, so parallel agents of
//! one episode do not mix. Where token ids are missing, messages take their place. Where ids are
//! present and differ, messages only show which history was left.

use crate::graph::forest::{Forest, ParentLink};
use crate::graph::message_ids::{MessageIds, message_ids};
use crate::graph::node::{Node, PerNode, PromptChoices, prompt_choices};
use crate::graph::prefix_index::{PrefixIndex, SymbolPath};
use crate::graph::resolve::{Resolution, keep_if_any, resolve};
use crate::graph::text_parents::{text_parents, unexplained};
use crate::notes::Notes;

/// Finds what each node continues. Takes time linear in the number of prompt tokens.
pub(crate) fn thread(nodes: PerNode<Node<'_>>) -> (Forest<'_>, Notes) {
    let mut forest = Forest::unlinked(nodes);
    let mut notes = link_by_ids(&mut forest);

    // Request bodies are read only where the ids leave several conversations or forks.
    if has_open_ends(&forest) {
        forest.message_ids = message_ids(&forest.nodes, |node| forest.parent(node));
        notes.add(&link_by_messages(&mut forest));
        for (node, found) in text_parents(&forest).entries() {
            forest.links[node].text_parent = *found;
        }
    }
    (forest, notes)
}

/// Links nodes that have token ids.
fn link_by_ids(forest: &mut Forest<'_>) -> Notes {
    let mut notes = Notes::default();
    let index = PrefixIndex::new(forest.nodes.iter().map(token_path));

    for choices in prompt_choices(&forest.nodes) {
        let first = &forest.nodes[choices.first()];
        if first.has_ids {
            let candidates = index.longest_prefixes(first.prompt);
            let found = resolve(&forest.nodes, candidates, first);
            link(&mut forest.links, choices, found, &mut notes);
        }
    }
    notes
}

fn token_path<'a>(node: &Node<'a>) -> Option<SymbolPath<'a>> {
    node.has_ids.then_some(SymbolPath { prompt: node.prompt, answer: node.sampled })
}

/// Links nodes that have no token ids, by their messages.
fn link_by_messages(forest: &mut Forest<'_>) -> Notes {
    let mut notes = Notes::default();
    let index = PrefixIndex::new(forest.message_ids.iter().map(MessageIds::path));

    for choices in prompt_choices(&forest.nodes) {
        let (node, messages) =
            (&forest.nodes[choices.first()], &forest.message_ids[choices.first()]);
        if node.has_ids || messages.conversation().is_empty() {
            continue;
        }

        let mut candidates = index.longest_prefixes(messages.conversation());
        keep_if_any(&mut candidates, |other| messages.has_head_of(&forest.message_ids[other]));
        let found = resolve(&forest.nodes, candidates, node);

        // A path cannot go on from a node that has ids, or from one with other instructions or
        // tools. Such a node is the text parent at most.
        let is_path = match &found {
            Resolution::One { parent, .. } => {
                !forest.nodes[*parent].has_ids && messages.has_head_of(&forest.message_ids[*parent])
            }
            Resolution::Nothing | Resolution::Ambiguous(_) => true,
        };
        if is_path {
            link(&mut forest.links, choices, found, &mut notes);
        }
    }
    notes
}

/// Stores what the choices of one prompt continue, and counts how that was found.
fn link(
    links: &mut PerNode<ParentLink>,
    choices: PromptChoices,
    found: Resolution,
    notes: &mut Notes,
) {
    match found {
        Resolution::Nothing => {}
        Resolution::One { parent, evidence } => {
            notes.count_evidence(evidence);
            choices.ids().for_each(|node| links[node].parent = Some(parent));
        }
        Resolution::Ambiguous(candidates) => {
            notes.ambiguous += 1;
            choices.ids().for_each(|node| links[node].ambiguous.clone_from(&candidates));
        }
    }
}

/// Returns true unless the episode is one conversation that never forks.
fn has_open_ends(forest: &Forest<'_>) -> bool {
    let unexplained = unexplained(forest);
    prompt_choices(&forest.nodes).iter().filter(|choices| unexplained[choices.first()]).count() > 1
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::graph::node::NodeId;
    use crate::graph::scan::choice_nodes;
    use crate::tests::fixture::{call, reply};
    use crate::{ChoiceLink, Notes, choice_links};

    fn parents(calls: &[episode::Call]) -> (Vec<Option<u128>>, Notes) {
        let (links, notes) = choice_links(calls);
        let number = |l: &ChoiceLink| l.parent.map(|(call, _)| call.0.as_u128());
        (links.iter().map(number).collect(), notes)
    }

    #[test]
    fn a_call_continues_the_longest_prefix_of_its_prompt() {
        let calls = [
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 3], &[&[4]]),
            call(3, &[1, 2, 3, 4, 5], &[&[6]]),
            call(4, &[1, 2, 9], &[&[6]]),
        ];
        assert_eq!(parents(&calls).0, [None, Some(1), Some(2), Some(1)]);
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let mut calls =
            vec![call(1, &[1], &[&[2]]), call(2, &[8], &[&[9]]), call(3, &[1, 2, 3], &[&[4]])];
        let before = choice_links(&calls);
        calls.reverse();
        assert_eq!(choice_links(&calls), before);
    }

    #[test]
    fn clocks_that_disagree_do_not_part_a_conversation() {
        let calls = [call(1, &[1, 2, 3], &[&[4]]), call(2, &[1], &[&[2]])];
        assert_eq!(parents(&calls).0, [Some(2), None]);
    }

    #[test]
    fn of_equal_paths_the_last_to_end_before_is_continued() {
        let mut calls = vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1], &[&[2]]),
            call(3, &[1], &[&[2]]),
            call(4, &[1, 2, 3], &[&[4]]),
        ];
        reply(&mut calls[2]).ended_at = 99;
        let (found, notes) = parents(&calls);
        assert_eq!(found, [None, None, None, Some(2)]);
        assert_eq!(notes.ambiguous, 0);
    }

    #[test]
    fn a_call_whose_equal_parents_nothing_tells_apart_stands_alone() {
        let mut calls =
            vec![call(1, &[1], &[&[2]]), call(2, &[1], &[&[2]]), call(3, &[1, 2], &[&[4]])];
        reply(&mut calls[0]).ended_at = 25;
        let (found, notes) = parents(&calls);
        assert_eq!(found, [None, None, None]);
        assert_eq!(notes.ambiguous, 1);
    }

    #[test]
    fn a_call_after_one_that_sampled_nothing_is_a_new_try() {
        let calls = [call(1, &[1], &[&[]]), call(2, &[1], &[&[2]])];
        assert_eq!(parents(&calls).0, [None, None]);
    }

    #[test]
    fn two_hundred_turns_of_ten_thousand_tokens_thread_at_once() {
        let mut history: Vec<u32> = (0..10_000).collect();
        let mut calls = Vec::new();
        for n in 0..200 {
            let sampled: Vec<u32> = (0..50).map(|i| i + n).collect();
            calls.push(call(n, &history, &[&sampled]));
            history.extend(sampled);
        }
        let (nodes, _) = choice_nodes(&calls);
        let begin = Instant::now();
        let (forest, _) = thread(nodes);
        assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
        assert!((1..200).all(|i| forest.parent(NodeId(i)) == Some(NodeId(i - 1))));
    }

    fn in_words(n: u32, words: &[&str], answer: &str) -> episode::Call {
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(role, text)| serde_json::json!({ "role": role, "content": text });
        let messages: Vec<_> = roles.zip(words).map(message).collect();
        crate::tests::fixture::text_call(n, &messages, answer)
    }

    #[test]
    fn words_alone_are_threaded_and_their_equals_are_not_guessed() {
        let mut calls = vec![
            in_words(1, &["a"], "b"),
            in_words(2, &["a"], "b"),
            in_words(3, &["a", "b", "c"], "d"),
        ];
        assert_eq!(parents(&calls).0, [None, None, Some(2)]);
        reply(&mut calls[0]).ended_at = 25;
        let (found, notes) = parents(&calls);
        assert_eq!((found, notes.ambiguous), (vec![None, None, None], 1));
    }

    #[test]
    fn ambiguous_words_do_not_make_ids_unclear() {
        // The third call has ids that say that it continues neither.
        let mut calls =
            vec![in_words(1, &["a"], "b"), in_words(2, &["a"], "b"), call(3, &[1], &[&[2]])];
        reply(&mut calls[0]).ended_at = 25;
        calls[2].begun.request = in_words(3, &["a", "b", "c"], "d").begun.request;
        assert_eq!(parents(&calls).1.ambiguous, 0);
    }

    #[test]
    fn of_equal_words_the_same_tools_and_instructions_win() {
        let mut other = in_words(2, &["a"], "b");
        other.begun.request = b"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"[..].into();
        let calls = [in_words(1, &["a"], "b"), other, in_words(3, &["a", "b", "c"], "d")];
        assert_eq!(parents(&calls).0, [None, None, Some(1)]);
    }

    #[test]
    fn an_answer_that_was_rewritten_shows_what_was_left() {
        let calls = [
            in_words(1, &["a"], "b"),
            in_words(2, &["a", "other", "c"], "d"),
            in_words(3, &["z", "other", "c"], "d"),
        ];
        let (forest, _) = thread(choice_nodes(&calls).0);
        let links = |node| (forest.parent(NodeId(node)), forest.text_parent(NodeId(node)));
        assert_eq!(links(1), (None, Some(NodeId(0))));
        assert_eq!(links(2), (None, None));
    }
}
