//! The latest reward of each thing, and the tokens of a row that it falls on.
//!
//! Of all rewards named [`REWARD`] for one thing the last one counts, null included. The reward of
//! a call falls on the last token that the call sampled, that of a span of tokens on the last token
//! of the span. So the sum over a row's tokens is the sum over its parts.

use std::collections::BTreeMap;

use episode::{CallId, Giver, Micros, Reward, RewardScope};
use serde::Serialize;
use serde_json::json;

use crate::graph::forest::Forest;
use crate::graph::node::Node;
use crate::rewards::score::Score;

/// Name of the reward that trainers read.
pub(crate) const REWARD: &str = "reward";

/// The latest rewards of an episode, by what they are for.
#[derive(Debug, Default)]
pub(crate) struct LatestRewards(BTreeMap<RewardScope, Score>);

/// Position of a turn's sampled tokens in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnSpan {
    pub(crate) call: CallId,
    pub(crate) choice: u32,
    /// First sampled token.
    pub(crate) start: usize,
    /// End of the sampled tokens, exclusive.
    pub(crate) end: usize,
}

/// A score that falls on one token of a row.
struct ScoredToken {
    token: usize,
    score: Score,
}

impl LatestRewards {
    /// Collects the latest of `rewards`, which are in the order in which they were given.
    pub(crate) fn new(rewards: &[Reward]) -> Self {
        let named = rewards.iter().filter(|reward| reward.name == REWARD);
        Self(named.map(|reward| (reward.scope, Score::given(reward.value))).collect())
    }

    /// Returns the latest score for `scope`.
    pub(crate) fn score(&self, scope: RewardScope) -> Score {
        self.0.get(&scope).copied().unwrap_or(Score::NotGiven)
    }

    /// Returns the latest reward for `scope`; none where none was given or it is null.
    pub(crate) fn value(&self, scope: RewardScope) -> Option<f64> {
        self.score(scope).value()
    }

    /// Returns the latest score of the trajectory that holds these choices, its last choice first.
    pub(crate) fn trajectory_score(&self, choices: impl Iterator<Item = (CallId, u32)>) -> Score {
        choices
            .map(|(call, choice)| self.score(RewardScope::Trajectory { call, choice }))
            .find(|score| score.is_given())
            .unwrap_or(Score::NotGiven)
    }

    /// Returns the scores of spans of a turn's tokens, each on the last token of its span. A span
    /// that is longer than the turn belongs to other tokens.
    fn span_scores(&self, turn: TurnSpan) -> impl Iterator<Item = ScoredToken> + '_ {
        let TurnSpan { call, choice, start, end } = turn;
        let first = RewardScope::Tokens { call, choice, start: 0, end: 0 };
        let last = RewardScope::Tokens { call, choice, start: u32::MAX, end: u32::MAX };
        self.0.range(first..=last).filter_map(move |(scope, score)| {
            let span_end = start + scope.tokens()?.1 as usize;
            (span_end <= end).then(|| ScoredToken { token: span_end - 1, score: *score })
        })
    }

    /// Returns one reward for each of `tokens` tokens, null where none falls. Gives nothing where
    /// none falls on any. Several rewards of one token are added.
    pub(crate) fn token_rewards(
        &self,
        turns: &[TurnSpan],
        tokens: usize,
    ) -> Option<Vec<Option<f64>>> {
        let mut rewards = vec![None; tokens];
        let mut is_any_given = false;
        for turn in turns.iter().filter(|turn| turn.start < turn.end) {
            let score = self.score(RewardScope::Call(turn.call));
            let of_call = score.is_given().then_some(ScoredToken { token: turn.end - 1, score });
            for ScoredToken { token, score } in of_call.into_iter().chain(self.span_scores(*turn)) {
                is_any_given = true;
                if let Score::Value(value) = score {
                    *rewards[token].get_or_insert(0.0) += value;
                }
            }
        }
        is_any_given.then_some(rewards)
    }

    /// Returns the total score of each turn. The last turn also gets the score of the branch: the
    /// trajectory's, or the episode's where that was not given.
    pub(crate) fn turn_scores(&self, turns: &[TurnSpan], trajectory: Score) -> Vec<Score> {
        let total = |turn: &TurnSpan| {
            let of_call = self.score(RewardScope::Call(turn.call));
            self.span_scores(*turn).fold(of_call, |sum, part| sum.and(part.score))
        };
        let mut scores: Vec<Score> = turns.iter().map(total).collect();
        if let Some(last) = scores.last_mut() {
            *last = last.and(trajectory.or(self.score(RewardScope::Episode)));
        }
        scores
    }

    /// Counts the rewards for calls, choices or tokens that no path of the episode holds.
    pub(crate) fn unplaced(&self, forest: &Forest<'_>) -> u64 {
        let mut nodes_of_call: BTreeMap<CallId, Vec<&Node<'_>>> = BTreeMap::new();
        for node in forest.nodes.iter() {
            nodes_of_call.entry(node.call_id()).or_default().push(node);
        }
        let is_placed = |scope: RewardScope| {
            let Some(call) = scope.call() else { return true };
            let mut nodes = nodes_of_call.get(&call).into_iter().flatten();
            nodes.any(|node| is_in(scope, node))
        };
        self.0.keys().filter(|scope| !is_placed(**scope)).count() as u64
    }
}

/// Returns true where a choice holds what a reward of its call is for.
fn is_in(scope: RewardScope, node: &Node<'_>) -> bool {
    scope.choice().is_none_or(|choice| choice == node.index)
        && scope.tokens().is_none_or(|(_, end)| end as usize <= node.sampled.len())
}

/// One element of the column `rewards`.
#[derive(Serialize)]
struct RewardEntry<'a> {
    name: &'a str,
    value: Option<f64>,
    source: &'a str,
    /// Microseconds since the Unix epoch, UTC.
    at: Micros,
    scope: &'static str,
    call_id: Option<String>,
    choice: Option<u32>,
    start: Option<u32>,
    end: Option<u32>,
    given_by: Option<&'static str>,
    given_from: Option<&'a str>,
    key_name: Option<&'a str>,
    /// Calls that had ended, and the value of the chain after them.
    over_calls: Option<u64>,
    over_chain: Option<String>,
}

/// Writes all rewards as the JSON text of the column `rewards`.
pub(crate) fn history(rewards: &[Reward]) -> String {
    let entries = rewards.iter().map(|reward| {
        let Reward { scope, name, value, source, at, provenance } = reward;
        let (start, end) = scope.tokens().unzip();

        json!(RewardEntry {
            name,
            value: value.filter(|value| value.is_finite()),
            source,
            at: *at,
            scope: scope.as_str(),
            call_id: scope.call().map(|call| call.to_string()),
            choice: scope.choice(),
            start,
            end,
            given_by: provenance.by.map(Giver::as_str),
            given_from: provenance.from.as_deref(),
            key_name: provenance.key.as_deref(),
            over_calls: provenance.over.map(|over| over.calls),
            over_chain: provenance.over.map(|over| over.to_string()),
        })
    });
    entries.collect::<serde_json::Value>().to_string()
}

#[cfg(test)]
mod tests {
    use episode::{ChainHead, Provenance};

    use super::*;

    const CALL: CallId = CallId(uuid::Uuid::from_u128(1));
    const OTHER: CallId = CallId(uuid::Uuid::from_u128(2));

    fn latest(said: &[(RewardScope, Option<f64>)]) -> LatestRewards {
        let reward = |(scope, value): &(RewardScope, Option<f64>)| Reward {
            scope: *scope,
            name: REWARD.to_owned(),
            value: *value,
            source: "judge".to_owned(),
            at: 5,
            provenance: episode::Provenance::default(),
        };
        LatestRewards::new(&said.iter().map(reward).collect::<Vec<_>>())
    }

    fn span(start: u32, end: u32) -> RewardScope {
        RewardScope::Tokens { call: CALL, choice: 0, start, end }
    }

    /// Two turns: tokens 2 to 4, and 6 to 8.
    const TURNS: [TurnSpan; 2] = [
        TurnSpan { call: CALL, choice: 0, start: 2, end: 5 },
        TurnSpan { call: OTHER, choice: 0, start: 6, end: 9 },
    ];

    #[test]
    fn a_call_falls_on_its_last_token_and_a_span_on_its_own() {
        let (one, two) = (Some(1.0), Some(0.5));
        let said = [(RewardScope::Call(OTHER), one), (span(0, 2), two), (span(1, 2), two)];
        let mut expected = vec![None; 9];
        (expected[3], expected[8]) = (Some(1.0), Some(1.0));
        assert_eq!(latest(&said).token_rewards(&TURNS, 9), Some(expected));
        assert_eq!(latest(&[(RewardScope::Episode, one)]).token_rewards(&TURNS, 9), None);
        assert_eq!(
            latest(&[(span(2, 4), one)]).token_rewards(&TURNS, 9),
            None,
            "the turn has 3 tokens"
        );
        let other = RewardScope::Tokens { call: CALL, choice: 1, start: 0, end: 1 };
        assert_eq!(latest(&[(other, one)]).token_rewards(&TURNS, 9), None);
    }

    #[test]
    fn what_could_not_be_scored_stays_null() {
        let said = [(RewardScope::Call(CALL), None)];
        assert_eq!(latest(&said).token_rewards(&TURNS, 9), Some(vec![None; 9]));
        let both = [(RewardScope::Call(CALL), None), (span(0, 3), Some(2.0))];
        assert_eq!(latest(&both).token_rewards(&TURNS, 9).unwrap()[4], Some(2.0));
        assert_eq!(
            latest(&both).turn_scores(&TURNS, Score::NotGiven),
            [Score::Null, Score::NotGiven]
        );
        let again = [(RewardScope::Call(CALL), Some(1.0)), (RewardScope::Call(CALL), None)];
        assert_eq!(latest(&again).score(RewardScope::Call(CALL)), Score::Null);
    }

    #[test]
    fn the_last_turn_gets_what_the_branch_did() {
        let said = [(RewardScope::Episode, Some(3.0)), (RewardScope::Call(OTHER), Some(1.0))];
        let scores = latest(&said).turn_scores(&TURNS, Score::NotGiven);
        assert_eq!(scores, [Score::NotGiven, Score::Value(4.0)]);
        let scores = latest(&said).turn_scores(&TURNS, Score::Value(-1.0));
        assert_eq!(scores[1], Score::Value(0.0), "instead of the episode's");
        assert_eq!(latest(&said).turn_scores(&TURNS, Score::Null)[1], Score::Null);
    }

    #[test]
    fn what_no_path_holds_is_counted() {
        let calls = [crate::tests::fixture::call(1, &[9], &[&[1, 2, 3], &[4]])];
        let forest = crate::graph::derive::derive(&calls).forest;
        let leaf = |choice| RewardScope::Trajectory { call: CALL, choice };
        let other = RewardScope::Tokens { call: CALL, choice: 1, start: 0, end: 2 };
        let placed = [RewardScope::Episode, RewardScope::Call(CALL), leaf(1), span(0, 3)];
        let unplaced = [RewardScope::Call(OTHER), leaf(2), span(0, 4), other];
        let count = |scopes: &[RewardScope]| {
            let said: Vec<_> = scopes.iter().map(|scope| (*scope, Some(1.0))).collect();
            latest(&said).unplaced(&forest)
        };
        assert_eq!((count(&placed), count(&unplaced)), (0, 4));
    }

    #[test]
    fn names_that_trainers_do_not_read_are_history_only() {
        let style = Reward {
            scope: span(1, 2),
            name: "style".to_owned(),
            value: Some(f64::NAN),
            source: "judge".to_owned(),
            at: 5,
            provenance: Provenance {
                by: Some(Giver::Command),
                from: Some("file".to_owned()),
                key: None,
                over: Some(ChainHead { calls: 2, digest: [0xab; 16] }),
            },
        };
        assert_eq!(LatestRewards::new(std::slice::from_ref(&style)).token_rewards(&TURNS, 9), None);
        let shown: serde_json::Value = serde_json::from_str(&history(&[style])).unwrap();
        let expected = json!([{ "name": "style", "value": null, "source": "judge", "at": 5,
            "scope": "tokens", "call_id": CALL.to_string(), "choice": 0, "start": 1, "end": 2,
            "given_by": "command", "given_from": "file", "key_name": null, "over_calls": 2,
            "over_chain": "ab".repeat(16) }]);
        assert_eq!(shown, expected);
    }
}
