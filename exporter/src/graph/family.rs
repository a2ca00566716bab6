//! Family: the forest seen from above: what continues what, and in which order.

use std::collections::HashMap;

use episode::{CallId, CallKind, Outcome};

use crate::graph::forest::Forest;
use crate::graph::node::Node;

/// Roots, children and tries of a forest.
#[derive(Debug)]
pub(crate) struct Family {
    /// By when their calls began; of tries at one prompt the one that leads comes first.
    pub(crate) roots: Vec<usize>,
    /// For each node those that go on from it. One that goes on with its path comes first.
    pub(crate) children: Vec<Vec<usize>>,
    /// For each node the try at the same prompt that leads, unless it is itself.
    pub(crate) elders: Vec<Option<usize>>,
    /// For each node whether another call goes on from it, in tokens or in words; none where
    /// nothing tells it from its equals.
    pub(crate) continued: Vec<Option<bool>>,
    /// For each node whether a later try took its place.
    pub(crate) superseded: Vec<bool>,
}

impl Family {
    pub(crate) fn new(forest: &Forest<'_>) -> Self {
        let count = forest.nodes.len();
        let mut family = Self {
            roots: Vec::new(),
            children: vec![Vec::new(); count],
            elders: vec![None; count],
            continued: continued(forest),
            superseded: vec![false; count],
        };
        let mut children = vec![Vec::new(); count];
        let mut roots = Vec::new();
        for (node, parent) in forest.parents.iter().enumerate() {
            parent.map_or(&mut roots, |p| &mut children[p]).push(node);
        }
        family.roots = family.ordered(forest, roots).concat();
        for (parent, nodes) in children.into_iter().enumerate() {
            let mut tries = family.ordered(forest, nodes);
            let goes_on = |tries: &Vec<usize>| same_strand(forest, parent, tries[0]);
            let is_lived = |tries: &Vec<usize>| family.continued[tries[0]] == Some(true);
            let heir = tries.iter().position(|t| goes_on(t) && is_lived(t));
            if let Some(heir) = heir.or_else(|| tries.iter().position(goes_on)) {
                tries[..=heir].rotate_right(1);
            }
            family.children[parent] = tries.concat();
        }
        family
    }

    /// The node that goes on with the path that ends at `node`.
    pub(crate) fn heir(&self, forest: &Forest<'_>, node: usize) -> Option<usize> {
        let first = self.children[node].first().copied();
        first.filter(|child| same_strand(forest, node, *child))
    }

    /// `nodes` by the prompt that they answer; in each list the one that leads comes first: the
    /// one that was continued, else the first that is whole and that no later try took the place
    /// of.
    fn ordered(&mut self, forest: &Forest<'_>, nodes: Vec<usize>) -> Vec<Vec<usize>> {
        let mut places = HashMap::new();
        let mut all: Vec<Vec<usize>> = Vec::new();
        for node in nodes {
            let place = *places.entry(Asked::of(forest, node)).or_insert(all.len());
            if place == all.len() {
                all.push(Vec::new());
            }
            all[place].push(node);
        }
        for tries in &mut all {
            for node in tries.iter() {
                let later = |other: &usize| supersedes(&forest.nodes[*other], &forest.nodes[*node]);
                self.superseded[*node] = tries.iter().any(later);
            }
            let failed = |n: usize| forest.nodes[n].ended.outcome != Outcome::Complete;
            tries.sort_by_key(|n| {
                (self.continued[*n] != Some(true), self.superseded[*n], failed(*n))
            });
            tries[1..].iter().for_each(|n| self.elders[*n] = Some(tries[0]));
        }
        all
    }
}

fn continued(forest: &Forest<'_>) -> Vec<Option<bool>> {
    let mut continued = vec![Some(false); forest.nodes.len()];
    forest.unclear.iter().flatten().for_each(|node| continued[*node] = None);
    for node in forest.parents.iter().chain(&forest.leads).flatten() {
        continued[*node] = Some(true);
    }
    continued
}

/// Whether a path may go from one node to the other: one agent does one thing with one model. The
/// tokens of two models are never trained together.
pub(crate) fn same_strand(forest: &Forest<'_>, one: usize, other: usize) -> bool {
    let model = |i: usize| forest.nodes[i].model();
    same_agent(forest, one, other) && model(one) == model(other)
}

/// Whether one agent does one thing in both. An agent may leave its name out of a call.
pub(crate) fn same_agent(forest: &Forest<'_>, one: usize, other: usize) -> bool {
    let [(one, its_agent), (other, other_agent)] = [one, other].map(|i| forest.nodes[i].strand());
    let named = its_agent.zip(other_agent);
    one == other && named.is_none_or(|(its, other)| its == other)
}

/// Whether `later` is the client's next try at what `earlier` did not bring it.
fn supersedes(later: &Node<'_>, earlier: &Node<'_>) -> bool {
    let [new, old] = [later, earlier].map(|n| n.call.begun.lineage.retry);
    let failed = earlier.ended.outcome != Outcome::Complete;
    let after = later.call.begun.started_at >= earlier.ended.ended_at;
    let another = later.call.begun.call_id != earlier.call.begun.call_id;
    another && after && (failed || new > old)
}

/// What a node was asked. Nodes of one parent and one key are tries at one prompt.
#[derive(PartialEq, Eq, Hash)]
enum Asked<'f> {
    Ids((CallKind, Option<&'f str>), &'f [u32]),
    Words((CallKind, Option<&'f str>), &'f [u32]),
    /// Nothing is known of the prompt, so only the choices of one call share it.
    Call(CallId, u32),
}

impl<'f> Asked<'f> {
    fn of(forest: &'f Forest<'_>, node: usize) -> Self {
        let this = &forest.nodes[node];
        let held = forest.parents[node].map_or(0, |p| forest.nodes[p].path_len());
        let words = forest.said.get(node).map_or(&[][..], |said| said.history());
        match (this.has_ids, words) {
            (true, _) => Self::Ids(this.strand(), &this.prompt[held..]),
            (false, []) => Self::Call(this.call.begun.call_id, this.prompt_index),
            (false, words) => Self::Words(this.strand(), words),
        }
    }
}
