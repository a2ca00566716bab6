//! Verdicts: whether tokens may be trained, and the reasons against it.
//!
//! [`Verdicts`] judges one choice by its place, a path, and the whole episode. What a choice shows
//! by itself is in [`crate::graph::assessment`].

use std::collections::BTreeSet;

use episode::{Call, ContinueReason};
use serde_json::Value;

use crate::graph::derive::Derived;
use crate::graph::forest::Forest;
use crate::graph::node::{Node, NodeId};
use crate::graph::paths::Path;
use crate::graph::scan::RecordedAttempt;
use crate::notes::Reason;

/// Returns the verdict on a number of trained tokens and the reasons against them.
pub(crate) fn verdict(trained: usize, reasons: &BTreeSet<Reason>) -> &'static str {
    match (trained, reasons.iter().all(|reason| reason.spares_tokens())) {
        (0, _) => "unusable",
        (_, true) => "exact",
        (_, false) => "usable",
    }
}

/// Judges the paths of one episode.
pub(crate) struct Verdicts<'a> {
    derived: &'a Derived<'a>,
    lost_call: bool,
    call_without_ids: bool,
    /// True where the server reported the version of any token.
    versioned: bool,
    /// Nodes whose prompt holds an answer that no recorded call gave.
    holes: BTreeSet<NodeId>,
}

impl<'a> Verdicts<'a> {
    pub(crate) fn new(attempt: &RecordedAttempt, derived: &'a Derived<'a>) -> Self {
        let forest = &derived.forest;
        let lost: Vec<&Call> = attempt.calls.iter().filter(|call| is_lost(call)).collect();
        let lost_call = attempt.record.may_lack_calls || !lost.is_empty();
        Self {
            derived,
            lost_call,
            call_without_ids: forest.nodes.iter().any(|node| !node.has_ids),
            versioned: forest.nodes.iter().any(has_version),
            holes: if lost_call { holes(forest, &lost) } else { BTreeSet::new() },
        }
    }

    /// Returns true where the server reported the version of any token.
    pub(crate) fn versioned(&self) -> bool {
        self.versioned
    }

    /// Returns the reasons why a path is less than exact.
    pub(crate) fn of_path(&self, path: &Path) -> BTreeSet<Reason> {
        let leaf = &self.derived.forest.nodes[path.leaf()];
        let mut policies = path.nodes.iter().map(|node| self.derived.forest.nodes[*node].policy);
        let by_place = [
            (Reason::ModelsDiffer, policies.any(|policy| policy != leaf.policy)),
            (Reason::LostCall, self.lost_call),
            (Reason::CallWithoutTokenIds, self.call_without_ids && leaf.has_ids),
        ];
        let reasons = path.nodes.iter().flat_map(|node| self.of_node(*node));
        reasons.chain(those_that_hold(by_place)).collect()
    }

    /// Returns the reasons of one choice, by itself and by its place.
    pub(crate) fn of_node(&self, id: NodeId) -> BTreeSet<Reason> {
        let by_place = [
            (Reason::AmbiguousParent, self.derived.forest.is_ambiguous(id)),
            (
                Reason::VersionMissing,
                self.versioned && lacks_versions(&self.derived.forest.nodes[id]),
            ),
            (Reason::HoleAfterLostCall, self.holes.contains(&id)),
            (Reason::AsSampled, is_as_sampled(&self.derived.forest.nodes[id])),
        ];
        let by_itself = self.derived.paths.nodes[id].assessment.reasons.iter().copied();
        by_itself.chain(those_that_hold(by_place)).collect()
    }

    /// Returns the verdict on all paths of the episode, exported or not, and its reasons.
    pub(crate) fn of_episode(&self) -> (&'static str, BTreeSet<Reason>) {
        let of_paths = self.derived.paths.iter().flat_map(|path| self.of_path(path));
        // An episode without paths can still have lost a call.
        let reasons = of_paths.chain(self.lost_call.then_some(Reason::LostCall)).collect();
        let tokens = self.derived.paths.nodes.iter().map(|node| node.assessment.tokens).sum();
        (verdict(tokens, &reasons), reasons)
    }
}

fn those_that_hold<const N: usize>(reasons: [(Reason, bool); N]) -> impl Iterator<Item = Reason> {
    reasons.into_iter().filter_map(|(reason, holds)| holds.then_some(reason))
}

/// Returns true for a call whose sampled tokens are lost: its end was never recorded.
pub(crate) fn is_lost(call: &Call) -> bool {
    call.ended.is_none() && call.begun.route.generates()
}

/// Returns true where the prompt was sent as ids that say more than the template renders.
fn is_as_sampled(node: &Node<'_>) -> bool {
    node.ended.continued.is_some_and(|it| it.reason == Some(ContinueReason::AsSampled))
}

fn has_version(node: &Node<'_>) -> bool {
    node.choice.is_some_and(|choice| !choice.versions.is_empty())
}

/// Returns true where a sampled token is in none of the spans that name its version.
fn lacks_versions(node: &Node<'_>) -> bool {
    let Some(choice) = node.choice.filter(|_| node.has_ids) else { return false };
    let mut spans: Vec<_> = choice.versions.iter().map(|span| (span.start, span.end)).collect();
    spans.sort_unstable();
    let mut covered = 0;
    for (start, end) in spans {
        if start <= covered {
            covered = end.max(covered);
        }
    }
    (covered as usize) < node.sampled.len()
}

/// Finds the nodes whose prompt holds an assistant's message that no recorded call answered. A call
/// between such a node and its parent was lost. Messages that the agent sent to the lost calls were
/// not answered by them.
fn holes(forest: &Forest<'_>, lost: &[&Call]) -> BTreeSet<NodeId> {
    let sent_to_lost = lost.iter().flat_map(|call| sent_messages(call, &call.begun.request.read()));
    let mut known: BTreeSet<String> =
        sent_to_lost.map(|message| wire::canonical(&message)).collect();
    for node in forest.nodes.iter() {
        let answers = wire::answers(node.call.begun.route, &node.ended.reply.read());
        known.extend(answers.iter().map(|answer| wire::canonical(&answer.message)));
    }

    let first_lost = lost.iter().map(|call| call.begun.started_at).min();
    let has_hole = |id: &NodeId| {
        let Node { call, request, .. } = &forest.nodes[*id];
        let inherited = match forest.parent(*id) {
            // Messages before the first known call may be the agent's own examples.
            None if first_lost.is_none_or(|at| at > call.begun.started_at) => return false,
            None => 0,
            Some(parent) => {
                let parent = &forest.nodes[parent];
                sent_messages(parent.call, &parent.request.read()).len() + 1
            }
        };
        let new = sent_messages(call, &request.read()).into_iter().skip(inherited);
        new.filter(wire::is_answer).any(|message| !known.contains(&wire::canonical(&message)))
    };
    forest.nodes.ids().filter(has_hole).collect()
}

fn sent_messages(call: &Call, request: &[u8]) -> Vec<Value> {
    wire::conversation(call.begun.route, request).unwrap_or_default().messages
}

#[cfg(test)]
mod tests;
