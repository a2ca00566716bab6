//! Models: which of the models that an episode asked are wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use episode::{Call, Kind};

use crate::graph::path::Merged;

/// Which models' tokens make rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Models {
    /// Those of all.
    #[default]
    All,
    /// In each attempt the one that most of its main conversation was sampled from: neither judges
    /// nor models that write titles.
    Policy,
    /// Those of these names.
    Named(BTreeSet<String>),
}

impl FromStr for Models {
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

impl Models {
    /// Whether rows of `model` are wanted, where `policy` is the attempt's policy.
    pub(crate) fn takes(&self, model: &str, policy: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Policy => policy.is_none_or(|policy| policy == model),
            Self::Named(names) => names.contains(model),
        }
    }

    /// Whether a call is of a model that was named; one that has none is of the model asked for.
    pub(crate) fn takes_call(&self, call: &Call) -> bool {
        let answered = call.ended.as_ref().and_then(|ended| ended.model.as_ref());
        match (self, answered.or(call.begun.model.as_ref())) {
            (Self::Named(names), Some(model)) => names.contains(model),
            (Self::Named(_), None) => false,
            (Self::All | Self::Policy, _) => true,
        }
    }

    /// The words of the command line: `all`, `policy`, or the names.
    pub(crate) fn words(&self) -> Vec<&str> {
        match self {
            Self::All => vec!["all"],
            Self::Policy => vec!["policy"],
            Self::Named(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

/// The model that sampled the most tokens of an attempt's main conversations, the most turns where
/// no ids are known, and the first of equals; of all its conversations where none is main.
pub(crate) fn policy(merged: &Merged) -> Option<&str> {
    let of = |wanted: &dyn Fn(Kind) -> bool| {
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let mut order: Vec<&str> = Vec::new();
        for (index, path) in merged.paths.iter().enumerate().filter(|(_, p)| wanted(p.kind)) {
            let own = |(_, node): &(usize, &usize)| merged.owners[**node] == index;
            for (at, node) in path.nodes.iter().enumerate().filter(own) {
                let model = merged.models[*node].as_str();
                let count = counts.entry(model).or_insert_with(|| {
                    order.push(model);
                    (0, 0)
                });
                *count = (count.0 + merged.tokens(index, at), count.1 + 1);
            }
        }
        order.into_iter().rev().max_by_key(|model| counts[model])
    };
    of(&|kind| kind == Kind::Main).or_else(|| of(&|_| true))
}

#[cfg(test)]
mod tests {
    use episode::Call;

    use super::*;
    use crate::fixture::{call, reply};
    use crate::graph::merge::merge;
    use crate::graph::scan::nodes;
    use crate::graph::thread::thread;

    fn by(model: &str, mut call: Call) -> Call {
        reply(&mut call).model = Some(model.to_owned());
        call
    }

    fn found(calls: &[Call]) -> Option<String> {
        let (forest, _) = thread(nodes(calls).0);
        policy(&merge(&forest).0).map(str::to_owned)
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
