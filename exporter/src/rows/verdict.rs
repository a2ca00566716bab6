//! Verdict: whether tokens may be trained, and what is to be said about them.
//!
//! Of one choice first ([`judge`]), then of a path and of the whole episode ([`Verdicts`]).

use std::collections::BTreeSet;

use episode::Call;
use serde_json::Value;

use crate::graph::forest::Forest;
use crate::graph::node::Node;
use crate::graph::path::{Merged, Path};
use crate::graph::scan::Scanned;
use crate::notes::Reason;

#[cfg(test)]
mod tests;

/// One word for what may be trained and what is said of it.
pub(crate) fn verdict(trained: usize, reasons: &BTreeSet<Reason>) -> &'static str {
    match (trained, reasons.is_empty()) {
        (0, _) => "unusable",
        (_, true) => "exact",
        (_, false) => "usable",
    }
}

/// What is to be said of the paths of one episode.
pub(crate) struct Verdicts<'a> {
    forest: &'a Forest<'a>,
    merged: &'a Merged,
    lost_call: bool,
    call_without_ids: bool,
    /// Whether the server said of any token which weights sampled it.
    versioned: bool,
    /// Nodes whose prompt holds an answer that no recorded call gave.
    holes: BTreeSet<usize>,
}

impl<'a> Verdicts<'a> {
    pub(crate) fn new(episode: &Scanned, forest: &'a Forest<'a>, merged: &'a Merged) -> Self {
        let is_lost = |c: &&Call| c.ended.is_none() && c.begun.route.generates();
        let lost: Vec<&Call> = episode.calls.iter().filter(is_lost).collect();
        let lost_call = episode.record.may_lack_calls || !lost.is_empty();
        let has_version = |n: &Node<'_>| n.choice.is_some_and(|c| !c.versions.is_empty());
        Self {
            forest,
            merged,
            lost_call,
            call_without_ids: forest.nodes.iter().any(|n| !n.has_ids),
            versioned: forest.nodes.iter().any(has_version),
            holes: if lost_call { holes(forest, &lost) } else { BTreeSet::new() },
        }
    }

    /// Whether the server said of any token which weights sampled it.
    pub(crate) fn versioned(&self) -> bool {
        self.versioned
    }

    /// Why a path is less than exact.
    pub(crate) fn of_path(&self, path: &Path) -> BTreeSet<Reason> {
        let forest = self.forest;
        let mut reasons: BTreeSet<Reason> =
            path.nodes.iter().flat_map(|n| self.of_node(*n)).collect();
        let leaf = &forest.nodes[path.leaf()];
        if path.nodes.iter().any(|n| forest.nodes[*n].model() != leaf.model()) {
            reasons.insert(Reason::ModelsDiffer);
        }
        if self.lost_call {
            reasons.insert(Reason::LostCall);
        }
        if self.call_without_ids && leaf.has_ids {
            reasons.insert(Reason::CallWithoutTokenIds);
        }
        reasons
    }

    /// What is said of one choice, by itself and by its place.
    pub(crate) fn of_node(&self, node: usize) -> BTreeSet<Reason> {
        let mut reasons = self.merged.judged[node].reasons.clone();
        if !self.forest.unclear[node].is_empty() {
            reasons.insert(Reason::AmbiguousParent);
        }
        if self.versioned && lacks_versions(&self.forest.nodes[node]) {
            reasons.insert(Reason::VersionMissing);
        }
        if self.holes.contains(&node) {
            reasons.insert(Reason::HoleAfterLostCall);
        }
        reasons
    }

    /// The verdict on the whole episode: of all its paths, whichever of them are exported.
    pub(crate) fn of_episode(&self) -> (&'static str, BTreeSet<Reason>) {
        let paths = self.merged.paths.iter();
        let mut reasons: BTreeSet<Reason> = paths.flat_map(|p| self.of_path(p)).collect();
        if self.lost_call {
            reasons.insert(Reason::LostCall);
        }
        let tokens = self.merged.judged.iter().map(|j| j.tokens).sum();
        (verdict(tokens, &reasons), reasons)
    }
}

/// Whether a sampled token is in none of the spans that name the weights.
fn lacks_versions(node: &Node<'_>) -> bool {
    let Some(choice) = node.choice.filter(|_| node.has_ids) else { return false };
    let mut spans: Vec<_> = choice.versions.iter().map(|v| (v.start, v.end)).collect();
    spans.sort_unstable();
    let reached = spans.into_iter().fold(0, |to, (start, end)| match start <= to {
        true => end.max(to),
        false => to,
    });
    (reached as usize) < node.sampled.len()
}

/// The nodes in whose prompt an assistant speaks whom no recorded call let speak: a call between
/// them and their parents was lost. What the agent sent to the lost calls is not their answer.
fn holes(forest: &Forest<'_>, lost: &[&Call]) -> BTreeSet<usize> {
    let asked = |call: &Call, request: &[u8]| {
        wire::conversation(call.begun.route, request).unwrap_or_default().messages
    };
    let of_lost = lost.iter().flat_map(|call| asked(call, &call.begun.request));
    let mut known: BTreeSet<String> = of_lost.map(|m| wire::canonical(&m)).collect();
    for node in &forest.nodes {
        let answers = wire::answers(node.call.begun.route, &node.ended.reply);
        known.extend(answers.iter().map(|answer| wire::canonical(&answer.message)));
    }
    let is_unknown = |message: &Value| {
        let role = message.get("role").and_then(Value::as_str);
        role == Some("assistant") && !known.contains(&wire::canonical(message))
    };
    let first_lost = lost.iter().map(|call| call.begun.started_at).min();
    let has_hole = |i: &usize| {
        let Node { call, request, .. } = &forest.nodes[*i];
        let held = match forest.parents[*i] {
            // What stands before the first known call may be the agent's own examples.
            None if first_lost.is_none_or(|at| at > call.begun.started_at) => return false,
            None => 0,
            Some(parent) => {
                let parent = &forest.nodes[parent];
                asked(parent.call, &parent.request).len() + 1
            }
        };
        asked(call, request).iter().skip(held).any(is_unknown)
    };
    (0..forest.nodes.len()).filter(has_hole).collect()
}
