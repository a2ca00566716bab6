//! The number of entries of a list. A count costs no more than a bound, however many there are.

use crate::browse::filter::Conditions;
use crate::database::query::query;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;

/// Attempts that are counted one by one.
const ATTEMPTS_COUNTED: i64 = 100_000;
/// Groups that are counted one by one.
const GROUPS_COUNTED: i64 = 10_000;

/// All groups, each found behind the one before it in the index.
pub(super) const ALL_GROUPS: &str = "WITH RECURSIVE g(id) AS (\
    SELECT (SELECT min(e.group_id) FROM episode e WHERE e.group_id IS NOT NULL) UNION ALL \
    SELECT (SELECT min(e.group_id) FROM episode e WHERE e.group_id > g.id) FROM g \
    WHERE g.id IS NOT NULL) SELECT count(*) FROM (SELECT 1 FROM g WHERE id IS NOT NULL LIMIT $1) t";

/// The number of the entries of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListTotal {
    /// Entries that were counted.
    pub count: u64,
    /// True if there are more: the count has ended at its bound.
    pub is_least: bool,
}

impl ListTotal {
    fn of(counted: i64, bound: i64) -> Self {
        Self { count: counted.min(bound).unsigned_abs(), is_least: counted > bound }
    }
}

impl Snapshot {
    /// The number of the attempts that conditions take. A file knows that of all its attempts.
    pub(super) async fn attempts_total(
        &mut self,
        conditions: &Conditions,
    ) -> Result<ListTotal, SnapshotError> {
        if conditions.is_empty() && self.connection().is_file() {
            // Of each page of an index it reads how many entries are on it.
            let all: i64 = query("SELECT count(*) FROM episode").scalar(self.connection()).await?;
            return Ok(ListTotal::of(all, i64::MAX));
        }
        let next = conditions.len() + 1;
        let select = format!(
            "SELECT count(*) FROM (SELECT 1 FROM episode e WHERE {} LIMIT ${next}) t",
            conditions.sql()
        );
        let count = conditions.query(select).bind(ATTEMPTS_COUNTED + 1);
        Ok(ListTotal::of(count.scalar(self.connection()).await?, ATTEMPTS_COUNTED))
    }

    /// The number of the groups of the attempts that conditions take.
    pub(super) async fn groups_total(
        &mut self,
        conditions: &Conditions,
    ) -> Result<ListTotal, SnapshotError> {
        let next = conditions.len() + 1;
        let select = match conditions.is_empty() {
            true => ALL_GROUPS.to_owned(),
            false => format!(
                "SELECT count(*) FROM (SELECT DISTINCT e.group_id FROM episode e \
                 WHERE e.group_id IS NOT NULL AND {} LIMIT ${next}) t",
                conditions.sql()
            ),
        };
        let count = conditions.query(select).bind(GROUPS_COUNTED + 1);
        Ok(ListTotal::of(count.scalar(self.connection()).await?, GROUPS_COUNTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_ends_at_its_bound() {
        assert_eq!(ListTotal::of(10, 10), ListTotal { count: 10, is_least: false });
        assert_eq!(ListTotal::of(11, 10), ListTotal { count: 10, is_least: true });
    }
}
