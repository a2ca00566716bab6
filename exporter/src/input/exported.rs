//! The attempts that an export holds already, and those that its next increment looks at.
//!
//! An attempt gets a position in its store when it is finished, and no later one gets a lower one.
//! So ranges of positions name what is held, however much that is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use store::{Scope, Snapshot, SnapshotError};

/// Positions as ranges with both ends, in ascending order, with a gap between two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Positions(Vec<(i64, i64)>);

impl Positions {
    pub(crate) fn ranges(&self) -> &[(i64, i64)] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, position: i64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= position);
        after > 0 && position <= self.0[after - 1].1
    }

    /// Returns the number of positions.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| last.abs_diff(*first) + 1).sum()
    }

    pub(crate) fn last(&self) -> Option<i64> {
        self.0.last().map(|(_, last)| *last)
    }

    /// Adds positions.
    pub(crate) fn extend(&mut self, positions: impl IntoIterator<Item = i64>) {
        self.0.extend(positions.into_iter().map(|position| (position, position)));
        self.0.sort_unstable();
        let ranges = std::mem::take(&mut self.0);
        for (first, last) in ranges {
            match self.0.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => self.0.push((first, last)),
            }
        }
    }

    /// Returns those above a position.
    fn above(&self, position: i64) -> Self {
        let above = self.0.iter().filter(|(_, last)| *last > position);
        Self(above.map(|(first, last)| ((*first).max(position + 1), *last)).collect())
    }
}

/// The attempts of one store in an export.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreAttempts {
    /// Positions of those that have a row.
    pub(crate) held: Positions,
    /// The last position that was looked at: up to it, only those in `again` may still get rows.
    pub(crate) through: i64,
    /// Positions of those that made no record but may, such as for lack of a reward.
    #[serde(default, skip_serializing_if = "Positions::is_empty")]
    pub(crate) again: Positions,
    /// Name of the attempt at the last position in `held`, by which the store is known.
    pub(crate) last: String,
}

impl StoreAttempts {
    /// Returns true where the store may be the one whose positions these are: it is another if it
    /// has another attempt at one of them, or has not come that far.
    pub(crate) async fn is_of(&self, snapshot: &mut Snapshot) -> Result<bool, SnapshotError> {
        let Some(last) = self.held.last() else { return Ok(true) };
        match snapshot.names_at(&[(last, last)]).await?.pop_first() {
            Some((_, id)) => Ok(id.to_string() == self.last),
            // It may have been pruned.
            None => Ok(snapshot.last_position().await? >= last),
        }
    }
}

/// The attempts of one store that an export holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExportedBefore {
    /// Names of attempts that had no position.
    pub(crate) names: BTreeSet<String>,
    pub(crate) of_store: StoreAttempts,
}

impl ExportedBefore {
    pub(crate) fn holds(&self, name: &str, position: Option<i64>) -> bool {
        position.is_some_and(|position| self.of_store.held.contains(position))
            || self.names.contains(name)
    }

    /// Returns the number of attempts.
    pub(crate) fn count(&self) -> u64 {
        self.names.len() as u64 + self.of_store.held.count()
    }
}

/// The list of which a shard took a part. Shards of one list have together what it has, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardList {
    /// Number of groups, and of episodes without one.
    pub(crate) groups: u64,
    /// Their calls and attempts, by which shards are made alike.
    pub(crate) weight: u64,
    /// The last position of attempts that are in the list; none where all are.
    pub(crate) until: Option<i64>,
}

/// The attempts that an export looked at, for its manifest.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookedAt {
    /// Name of the store; none where attempts go by their names.
    pub(crate) store: Option<String>,
    /// Positions of the attempts by name, of those that have one.
    pub(crate) positions: BTreeMap<String, i64>,
    /// Last position up to which all attempts were looked at.
    pub(crate) through: i64,
    /// Names of attempts that never make a row, such as those without a call.
    pub(crate) without_row: BTreeSet<String>,
}

impl LookedAt {
    /// Takes note of the store, and of how far all of its attempts are looked at.
    pub(crate) async fn new(
        snapshot: &mut Snapshot,
        scope: &Scope,
        is_all: bool,
    ) -> Result<Self, SnapshotError> {
        let last = snapshot.last_position().await?;
        let is_ordered = is_all && snapshot.has_positions_in_order().await?;
        let through = if is_ordered { scope.until.unwrap_or(last).min(last) } else { 0 };
        Ok(Self { store: snapshot.store_id().await?, through, ..Self::default() })
    }

    /// Moves the attempts with a position from `names`, which have a row, to those of the store.
    pub(crate) fn settle(
        &self,
        names: &mut BTreeSet<String>,
        stores: &mut BTreeMap<String, StoreAttempts>,
    ) {
        let Some(store) = &self.store else { return };
        let of_store = stores.entry(store.clone()).or_default();

        // What was to be looked at again and is not there any more is forgotten.
        let mut again = of_store.again.above(self.through);
        let (held, without): (Vec<_>, Vec<_>) = self
            .positions
            .iter()
            .filter(|(_, position)| !of_store.held.contains(**position))
            .partition(|(name, _)| names.remove(*name));
        let may_have = without.iter().filter(|(name, _)| !self.without_row.contains(*name));
        again.extend(may_have.map(|(_, position)| **position));
        let newest = held.iter().max_by_key(|(_, position)| **position);
        if let Some((name, position)) = newest
            && of_store.held.last().is_none_or(|last| last < **position)
        {
            name.as_str().clone_into(&mut of_store.last);
        }

        of_store.held.extend(held.iter().map(|(_, position)| **position));
        of_store.through = of_store.through.max(self.through);
        of_store.again = again;
        if of_store.held.is_empty() && of_store.through == 0 {
            stores.remove(store);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(all: impl IntoIterator<Item = i64>) -> Positions {
        let mut positions = Positions::default();
        positions.extend(all);
        positions
    }

    #[test]
    fn positions_are_ranges() {
        let mut found = positions([3, 1, 2, 9]);
        assert_eq!(found.ranges(), [(1, 3), (9, 9)]);
        found.extend([4, 8, 2]);
        assert_eq!((found.ranges(), found.count()), (&[(1, 4), (8, 9)][..], 6));
        let held: Vec<i64> = (0..12).filter(|at| found.contains(*at)).collect();
        assert_eq!(held, [1, 2, 3, 4, 8, 9]);
        assert_eq!(found.above(3).ranges(), [(4, 4), (8, 9)]);
        assert_eq!(found.above(9), Positions::default());
    }

    #[test]
    fn what_has_a_row_is_held_and_the_rest_is_looked_at_again() {
        let store = Some("s".to_owned());
        let named =
            |all: &[(&str, i64)]| all.iter().map(|(n, at)| ((*n).to_owned(), *at)).collect();
        let mut names: BTreeSet<String> = ["a/0", "c/0", "open/0"].map(str::to_owned).into();
        let mut stores = BTreeMap::new();
        let first = LookedAt {
            store: store.clone(),
            positions: named(&[("a/0", 1), ("b/0", 2), ("c/0", 3), ("empty/0", 4)]),
            through: 3,
            without_row: ["empty/0".to_owned()].into(),
        };
        first.settle(&mut names, &mut stores);
        assert_eq!(names, ["open/0".to_owned()].into());
        let held = StoreAttempts {
            held: positions([1, 3]),
            through: 3,
            again: positions([2]),
            last: "c/0".to_owned(),
        };
        assert_eq!(stores["s"], held);

        // What was open has a position, and what lacked a reward has one.
        names.insert("b/0".to_owned());
        let positions = named(&[("b/0", 2), ("open/0", 5)]);
        let second = LookedAt { store, positions, through: 5, ..LookedAt::default() };
        second.settle(&mut names, &mut stores);
        assert_eq!((names.len(), stores["s"].held.ranges()), (0, &[(1, 3), (5, 5)][..]));
        assert_eq!((stores["s"].through, stores["s"].last.as_str()), (5, "open/0"));
        assert!(stores["s"].again.is_empty());
    }
}
