//! Credit: which rewards fall on a row, and where.
//!
//! Of all statements named [`REWARD`] about the same thing the last one counts, null included. One
//! about a call falls on the last token that the call sampled, one about a span of tokens on the
//! last of the span, so that the sum over a row's tokens is what its parts got.

use std::collections::BTreeMap;

use episode::{CallId, Micros, Reward, RewardScope};
use serde::Serialize;
use serde_json::json;

use crate::graph::forest::Forest;
use crate::graph::node::Node;
use crate::rewards::returns::Step;

/// The reward that trainers read.
pub(crate) const REWARD: &str = "reward";

/// What the last statements say, by what they are about. A value that is not a number could not
/// be scored.
#[derive(Debug, Default)]
pub(crate) struct Ledger(BTreeMap<RewardScope, Option<f64>>);

/// Where a turn stands in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) call: CallId,
    pub(crate) choice: u32,
    /// The sampled tokens, `[start, end)`.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Ledger {
    /// Of all statements, in the order in which they were given.
    pub(crate) fn new(rewards: &[Reward]) -> Self {
        let named = rewards.iter().filter(|reward| reward.name == REWARD);
        let said = named.map(|r| (r.scope, r.value.filter(|value| value.is_finite())));
        Self(said.collect())
    }

    /// The last statement about `scope`: none where there is none, null where it could not be
    /// scored.
    pub(crate) fn said(&self, scope: RewardScope) -> Option<Option<f64>> {
        self.0.get(&scope).copied()
    }

    /// What it is worth: null where nobody said, or it could not be scored.
    pub(crate) fn value(&self, scope: RewardScope) -> Option<f64> {
        self.said(scope).flatten()
    }

    /// The last statement about the trajectory of these choices, last first.
    pub(crate) fn of_trajectory(
        &self,
        mut choices: impl Iterator<Item = (CallId, u32)>,
    ) -> Option<Option<f64>> {
        choices.find_map(|(call, choice)| self.said(RewardScope::Trajectory { call, choice }))
    }

    /// What was said of spans of a turn's tokens: the last token of each, and how much. A span
    /// that is longer than the turn is of other tokens.
    fn spans(&self, place: Place) -> impl Iterator<Item = (usize, Option<f64>)> + '_ {
        let Place { call, choice, start, end } = place;
        let first = RewardScope::Tokens { call, choice, start: 0, end: 0 };
        let last = RewardScope::Tokens { call, choice, start: u32::MAX, end: u32::MAX };
        self.0.range(first..=last).filter_map(move |(scope, value)| {
            let after = start + scope.tokens()?.1 as usize;
            (after <= end).then(|| (after - 1, *value))
        })
    }

    /// One reward a token, null where none falls; nothing where none falls on any. Several on one
    /// token are added.
    pub(crate) fn tokens(&self, places: &[Place], tokens: usize) -> Option<Vec<Option<f64>>> {
        let mut rewards = vec![None; tokens];
        let mut is_said = false;
        for place in places.iter().filter(|place| place.start < place.end) {
            let whole = self.said(RewardScope::Call(place.call)).map(|said| (place.end - 1, said));
            for (at, value) in whole.into_iter().chain(self.spans(*place)) {
                is_said = true;
                let slot: &mut Option<f64> = &mut rewards[at];
                *slot = value.map(|value| slot.unwrap_or(0.0) + value).or(*slot);
            }
        }
        is_said.then_some(rewards)
    }

    /// What was said of each turn in all; the last one also gets what the branch did, which is the
    /// trajectory's reward, or the episode's where that was not said.
    pub(crate) fn steps(&self, places: &[Place], trajectory: Option<Option<f64>>) -> Vec<Step> {
        let of = |place: &Place| {
            let whole = Step::said(self.said(RewardScope::Call(place.call)));
            self.spans(*place).fold(whole, |sum, (_, value)| sum.and(Step::said(Some(value))))
        };
        let mut steps: Vec<Step> = places.iter().map(of).collect();
        if let Some(last) = steps.last_mut() {
            *last = last.and(Step::said(trajectory.or(self.said(RewardScope::Episode))));
        }
        steps
    }

    /// How many statements are about what no path of the episode holds.
    pub(crate) fn unplaced(&self, forest: &Forest<'_>) -> u64 {
        let mut nodes: BTreeMap<CallId, Vec<&Node<'_>>> = BTreeMap::new();
        for node in &forest.nodes {
            nodes.entry(node.call.begun.call_id).or_default().push(node);
        }
        let is_there = |scope: RewardScope| {
            let has = |node: &&Node<'_>| {
                scope.choice().is_none_or(|choice| choice == node.index)
                    && scope.tokens().is_none_or(|(_, end)| end as usize <= node.sampled.len())
            };
            let of_call = |call: CallId| nodes.get(&call).is_some_and(|of| of.iter().any(has));
            scope.call().is_none_or(of_call)
        };
        self.0.keys().filter(|scope| !is_there(**scope)).count() as u64
    }
}

/// One part of the column `rewards`.
#[derive(Serialize)]
struct Part<'a> {
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
}

/// All statements, as the column `rewards` shows them.
pub(crate) fn history(rewards: &[Reward]) -> String {
    let part = |reward: &Reward| {
        let Reward { scope, name, value, source, at } = reward;
        let (start, end) = scope.tokens().unzip();
        json!(Part {
            name,
            value: value.filter(|v| v.is_finite()),
            source,
            at: *at,
            scope: scope.as_str(),
            call_id: scope.call().map(|call| call.to_string()),
            choice: scope.choice(),
            start,
            end,
        })
    };
    rewards.iter().map(part).collect::<serde_json::Value>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallId = CallId(uuid::Uuid::from_u128(1));
    const OTHER: CallId = CallId(uuid::Uuid::from_u128(2));

    fn ledger(said: &[(RewardScope, Option<f64>)]) -> Ledger {
        let reward = |(scope, value): &(RewardScope, Option<f64>)| Reward {
            scope: *scope,
            name: REWARD.to_owned(),
            value: *value,
            source: "judge".to_owned(),
            at: 5,
        };
        Ledger::new(&said.iter().map(reward).collect::<Vec<_>>())
    }

    fn span(start: u32, end: u32) -> RewardScope {
        RewardScope::Tokens { call: CALL, choice: 0, start, end }
    }

    /// Two turns: tokens 2 to 4, and 6 to 8.
    const PLACES: [Place; 2] = [
        Place { call: CALL, choice: 0, start: 2, end: 5 },
        Place { call: OTHER, choice: 0, start: 6, end: 9 },
    ];

    #[test]
    fn a_call_falls_on_its_last_token_and_a_span_on_its_own() {
        let (one, two) = (Some(1.0), Some(0.5));
        let said = [(RewardScope::Call(OTHER), one), (span(0, 2), two), (span(1, 2), two)];
        let mut expected = vec![None; 9];
        (expected[3], expected[8]) = (Some(1.0), Some(1.0));
        assert_eq!(ledger(&said).tokens(&PLACES, 9), Some(expected));
        assert_eq!(ledger(&[(RewardScope::Episode, one)]).tokens(&PLACES, 9), None);
        assert_eq!(ledger(&[(span(2, 4), one)]).tokens(&PLACES, 9), None, "the turn has 3 tokens");
        let other = RewardScope::Tokens { call: CALL, choice: 1, start: 0, end: 1 };
        assert_eq!(ledger(&[(other, one)]).tokens(&PLACES, 9), None);
    }

    #[test]
    fn what_could_not_be_scored_stays_null() {
        let said = [(RewardScope::Call(CALL), None)];
        assert_eq!(ledger(&said).tokens(&PLACES, 9), Some(vec![None; 9]));
        let both = [(RewardScope::Call(CALL), None), (span(0, 3), Some(2.0))];
        assert_eq!(ledger(&both).tokens(&PLACES, 9).unwrap()[4], Some(2.0));
        assert_eq!(ledger(&both).steps(&PLACES, None), [Step::Unscored, Step::Silent]);
        let again = [(RewardScope::Call(CALL), Some(1.0)), (RewardScope::Call(CALL), None)];
        assert_eq!(ledger(&again).said(RewardScope::Call(CALL)), Some(None));
    }

    #[test]
    fn the_last_turn_gets_what_the_branch_did() {
        let said = [(RewardScope::Episode, Some(3.0)), (RewardScope::Call(OTHER), Some(1.0))];
        let steps = ledger(&said).steps(&PLACES, None);
        assert_eq!(steps, [Step::Silent, Step::Scored(4.0)]);
        let steps = ledger(&said).steps(&PLACES, Some(Some(-1.0)));
        assert_eq!(steps[1], Step::Scored(0.0), "instead of the episode's");
        assert_eq!(ledger(&said).steps(&PLACES, Some(None))[1], Step::Unscored);
    }

    #[test]
    fn what_no_path_holds_is_counted() {
        let calls = [crate::fixture::call(1, &[9], &[&[1, 2, 3], &[4]])];
        let (forest, _) = crate::graph::thread::thread(crate::graph::scan::nodes(&calls).0);
        let leaf = |choice| RewardScope::Trajectory { call: CALL, choice };
        let other = RewardScope::Tokens { call: CALL, choice: 1, start: 0, end: 2 };
        let placed = [RewardScope::Episode, RewardScope::Call(CALL), leaf(1), span(0, 3)];
        let unplaced = [RewardScope::Call(OTHER), leaf(2), span(0, 4), other];
        let count = |scopes: &[RewardScope]| {
            let said: Vec<_> = scopes.iter().map(|scope| (*scope, Some(1.0))).collect();
            ledger(&said).unplaced(&forest)
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
        };
        assert_eq!(Ledger::new(std::slice::from_ref(&style)).tokens(&PLACES, 9), None);
        let shown: serde_json::Value = serde_json::from_str(&history(&[style])).unwrap();
        let expected = json!([{ "name": "style", "value": null, "source": "judge", "at": 5,
            "scope": "tokens", "call_id": CALL.to_string(), "choice": 0, "start": 1, "end": 2 }]);
        assert_eq!(shown, expected);
    }
}
