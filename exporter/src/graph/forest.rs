//! The forest of an episode: its nodes, and what each of them continues.

use crate::graph::message_ids::MessageIds;
use crate::graph::node::{Node, NodeId, PerNode};

/// The choices of an episode and what each continues.
#[derive(Debug)]
pub(crate) struct Forest<'a> {
    pub(crate) nodes: PerNode<Node<'a>>,
    pub(crate) links: PerNode<ParentLink>,
    /// Messages of each node; empty where token ids alone link all nodes.
    pub(crate) message_ids: PerNode<MessageIds>,
}

/// The nodes that one node continues, in tokens and in text.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParentLink {
    /// The node whose path this node's path extends. Both have ids, or both have none.
    pub(crate) parent: Option<NodeId>,
    /// The node that this one continues in text but not token for token, where that is not the
    /// parent.
    pub(crate) text_parent: Option<NodeId>,
    /// Possible parents that nothing tells apart. Such a node has no parent.
    pub(crate) ambiguous: Vec<NodeId>,
}

impl<'a> Forest<'a> {
    /// Makes a forest in which no node continues another yet.
    pub(crate) fn unlinked(nodes: PerNode<Node<'a>>) -> Self {
        let links = PerNode::filled(nodes.len(), ParentLink::default());
        Self { nodes, links, message_ids: PerNode::from_iter([]) }
    }

    pub(crate) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.links[node].parent
    }

    pub(crate) fn text_parent(&self, node: NodeId) -> Option<NodeId> {
        self.links[node].text_parent
    }

    /// Returns true where several possible parents are alike.
    pub(crate) fn is_ambiguous(&self, node: NodeId) -> bool {
        !self.links[node].ambiguous.is_empty()
    }

    /// Returns the nodes above `node`, root first.
    pub(crate) fn ancestors(&self, node: NodeId) -> Vec<NodeId> {
        let mut above: Vec<NodeId> =
            std::iter::successors(self.parent(node), |above| self.parent(*above)).collect();
        above.reverse();
        above
    }

    /// Returns the part of a node's prompt behind its parent's path; the whole prompt of a root.
    pub(crate) fn new_prompt(&self, node: NodeId) -> &'a [u32] {
        let inherited = self.parent(node).map_or(0, |parent| self.nodes[parent].path_len());
        &self.nodes[node].prompt[inherited..]
    }
}
