//! The policy versions that are known, and the one that is current.
//!
//! A version becomes known in three ways: a trainer *declares* it current, a reply of the upstream
//! *reports* it, or the upstream *serves* it when asked.

use crate::bounds::VERSION_LABELS_MAX;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use episode::Micros;
use store::VersionRecord;
use tokio::sync::Notify;

/// Shortest time between two questions to the upstream about an older label.
const DOUBT_EVERY: Duration = Duration::from_secs(1);

/// The versions of the weights.
#[derive(Debug, Default)]
pub(crate) struct WeightVersions {
    state: Mutex<VersionState>,
    /// Wakes the task that asks the upstream.
    upstream_check: Notify,
}

/// A label with the time at which it became current.
#[derive(Debug, Clone)]
struct DatedLabel {
    at: Micros,
    label: String,
}

#[derive(Debug, Default)]
struct VersionState {
    /// The label that was declared current last.
    declared: Option<DatedLabel>,
    /// The label that was declared, served, or first reported last.
    newest: Option<DatedLabel>,
    /// The label that the upstream last served.
    served: Option<String>,
    known: HashSet<String>,
    /// Labels that are not in the store yet, with the time of their first report.
    unwritten: Vec<(String, Micros)>,
    /// Time of the last question to the upstream because of an older label.
    doubted_at: Option<Instant>,
}

impl WeightVersions {
    /// Loads the versions of a store, in the order in which they were written.
    pub(crate) fn load(&self, versions: Vec<VersionRecord>) {
        let mut state = self.lock();
        state.declared = versions
            .iter()
            .filter(|version| version.said_at.is_some())
            .max_by_key(|version| version.said_at)
            .and_then(|last| Some(DatedLabel { at: last.said_at?, label: last.label.clone() }));
        state.served = versions
            .iter()
            .filter(|version| version.served_at.is_some())
            .max_by_key(|version| version.served_at)
            .map(|last| last.label.clone());
        state.newest = versions
            .iter()
            .max_by_key(|version| version.reported_at())
            .map(|last| DatedLabel { at: last.reported_at(), label: last.label.clone() });
        state.known = versions.into_iter().map(|version| version.label).collect();
    }

    /// Declares `label` current.
    pub(crate) fn declare(&self, label: String, at: Micros) {
        let mut state = self.lock();
        state.known.insert(label.clone());
        state.newest = Some(DatedLabel { at, label: label.clone() });
        state.declared = Some(DatedLabel { at, label });
    }

    /// Adds versions that other processes wrote. A later one takes precedence.
    pub(super) fn merge(&self, versions: Vec<VersionRecord>) {
        let mut state = self.lock();
        for version in versions {
            let (told_at, label) = (version.reported_at(), version.label);
            if let Some(at) = version.said_at.filter(|at| is_later(*at, &state.declared)) {
                state.declared = Some(DatedLabel { at, label: label.clone() });
            }
            if is_later(told_at, &state.newest) {
                state.newest = Some(DatedLabel { at: told_at, label: label.clone() });
            }
            state.known.insert(label);
        }
    }

    /// The current label, from any source.
    pub(crate) fn newest(&self) -> Option<String> {
        self.lock().newest.as_ref().map(|newest| newest.label.clone())
    }

    /// The label that was declared current last.
    pub(crate) fn declared(&self) -> Option<String> {
        self.lock().declared.as_ref().map(|declared| declared.label.clone())
    }

    /// Notes the labels that a reply reports. A known label that is not the newest may mean that
    /// the trainer went back to an older version, so the upstream is asked.
    pub(super) fn observe<'a>(&self, labels: impl Iterator<Item = &'a str>, at: Micros) {
        let mut state = self.lock();
        for label in labels {
            if state.newest.as_ref().is_some_and(|newest| newest.label == label) {
                continue;
            }
            if !state.known.contains(label) && state.known.len() < VERSION_LABELS_MAX {
                state.known.insert(label.to_owned());
                state.newest = Some(DatedLabel { at, label: label.to_owned() });
                state.unwritten.push((label.to_owned(), at));
                self.upstream_check.notify_one();
            } else if state.doubted_at.is_none_or(|last| last.elapsed() >= DOUBT_EVERY) {
                state.doubted_at = Some(Instant::now());
                self.upstream_check.notify_one();
            }
        }
    }

    /// Notes the label that the upstream serves; returns whether it differs from the one before.
    /// Adapters have labels of their own and do not change the one that the upstream serves.
    pub(crate) fn note_served(&self, label: &str, at: Micros) -> bool {
        let mut state = self.lock();
        let is_new = state.known.len() < VERSION_LABELS_MAX && state.known.insert(label.to_owned());
        let before = state.served.replace(label.to_owned());
        let is_other = before.map_or(is_new, |before| before != label);
        if is_other {
            state.newest = Some(DatedLabel { at, label: label.to_owned() });
        }
        is_other
    }

    /// Requests a check of the upstream, which may have other weights now.
    pub(crate) fn request_check(&self) {
        self.upstream_check.notify_one();
    }

    /// Waits until the upstream should be asked; takes the labels that are not in the store yet.
    pub(crate) async fn next_check(&self) -> Vec<(String, Micros)> {
        self.upstream_check.notified().await;
        std::mem::take(&mut self.lock().unwritten)
    }

    fn lock(&self) -> MutexGuard<'_, VersionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_later(at: Micros, current: &Option<DatedLabel>) -> bool {
    current.as_ref().is_none_or(|current| current.at < at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_label_is_fresh_once_and_the_last_one_told_is_the_newest() {
        let versions = WeightVersions::default();
        let old = |label: &str, at, said| VersionRecord {
            label: label.to_owned(),
            first_seen: at,
            said_at: said,
            ..VersionRecord::default()
        };
        versions.load(vec![old("1", 1, Some(9)), old("2", 2, Some(3)), old("x", 4, None)]);
        assert_eq!(
            (versions.newest().as_deref(), versions.declared().as_deref()),
            (Some("1"), Some("1"))
        );
        versions.observe(["1", "7", "7"].into_iter(), 10);
        assert_eq!(versions.next_check().await, [("7".to_owned(), 10)]);
        assert_eq!(versions.newest().as_deref(), Some("7"));
        assert_eq!(versions.declared().as_deref(), Some("1"));
    }

    #[test]
    fn what_others_told_counts_when_it_is_later() {
        let versions = WeightVersions::default();
        versions.declare("5".to_owned(), 50);
        let told = |label: &str, first_seen, said_at| VersionRecord {
            label: label.to_owned(),
            first_seen,
            said_at,
            ..VersionRecord::default()
        };
        let both =
            |versions: &WeightVersions| (versions.declared().unwrap(), versions.newest().unwrap());
        versions.merge(vec![told("4", 10, Some(40)), told("3", 45, None)]);
        assert_eq!(both(&versions), ("5".to_owned(), "5".to_owned()));
        versions.merge(vec![told("5", 20, Some(50)), told("seen-8", 60, None)]);
        assert_eq!(both(&versions), ("5".to_owned(), "seen-8".to_owned()));
        versions.merge(vec![told("6", 55, Some(70)), told("6", 55, Some(70))]);
        assert_eq!(both(&versions), ("6".to_owned(), "6".to_owned()));
    }

    #[tokio::test]
    async fn a_trainer_that_goes_back_is_followed() {
        let versions = WeightVersions::default();
        let newest = |versions: &WeightVersions| versions.newest().unwrap();
        versions.observe(["1"].into_iter(), 1);
        assert_eq!(versions.next_check().await.len(), 1);
        assert!(!versions.note_served("1", 2), "it is the first that is heard of");
        assert!(
            versions.note_served("2", 3)
                && versions.note_served("3", 4)
                && !versions.note_served("3", 5)
        );
        assert_eq!(newest(&versions), "3");
        // A reply of before: who asks hears that nothing has changed.
        versions.observe(["2"].into_iter(), 6);
        assert!(versions.next_check().await.is_empty(), "the upstream is asked");
        assert!(!versions.note_served("3", 7));
        assert_eq!(newest(&versions), "3");
        assert!(versions.note_served("1", 8));
        assert_eq!(newest(&versions), "1");
        // An adapter has a label of its own beside the one that is served.
        versions.observe(["policy-v4"].into_iter(), 9);
        assert!(!versions.note_served("1", 10));
        assert_eq!(newest(&versions), "policy-v4");
        let old = |label: &str, at, served_at| VersionRecord {
            label: label.to_owned(),
            first_seen: at,
            served_at,
            ..VersionRecord::default()
        };
        let again = WeightVersions::default();
        again.load(vec![old("1", 1, Some(8)), old("2", 3, Some(3)), old("3", 4, Some(4))]);
        assert_eq!(newest(&again), "1");
        assert!(!again.note_served("1", 11) && again.note_served("2", 12));
    }
}
