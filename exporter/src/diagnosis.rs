//! Diagnosis of one episode: its verdict, the calls behind each reason, and its forks. [`health`]
//! is that of a run, [`audit`] whether its logprobs are those of its policy.

pub(crate) mod audit;
pub(crate) mod health;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use episode::{Call, CallId, Micros};
use store::AttemptRecord;
use template::TokenizerError;

use crate::forks::Fork;
use crate::forks::builder::forks;
use crate::forks::token_texts::ForkTexts;
use crate::graph::derive::derive;
use crate::graph::scan::RecordedAttempt;
use crate::links::{ChoiceLink, links};
use crate::notes::{DropReason, Reason};
use crate::rows::verdict::{Verdicts, is_lost};

/// The diagnosis of one attempt at an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// Verdict on everything recorded: `exact`, `usable` or `unusable`.
    pub verdict: &'static str,
    /// Reasons why it is not exact, sorted by word.
    pub findings: Vec<Finding>,
    /// Places where histories were left, in the order in which the calls began.
    pub forks: Vec<Fork>,
    /// Number of calls.
    pub calls: u64,
    /// Calls that make no turn, by reason.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Number of paths, which is that of the rows in an export of all kinds.
    pub trajectories: u64,
    /// Number of sampled tokens with an id. Those of recorded replies were sampled elsewhere.
    pub sampled_tokens: u64,
    /// Number of those that may be trained.
    pub trainable_tokens: u64,
    /// True where the server reported the policy version of any token.
    pub versioned: bool,
}

/// A reason and the calls that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The reason.
    pub reason: Reason,
    /// Calls in the order in which they began; none where it is about the whole episode.
    pub calls: Vec<CallId>,
}

/// Diagnoses one attempt. Text around forks is shown as far as it is recorded.
pub fn diagnose(record: AttemptRecord, calls: Vec<Call>) -> Diagnosis {
    diagnosis(&RecordedAttempt::of_calls(record, calls), None).0
}

/// Diagnoses one attempt, and returns with it every choice and what that continues, in the order in
/// which the calls began, and the calls. Text around forks is shown as far as it is recorded.
pub fn diagnose_tree(
    record: AttemptRecord,
    calls: Vec<Call>,
) -> (Diagnosis, Vec<ChoiceLink>, Vec<Call>) {
    let attempt = RecordedAttempt::of_calls(record, calls);
    let (found, links) = diagnosis(&attempt, None);
    (found, links, attempt.calls)
}

/// Diagnoses one attempt with a `tokenizer.json`, which decodes the text around forks.
///
/// # Errors
/// [`TokenizerError`] when the file is absent or not a tokenizer.
pub fn diagnose_with_tokenizer(
    tokenizer: &Path,
    record: AttemptRecord,
    calls: Vec<Call>,
) -> Result<Diagnosis, TokenizerError> {
    let texts = ForkTexts::read(tokenizer)?;
    Ok(diagnosis(&RecordedAttempt::of_calls(record, calls), Some(&texts)).0)
}

fn diagnosis(attempt: &RecordedAttempt, texts: Option<&ForkTexts>) -> (Diagnosis, Vec<ChoiceLink>) {
    let derived = derive(&attempt.calls);
    let verdicts = Verdicts::new(attempt, &derived);
    let (verdict, reasons) = verdicts.of_episode();

    // The start of each call comes first in its key, which sorts the calls.
    let mut calls_of: BTreeMap<Reason, BTreeSet<(Micros, CallId)>> = BTreeMap::new();
    for (id, node) in derived.forest.nodes.entries() {
        for reason in verdicts.of_node(id) {
            calls_of.entry(reason).or_default().insert(start(node.call));
        }
    }
    // Lost calls have no node.
    let lost = attempt.calls.iter().filter(|call| is_lost(call));
    calls_of.entry(Reason::LostCall).or_default().extend(lost.map(start));

    let findings = reasons.into_iter().map(|reason| {
        let calls = calls_of.get(&reason).into_iter().flatten().map(|(_, call)| *call);
        Finding { reason, calls: calls.collect() }
    });
    let (nodes, paths) = (&derived.forest.nodes, &derived.paths);
    let diagnosis = Diagnosis {
        verdict,
        findings: findings.collect(),
        forks: forks(attempt, &derived, texts),
        calls: derived.notes.calls,
        dropped: derived.notes.dropped.clone(),
        trajectories: paths.len() as u64,
        sampled_tokens: nodes.iter().map(|node| node.newly_sampled() as u64).sum(),
        trainable_tokens: paths.nodes.iter().map(|node| node.assessment.tokens as u64).sum(),
        versioned: verdicts.versioned(),
    };
    (diagnosis, links(&derived))
}

fn start(call: &Call) -> (Micros, CallId) {
    (call.begun.started_at, call.begun.call_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::{call, episode, reply};

    #[test]
    fn what_was_given_again_was_not_sampled() {
        let mut given = call(1, &[1], &[&[2, 3]]);
        reply(&mut given).replayed = Some(given.begun.call_id);
        let live = call(2, &[1, 2, 3, 4], &[&[5]]);
        let RecordedAttempt { record, calls, .. } = episode(vec![given, live]);
        let (found, links, _) = diagnose_tree(record, calls);
        assert_eq!((found.sampled_tokens, found.trainable_tokens), (1, 1));
        let counts = links.iter().map(|link| (link.new_prompt, link.sampled, link.trained));
        assert_eq!(counts.collect::<Vec<_>>(), [(1, 0, 0), (1, 1, 1)]);
    }

    #[test]
    fn reasons_name_their_calls() {
        let mut uneven = call(2, &[1, 2, 3], &[&[4, 5]]);
        reply(&mut uneven).choices[0].logprobs.pop();
        let mut lost = call(3, &[1], &[]);
        lost.ended = None;
        let RecordedAttempt { record, calls, .. } =
            episode(vec![call(1, &[1], &[&[2]]), uneven.clone(), lost.clone()]);
        let found = diagnose(record, calls);
        assert_eq!((found.verdict, found.trajectories), ("usable", 1));
        assert_eq!((found.sampled_tokens, found.trainable_tokens), (3, 1));
        assert!(found.versioned && found.forks.is_empty());
        let about = |reason, call: &Call| Finding { reason, calls: vec![call.begun.call_id] };
        let expected =
            [about(Reason::LogprobCountDiffers, &uneven), about(Reason::LostCall, &lost)];
        assert_eq!(found.findings, expected);
    }
}
