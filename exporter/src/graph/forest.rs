//! Forest: the choices of an episode, and what each of them continues.

use std::ops::Range;

use crate::graph::message_ids::Said;
use crate::graph::node::Node;

/// The choices of an episode and what each continues.
#[derive(Debug)]
pub(crate) struct Forest<'a> {
    /// In the order in which their calls began.
    pub(crate) nodes: Vec<Node<'a>>,
    /// For each node the one whose path its own path goes on from: both have ids, or both have
    /// none.
    pub(crate) parents: Vec<Option<usize>>,
    /// For each node that its parent does not explain the one that it continues in words, but not
    /// token for token.
    pub(crate) leads: Vec<Option<usize>>,
    /// For each node the possible parents that nothing tells apart; such a node stands alone.
    pub(crate) unclear: Vec<Vec<usize>>,
    /// For each node its messages; empty where the ids alone say everything.
    pub(crate) said: Vec<Said>,
}

/// Runs of choices that continue one prompt of one call.
pub(crate) fn groups(nodes: &[Node<'_>]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if nodes[last.start].group() == node.group() => last.end = i + 1,
            _ => groups.push(i..i + 1),
        }
    }
    groups
}
