//! Places of attempts in their groups: a group's name may be used again, so its first size of
//! attempts is one set, the next another.
//!
//! An attempt that the infrastructure failed and that was run again takes no place: it belongs to
//! the set in which its successor may stand.

use std::collections::BTreeMap;

use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::snapshot::condition::Condition;
use crate::types::Selection;

/// True where the infrastructure failed the attempt `e`: the rule of `failed_by_infrastructure` in
/// the exporter, for attempts that are closed.
pub(crate) const FAILED: &str = "CASE WHEN e.status = 'infrastructure_failed' THEN 1 = 1 \
    WHEN e.status IN ('completed', 'truncated') THEN 1 = 0 \
    ELSE e.closed_at IS NOT NULL AND coalesce((SELECT c.outcome IS NULL \
        OR c.outcome IN ('upstream_failed', 'capped') FROM call c \
        WHERE c.episode_key = e.episode_key \
        AND c.route IN ('chat', 'completions', 'responses', 'messages', 'generate') \
        ORDER BY c.started_at DESC, c.call_id DESC LIMIT 1), \
        (SELECT s.last_call_failed = 1 FROM sealed s WHERE s.episode_key = e.episode_key), \
        1 = 0) END";

/// True where the episode of the attempt `e` was run again.
const RUN_AGAIN: &str = "EXISTS (SELECT 1 FROM episode n \
    WHERE n.episode_id = e.episode_id AND n.attempt > e.attempt)";

/// Place of an attempt in a group of an announced size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupPlace {
    /// Number of its set among those of the group's name, from 0.
    pub set: i64,
    /// Attempts of a set.
    pub size: u32,
    /// True where the attempt counts among them.
    pub is_member: bool,
}

/// 1 where the attempt `e` takes a place in its group, else 0. Where `failed`
/// is false, a failed one takes none only if it was run again.
pub(crate) fn placed(failed: bool) -> String {
    let again = if failed { String::new() } else { format!("{RUN_AGAIN} AND ") };
    format!("CAST(CASE WHEN {again}{FAILED} THEN 0 ELSE 1 END AS BIGINT)")
}

/// The columns `ahead` and `places`: attempts with a place before this one, and all of them, in
/// the parts of rows `x` by `part`, in an order.
pub(crate) fn counted(part: &str, order: &str) -> String {
    format!(
        "count(*) FILTER (WHERE x.placed = 1) OVER (PARTITION BY {part} ORDER BY {order} \
         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead, \
         count(*) FILTER (WHERE x.placed = 1) OVER (PARTITION BY {part}) AS places"
    )
}

impl Snapshot {
    /// Places of the attempts in `groups`, or in all groups, by the store's key: of those groups
    /// whose sizes were announced. Attempts that are not finished come last.
    /// `failed_take_no_place` is that of [`crate::FeedQuery`].
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn group_places(
        &mut self,
        groups: Option<&[&str]>,
        failed_take_no_place: bool,
    ) -> Result<BTreeMap<i64, GroupPlace>, SnapshotError> {
        let conditions = match groups {
            Some(groups) => Condition::of_groups(groups).collect(),
            None => vec![Condition::of(&Selection::default())],
        };
        let mut places = BTreeMap::new();
        for chosen in conditions {
            let select = placed_sql(&chosen, failed_take_no_place);
            for row in chosen.query(select).fetch_all(self.connection()).await? {
                places.insert(row.try_get("episode_key")?, GroupPlace::of(&row)?);
            }
        }
        Ok(places)
    }
}

/// The statement that counts the attempts of groups of announced sizes.
fn placed_sql(chosen: &Condition, failed_take_no_place: bool) -> String {
    format!(
        "SELECT x.episode_key, x.size, x.placed, {} FROM (SELECT e.episode_key, e.group_id, \
         f.position, s.size, {} AS placed FROM episode e \
         JOIN group_size s ON s.group_id = e.group_id \
         LEFT JOIN finished f ON f.episode_key = e.episode_key WHERE {}) AS x",
        counted("x.group_id", "x.position IS NULL, x.position, x.episode_key"),
        placed(failed_take_no_place),
        chosen.sql
    )
}

impl GroupPlace {
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let size: i64 = row.try_get("size")?;
        Ok(Self {
            set: row.try_get::<i64>("ahead")? / size.max(1),
            size: u32::try_from(size).unwrap_or(u32::MAX),
            is_member: row.try_get::<i64>("placed")? == 1,
        })
    }
}
