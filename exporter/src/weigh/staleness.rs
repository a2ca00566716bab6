//! Staleness: which policy versions sampled the tokens that a row trains.

use std::collections::BTreeSet;

use episode::version_number;
use serde::Serialize;

use crate::graph::forest::Forest;
use crate::graph::judged::{Judged, is_missing};
use crate::graph::node::Node;
use crate::graph::path::Merged;
use crate::notes::LeftOut;

/// Which rows to take by the versions that sampled the tokens they train. Where anything is asked
/// for, a row is taken only if every one of these versions is known and is a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VersionFilter {
    /// No version below this one.
    pub min: Option<i64>,
    /// No version above this one.
    pub max: Option<i64>,
    /// The largest and the smallest differ by no more than this.
    pub span_max: Option<i64>,
    /// The trainer's version; staleness is counted from it.
    pub at: Option<i64>,
    /// `at` less the smallest version is no more than this.
    pub staleness_max: Option<i64>,
}

/// The versions of some tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    /// What the server calls them.
    labels: BTreeSet<String>,
    /// Whether the version of a token is not known.
    unknown: bool,
}

/// The number of a version, where it is one that rows can hold.
pub(crate) fn number(label: &str) -> Option<i32> {
    version_number(label).and_then(|number| i32::try_from(number).ok())
}

impl Versions {
    /// Of the tokens of a choice that may be trained.
    fn of(node: &Node<'_>) -> Self {
        let mut versions = Self::default();
        let Some(choice) = node.choice else { return versions };
        if let Some((start, end)) = node.changed() {
            versions.labels.extend([start.to_owned(), end.to_owned()]);
            return versions;
        }
        let mut spans: Vec<Option<&str>> = vec![None; node.sampled.len()];
        for span in &choice.versions {
            let end = (span.end as usize).min(spans.len());
            spans[(span.start as usize).min(end)..end].fill(Some(&span.version));
        }
        let mut last = None;
        for (label, logprob) in spans.into_iter().zip(&choice.logprobs) {
            if is_missing(*logprob) || last.replace(label) == Some(label) {
                continue;
            }
            versions.unknown |= label.is_none();
            versions.labels.extend(label.map(str::to_owned));
        }
        versions
    }

    /// These and others.
    pub(crate) fn join(&mut self, other: &Self) {
        self.labels.extend(other.labels.iter().cloned());
        self.unknown |= other.unknown;
    }

    /// Whether more than one version is there; none where that is not known.
    pub(crate) fn mixed(&self) -> Option<bool> {
        match self.labels.len() {
            0 => None,
            1 => (!self.unknown).then_some(false),
            _ => Some(true),
        }
    }

    /// The smallest and the largest, where all are known and numbers.
    fn bounds(&self) -> Result<(i64, i64), LeftOut> {
        let numbers: Option<Vec<i32>> = self.labels.iter().map(|label| number(label)).collect();
        let numbers = numbers.ok_or(LeftOut::VersionNotANumber)?;
        if self.unknown {
            return Err(LeftOut::VersionUnknown);
        }
        let (least, most) = (numbers.iter().min(), numbers.iter().max());
        let bounds = least.zip(most).ok_or(LeftOut::NothingTrained)?;
        Ok((i64::from(*bounds.0), i64::from(*bounds.1)))
    }
}

/// For each node the versions of its tokens that may be trained.
pub(crate) fn versions(forest: &Forest<'_>, merged: &Merged) -> Vec<Versions> {
    let both = forest.nodes.iter().zip(&merged.judged);
    let of = |(node, judged): (&Node<'_>, &Judged)| {
        if judged.trainable { Versions::of(node) } else { Versions::default() }
    };
    both.map(of).collect()
}

impl VersionFilter {
    /// Whether a row that trains tokens of these versions is asked for.
    pub(crate) fn check(&self, versions: &Versions) -> Result<(), LeftOut> {
        let Self { min, max, span_max, at, staleness_max } = *self;
        let limit = at.zip(staleness_max).map(|(at, most)| at.saturating_sub(most));
        if [min, max, span_max, limit].iter().all(Option::is_none) {
            return Ok(());
        }
        let (least, most) = versions.bounds()?;
        let wrong = [
            (LeftOut::BelowMinVersion, min.is_some_and(|min| least < min)),
            (LeftOut::AboveMaxVersion, max.is_some_and(|max| most > max)),
            (LeftOut::VersionSpan, span_max.is_some_and(|span| most - least > span)),
            (LeftOut::Stale, limit.is_some_and(|limit| least < limit)),
        ];
        wrong.into_iter().find(|(_, is)| *is).map_or(Ok(()), |(why, _)| Err(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(labels: &[&str], unknown: bool) -> Versions {
        Versions { labels: labels.iter().map(|label| (*label).to_owned()).collect(), unknown }
    }

    #[test]
    fn every_bound_is_checked_and_is_inside() {
        let none = VersionFilter::default();
        let stale = VersionFilter { at: Some(9), staleness_max: Some(4), ..none };
        let cases = [
            (VersionFilter { min: Some(5), ..none }, Ok(())),
            (VersionFilter { min: Some(6), ..none }, Err(LeftOut::BelowMinVersion)),
            (VersionFilter { max: Some(7), ..none }, Ok(())),
            (VersionFilter { max: Some(6), ..none }, Err(LeftOut::AboveMaxVersion)),
            (VersionFilter { span_max: Some(2), ..none }, Ok(())),
            (VersionFilter { span_max: Some(1), ..none }, Err(LeftOut::VersionSpan)),
            (stale, Ok(())),
            (VersionFilter { at: Some(10), ..stale }, Err(LeftOut::Stale)),
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
            (made(&["latest", "5"], false), Err(LeftOut::VersionNotANumber)),
            (made(&["-1"], false), Err(LeftOut::VersionNotANumber)),
            (made(&["5"], true), Err(LeftOut::VersionUnknown)),
            (made(&[], true), Err(LeftOut::VersionUnknown)),
            (made(&[], false), Err(LeftOut::NothingTrained)),
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
        for why in [LeftOut::VersionNotANumber, LeftOut::Stale, LeftOut::NothingTrained] {
            assert_eq!(serde_json::to_value(why).unwrap(), why.as_str());
        }
    }
}
