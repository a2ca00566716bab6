//! Judged: whether the tokens of one choice may be trained, and what is to be said about them.

use std::collections::BTreeSet;

use episode::{Fidelity, Outcome};
use serde_json::Value;
use wire::{Effective, Fit};

use crate::graph::family::Family;
use crate::graph::forest::Forest;
use crate::graph::node::Node;
use crate::notes::reason::Reason;

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
