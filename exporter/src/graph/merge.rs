//! Merges the nodes of a forest into paths.
//!
//! A path goes from a root down to the last node of the same agent task and model. A summary of a
//! conversation is another task, so it is a path beside the conversation. Paths are ordered depth
//! first, roots and children by the start of their calls. A node belongs to the first path that
//! holds it.

use episode::Branch;

use crate::graph::assessment::assess_all;
use crate::graph::descendants::Descendants;
use crate::graph::forest::Forest;
use crate::graph::kind::Kinds;
use crate::graph::node::{Node, NodeId, PerNode};
use crate::graph::paths::{Path, PathId, PathNode, Paths};
use crate::notes::Notes;

/// Turns a forest into paths.
pub(crate) fn merge(forest: &Forest<'_>) -> (Paths, Notes) {
    let descendants = Descendants::new(forest);
    let ForestWalk { lines, first_paths } = ForestWalk::new(forest, &descendants);
    let kinds = Kinds::new(forest, &descendants);
    let origins = Origins { forest, descendants: &descendants, first_paths: &first_paths };

    let mut list: Vec<Path> = Vec::with_capacity(lines.len());
    for PathLine { start, nodes } in lines {
        // Only the kinds of earlier paths are known.
        let kind_of_node = |node| list.get(first_paths[node].0).map(|path| path.kind);
        let (kind, kind_reason) = kinds.of(start, kind_of_node);
        let branch = origins.of(start).filter(|branch| branch.parent < list.len());
        list.push(Path { nodes, branch, kind, kind_reason, retokenized: None });
    }

    let branches = list.iter().filter(|path| path.branch.is_some()).count() as u64;
    let notes = Notes { roots: list.len() as u64 - branches, branches, ..Notes::default() };
    let assessments = assess_all(forest, &descendants);
    let nodes = forest.nodes.entries().map(|(id, node)| PathNode {
        first_path: first_paths[id],
        continued: descendants[id].continued,
        assessment: assessments[id].clone(),
        model: node.model().to_owned(),
        policy: node.policy.to_owned(),
    });
    (Paths::new(list, nodes.collect()), notes)
}

/// The nodes of one path.
struct PathLine {
    /// The first node that no earlier path holds.
    start: NodeId,
    nodes: Vec<NodeId>,
}

/// All lines of a forest, and the first path that holds each node.
struct ForestWalk {
    lines: Vec<PathLine>,
    first_paths: PerNode<PathId>,
}

impl ForestWalk {
    fn new(forest: &Forest<'_>, descendants: &Descendants) -> Self {
        let mut lines: Vec<PathLine> = Vec::new();
        let mut first_paths = PerNode::filled(forest.nodes.len(), PathId(0));
        let mut starts: Vec<NodeId> = descendants.roots.iter().rev().copied().collect();

        while let Some(start) = starts.pop() {
            let mut nodes = forest.ancestors(start);
            let mut next = Some(start);
            while let Some(node) = next {
                nodes.push(node);
                first_paths[node] = PathId(lines.len());
                next = descendants.heir(forest, node);
                // Branches further down are pushed later and popped first: depth first.
                let children = &descendants[node].children;
                let others = children.iter().skip(usize::from(next.is_some()));
                starts.extend(others.rev());
            }
            lines.push(PathLine { start, nodes });
        }
        Self { lines, first_paths }
    }
}

/// Finds where paths left other paths.
struct Origins<'f, 'a> {
    forest: &'f Forest<'a>,
    descendants: &'f Descendants,
    first_paths: &'f PerNode<PathId>,
}

impl Origins<'_, '_> {
    /// Returns the place where the path that begins to differ at `start` left another one.
    fn of(&self, start: NodeId) -> Option<Branch> {
        let forest = self.forest;
        let node = &forest.nodes[start];
        if let Some(leading) = self.descendants[start].leading_try {
            // Both answer one prompt. Without ids no token is known to be shared.
            return Some(self.branch(leading, node.prompt.len()));
        }

        let shared_with = |other| {
            let position = shared_tokens(&forest.nodes[other], node);
            self.branch(other, position)
        };
        let text_parent = forest.text_parent(start).map(shared_with);
        let Some(parent) = forest.parent(start) else { return text_parent };
        let heir = self.descendants.heir(forest, parent).map(shared_with);
        let inherited = self.branch(parent, forest.nodes[parent].path_len());
        // `max_by_key` takes the last of equals, so the text parent wins a tie.
        [Some(inherited), heir, text_parent]
            .into_iter()
            .flatten()
            .max_by_key(|branch| branch.position)
    }

    fn branch(&self, node: NodeId, position: usize) -> Branch {
        Branch { parent: self.first_paths[node].0, position }
    }
}

/// Returns the number of leading tokens that `node` shares with the path to `other`.
fn shared_tokens(other: &Node<'_>, node: &Node<'_>) -> usize {
    let path = other.prompt.iter().chain(other.sampled);
    node.prompt.iter().chain(node.sampled).zip(path).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use episode::{Choice, TrajectoryKind};

    use super::*;
    use crate::tests::fixture::{brief, call, choice, reply};
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
            [(TrajectoryKind::Main, None), (TrajectoryKind::Fork, None)]
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
