//! Thread: which choice each call continues.
//!
//! A call continues the choice with the longest path (prompt and sampled symbols) that its own
//! prompt starts with. The rule looks at content and at when calls began, never at the order in
//! which they were recorded, so that parallel agents in one episode do not mix.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::notes::Notes;
use crate::scan::Node;

/// The choices of an episode and what each continues.
#[derive(Debug)]
pub(crate) struct Forest<'a> {
    /// In the order in which their calls began.
    pub(crate) nodes: Vec<Node<'a>>,
    /// For each node the one it continues; a parent stands before its children.
    pub(crate) parents: Vec<Option<usize>>,
    /// For each node whether another parent would have done as well.
    pub(crate) ambiguous: Vec<bool>,
}

/// Finds each node's parent. Linear in the number of prompt symbols.
pub(crate) fn thread(nodes: Vec<Node<'_>>) -> (Forest<'_>, Notes) {
    let mut index = Index::default();
    let mut parents = vec![None; nodes.len()];
    let mut ambiguous = vec![false; nodes.len()];
    let mut notes = Notes::default();
    for siblings in groups(&nodes) {
        let first = &nodes[siblings.start];
        let hashes = prefix_hashes(&first.prompt);
        // Nodes of one call never follow each other: a parent must have begun before its child.
        let candidates = index.longest(&nodes, first, &hashes);
        let (parent, unclear) = choose(&nodes, &candidates, first);
        notes.ambiguous += u64::from(unclear);
        for node in siblings {
            parents[node] = parent;
            ambiguous[node] = unclear;
            index.add(node, &nodes[node], hashes.last().copied().unwrap_or(SEED));
        }
    }
    (Forest { nodes, parents, ambiguous }, notes)
}

/// Runs of choices that continue one prompt of one call.
fn groups(nodes: &[Node<'_>]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if nodes[last.start].group() == node.group() => last.end = i + 1,
            _ => groups.push(i..i + 1),
        }
    }
    groups
}

/// Of nodes with one and the same path, the one that `child` continues: the one that ended last
/// before the child began. The second value says that time did not decide.
fn choose(nodes: &[Node<'_>], candidates: &[usize], child: &Node<'_>) -> (Option<usize>, bool) {
    if candidates.len() < 2 {
        return (candidates.first().copied(), false);
    }
    let seen = |i: &usize| nodes[*i].ended.ended_at <= child.call.begun.started_at;
    let last = candidates.iter().copied().filter(seen).map(|i| nodes[i].ended.ended_at).max();
    let latest: Vec<usize> =
        candidates.iter().copied().filter(|i| Some(nodes[*i].ended.ended_at) == last).collect();
    match latest.as_slice() {
        [only] => (Some(*only), false),
        [] => (first_by_id(nodes, candidates), true),
        several => (first_by_id(nodes, several), true),
    }
}

fn first_by_id(nodes: &[Node<'_>], candidates: &[usize]) -> Option<usize> {
    candidates.iter().copied().min_by_key(|i| (nodes[*i].call.begun.call_id, nodes[*i].index))
}

/// The paths known so far, by kind, length and hash.
#[derive(Debug, Default)]
struct Index {
    by_hash: HashMap<(bool, usize, u64), Vec<usize>>,
    lengths: BTreeSet<(bool, usize)>,
}

impl Index {
    /// `prompt_hash` is the hash of the node's whole prompt.
    fn add(&mut self, i: usize, node: &Node<'_>, prompt_hash: u64) {
        if node.sampled.is_empty() {
            // Nothing was sampled, so nothing is continued: the next call is a new try.
            return;
        }
        let hash = node.sampled.iter().fold(prompt_hash, |hash, id| extend(hash, *id));
        let length = node.path_len();
        self.by_hash.entry((node.has_ids, length, hash)).or_default().push(i);
        self.lengths.insert((node.has_ids, length));
    }

    /// All earlier nodes with the longest path that is a prefix of the child's prompt.
    fn longest(&self, nodes: &[Node<'_>], child: &Node<'_>, hashes: &[u64]) -> Vec<usize> {
        let began = |i: usize| (nodes[i].call.begun.started_at, nodes[i].call.begun.call_id);
        let this = (child.call.begun.started_at, child.call.begun.call_id);
        let ids = child.has_ids;
        for (_, length) in self.lengths.range((ids, 0)..=(ids, child.prompt.len())).rev() {
            let Some(found) = self.by_hash.get(&(ids, *length, hashes[*length])) else { continue };
            // A hash only points; the symbols decide.
            let is_parent = |i: &usize| began(*i) < this && is_prefix(&nodes[*i], &child.prompt);
            let found: Vec<usize> = found.iter().copied().filter(is_parent).collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }
}

fn is_prefix(node: &Node<'_>, prompt: &[u32]) -> bool {
    prompt.strip_prefix(node.prompt.as_ref()).is_some_and(|rest| rest.starts_with(&node.sampled))
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn extend(hash: u64, symbol: u32) -> u64 {
    // One round of splitmix64 over the running state: any change of order or value spreads.
    let mut x = hash.wrapping_add(u64::from(symbol)).wrapping_add(SEED);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The hash of each prefix, the empty one first: one more than there are symbols.
fn prefix_hashes(symbols: &[u32]) -> Vec<u64> {
    let mut hashes = Vec::with_capacity(symbols.len() + 1);
    hashes.push(SEED);
    hashes.extend(symbols.iter().scan(SEED, |hash, symbol| {
        *hash = extend(*hash, *symbol);
        Some(*hash)
    }));
    hashes
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::fixture::{call, reply};
    use crate::scan::nodes;
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
    fn a_parent_began_before_its_child() {
        let calls = [call(1, &[1, 2, 3], &[&[4]]), call(2, &[1], &[&[2]])];
        assert_eq!(parents(&calls).0, [None, None]);
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
    fn equal_paths_that_time_does_not_tell_apart_are_noted() {
        let mut calls =
            vec![call(1, &[1], &[&[2]]), call(2, &[1], &[&[2]]), call(3, &[1, 2], &[&[4]])];
        reply(&mut calls[0]).ended_at = 25;
        let (found, notes) = parents(&calls);
        assert_eq!(found, [None, None, Some(1)]);
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
        assert!(begin.elapsed().as_secs() < 2, "{:?}", begin.elapsed());
        assert!((1..200).all(|i| forest.parents[i] == Some(i - 1)));
    }
}
