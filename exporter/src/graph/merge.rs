//! Merge: the paths of an episode's forest.
//!
//! A path goes from a root down to where nothing of its own strand goes on from it (a *strand* is
//! one agent doing one thing: a summary of a conversation is a path beside it). Paths are ordered
//! depth first, roots and children by when their calls began. A node belongs to the first path
//! that holds it.

use episode::Branch;

use crate::graph::family::Family;
use crate::graph::forest::Forest;
use crate::graph::judged::judge_all;
use crate::graph::kind::Kinds;
use crate::graph::node::Node;
use crate::graph::path::{Merged, Path};
use crate::notes::Notes;

/// Turns a forest into paths.
pub(crate) fn merge(forest: &Forest<'_>) -> (Merged, Notes) {
    let family = Family::new(forest);
    let (walked, owners) = walk(forest, &family);
    let kinds = Kinds::new(forest, &family);
    let mut paths: Vec<Path> = Vec::with_capacity(walked.len());
    for (index, (start, nodes)) in walked.into_iter().enumerate() {
        let of = |node: usize| paths.get(owners[node]).map(|path| path.kind);
        let (kind, cue) = kinds.of(start, of);
        let branch = origin(forest, &family, &owners, start).filter(|b| b.parent < index);
        paths.push(Path { nodes, branch, kind, cue });
    }
    let branches = paths.iter().filter(|p| p.branch.is_some()).count() as u64;
    let notes = Notes { roots: paths.len() as u64 - branches, branches, ..Notes::default() };
    let judged = judge_all(forest, &family);
    let written = vec![None; paths.len()];
    let models = forest.nodes.iter().map(|node| node.model().to_owned()).collect();
    let continued = family.continued;
    (Merged { paths, owners, continued, judged, models, written }, notes)
}

/// A node that no earlier path holds, and the path that goes through it.
type Walked = (usize, Vec<usize>);

/// All paths, and for each node the first one that holds it.
fn walk(forest: &Forest<'_>, family: &Family) -> (Vec<Walked>, Vec<usize>) {
    let mut owners = vec![0; forest.nodes.len()];
    let mut paths: Vec<Walked> = Vec::new();
    let mut starts: Vec<usize> = family.roots.iter().rev().copied().collect();
    while let Some(start) = starts.pop() {
        let mut nodes = ancestors(forest, start);
        let mut next = Some(start);
        while let Some(node) = next {
            nodes.push(node);
            owners[node] = paths.len();
            next = family.heir(forest, node);
            // Deeper branches are pushed later and so come out first: depth first.
            let others = family.children[node].iter().skip(usize::from(next.is_some()));
            starts.extend(others.rev());
        }
        paths.push((start, nodes));
    }
    (paths, owners)
}

/// The nodes above `node`, root first.
fn ancestors(forest: &Forest<'_>, node: usize) -> Vec<usize> {
    let mut above: Vec<usize> =
        std::iter::successors(forest.parents[node], |n| forest.parents[*n]).collect();
    above.reverse();
    above
}

/// Where the path that begins to differ at `start` left another one.
fn origin(forest: &Forest<'_>, family: &Family, owners: &[usize], start: usize) -> Option<Branch> {
    let node = &forest.nodes[start];
    if let Some(elder) = family.elders[start] {
        // Both answer one prompt. Without ids no token is known to be shared.
        return Some(Branch { parent: owners[elder], position: node.prompt.len() });
    }
    let beside = |other: usize| {
        let position = alike(&forest.nodes[other], node);
        Branch { parent: owners[other], position }
    };
    let lead = forest.leads[start].map(beside);
    let Some(parent) = forest.parents[start] else { return lead };
    let heir = family.heir(forest, parent).map(beside);
    let held = Branch { parent: owners[parent], position: forest.nodes[parent].path_len() };
    // Of those that share the most tokens the one that its words go on from.
    [Some(held), heir, lead].into_iter().flatten().max_by_key(|branch| branch.position)
}

/// Number of tokens at the start of `node` that are those of the path to `other`.
fn alike(other: &Node<'_>, node: &Node<'_>) -> usize {
    let path = other.prompt.iter().chain(other.sampled);
    node.prompt.iter().chain(node.sampled).zip(path).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use episode::{Choice, Kind};

    use super::*;
    use crate::fixture::{brief, call, choice, reply};
    use crate::trajectories;

    #[test]
    fn a_linear_episode_is_one_path() {
        let calls = vec![call(1, &[1, 2], &[&[3]]), call(2, &[1, 2, 3, 4], &[&[5, 6]])];
        let expected = (vec![1, 2, 3, 4, 5, 6], vec![0, 0, 1, 0, 1, 1], "main");
        assert_eq!(brief(calls), [expected]);
    }

    #[test]
    fn a_fork_keeps_both_paths_and_trains_what_they_share_once() {
        let calls = vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 7, 3], &[&[4]]),
            call(3, &[1, 2, 7, 5], &[&[6]]),
        ];
        let (found, notes) = trajectories(&calls);
        assert_eq!(found[1].branch, Some(Branch { parent: 0, position: 3 }));
        assert_eq!((notes.roots, notes.branches), (1, 1));
        let expected = [
            (vec![1, 2, 7, 3, 4], vec![0, 1, 0, 0, 1], "main"),
            (vec![1, 2, 7, 5, 6], vec![0, 0, 0, 0, 1], "fork"),
        ];
        assert_eq!(brief(calls), expected);
    }

    #[test]
    fn another_answer_to_the_same_prompt_is_kept_beside_the_first() {
        let calls = vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 3], &[&[4]]),
            call(3, &[1, 2, 3], &[&[4]]),
        ];
        let expected = [
            (vec![1, 2, 3, 4], vec![0, 1, 0, 1], "main"),
            (vec![1, 2, 3, 4], vec![0, 0, 0, 1], "sibling"),
        ];
        assert_eq!(brief(calls), expected);
    }

    #[test]
    fn a_second_conversation_has_no_branch() {
        let (found, _) = trajectories(&[call(1, &[1], &[&[2]]), call(2, &[1, 5], &[&[6]])]);
        assert_eq!(
            found.iter().map(|t| (t.kind, t.branch)).collect::<Vec<_>>(),
            [(Kind::Main, None), (Kind::Fork, None)]
        );
    }

    #[test]
    fn choices_that_nobody_continues_are_siblings() {
        let calls = vec![call(1, &[1], &[&[2], &[3], &[4]]), call(2, &[1, 3, 9], &[&[5]])];
        let (found, _) = trajectories(&calls);
        assert_eq!(found[1].branch, Some(Branch { parent: 0, position: 1 }));
        let expected = [
            (vec![1, 3, 9, 5], vec![0, 1, 0, 1], "main"),
            (vec![1, 2], vec![0, 1], "sibling"),
            (vec![1, 4], vec![0, 1], "sibling"),
        ];
        assert_eq!(brief(calls), expected);
    }

    #[test]
    fn two_continued_choices_are_a_fork() {
        let calls = vec![
            call(1, &[1], &[&[2], &[3]]),
            call(2, &[1, 3, 9], &[&[5]]),
            call(3, &[1, 2, 9], &[&[5]]),
        ];
        let expected = [
            (vec![1, 2, 9, 5], vec![0, 1, 0, 1], "main"),
            (vec![1, 3, 9, 5], vec![0, 1, 0, 1], "fork"),
        ];
        assert_eq!(brief(calls), expected);
    }

    #[test]
    fn each_prompt_of_a_batch_is_a_conversation() {
        let mut batch = call(1, &[1], &[]);
        reply(&mut batch).prompts = vec![vec![1], vec![2]];
        reply(&mut batch).choices =
            vec![choice(0, &[5]), Choice { prompt_index: 1, ..choice(1, &[6]) }];
        let expected = [(vec![1, 5], vec![0, 1], "main"), (vec![2, 6], vec![0, 1], "fork")];
        assert_eq!(brief(vec![batch]), expected);
    }

    #[test]
    fn deeper_branches_come_before_shallower_ones() {
        let calls = vec![
            call(1, &[1], &[&[2]]),
            call(2, &[1, 2, 3], &[&[4]]),
            call(3, &[1, 2, 8], &[&[4]]),
            call(4, &[1, 2, 3, 4, 5], &[&[6]]),
            call(5, &[1, 2, 3, 4, 7], &[&[6]]),
        ];
        let (found, _) = trajectories(&calls);
        let ends: Vec<u32> = found.iter().map(|t| t.turns[1].new_prompt[0]).collect();
        assert_eq!(ends, [3, 3, 8]);
    }
}
