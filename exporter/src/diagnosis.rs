//! Diagnosis: what is wrong with one episode, call by call, and why its history forked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use episode::{Call, CallId};
use store::EpisodeRecord;
use template::TokenizerError;

use crate::forks::texts::Texts;
use crate::forks::{Fork, forks};
use crate::graph::merge::merge;
use crate::graph::scan::{Scanned, nodes};
use crate::graph::thread::thread;
use crate::notes::{Dropped, Reason};
use crate::rows::verdict::Verdicts;

/// What is known of one attempt at an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// `exact`, `usable`, `unusable`: of everything recorded.
    pub verdict: &'static str,
    /// Why it is not exact, by the words of the reasons.
    pub findings: Vec<Finding>,
    /// Where histories were left, in the order in which the calls began.
    pub forks: Vec<Fork>,
    /// Calls read.
    pub calls: u64,
    /// Calls that make no turn, by why.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Paths: the rows of an export of all kinds.
    pub trajectories: u64,
    /// Sampled tokens with an id.
    pub sampled_tokens: u64,
    /// Those of them that may be trained.
    pub trainable_tokens: u64,
    /// Whether the server said of any token which weights sampled it.
    pub versioned: bool,
}

/// A reason and the calls that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The reason.
    pub reason: Reason,
    /// In the order in which they began; none where it is about the whole episode.
    pub calls: Vec<CallId>,
}

/// Diagnoses one attempt. Text around forks is shown as far as it is recorded.
pub fn diagnose(record: EpisodeRecord, calls: Vec<Call>) -> Diagnosis {
    of(&Scanned { record, calls, rewards: Vec::new() }, None)
}

/// The same with a `tokenizer.json`: text around forks is that of their ids.
///
/// # Errors
/// [`TokenizerError`] when the file is absent or not a tokenizer.
pub fn diagnose_with(
    tokenizer: &Path,
    record: EpisodeRecord,
    calls: Vec<Call>,
) -> Result<Diagnosis, TokenizerError> {
    let texts = Texts::read(tokenizer)?;
    Ok(of(&Scanned { record, calls, rewards: Vec::new() }, Some(&texts)))
}

fn of(episode: &Scanned, texts: Option<&Texts>) -> Diagnosis {
    let (nodes, scanned) = nodes(&episode.calls);
    let (forest, _) = thread(nodes);
    let (merged, _) = merge(&forest);
    let verdicts = Verdicts::new(episode, &forest, &merged);
    let (verdict, reasons) = verdicts.of_episode();
    let mut about: BTreeMap<Reason, BTreeSet<(i64, CallId)>> = BTreeMap::new();
    for (index, node) in forest.nodes.iter().enumerate() {
        let begun = &node.call.begun;
        for reason in verdicts.of_node(index) {
            about.entry(reason).or_default().insert((begun.started_at, begun.call_id));
        }
    }
    let lost = episode.calls.iter().filter(|c| c.ended.is_none() && c.begun.route.generates());
    let lost = lost.map(|call| (call.begun.started_at, call.begun.call_id));
    about.entry(Reason::LostCall).or_default().extend(lost);
    let finding = |reason: Reason| {
        let calls = about.get(&reason).into_iter().flatten().map(|(_, call)| *call).collect();
        Finding { reason, calls }
    };
    Diagnosis {
        verdict,
        findings: reasons.into_iter().map(finding).collect(),
        forks: forks(episode, &forest, &merged, texts),
        calls: scanned.calls,
        dropped: scanned.dropped,
        trajectories: merged.paths.len() as u64,
        sampled_tokens: forest.nodes.iter().map(|n| n.sampled.len() as u64).sum(),
        trainable_tokens: merged.judged.iter().map(|j| j.tokens as u64).sum(),
        versioned: verdicts.versioned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{call, episode, reply};

    #[test]
    fn reasons_name_their_calls() {
        let mut uneven = call(2, &[1, 2, 3], &[&[4, 5]]);
        reply(&mut uneven).choices[0].logprobs.pop();
        let mut lost = call(3, &[1], &[]);
        lost.ended = None;
        let Scanned { record, calls, .. } =
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
