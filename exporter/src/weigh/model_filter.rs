//! Chooses rows by the model that sampled them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use episode::{Call, TrajectoryKind};

use crate::graph::paths::{PathId, Paths};

/// Models whose tokens make rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ModelFilter {
    /// All models.
    #[default]
    All,
    /// In each attempt, the model that sampled most of its main conversation. This leaves out
    /// judges and models that write titles.
    Policy,
    /// Models of these names.
    Named(BTreeSet<String>),
}

impl FromStr for ModelFilter {
    type Err = String;

    /// Reads `all`, `policy`, or names with commas between them.
    fn from_str(words: &str) -> Result<Self, String> {
        let names = || words.split(',').map(str::trim);
        match words {
            "all" => Ok(Self::All),
            "policy" => Ok(Self::Policy),
            _ if names().any(str::is_empty) => Err("`model` has an empty name".to_owned()),
            _ => Ok(Self::Named(names().map(str::to_owned).collect())),
        }
    }
}

impl ModelFilter {
    /// Returns true where the row of a path is taken. `policy` is the attempt's policy.
    pub(crate) fn takes(&self, paths: &Paths, path: PathId, policy: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Policy => policy.is_none_or(|policy| policy == paths.policy(path)),
            Self::Named(names) => paths.models(path).any(|model| names.contains(model)),
        }
    }

    /// Returns true unless models are named and the call is of none of them. A call without an
    /// answering model is of the model that it asked for.
    pub(crate) fn takes_call(&self, call: &Call) -> bool {
        let answered = call.ended.as_ref().and_then(|ended| ended.model.as_ref());
        match (self, answered.or(call.begun.model.as_ref())) {
            (Self::Named(names), Some(model)) => names.contains(model),
            (Self::Named(_), None) => false,
            (Self::All | Self::Policy, _) => true,
        }
    }

    /// Returns the words of the command line: `all`, `policy`, or the names.
    pub(crate) fn words(&self) -> Vec<&str> {
        match self {
            Self::All => vec!["all"],
            Self::Policy => vec!["policy"],
            Self::Named(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

/// Finds the policy of an attempt: the model that sampled the most tokens of its main
/// conversations, the most turns where no ids are known, and the first of equals. Where no
/// conversation is main, all count.
pub(crate) fn policy(paths: &Paths) -> Option<&str> {
    main_model(paths, |kind| kind == TrajectoryKind::Main).or_else(|| main_model(paths, |_| true))
}

/// Tokens that may be trained, then turns.
type ModelCount = (usize, usize);

fn main_model(paths: &Paths, counts_kind: impl Fn(TrajectoryKind) -> bool) -> Option<&str> {
    let mut counts: BTreeMap<&str, ModelCount> = BTreeMap::new();
    let mut in_order: Vec<&str> = Vec::new();
    for id in paths.ids().filter(|path| counts_kind(paths[*path].kind)) {
        for (at, node) in paths[id].nodes.iter().enumerate() {
            // A node counts once, in the first path that holds it.
            if paths.first_of(*node) != id {
                continue;
            }
            let policy = paths.nodes[*node].policy.as_str();
            if !counts.contains_key(policy) {
                in_order.push(policy);
            }
            let count = counts.entry(policy).or_default();
            count.0 += paths.trainable_tokens(id, at);
            count.1 += 1;
        }
    }
    // `max_by_key` takes the last of equals, so the order is reversed.
    in_order.into_iter().rev().max_by_key(|policy| counts[policy])
}

#[cfg(test)]
mod tests {
    use episode::Call;

    use super::*;
    use crate::graph::derive::derive;
    use crate::tests::fixture::{call, reply};

    fn by(model: &str, mut call: Call) -> Call {
        reply(&mut call).model = Some(model.to_owned());
        call
    }

    fn found(calls: &[Call]) -> Option<String> {
        policy(&derive(calls).paths).map(str::to_owned)
    }

    #[test]
    fn the_policy_is_the_model_of_most_of_the_main_conversation() {
        let talk = [by("p", call(1, &[1], &[&[2, 3]])), by("p", call(2, &[1, 2, 3, 4], &[&[5]]))];
        let judge = by("j", call(3, &[9], &[&[9; 30]]));
        assert_eq!(found(&[talk.as_slice(), &[judge]].concat()), Some("p".to_owned()));
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn of_equals_the_first_is_the_policy() {
        let calls = [by("z", call(1, &[1], &[&[2]])), by("a", call(2, &[1, 2, 3], &[&[4]]))];
        assert_eq!(found(&calls), Some("z".to_owned()));
    }
}
