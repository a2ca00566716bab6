//! Costs of what was recorded, by the prices of a file.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use viewer::{AttemptUsage, EpisodeView, ModelUsage};

use super::prices::Prices;
use crate::print::count;

/// The name of a model that has none.
const NAMELESS: &str = "-";

/// A cost, and what is not in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    /// The sum; `None` if nothing has a price.
    pub(super) amount: Option<f64>,
    /// Models without a price.
    pub(super) unpriced_models: BTreeSet<String>,
    /// Their calls.
    pub(super) unpriced_calls: u64,
    /// Calls that were answered, and of which the server told no count.
    pub(super) uncounted_calls: u64,
}

/// The cost of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ModelCost {
    #[serde(flatten)]
    pub(super) usage: ModelUsage,
    #[serde(flatten)]
    pub(super) cost: Cost,
}

/// The mean cost of the attempts of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct GroupCost {
    pub(super) group_id: String,
    /// Attempts with a call.
    pub(super) episodes: u64,
    /// Of the attempts that have a cost.
    pub(super) mean: Option<f64>,
    #[serde(flatten)]
    pub(super) cost: Cost,
}

/// The costs of a recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Costs {
    pub(super) currency: String,
    #[serde(flatten)]
    pub(super) total: Cost,
    pub(super) models: Vec<ModelCost>,
    pub(super) groups: Vec<GroupCost>,
}

/// The costs of attempts, by id and number.
pub(super) type AttemptCosts = BTreeMap<(String, u32), Cost>;

impl Cost {
    /// The cost of a model's tokens.
    fn of(prices: &Prices, usage: &ModelUsage) -> Self {
        let model = usage.model.as_deref().unwrap_or(NAMELESS);
        let amount = prices.cost(model, usage.prompt_tokens, usage.completion_tokens);
        let calls = usage.calls + usage.uncounted;
        Self {
            amount: amount.filter(|_| usage.calls > 0),
            unpriced_models: amount.is_none().then(|| model.to_owned()).into_iter().collect(),
            unpriced_calls: if amount.is_none() { calls } else { 0 },
            uncounted_calls: if amount.is_some() { usage.uncounted } else { 0 },
        }
    }

    /// The cost of several models.
    fn of_all(prices: &Prices, usage: &[ModelUsage]) -> Self {
        usage.iter().map(|usage| Self::of(prices, usage)).fold(Self::default(), Self::with)
    }

    fn with(mut self, other: Self) -> Self {
        self.amount = match (self.amount, other.amount) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.unpriced_models.extend(other.unpriced_models);
        self.unpriced_calls += other.unpriced_calls;
        self.uncounted_calls += other.uncounted_calls;
        self
    }

    /// True if all calls are in it.
    pub(super) fn is_whole(&self) -> bool {
        self.unpriced_calls + self.uncounted_calls == 0
    }

    /// The amount as text; with `+` if something is not in it, and `-` if nothing is.
    pub(super) fn text(&self) -> String {
        let mark = if self.is_whole() { "" } else { "+" };
        self.amount.map_or_else(|| "-".to_owned(), |cost| format!("{}{mark}", amount(cost)))
    }

    /// A sentence about what is not in it.
    pub(super) fn gaps(&self) -> Option<String> {
        let mut gaps = Vec::new();
        if self.unpriced_calls > 0 {
            let models: Vec<&str> = self.unpriced_models.iter().map(String::as_str).collect();
            let calls = count(self.unpriced_calls, "call");
            gaps.push(format!("{calls} of models without a price: {}", models.join(", ")));
        }
        if self.uncounted_calls > 0 {
            let calls = count(self.uncounted_calls, "call");
            gaps.push(format!("{calls} of which the server told no count"));
        }
        let what = gaps.join("; ");
        (!gaps.is_empty()).then(|| format!("not in the cost (+): {what}"))
    }
}

impl Costs {
    /// The costs of models, and those of the attempts of groups.
    pub(super) fn of(prices: &Prices, models: &[ModelUsage], attempts: &[AttemptUsage]) -> Self {
        let cost =
            |usage: &ModelUsage| ModelCost { usage: usage.clone(), cost: Cost::of(prices, usage) };
        let mut groups: BTreeMap<&str, Vec<Cost>> = BTreeMap::new();
        for attempt in attempts {
            if let Some(group) = &attempt.group_id {
                let cost = Cost::of_all(prices, &attempt.models);
                groups.entry(group).or_default().push(cost);
            }
        }

        Self {
            currency: prices.currency.clone(),
            total: Cost::of_all(prices, models),
            models: models.iter().map(cost).collect(),
            groups: groups.into_iter().map(|(name, costs)| GroupCost::of(name, costs)).collect(),
        }
    }
}

impl GroupCost {
    fn of(group: &str, costs: Vec<Cost>) -> Self {
        let amounts: Vec<f64> = costs.iter().filter_map(|cost| cost.amount).collect();
        let sum: f64 = amounts.iter().sum();
        Self {
            group_id: group.to_owned(),
            episodes: costs.len() as u64,
            mean: (!amounts.is_empty()).then(|| sum / amounts.len() as f64),
            cost: costs.into_iter().fold(Cost::default(), Cost::with),
        }
    }
}

/// The cost of each attempt.
pub(super) fn of_attempts(prices: &Prices, attempts: &[AttemptUsage]) -> AttemptCosts {
    let named = attempts.iter().map(|attempt| {
        let id = (attempt.episode_id.clone(), attempt.attempt);
        (id, Cost::of_all(prices, &attempt.models))
    });
    named.collect()
}

/// The cost of an attempt of a list.
pub(super) fn of_episode(episode: &EpisodeView, costs: &AttemptCosts) -> Cost {
    let id = (episode.episode_id.clone(), episode.attempt);
    costs.get(&id).cloned().unwrap_or_default()
}

/// The cost of all attempts of a list.
pub(super) fn sum(episodes: &[EpisodeView], costs: &AttemptCosts) -> Cost {
    episodes.iter().map(|one| of_episode(one, costs)).fold(Cost::default(), Cost::with)
}

/// An amount of a currency. Small ones keep their digits.
pub(super) fn amount(amount: f64) -> String {
    match amount {
        amount if amount == 0.0 || amount >= 1.0 => format!("{amount:.2}"),
        amount => format!("{amount:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(model: &str, calls: u64, uncounted: u64) -> ModelUsage {
        ModelUsage {
            model: Some(model.to_owned()),
            calls,
            uncounted,
            prompt_tokens: 1_000_000 * calls,
            completion_tokens: 100_000 * calls,
        }
    }

    fn prices() -> Prices {
        let text = r#"{"currency":"EUR","models":{"a*":{"prompt":1,"completion":10}}}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_has_no_price_or_no_count_is_named_and_is_not_zero() {
        let cost = Cost::of_all(&prices(), &[usage("a1", 2, 1), usage("b", 3, 0)]);
        assert_eq!((cost.amount, cost.text()), (Some(4.0), "4.00+".to_owned()));
        assert_eq!(
            cost.gaps().unwrap(),
            "not in the cost (+): 3 calls of models without a price: b; 1 call of which the \
             server told no count"
        );
        let unknown = Cost::of_all(&prices(), &[usage("b", 1, 0)]);
        assert_eq!((unknown.amount, unknown.text()), (None, "-".to_owned()));
        assert_eq!(Cost::of_all(&prices(), &[usage("a1", 0, 2)]).amount, None);
        assert_eq!(Cost::of_all(&prices(), &[usage("a1", 1, 0)]).gaps(), None);
    }

    #[test]
    fn a_group_has_the_mean_of_its_attempts() {
        let attempt = |number, calls| AttemptUsage {
            episode_id: "e".to_owned(),
            attempt: number,
            group_id: Some("g".to_owned()),
            models: vec![usage("a1", calls, 0)],
        };
        let attempts = [attempt(0, 1), attempt(1, 3)];
        let costs = Costs::of(&prices(), &[usage("a1", 4, 0)], &attempts);
        assert_eq!((costs.total.amount, costs.groups[0].mean), (Some(8.0), Some(4.0)));
        assert_eq!(of_attempts(&prices(), &attempts)[&("e".to_owned(), 1)].amount, Some(6.0));
    }

    #[test]
    fn small_amounts_keep_their_digits() {
        assert_eq!([0.0, 0.00123, 12.345].map(amount), ["0.00", "0.001230", "12.35"]);
    }
}
