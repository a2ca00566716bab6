//! Finds the calls that left a known history.

use std::collections::{BTreeMap, HashMap};

use crate::graph::derive::Derived;
use crate::graph::forest::Forest;
use crate::graph::node::{Node, NodeId, prompt_choices};
use crate::graph::paths::Paths;

/// A call that left a history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Departure {
    /// The first choice of the call.
    pub(crate) call: NodeId,
    /// The newest turn of the history.
    pub(crate) known: NodeId,
}

/// Returns all departures of an episode, in the order in which the calls began.
pub(crate) fn departures(derived: &Derived<'_>) -> Vec<Departure> {
    let Derived { forest, paths, .. } = derived;
    let search = DepartureSearch { forest, paths };
    // Calls so far, by the turn that they continue; none for those that continue no turn.
    let mut siblings: HashMap<Option<NodeId>, Siblings<'_>> = HashMap::new();
    let mut found = Vec::new();
    for choices in prompt_choices(&forest.nodes) {
        let call = choices.first();
        let earlier = siblings.entry(forest.parent(call)).or_default();
        if let Some(known) = search.history_left_by(call, earlier.nearest(forest, call)) {
            found.push(Departure { call, known });
        }
        earlier.add(forest, call);
    }
    found
}

struct DepartureSearch<'f, 'a> {
    forest: &'f Forest<'a>,
    paths: &'f Paths,
}

impl DepartureSearch<'_, '_> {
    /// Returns the newest turn of the history that `call` left. `siblings` are the earlier calls
    /// whose prompts are nearest to its own.
    fn history_left_by(&self, call: NodeId, siblings: Vec<NodeId>) -> Option<NodeId> {
        if self.forest.is_ambiguous(call) {
            return None;
        }
        let is_earlier = |other: &NodeId| self.is_before(*other, call);
        let beside = siblings.into_iter().map(|sibling| self.newest_turn(sibling, call));
        let text_parent = self.forest.text_parent(call);
        // Of those that share the most tokens, the last wins: the text parent, else the newest.
        beside
            .filter(is_earlier)
            .chain(text_parent.filter(is_earlier))
            .filter(|other| self.differs(*other, call))
            .max_by_key(|other| self.shared(*other, call))
    }

    fn is_before(&self, other: NodeId, call: NodeId) -> bool {
        let start = |node: NodeId| {
            let begun = &self.forest.nodes[node].call.begun;
            (begun.started_at, begun.call_id)
        };
        start(other) < start(call)
    }

    /// Returns the newest turn before `call` on the path that goes through `node`.
    fn newest_turn(&self, node: NodeId, call: NodeId) -> NodeId {
        let path = &self.paths[self.paths.first_of(node)];
        let from = path.nodes.iter().position(|other| *other == node).unwrap_or(0);
        let earlier = path.nodes[from..].iter().take_while(|turn| self.is_before(**turn, call));
        earlier.last().copied().unwrap_or(node)
    }

    fn shared(&self, other: NodeId, call: NodeId) -> usize {
        shared_tokens(&self.forest.nodes[other], self.forest.nodes[call].prompt)
    }

    /// Returns true where the two differ in a token, or without ids in a message.
    fn differs(&self, other: NodeId, call: NodeId) -> bool {
        let [known, new] = [other, call].map(|node| &self.forest.nodes[node]);
        if known.has_ids && new.has_ids {
            let shared = self.shared(other, call);
            return shared < new.prompt.len() && shared < known.path_len();
        }
        let [known, new] = [other, call].map(|node| self.forest.message_ids.get(node));
        known.is_none() || known.map(|ids| ids.sent()) != new.map(|ids| ids.sent())
    }
}

/// The calls that continue one turn, sorted by prompt, so that the call that shares the most tokens
/// with another is its neighbor.
#[derive(Default)]
struct Siblings<'a> {
    by_ids: BTreeMap<&'a [u32], NodeId>,
    /// The newest call by the first message of its conversation.
    by_first_message: BTreeMap<u32, NodeId>,
}

impl<'a> Siblings<'a> {
    /// Returns the calls whose prompts are nearest to that of `call`.
    fn nearest(&self, forest: &Forest<'a>, call: NodeId) -> Vec<NodeId> {
        let node = &forest.nodes[call];
        if !node.has_ids {
            let first = first_message(forest, call);
            let found = first.and_then(|message| self.by_first_message.get(&message));
            return found.into_iter().copied().collect();
        }
        let prompt = forest.new_prompt(call);
        let below = self.by_ids.range(..=prompt).next_back();
        let above = self.by_ids.range(prompt..).next();
        // Conversations that share no token are unrelated.
        [below, above]
            .into_iter()
            .flatten()
            .map(|(_, sibling)| *sibling)
            .filter(|sibling| shared_tokens(&forest.nodes[*sibling], node.prompt) > 0)
            .collect()
    }

    fn add(&mut self, forest: &Forest<'a>, call: NodeId) {
        if forest.nodes[call].has_ids {
            self.by_ids.insert(forest.new_prompt(call), call);
        } else if let Some(message) = first_message(forest, call) {
            self.by_first_message.insert(message, call);
        }
    }
}

fn first_message(forest: &Forest<'_>, node: NodeId) -> Option<u32> {
    forest.message_ids.get(node)?.conversation().first().copied()
}

/// Returns the number of leading tokens that `prompt` shares with the path to `other`.
pub(crate) fn shared_tokens(other: &Node<'_>, prompt: &[u32]) -> usize {
    let path = other.prompt.iter().chain(other.sampled);
    prompt.iter().zip(path).take_while(|(a, b)| a == b).count()
}
