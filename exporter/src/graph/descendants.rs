//! The forest read downwards: the children of each node, and the tries at each prompt, in order.

use std::collections::HashMap;
use std::ops::Index;

use episode::{CallId, Outcome};

use crate::graph::forest::Forest;
use crate::graph::node::{AgentTask, Node, NodeId, PerNode};

/// Roots and descendants of a forest.
#[derive(Debug)]
pub(crate) struct Descendants {
    /// Roots by the start of their calls. Of several tries at one prompt the leading one comes
    /// first.
    pub(crate) roots: Vec<NodeId>,
    nodes: PerNode<Descent>,
}

/// The children of one node, and its standing among the tries at its prompt.
#[derive(Debug, Clone)]
pub(crate) struct Descent {
    /// Nodes that continue this one. One that extends its path comes first.
    pub(crate) children: Vec<NodeId>,
    /// The leading try at the same prompt, unless this node is the leading one.
    pub(crate) leading_try: Option<NodeId>,
    /// True where another call continues this node in tokens or in text; none where several nodes
    /// may be the one that it continues.
    pub(crate) continued: Option<bool>,
    /// True where a later try took the place of this one.
    pub(crate) superseded: bool,
}

impl Index<NodeId> for Descendants {
    type Output = Descent;

    fn index(&self, node: NodeId) -> &Descent {
        &self.nodes[node]
    }
}

impl Descendants {
    pub(crate) fn new(forest: &Forest<'_>) -> Self {
        let mut descendants = Self { roots: Vec::new(), nodes: without_order(forest) };

        let mut roots = Vec::new();
        let mut children = PerNode::filled(forest.nodes.len(), Vec::new());
        for node in forest.nodes.ids() {
            match forest.parent(node) {
                Some(parent) => children[parent].push(node),
                None => roots.push(node),
            }
        }

        descendants.roots = descendants.in_order(forest, roots).concat();
        for (parent, nodes) in children.entries() {
            let mut tries = descendants.in_order(forest, nodes.clone());
            if let Some(heir) = descendants.heir_among(forest, parent, &tries) {
                tries[..=heir].rotate_right(1);
            }
            descendants.nodes[parent].children = tries.concat();
        }
        descendants
    }

    /// Returns the child that extends the path of `node`.
    pub(crate) fn heir(&self, forest: &Forest<'_>, node: NodeId) -> Option<NodeId> {
        let first = self.nodes[node].children.first().copied();
        first.filter(|child| may_share_path(forest, node, *child))
    }

    pub(crate) fn is_continued(&self, node: NodeId) -> bool {
        self.nodes[node].continued == Some(true)
    }

    /// Groups `nodes` by the prompt that they answer, the leading try of each prompt first.
    ///
    /// The leading try is the one that was continued, else the first that is complete and that no
    /// later try superseded.
    fn in_order(&mut self, forest: &Forest<'_>, nodes: Vec<NodeId>) -> Vec<Vec<NodeId>> {
        let mut prompts = by_prompt(forest, nodes);
        for tries in &mut prompts {
            for node in tries.iter() {
                let superseded = tries
                    .iter()
                    .any(|later| supersedes(&forest.nodes[*later], &forest.nodes[*node]));
                self.nodes[*node].superseded = superseded;
            }
            tries.sort_by_key(|node| {
                let failed = forest.nodes[*node].ended.outcome != Outcome::Complete;
                (!self.is_continued(*node), self.nodes[*node].superseded, failed)
            });
            for node in &tries[1..] {
                self.nodes[*node].leading_try = Some(tries[0]);
            }
        }
        prompts
    }

    /// Returns the place of the tries whose leading one extends the path of `parent`: the first
    /// that was itself continued, else the first that is whole, else the first.
    fn heir_among(
        &self,
        forest: &Forest<'_>,
        parent: NodeId,
        tries: &[Vec<NodeId>],
    ) -> Option<usize> {
        let extends = |tries: &Vec<NodeId>| may_share_path(forest, parent, tries[0]);
        let went_on = |tries: &Vec<NodeId>| extends(tries) && self.is_continued(tries[0]);
        let is_whole = |tries: &Vec<NodeId>| {
            extends(tries) && forest.nodes[tries[0]].ended.outcome == Outcome::Complete
        };
        let places = tries.iter();
        let first_whole = || places.clone().position(is_whole);
        let found = places.clone().position(went_on).or_else(first_whole);
        found.or_else(|| tries.iter().position(extends))
    }
}

/// Makes the entries of all nodes with `continued` known and the rest empty.
fn without_order(forest: &Forest<'_>) -> PerNode<Descent> {
    let mut continued = PerNode::filled(forest.nodes.len(), Some(false));
    for node in forest.links.iter().flat_map(|link| &link.ambiguous) {
        continued[*node] = None;
    }
    for link in forest.links.iter() {
        for node in [link.parent, link.text_parent].into_iter().flatten() {
            continued[node] = Some(true);
        }
    }
    let empty = continued.iter().map(|continued| Descent {
        children: Vec::new(),
        leading_try: None,
        continued: *continued,
        superseded: false,
    });
    empty.collect()
}

/// Returns true where one path may hold both nodes: one agent does one thing with one policy.
/// Tokens of two policies are never trained together.
pub(crate) fn may_share_path(forest: &Forest<'_>, one: NodeId, other: NodeId) -> bool {
    let has_same_policy = forest.nodes[one].policy == forest.nodes[other].policy;
    is_same_task(forest, one, other) && has_same_policy
}

/// Returns true where one agent does one thing in both. An agent may leave its name out of a call.
pub(crate) fn is_same_task(forest: &Forest<'_>, one: NodeId, other: NodeId) -> bool {
    let [one, other] = [one, other].map(|node| forest.nodes[node].agent_task());
    one.kind == other.kind && one.agent.zip(other.agent).is_none_or(|(one, other)| one == other)
}

/// Returns true where `later` is the client's next try after `earlier` did not reach it.
fn supersedes(later: &Node<'_>, earlier: &Node<'_>) -> bool {
    let [new, old] = [later, earlier].map(|node| node.call.begun.lineage.retry);
    let failed = earlier.ended.outcome != Outcome::Complete;
    let is_after = later.call.begun.started_at >= earlier.ended.ended_at;
    later.call_id() != earlier.call_id() && is_after && (failed || new > old)
}

fn by_prompt(forest: &Forest<'_>, nodes: Vec<NodeId>) -> Vec<Vec<NodeId>> {
    let mut places = HashMap::new();
    let mut prompts: Vec<Vec<NodeId>> = Vec::new();
    for node in nodes {
        let place = *places.entry(PromptIdentity::of(forest, node)).or_insert(prompts.len());
        if place == prompts.len() {
            prompts.push(Vec::new());
        }
        prompts[place].push(node);
    }
    prompts
}

/// The prompt of a node. Nodes with one parent and one prompt are tries at the same thing.
#[derive(PartialEq, Eq, Hash)]
enum PromptIdentity<'f> {
    /// Token ids behind the parent's path.
    Ids(AgentTask<'f>, &'f [u32]),
    /// Numbers of the messages, and of what a server sealed beside them.
    Messages(AgentTask<'f>, &'f [u32], Option<u32>),
    /// A call and its prompt index. Nothing else is known of the prompt, so only choices of one
    /// call share it.
    Call(CallId, u32),
}

impl<'f> PromptIdentity<'f> {
    fn of(forest: &'f Forest<'_>, id: NodeId) -> Self {
        let node = &forest.nodes[id];
        match (node.has_ids, forest.message_ids.get(id)) {
            (true, _) => Self::Ids(node.agent_task(), forest.new_prompt(id)),
            (false, Some(messages)) if !messages.sent().is_empty() => {
                Self::Messages(node.agent_task(), messages.sent(), messages.sealed())
            }
            (false, _) => Self::Call(node.call_id(), node.prompt_index),
        }
    }
}
