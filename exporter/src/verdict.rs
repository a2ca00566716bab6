//! Verdict: whether tokens may be trained, and what is to be said about them.
//!
//! Of one choice first ([`judge`]), then of a path and of the whole episode ([`Verdicts`]).

use std::collections::BTreeSet;

use episode::{Call, Fidelity, Outcome};
use serde_json::Value;
use wire::{Effective, Fit};

use crate::family::Family;
use crate::merge::{Merged, Path};
use crate::notes::Reason;
use crate::scan::{Node, Scanned};
use crate::thread::Forest;

#[cfg(test)]
mod tests;

/// Servers that cannot send NaN or infinity in JSON send a number below this one.
const LOGPROB_FLOOR: f32 = -9999.0;

/// Whether a logprob stands for "not known".
pub(crate) fn is_missing(logprob: f32) -> bool {
    !logprob.is_finite() || logprob <= LOGPROB_FLOOR
}

/// What is known of one choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Whether its tokens may be trained, less those without a logprob.
    pub(crate) trainable: bool,
    /// Number of tokens that may be trained.
    pub(crate) tokens: usize,
    /// Why it is less than exact.
    pub(crate) reasons: BTreeSet<Reason>,
}

/// Judges one choice by itself; where it stands in the forest does not matter.
pub(crate) fn judge(node: &Node<'_>) -> Judged {
    let Some(choice) = node.choice.filter(|_| node.has_ids) else {
        let reasons = ending(node.ended.outcome).into_iter().chain([Reason::NoTokenIds]);
        return Judged { reasons: reasons.collect(), ..Judged::default() };
    };
    let counts_agree = choice.logprobs.len() == node.sampled.len();
    let known = choice.logprobs.iter().filter(|l| !is_missing(**l)).count();
    let mut reasons = BTreeSet::new();
    reasons.extend(ending(node.ended.outcome));
    if node.sampled.is_empty() {
        reasons.insert(Reason::NothingSampled);
    }
    if !counts_agree {
        reasons.insert(Reason::LogprobCountDiffers);
    } else if known < node.sampled.len() {
        reasons.insert(Reason::LogprobMissing);
    }
    if choice.fidelity == Fidelity::Mapped {
        reasons.insert(Reason::Mapped);
    }
    if usage_differs(node) {
        reasons.insert(Reason::TokenCountDiffers);
    }
    let parser_lost_ids = parser_lost_ids(node);
    if parser_lost_ids {
        reasons.insert(Reason::ParserLostIds);
    }
    reasons.extend(unfit(node));
    let whole = node.ended.outcome == Outcome::Complete && !parser_lost_ids;
    let trainable = counts_agree && known > 0 && whole;
    Judged { trainable, tokens: if trainable { known } else { 0 }, reasons }
}

/// Judges every choice of an episode, with what the calls around it say of it.
pub(crate) fn judge_all(forest: &Forest<'_>, family: &Family) -> Vec<Judged> {
    let nodes = forest.nodes.iter().enumerate();
    let judged = nodes.map(|(i, node)| {
        let mut judged = judge(node);
        let complete = node.ended.outcome == Outcome::Complete;
        if complete && family.superseded[i] && family.continued[i] != Some(true) {
            judged.reasons.insert(Reason::DeliveryUncertain);
        }
        judged
    });
    judged.collect()
}

/// What a reply that did not end well is called.
fn ending(outcome: Outcome) -> Option<Reason> {
    match outcome {
        Outcome::Complete => None,
        Outcome::ClientGone => Some(Reason::ClientGone),
        Outcome::UpstreamFailed => Some(Reason::UpstreamFailed),
        Outcome::Capped => Some(Reason::Capped),
        Outcome::Refused => Some(Reason::Refused),
    }
}

/// Whether the server's counts differ from its ids. A reply cut short has no count to compare.
fn usage_differs(node: &Node<'_>) -> bool {
    let ended = node.ended;
    if ended.outcome != Outcome::Complete {
        return false;
    }
    let sampled: Option<u64> =
        ended.choices.iter().map(|c| c.token_ids.as_ref().map(|ids| ids.len() as u64)).sum();
    let differs = |said: Option<u64>, counted| said.is_some_and(|said| said != counted);
    // Servers count a batch of prompts in different ways; one prompt leaves no doubt.
    let prompt_differs = match ended.prompts.as_slice() {
        [only] => differs(ended.usage.prompt, only.len() as u64),
        _ => false,
    };
    prompt_differs || sampled.is_some_and(|counted| differs(ended.usage.completion, counted))
}

/// Whether ids are missing where servers are known to lose them: a parser of tool calls or of
/// reasoning holds text back while the reply streams, and the ids of that text are never sent.
fn parser_lost_ids(node: &Node<'_>) -> bool {
    let ended = node.ended;
    let counted = ended.choices.iter().map(|c| c.token_ids.as_ref().map_or(0, Vec::len) as u64);
    let is_short = ended.usage.completion.is_some_and(|said| said > counted.sum());
    if ended.outcome != Outcome::Complete || !is_short {
        return false;
    }
    let answers = wire::answers(node.call.begun.route, &ended.reply);
    let answer = answers.into_iter().find(|a| a.index == node.index);
    answer.is_some_and(|a| wire::reasoning(&a.message).is_some() || calls_tools(&a.message))
}

fn calls_tools(message: &Value) -> bool {
    message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
}

/// What is to be said of logprobs that are not known to be of the distribution that was sampled
/// from. Of calls of before it was recorded what the server chose, only the request is known.
fn unfit(node: &Node<'_>) -> Option<Reason> {
    let (begun, ended) = (&node.call.begun, node.ended);
    let recorded = ended.sampled_with.as_deref().and_then(Effective::read);
    let effective = recorded
        .unwrap_or_else(|| Effective::of_request(begun.sampling.as_deref(), &begun.request));
    match effective.fit(&ended.logprob_kind) {
        Fit::Yes => None,
        Fit::No => Some(Reason::LogprobsNotOfSamplingDistribution),
        Fit::Unknown => Some(Reason::SamplingUnknown),
    }
}

/// The temperature that the agent asked for.
pub(crate) fn temperature(node: &Node<'_>) -> Option<f64> {
    let sampling: Value = serde_json::from_str(node.call.begun.sampling.as_deref()?).ok()?;
    sampling.get("temperature").and_then(Value::as_f64)
}

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
