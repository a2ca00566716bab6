//! Policies: models whose names differ only by the number that is their version are one.
//!
//! A trainer that loads each adapter under a new name (`trl-policy-v7`, `step_12`) changes the
//! versions of a policy, and the name is the version. That a name ends in a number does not say so:
//! the versions of its tokens must.

use std::collections::BTreeMap;

use episode::version_number;

use crate::graph::node::Node;

/// Names the policy of each node: its model, without the number where that is a version.
pub(crate) fn name_policies(nodes: &mut [Node<'_>]) {
    let mut evidence: BTreeMap<&str, Evidence> = BTreeMap::new();
    for node in nodes.iter() {
        if let Some(number) = version_number(node.model()) {
            evidence.entry(node.model()).or_default().add(node, number);
        }
    }
    for node in nodes {
        let prefix = node.model().trim_end_matches(|c: char| c.is_ascii_digit());
        let is_version = evidence.get(node.model()).is_some_and(|e| e.agrees && !e.disagrees);
        if is_version && !prefix.is_empty() {
            node.policy = prefix;
        }
    }
}

/// Evidence that the number in a model's name is its version, from the versions of its tokens.
#[derive(Debug, Default)]
struct Evidence {
    /// True where tokens have this version.
    agrees: bool,
    /// True where the server reports another version: the number is a part of the name.
    disagrees: bool,
}

impl Evidence {
    fn add(&mut self, node: &Node<'_>, number: i64) {
        let spans = node.choice.into_iter().flat_map(|choice| &choice.versions);
        let reported: Vec<i64> = spans.filter_map(|span| version_number(&span.version)).collect();
        // A call may ask for an older version than the current one.
        let stamps = &node.ended.stamps;
        let mut current = [&stamps.start, &stamps.end].into_iter().flatten();
        self.agrees |= match reported.is_empty() {
            true => current.any(|label| version_number(label) == Some(number)),
            false => reported.contains(&number),
        };
        self.disagrees |= !reported.is_empty() && !reported.contains(&number);
    }
}

#[cfg(test)]
mod tests {
    use episode::Call;

    use crate::graph::derive::derive;
    use crate::tests::fixture::{call, episode, reply, rows_of};

    /// Two turns of one conversation, each by a model at a version.
    fn two_turns(models: [&str; 2], versions: [&str; 2]) -> Vec<Call> {
        let mut calls = vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 3], &[&[4]])];
        for (call, (model, version)) in calls.iter_mut().zip(models.iter().zip(versions)) {
            reply(call).model = Some((*model).to_owned());
            let spans = &mut reply(call).choices[0].versions;
            spans.iter_mut().for_each(|span| span.version = version.to_owned());
        }
        calls
    }

    #[track_caller]
    fn check(models: [&str; 2], versions: [&str; 2], masks: &[&[i8]]) {
        let rows = rows_of(&episode(two_turns(models, versions)));
        let found: Vec<_> = rows.iter().map(|row| row.tokens.loss_mask.as_slice()).collect();
        assert_eq!(found, masks, "{models:?} {versions:?}");
    }

    #[test]
    fn names_are_one_policy_where_their_numbers_are_the_versions() {
        let one: &[&[i8]] = &[&[0, 1, 0, 1]];
        let two: &[&[i8]] = &[&[0, 1], &[0, 0, 0, 1]];
        check(["trl-policy-v3", "trl-policy-v4"], ["3", "4"], one);
        check(["trl-policy-v3", "trl-policy-v4"], ["trl-policy-v3", "trl-policy-v4"], one);
        check(["step_9", "step_12"], ["9", "12"], one);
        // The versions say nothing of these names.
        check(["llama-2", "llama-3"], ["7", "8"], two);
        check(["trl-policy-v3", "judge-v4"], ["3", "4"], two);
        check(["3", "4"], ["3", "4"], two);
    }

    #[test]
    fn a_number_that_was_the_version_once_by_chance_is_a_name() {
        let mut calls = two_turns(["llama-2", "llama-3"], ["2", "3"]);
        assert_eq!(derive(&calls).paths.len(), 1);
        let mut later = call(3, &[1, 2, 3, 4, 5], &[&[6]]);
        reply(&mut later).model = Some("llama-3".to_owned());
        reply(&mut later).choices[0].versions[0].version = "9".to_owned();
        calls.push(later);
        assert_eq!(derive(&calls).paths.len(), 2);
    }

    #[test]
    fn versions_that_were_current_tell_too() {
        let mut calls = two_turns(["step_1", "step_2"], ["1", "2"]);
        for (call, version) in calls.iter_mut().zip(["1", "2"]) {
            let ended = reply(call);
            ended.choices[0].versions.clear();
            ended.stamps.start = Some(version.to_owned());
            ended.stamps.end = Some("2".to_owned());
        }
        assert_eq!(derive(&calls).paths.len(), 1);
        for call in &mut calls {
            reply(call).stamps = episode::VersionStamps::default();
        }
        assert_eq!(derive(&calls).paths.len(), 2, "nobody said that they are versions");
    }
}
