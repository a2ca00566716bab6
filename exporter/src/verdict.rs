//! Whether the tokens of a choice may be trained, and what is to be said about them.

use std::collections::BTreeSet;

use episode::{Fidelity, Outcome};
use serde_json::Value;

use crate::notes::Reason;
use crate::scan::Node;

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
    if bent(node) {
        reasons.insert(Reason::LogprobsNotOfSamplingDistribution);
    }
    let trainable = counts_agree && known > 0 && node.ended.outcome == Outcome::Complete;
    Judged { trainable, tokens: if trainable { known } else { 0 }, reasons }
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

/// Whether the sampling parameters bend the distribution away from the one that the logprobs are
/// of. Without such parameters all kinds of logprobs are the same numbers.
fn bent(node: &Node<'_>) -> bool {
    let sampling = node.call.begun.sampling.as_deref().unwrap_or("{}");
    let sampling: Value = serde_json::from_str(sampling).unwrap_or_default();
    let differs = |key: &str, neutral: &[f64]| {
        sampling.get(key).and_then(Value::as_f64).is_some_and(|value| !neutral.contains(&value))
    };
    // Both 0 and -1 turn `top_k` off, by server.
    let truncated =
        differs("top_p", &[1.0]) || differs("top_k", &[0.0, -1.0]) || differs("min_p", &[0.0]);
    let reshaped = differs("temperature", &[1.0])
        || differs("presence_penalty", &[0.0])
        || differs("frequency_penalty", &[0.0])
        || differs("repetition_penalty", &[1.0]);
    match node.ended.logprob_kind.as_str() {
        "processed" => false,
        "temperature" => truncated,
        _ => truncated || reshaped,
    }
}

/// The temperature that the agent asked for.
pub(crate) fn temperature(node: &Node<'_>) -> Option<f64> {
    let sampling: Value = serde_json::from_str(node.call.begun.sampling.as_deref()?).ok()?;
    sampling.get("temperature").and_then(Value::as_f64)
}
