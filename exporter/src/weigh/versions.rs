//! Policy versions of the tokens that a row trains, and the filter by them.

use std::collections::BTreeSet;

use episode::version_number;
use serde::Serialize;

use crate::graph::assessment::is_missing;
use crate::graph::derive::Derived;
use crate::graph::node::{Node, PerNode, VersionChange};
use crate::notes::VersionMismatch;

/// Takes rows by the policy versions that sampled the tokens they train.
///
/// Where a bound is set, a row is taken only if every one of these versions is known and is a
/// number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VersionFilter {
    /// Smallest version that is taken.
    pub min: Option<i64>,
    /// Largest version that is taken.
    pub max: Option<i64>,
    /// Largest difference between the versions of one row.
    pub span_max: Option<i64>,
    /// The trainer's version, from which staleness is counted.
    pub at: Option<i64>,
    /// Largest staleness: `at` less the smallest version.
    pub staleness_max: Option<i64>,
}

/// The policy versions of some tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VersionSet {
    /// Labels as the server sent them.
    labels: BTreeSet<String>,
    /// True where the version of a token is not known.
    unknown: bool,
}

/// Returns the number of a version label, where it has one that rows can hold.
pub(crate) fn row_version(label: &str) -> Option<i32> {
    version_number(label).and_then(|number| i32::try_from(number).ok())
}

impl VersionSet {
    /// Collects the versions of those tokens of a choice that may be trained.
    fn of(node: &Node<'_>) -> Self {
        let mut versions = Self::default();
        let Some(choice) = node.choice else { return versions };
        if let Some(VersionChange { start, end }) = node.version_change() {
            versions.labels.extend([start.to_owned(), end.to_owned()]);
            return versions;
        }

        let mut labels: Vec<Option<&str>> = vec![None; node.sampled.len()];
        for span in &choice.versions {
            let end = (span.end as usize).min(labels.len());
            labels[(span.start as usize).min(end)..end].fill(Some(&span.version));
        }

        // Neighbors mostly have one label; only a new one is looked up.
        let mut last = None;
        for (label, logprob) in labels.into_iter().zip(&choice.logprobs) {
            if is_missing(*logprob) || last.replace(label) == Some(label) {
                continue;
            }
            versions.unknown |= label.is_none();
            versions.labels.extend(label.map(str::to_owned));
        }
        versions
    }

    /// Adds the versions of `other`.
    pub(crate) fn join(&mut self, other: &Self) {
        self.labels.extend(other.labels.iter().cloned());
        self.unknown |= other.unknown;
    }

    /// Returns true for more than one version; none where that is not known.
    pub(crate) fn mixed(&self) -> Option<bool> {
        match self.labels.len() {
            0 => None,
            1 => (!self.unknown).then_some(false),
            _ => Some(true),
        }
    }

    /// Returns the smallest and the largest version, where all are known and numbers.
    fn bounds(&self) -> Result<(i64, i64), VersionMismatch> {
        let numbers: Option<Vec<i32>> =
            self.labels.iter().map(|label| row_version(label)).collect();
        let numbers = numbers.ok_or(VersionMismatch::VersionNotANumber)?;
        if self.unknown {
            return Err(VersionMismatch::VersionUnknown);
        }
        match (numbers.iter().min(), numbers.iter().max()) {
            (Some(least), Some(most)) => Ok((i64::from(*least), i64::from(*most))),
            _ => Err(VersionMismatch::NothingTrained),
        }
    }
}

/// Collects the versions of the tokens that each node may train.
pub(crate) fn trainable_versions(derived: &Derived<'_>) -> PerNode<VersionSet> {
    let Derived { forest, paths, .. } = derived;
    let versions = forest.nodes.entries().map(|(id, node)| {
        let trainable = paths.nodes[id].assessment.trainable;
        if trainable { VersionSet::of(node) } else { VersionSet::default() }
    });
    versions.collect()
}

impl VersionFilter {
    /// Checks the versions of the tokens that a row trains.
    pub(crate) fn check(&self, versions: &VersionSet) -> Result<(), VersionMismatch> {
        let Self { min, max, span_max, at, staleness_max } = *self;
        let oldest = at.zip(staleness_max).map(|(at, most)| at.saturating_sub(most));
        if [min, max, span_max, oldest].iter().all(Option::is_none) {
            return Ok(());
        }

        let (least, most) = versions.bounds()?;
        if min.is_some_and(|min| least < min) {
            Err(VersionMismatch::BelowMinVersion)
        } else if max.is_some_and(|max| most > max) {
            Err(VersionMismatch::AboveMaxVersion)
        } else if span_max.is_some_and(|span| most - least > span) {
            Err(VersionMismatch::VersionSpan)
        } else if oldest.is_some_and(|oldest| least < oldest) {
            Err(VersionMismatch::Stale)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(labels: &[&str], unknown: bool) -> VersionSet {
        VersionSet { labels: labels.iter().map(|label| (*label).to_owned()).collect(), unknown }
    }

    #[test]
    fn every_bound_is_checked_and_is_inside() {
        let none = VersionFilter::default();
        let stale = VersionFilter { at: Some(9), staleness_max: Some(4), ..none };
        let cases = [
            (VersionFilter { min: Some(5), ..none }, Ok(())),
            (VersionFilter { min: Some(6), ..none }, Err(VersionMismatch::BelowMinVersion)),
            (VersionFilter { max: Some(7), ..none }, Ok(())),
            (VersionFilter { max: Some(6), ..none }, Err(VersionMismatch::AboveMaxVersion)),
            (VersionFilter { span_max: Some(2), ..none }, Ok(())),
            (VersionFilter { span_max: Some(1), ..none }, Err(VersionMismatch::VersionSpan)),
            (stale, Ok(())),
            (VersionFilter { at: Some(10), ..stale }, Err(VersionMismatch::Stale)),
            // A trainer that is behind its server is not stale.
            (VersionFilter { at: Some(0), ..stale }, Ok(())),
            (VersionFilter { at: Some(99), ..none }, Ok(())),
        ];
        for (filter, expected) in cases {
            assert_eq!(filter.check(&made(&["5", "7"], false)), expected, "{filter:?}");
        }
    }

    #[test]
    fn what_is_no_number_or_not_known_passes_no_filter() {
        let filter = VersionFilter { min: Some(0), ..VersionFilter::default() };
        let cases = [
            (made(&["latest", "5"], false), Err(VersionMismatch::VersionNotANumber)),
            (made(&["-1"], false), Err(VersionMismatch::VersionNotANumber)),
            (made(&["5"], true), Err(VersionMismatch::VersionUnknown)),
            (made(&[], true), Err(VersionMismatch::VersionUnknown)),
            (made(&[], false), Err(VersionMismatch::NothingTrained)),
        ];
        for (versions, expected) in cases {
            assert_eq!(filter.check(&versions), expected, "{versions:?}");
            assert_eq!(VersionFilter::default().check(&versions), Ok(()));
        }
    }

    #[test]
    fn versions_are_mixed_when_two_are_seen() {
        assert_eq!(made(&["a", "b"], true).mixed(), Some(true));
        assert_eq!(made(&["a"], false).mixed(), Some(false));
        assert_eq!(made(&["a"], true).mixed(), None);
        assert_eq!(made(&[], false).mixed(), None);
    }

    #[test]
    fn a_reason_has_one_word_everywhere() {
        for why in [
            VersionMismatch::VersionNotANumber,
            VersionMismatch::Stale,
            VersionMismatch::NothingTrained,
        ] {
            assert_eq!(serde_json::to_value(why).unwrap(), why.as_str());
        }
    }
}
