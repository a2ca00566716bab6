//! Thread: which choice each call continues.
//!
//! A call continues the choice with the longest path (prompt and sampled tokens) that its own
//! prompt starts with. Content decides, never the order in which calls came, so that parallel
//! agents in one episode do not mix. Where ids are missing, the messages take their place; where
//! ids are there and say no, the messages only say where the history was left.

use crate::graph::forest::{Forest, groups};
use crate::graph::index::Index;
use crate::graph::leads::{is_loose, leads};
use crate::graph::message_ids::{Said, said};
use crate::graph::node::Node;
use crate::graph::resolve::{Resolved, narrow, resolve};
use crate::notes::Notes;

/// Finds what each node continues. Linear in the number of prompt tokens.
pub(crate) fn thread(nodes: Vec<Node<'_>>) -> (Forest<'_>, Notes) {
    let count = nodes.len();
    let none = vec![None; count];
    let mut forest = Forest {
        nodes,
        parents: none.clone(),
        leads: none,
        unclear: vec![Vec::new(); count],
        said: Vec::new(),
    };
    let mut notes = by_ids(&mut forest);
    if has_loose_ends(&forest) {
        forest.said = said(&forest.nodes, &forest.parents);
        notes.add(&by_messages(&mut forest));
        forest.leads = leads(&forest);
    }
    (forest, notes)
}

fn by_ids(forest: &mut Forest<'_>) -> Notes {
    let mut notes = Notes::default();
    let index = Index::new(forest.nodes.iter().map(|n| n.has_ids.then_some((n.prompt, n.sampled))));
    for siblings in groups(&forest.nodes) {
        let first = &forest.nodes[siblings.start];
        if !first.has_ids {
            continue;
        }
        let candidates = index.longest(first.prompt);
        match resolve(&forest.nodes, candidates, first) {
            Resolved::Nothing => {}
            Resolved::One(parent, told) => {
                notes.tell(told);
                forest.parents[siblings].fill(Some(parent));
            }
            Resolved::Unclear(several) => {
                notes.ambiguous += 1;
                forest.unclear[siblings].fill(several);
            }
        }
    }
    notes
}

/// Threads what has no ids.
fn by_messages(forest: &mut Forest<'_>) -> Notes {
    let mut notes = Notes::default();
    let index = Index::new(forest.said.iter().map(Said::path));
    for siblings in groups(&forest.nodes) {
        let start = siblings.start;
        let spoken = forest.said[start].spoken();
        if forest.nodes[start].has_ids || spoken.is_empty() {
            continue;
        }
        let mut candidates = index.longest(spoken);
        let is_same = |i: usize| forest.said[i].has_head_of(&forest.said[start]);
        narrow(&mut candidates, is_same);
        match resolve(&forest.nodes, candidates, &forest.nodes[start]) {
            // What has ids, or another head, is where its history was left: no path goes on there.
            Resolved::One(found, told) if !forest.nodes[found].has_ids && is_same(found) => {
                notes.tell(told);
                forest.parents[siblings].fill(Some(found));
            }
            Resolved::Nothing | Resolved::One(..) => {}
            Resolved::Unclear(several) => {
                notes.ambiguous += 1;
                forest.unclear[siblings].fill(several);
            }
        }
    }
    notes
}

/// Whether there is more than one conversation that never forks.
fn has_loose_ends(forest: &Forest<'_>) -> bool {
    let loose = is_loose(forest);
    let mut calls: Vec<_> = forest.nodes.iter().zip(loose).filter(|(_, loose)| *loose).collect();
    calls.dedup_by_key(|(node, _)| node.group());
    calls.len() > 1
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::fixture::{call, reply};
    use crate::graph::scan::nodes;
    use crate::{Link, Notes, links};

    fn parents(calls: &[episode::Call]) -> (Vec<Option<u128>>, Notes) {
        let (links, notes) = links(calls);
        let number = |l: &Link| l.parent.map(|(call, _)| call.0.as_u128());
        (links.iter().map(number).collect(), notes)
    }

    #[test]
    fn a_call_continues_the_longest_path_that_its_prompt_starts_with() {
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
        let before = links(&calls);
        calls.reverse();
        assert_eq!(links(&calls), before);
    }

    #[test]
    fn clocks_that_disagree_do_not_part_a_conversation() {
        let calls = [call(1, &[1, 2, 3], &[&[4]]), call(2, &[1], &[&[2]])];
        assert_eq!(parents(&calls).0, [Some(2), None]);
    }

    #[test]
    fn of_equal_paths_the_one_that_ended_last_before_the_child_is_continued() {
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
        let (nodes, _) = nodes(&calls);
        let begin = Instant::now();
        let (forest, _) = thread(nodes);
        assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
        assert!((1..200).all(|i| forest.parents[i] == Some(i - 1)));
    }

    fn in_words(n: u32, words: &[&str], answer: &str) -> episode::Call {
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(role, text)| serde_json::json!({ "role": role, "content": text });
        let messages: Vec<_> = roles.zip(words).map(message).collect();
        crate::fixture::text_call(n, &messages, answer)
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
    fn words_that_may_continue_either_of_two_do_not_make_ids_unclear() {
        // The third call has ids that say that it continues neither.
        let mut calls =
            vec![in_words(1, &["a"], "b"), in_words(2, &["a"], "b"), call(3, &[1], &[&[2]])];
        reply(&mut calls[0]).ended_at = 25;
        calls[2].begun.request = in_words(3, &["a", "b", "c"], "d").begun.request;
        assert_eq!(parents(&calls).1.ambiguous, 0);
    }

    #[test]
    fn of_equal_words_those_with_the_same_tools_and_instructions_come_first() {
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
        let (forest, _) = thread(nodes(&calls).0);
        assert_eq!((forest.parents[1], forest.leads[1]), (None, Some(0)));
        assert_eq!((forest.parents[2], forest.leads[2]), (None, None));
    }
}
