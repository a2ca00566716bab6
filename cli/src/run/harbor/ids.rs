//! The recording of an episode in the form of Harbor's `rollout_details`.
//!
//! A detail is a stretch of turns, each with its whole prompt. The first is the main conversation;
//! a branch has the turns that no earlier detail has, so that no turn is there twice.

use std::collections::{BTreeMap, BTreeSet};

use episode::{EpisodeId, Micros};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::recorder::RecorderClient;
use crate::exit::Failure;

/// The fidelity of ids that the server itself reported.
const EXACT: &str = "exact";

/// The recording of an episode.
#[derive(Debug, Default)]
pub(super) struct RecordedIds {
    /// Number of calls that were to sample.
    pub(super) calls: u64,
    /// Number of those of which all ids are known as the server reported them, and of those that
    /// were refused, which have none.
    pub(super) exact_calls: u64,
    /// The verdict on the whole episode.
    pub(super) verdict: Option<String>,
    /// Reasons for which the episode is not exact.
    pub(super) reasons: Vec<String>,
    turns: Vec<TreeTurn>,
    arrays: BTreeMap<String, CallArrays>,
}

impl RecordedIds {
    /// Harbor's `rollout_details` of the whole episode.
    pub(super) fn details(&self) -> Vec<Value> {
        details(&self.turns.iter().collect::<Vec<_>>(), &self.arrays)
    }

    /// The same of each step, by the times at which the steps began. A turn is of the last step
    /// that had begun, so clocks of two machines may differ by what lies between two steps.
    pub(super) fn details_of_steps(&self, began: &[Option<Micros>]) -> Vec<Vec<Value>> {
        let step_of = |turn: &TreeTurn| {
            let has_begun = |at: &Option<Micros>| at.is_some_and(|at| at <= turn.started());
            began.iter().rposition(has_begun).unwrap_or(0)
        };
        let of_step = |step: usize| {
            let turns = self.turns.iter().filter(|turn| step_of(turn) == step);
            details(&turns.collect::<Vec<_>>(), &self.arrays)
        };
        (0..began.len()).map(of_step).collect()
    }
}

/// Counts of an episode.
#[derive(Debug, Deserialize)]
struct EpisodeCounts {
    generations: u64,
    refused: u64,
}

/// A choice of a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct TreeTurnKey {
    call_id: String,
    choice: u32,
}

/// A turn of the episode's tree.
#[derive(Debug, Deserialize)]
struct TreeTurn {
    #[serde(flatten)]
    key: TreeTurnKey,
    parent: Option<TreeTurnKey>,
    kind: String,
    fidelity: Option<String>,
    /// The time at which its call began, in seconds.
    started_at: f64,
}

impl TreeTurn {
    fn started(&self) -> Micros {
        (self.started_at * 1e6) as Micros
    }
}

/// The tree of an episode.
#[derive(Debug, Deserialize)]
struct Tree {
    verdict: Option<String>,
    reasons: Vec<TreeReason>,
    turns: Vec<TreeTurn>,
}

/// A reason for which an episode is not exact.
#[derive(Debug, Deserialize)]
struct TreeReason {
    reason: String,
    meaning: String,
}

/// A call with its arrays.
#[derive(Debug, Deserialize)]
struct CallArrays {
    #[serde(default)]
    prompts: Vec<Vec<u32>>,
    #[serde(default)]
    choices: Vec<ChoiceOfCall>,
}

/// A choice with its arrays.
#[derive(Debug, Deserialize)]
struct ChoiceOfCall {
    index: u32,
    prompt_index: usize,
    arrays: Option<SampledArrays>,
}

/// Sampled ids of a choice, with their logprobs.
#[derive(Debug, Deserialize)]
struct SampledArrays {
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Vec<Option<f64>>,
}

/// Asks for what was recorded of an attempt.
pub(super) async fn recorded(
    recorder: &RecorderClient,
    episode: &EpisodeId,
    attempt: u32,
) -> Result<RecordedIds, Failure> {
    let page = format!("/episodes/{episode}/tree?attempt={attempt}");
    let tree: Tree = parsed(recorder.request(Method::GET, &page, &Value::Null).await?)?;
    let page = format!("/episodes/{episode}?attempt={attempt}");
    let counts: EpisodeCounts = parsed(recorder.request(Method::GET, &page, &Value::Null).await?)?;

    let mut calls = BTreeMap::new();
    for turn in &tree.turns {
        let call = &turn.key.call_id;
        if !calls.contains_key(call) {
            let page = format!("/calls/{call}?arrays=1");
            let read = recorder.request(Method::GET, &page, &Value::Null).await?;
            calls.insert(call.clone(), parsed::<CallArrays>(read)?);
        }
    }

    let said = |reason: &TreeReason| format!("{}: {}", reason.reason, reason.meaning);
    Ok(RecordedIds {
        calls: counts.generations,
        exact_calls: exact_calls(&tree.turns, &calls) + counts.refused,
        reasons: tree.reasons.iter().map(said).collect(),
        verdict: tree.verdict,
        turns: tree.turns,
        arrays: calls,
    })
}

/// Returns the number of calls of which every choice has its prompt's and its own ids as the server
/// reported them.
fn exact_calls(turns: &[TreeTurn], calls: &BTreeMap<String, CallArrays>) -> u64 {
    let is_exact = |turn: &TreeTurn| {
        turn.fidelity.as_deref() == Some(EXACT) && known_turn(&turn.key, calls).is_some()
    };
    let not_exact: BTreeSet<&str> =
        turns.iter().filter(|turn| !is_exact(turn)).map(|turn| turn.key.call_id.as_str()).collect();
    calls.keys().filter(|call| !not_exact.contains(call.as_str())).count() as u64
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value)
        .map_err(|error| Failure::of(&error).context("the control listener's answer"))
}

/// The details of some turns: one for each path that has turns of its own, the main one first.
fn details(turns: &[&TreeTurn], calls: &BTreeMap<String, CallArrays>) -> Vec<Value> {
    let by_key: BTreeMap<&TreeTurnKey, &TreeTurn> =
        turns.iter().map(|turn| (&turn.key, *turn)).collect();
    let parents: BTreeSet<&TreeTurnKey> =
        turns.iter().filter_map(|turn| turn.parent.as_ref()).collect();
    let mut leaves: Vec<&TreeTurn> =
        turns.iter().copied().filter(|turn| !parents.contains(&turn.key)).collect();
    leaves.sort_by_key(|turn| turn.kind != "main");

    let mut taken = BTreeSet::new();
    let own_turns = leaves.into_iter().map(|leaf| {
        let above =
            |turn: &&TreeTurn| turn.parent.as_ref().and_then(|key| by_key.get(key).copied());
        let path = std::iter::successors(Some(leaf), above);
        let mut own: Vec<&TreeTurnKey> =
            path.map(|turn| &turn.key).take_while(|key| taken.insert(*key)).collect();
        own.reverse();
        own
    });
    own_turns.filter_map(|own| detail(&own, calls)).collect()
}

/// One detail; none if the ids of none of its turns are known.
fn detail(turns: &[&TreeTurnKey], calls: &BTreeMap<String, CallArrays>) -> Option<Value> {
    let known: Vec<(&TreeTurnKey, &Vec<u32>, &SampledArrays)> =
        turns.iter().filter_map(|key| known_turn(key, calls)).collect();
    if known.is_empty() {
        return None;
    }

    let prompts: Vec<&Vec<u32>> = known.iter().map(|(_, prompt, _)| *prompt).collect();
    let sampled: Vec<&Option<Vec<u32>>> =
        known.iter().map(|(.., arrays)| &arrays.token_ids).collect();
    let names: Vec<&str> = known.iter().map(|(key, ..)| key.call_id.as_str()).collect();
    let mut written = json!({ "prompt_token_ids": prompts, "completion_token_ids": sampled });
    // A trainer would take a missing number for a probability.
    let logprobs: Option<Vec<Vec<f64>>> =
        known.iter().map(|(.., arrays)| all_logprobs(arrays)).collect();
    if let Some(logprobs) = logprobs {
        written["logprobs"] = json!(logprobs);
    }
    written["extra"] = json!({ "call_id": names });
    Some(written)
}

/// The prompt of a turn and what it sampled, where the ids of both are known.
fn known_turn<'c, 'k>(
    key: &'k TreeTurnKey,
    calls: &'c BTreeMap<String, CallArrays>,
) -> Option<(&'k TreeTurnKey, &'c Vec<u32>, &'c SampledArrays)> {
    let call = calls.get(&key.call_id)?;
    let choice = call.choices.iter().find(|choice| choice.index == key.choice)?;
    let arrays = choice.arrays.as_ref().filter(|arrays| arrays.token_ids.is_some())?;
    Some((key, call.prompts.get(choice.prompt_index)?, arrays))
}

/// The logprobs of all sampled tokens; none if one is not known.
fn all_logprobs(arrays: &SampledArrays) -> Option<Vec<f64>> {
    let sampled = arrays.token_ids.as_ref().map_or(0, Vec::len);
    let known: Option<Vec<f64>> = arrays.logprobs.iter().copied().collect();
    known.filter(|known| known.len() == sampled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(call: &str, parent: Option<&str>, kind: &str) -> TreeTurn {
        let key = |call: &str| TreeTurnKey { call_id: call.to_owned(), choice: 0 };
        let fidelity = Some(EXACT.to_owned());
        let (parent, kind) = (parent.map(key), kind.to_owned());
        TreeTurn { key: key(call), parent, kind, fidelity, started_at: 0.0 }
    }

    fn details_of(turns: &[TreeTurn], calls: &BTreeMap<String, CallArrays>) -> Vec<Value> {
        details(&turns.iter().collect::<Vec<_>>(), calls)
    }

    fn call(prompt: &[u32], sampled: &[u32], logprobs: &[Option<f64>]) -> CallArrays {
        let arrays =
            SampledArrays { token_ids: Some(sampled.to_vec()), logprobs: logprobs.to_vec() };
        let choice = ChoiceOfCall { index: 0, prompt_index: 0, arrays: Some(arrays) };
        CallArrays { prompts: vec![prompt.to_vec()], choices: vec![choice] }
    }

    #[test]
    fn a_branch_has_the_turns_that_the_main_conversation_has_not() {
        let turns = [
            turn("side", None, "auxiliary"),
            turn("a", None, "main"),
            turn("fork", Some("a"), "fork"),
            turn("b", Some("a"), "main"),
        ];
        let calls = [
            ("side", call(&[9], &[8], &[Some(-1.0)])),
            ("a", call(&[1], &[2], &[Some(-0.5)])),
            ("b", call(&[1, 2, 3], &[4, 5], &[Some(-0.25), Some(-2.0)])),
            ("fork", call(&[1, 2], &[7], &[None])),
        ];
        let calls = calls.map(|(name, call)| (name.to_owned(), call)).into();
        let main = json!({
            "prompt_token_ids": [[1], [1, 2, 3]], "completion_token_ids": [[2], [4, 5]],
            "logprobs": [[-0.5], [-0.25, -2.0]], "extra": { "call_id": ["a", "b"] },
        });
        let side = json!({
            "prompt_token_ids": [[9]], "completion_token_ids": [[8]], "logprobs": [[-1.0]],
            "extra": { "call_id": ["side"] },
        });
        // A number that the server did not report makes no list of numbers.
        let fork = json!({
            "prompt_token_ids": [[1, 2]], "completion_token_ids": [[7]],
            "extra": { "call_id": ["fork"] },
        });
        assert_eq!(details_of(&turns, &calls), [main, side, fork]);
    }

    #[test]
    fn a_turn_without_ids_is_in_no_detail() {
        let silent = CallArrays { prompts: Vec::new(), choices: Vec::new() };
        let calls = [("a".to_owned(), silent)].into();
        assert!(details_of(&[turn("a", None, "main")], &calls).is_empty());
        assert_eq!(exact_calls(&[turn("a", None, "main")], &calls), 0);
    }

    #[test]
    fn ids_that_were_looked_up_are_not_exact() {
        let calls = ["a", "b"].map(|name| (name.to_owned(), call(&[1], &[2], &[None]))).into();
        let mapped =
            TreeTurn { fidelity: Some("mapped".to_owned()), ..turn("b", Some("a"), "main") };
        assert_eq!(exact_calls(&[turn("a", None, "main"), mapped], &calls), 1);
    }

    #[test]
    fn a_turn_is_of_the_step_that_began_last() {
        let at = |call: &str, parent, seconds| TreeTurn {
            started_at: seconds,
            ..turn(call, parent, "main")
        };
        let names = ["early", "a", "b", "late"];
        let calls = names.map(|name| (name.to_owned(), call(&[1], &[2], &[None]))).into();
        let turns = vec![
            at("early", None, 0.5),
            at("a", Some("early"), 1.0),
            at("b", Some("a"), 1.5),
            at("late", Some("b"), 9.0),
        ];
        let recorded = RecordedIds { turns, arrays: calls, ..RecordedIds::default() };
        // The second of four steps did not come to its agent.
        let began = [Some(1_000_000), None, Some(2_000_000), Some(9_500_000)];
        let named: Vec<Vec<Value>> = recorded
            .details_of_steps(&began)
            .iter()
            .map(|step| step.iter().map(|detail| detail["extra"]["call_id"].clone()).collect())
            .collect();
        let first = json!(["early", "a", "b"]);
        assert_eq!(named, [vec![first], vec![], vec![json!(["late"])], vec![]]);
    }
}
