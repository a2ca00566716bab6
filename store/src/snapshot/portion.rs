//! Portions of a selection: which attempts an export of a part reads. Each is found by an index or
//! in a pass over names, and has whole groups.

use std::collections::{BTreeMap, BTreeSet};

use episode::{AttemptId, Micros};

use crate::database::query::query;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::snapshot::condition::Condition;
use crate::snapshot::rows::parse;
use crate::types::{AttemptRecord, Selection};

/// Ranges of positions in one statement.
const RANGES_MAX: usize = 200;

/// The calls of an attempt, and 1 for itself. The first is for stores without segments.
const WEIGHT: &str = "1 + (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key)";
const WEIGHT_OF_SEALED: &str = "1 + coalesce(\
    (SELECT s.calls FROM sealed s WHERE s.episode_key = e.episode_key), \
    (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key))";

/// Attempts that an export may take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Attempts by their ids.
    pub selection: Selection,
    /// Only attempts that were finished up to this position. These do not change when more is
    /// recorded.
    pub until: Option<i64>,
}

/// StorePart of a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Portion {
    /// Attempts that were closed, or, while open, began at this time or later.
    Since(Micros),
    /// Attempts that were finished after a position, or whose positions are in these ranges (ends
    /// included), and those that were closed and have no position yet.
    After(i64, Vec<(i64, i64)>),
}

/// One of several parts of a scope of about equal weight. A part is a stretch of the list of groups
/// and, after them, of episodes without a group, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeighedPart {
    /// Keys of its attempts.
    pub keys: Vec<i64>,
    /// Number of attempts of all parts.
    pub attempts: u64,
    /// Number of groups and of episodes without one, of all parts.
    pub groups: u64,
    /// Weight of all parts: the number of calls and of attempts.
    pub weight: u64,
}

impl Snapshot {
    /// The name of the store by which its positions are told from those of another; `None` for one
    /// that was put together from segments of several.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn store_id(&mut self) -> Result<Option<String>, SnapshotError> {
        let id = self.setting("store_id").await?;
        Ok(id.map(|id| String::from_utf8_lossy(&id).into_owned()))
    }

    /// True where no attempt gets a lower position than one that has one. It is false for a store
    /// that was put together from segments.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn has_positions_in_order(&mut self) -> Result<bool, SnapshotError> {
        Ok(self.setting("gathered").await?.is_none())
    }

    /// The attempts of a scope, sorted as [`Snapshot::episodes`] does.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episodes_in(
        &mut self,
        scope: &Scope,
    ) -> Result<Vec<AttemptRecord>, SnapshotError> {
        self.episodes_where(&scope.condition()).await
    }

    /// The number of attempts of a scope, or of those of them that are open.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn count_attempts(
        &mut self,
        scope: &Scope,
        only_open: bool,
    ) -> Result<u64, SnapshotError> {
        let condition = scope.condition();
        let open = if only_open { " AND e.closed_at IS NULL" } else { "" };
        let select = format!("SELECT count(*) FROM episode e WHERE {}{open}", condition.sql);
        let count: i64 = condition.query(select).scalar(self.connection()).await?;
        Ok(count.unsigned_abs())
    }

    /// The attempts with these keys, in no order. Those that are gone are left out.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episodes_by_key(
        &mut self,
        keys: &[i64],
    ) -> Result<Vec<AttemptRecord>, SnapshotError> {
        let mut found = Vec::with_capacity(keys.len());
        for condition in Condition::of_keys(keys) {
            found.extend(self.episodes_where(&condition).await?);
        }
        Ok(found)
    }

    /// The keys of the attempts of a portion, with those of the scope in their groups.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn keys_of(
        &mut self,
        scope: &Scope,
        portion: &Portion,
    ) -> Result<Vec<i64>, SnapshotError> {
        let statements = match portion {
            Portion::Since(time) => vec![since_sql(*time)],
            Portion::After(position, again) => statements_after(*position, again),
        };

        let mut keys = BTreeSet::new();
        let scope = scope.condition();
        for found in statements {
            let select = with_groups(&scope, &found);
            keys.extend(scope.query(select).scalars::<i64>(self.connection()).await?);
        }
        Ok(keys.into_iter().collect())
    }

    /// The part `index` of `count` of a scope.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn weighed_part(
        &mut self,
        scope: &Scope,
        index: u32,
        count: u32,
    ) -> Result<WeighedPart, SnapshotError> {
        let condition = scope.condition();
        let weight = if self.has_sealed().await? { WEIGHT_OF_SEALED } else { WEIGHT };
        let row = condition.query(parts_sql(&condition, weight, index, count));
        let row = row.fetch_one(self.connection()).await?;
        let number = |name| Ok::<_, sqlx::Error>(row.try_get::<i64>(name)?.unsigned_abs());
        let (attempts, groups) = (number("attempts")?, number("names")?);
        let mut part =
            WeighedPart { attempts, groups, weight: number("weight")?, ..<_>::default() };

        let stretches = [
            ("e.group_id", row.try_get("first_group")?, row.try_get("last_group")?),
            ("e.episode_id", row.try_get("first_alone")?, row.try_get("last_alone")?),
        ];
        for (column, first, last) in stretches {
            let (Some(first), Some(last)): (Option<String>, Option<String>) = (first, last) else {
                continue;
            };
            let mut within = scope.condition();
            let (first, last) = (within.value(first), within.value(last));
            let alone = if column == "e.group_id" { "" } else { " AND e.group_id IS NULL" };
            let select = format!(
                "SELECT e.episode_key FROM episode e WHERE {} AND {column} >= {first} \
                 AND {column} <= {last}{alone}",
                within.sql
            );
            part.keys.extend(within.query(select).scalars::<i64>(self.connection()).await?);
        }
        Ok(part)
    }

    /// The positions of the attempts with these keys that have one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn positions(&mut self, keys: &[i64]) -> Result<BTreeMap<i64, i64>, SnapshotError> {
        let mut found = BTreeMap::new();
        for condition in Condition::of_keys(keys) {
            let select =
                format!("SELECT episode_key, position FROM finished e WHERE {}", condition.sql);
            for row in condition.query(select).fetch_all(self.connection()).await? {
                found.insert(row.try_get("episode_key")?, row.try_get("position")?);
            }
        }
        Ok(found)
    }

    /// The names of the attempts whose positions are in ranges (ends included), by position.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn names_at(
        &mut self,
        ranges: &[(i64, i64)],
    ) -> Result<BTreeMap<i64, AttemptId>, SnapshotError> {
        let mut found = BTreeMap::new();
        for ranges in ranges.chunks(RANGES_MAX) {
            let select = format!(
                "SELECT f.position, e.episode_id, e.attempt FROM finished f JOIN episode e \
                 USING (episode_key) WHERE {}",
                in_ranges("f.position", ranges)
            );
            for row in query(select).fetch_all(self.connection()).await? {
                let episode = parse(row.try_get("episode_id")?, "episode id")?;
                let id = AttemptId { episode, attempt: row.try_get("attempt")? };
                found.insert(row.try_get("position")?, id);
            }
        }
        Ok(found)
    }

    /// Those of these attempts that have calls without an end: calls that are under way, or whose
    /// recorder died.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn with_calls_under_way(
        &mut self,
        keys: &[i64],
    ) -> Result<BTreeSet<i64>, SnapshotError> {
        let mut found = BTreeSet::new();
        for condition in Condition::of_keys(keys) {
            let select = format!(
                "SELECT e.episode_key FROM episode e WHERE {} AND EXISTS (SELECT 1 FROM call c \
                 WHERE c.episode_key = e.episode_key AND c.outcome IS NULL)",
                condition.sql
            );
            found.extend(condition.query(select).scalars::<i64>(self.connection()).await?);
        }
        Ok(found)
    }
}

impl Scope {
    fn condition(&self) -> Condition {
        Condition::of(&self.selection).until(self.until)
    }
}

/// The statement of the keys which another gives, within a scope, and those of their groups.
fn with_groups(scope: &Condition, found: &str) -> String {
    let own = format!("{} AND e.episode_key IN ({found})", scope.sql);
    format!(
        "SELECT e.episode_key FROM episode e WHERE {own} UNION SELECT e.episode_key \
         FROM episode e WHERE {} AND e.group_id IN (SELECT e.group_id FROM episode e \
         WHERE {own} AND e.group_id IS NOT NULL)",
        scope.sql
    )
}

/// Statements that give the keys of attempts after a position, and in ranges.
fn statements_after(position: i64, again: &[(i64, i64)]) -> Vec<String> {
    let mut statements = vec![format!(
        "SELECT episode_key FROM finished WHERE position > {position} \
         UNION ALL SELECT episode_key FROM waiting"
    )];
    statements.extend(again.chunks(RANGES_MAX).map(|ranges| {
        format!("SELECT episode_key FROM finished WHERE {}", in_ranges("position", ranges))
    }));
    statements
}

fn since_sql(time: Micros) -> String {
    format!(
        "SELECT episode_key FROM episode WHERE closed_at >= {time} UNION ALL \
         SELECT episode_key FROM episode WHERE closed_at IS NULL AND opened_at >= {time}"
    )
}

fn in_ranges(column: &str, ranges: &[(i64, i64)]) -> String {
    let within = |(first, last): &(i64, i64)| format!("{column} BETWEEN {first} AND {last}");
    ranges.iter().map(within).collect::<Vec<_>>().join(" OR ")
}

/// The statement that finds the ends of a part. A group is in the part in which the middle of its
/// weight is.
fn parts_sql(condition: &Condition, weight: &str, index: u32, count: u32) -> String {
    let own = format!("FILTER (WHERE part = {index})");
    format!(
        "SELECT count(*) AS names, CAST(coalesce(sum(weight), 0) AS BIGINT) AS weight, \
         CAST(coalesce(sum(attempts), 0) AS BIGINT) AS attempts, \
         min(group_id) {own} AS first_group, max(group_id) {own} AS last_group, \
         min(alone) {own} AS first_alone, max(alone) {own} AS last_alone \
         FROM (SELECT group_id, alone, attempts, weight, \
           (2 * CAST(sum(weight) OVER (ORDER BY group_id IS NULL, group_id, alone \
             ROWS UNBOUNDED PRECEDING) AS BIGINT) - weight) * {count} \
             / (2 * CAST(sum(weight) OVER () AS BIGINT)) AS part \
           FROM (SELECT group_id, alone, CAST(sum(weight) AS BIGINT) AS weight, \
             count(*) AS attempts \
             FROM (SELECT e.group_id, CASE WHEN e.group_id IS NULL THEN e.episode_id END AS alone, \
               {weight} AS weight FROM episode e WHERE {}) AS one \
             GROUP BY group_id, alone) AS counted) AS placed",
        condition.sql
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::site::on_both;
    use crate::tests::{begun, ended};

    /// Records an attempt of a group, which is closed where a time is given.
    async fn attempt(
        store: &Store,
        id: &str,
        group: Option<&str>,
        calls: i64,
        end: Option<Micros>,
    ) {
        for at in 0..calls {
            let mut call = begun(id, 10 + at);
            call.tag.group = group.map(|group| group.parse().unwrap());
            store.begin(call.clone()).await.done().await.unwrap();
            store.end(ended(call.call_id)).await.done().await.unwrap();
        }
        if let Some(at) = end {
            store.close(format!("{id}/0").parse().unwrap(), at, None).await.unwrap();
        }
    }

    async fn filled(store: &Store) {
        attempt(store, "a", Some("g"), 1, Some(100)).await;
        attempt(store, "b", Some("g"), 1, None).await;
        attempt(store, "c", Some("h"), 4, Some(200)).await;
        attempt(store, "d", None, 1, Some(300)).await;
        attempt(store, "e", None, 1, None).await;
    }

    async fn names(snapshot: &mut Snapshot, keys: &[i64]) -> Vec<String> {
        let found = snapshot.episodes_by_key(keys).await.unwrap();
        let mut names: Vec<_> = found.into_iter().map(|record| record.id.to_string()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_portion_has_what_is_asked_for_and_its_groups() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            filled(&store).await;
            let mut snapshot = site.snapshot().await;
            let all = Scope::default();
            let task = Selection { group: Some("h".parse().unwrap()), ..Selection::default() };
            let of_group = Scope { selection: task, until: None };
            let until = Scope { until: Some(2), ..Scope::default() };
            for (scope, portion, expected) in [
                (&all, Portion::Since(150), vec!["c", "d"]),
                (&all, Portion::Since(100), vec!["a", "b", "c", "d"]),
                (&all, Portion::Since(10), vec!["a", "b", "c", "d", "e"]),
                (&all, Portion::After(2, vec![]), vec!["d"]),
                (&all, Portion::After(2, vec![(1, 1)]), vec!["a", "b", "d"]),
                (&of_group, Portion::After(0, vec![]), vec!["c"]),
                (&until, Portion::After(0, vec![]), vec!["a", "c"]),
            ] {
                let keys = snapshot.keys_of(scope, &portion).await.unwrap();
                assert_eq!(names(&mut snapshot, &keys).await, expected, "{scope:?} {portion:?}");
            }
            assert_eq!(snapshot.count_attempts(&all, true).await.unwrap(), 2);
            assert_eq!(snapshot.count_attempts(&until, false).await.unwrap(), 2);
            let named = snapshot.names_at(&[(2, 3), (9, 9)]).await.unwrap();
            assert_eq!(named.values().map(ToString::to_string).collect::<Vec<_>>(), ["c/0", "d/0"]);
            drop(store);
            writer.finish().await;
        })
        .await;
    }

    #[tokio::test]
    async fn parts_are_stretches_of_about_one_weight() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            filled(&store).await;
            let mut snapshot = site.snapshot().await;
            // Weights: `g` 4, `h` 5, `d` 2, `e` 2.
            let mut parts = Vec::new();
            for index in 0..3 {
                let part = snapshot.weighed_part(&Scope::default(), index, 3).await.unwrap();
                assert_eq!((part.attempts, part.groups, part.weight), (5, 4, 13));
                parts.push(names(&mut snapshot, &part.keys).await);
            }
            assert_eq!(parts, [vec!["a", "b"], vec!["c"], vec!["d", "e"]]);
            let until = Scope { until: Some(1), ..Scope::default() };
            let part = snapshot.weighed_part(&until, 0, 1).await.unwrap();
            assert_eq!(
                (part.attempts, names(&mut snapshot, &part.keys).await),
                (1, vec!["a".into()])
            );
            let none = Scope { until: Some(0), ..Scope::default() };
            let part = snapshot.weighed_part(&none, 0, 2).await.unwrap();
            assert_eq!(part, WeighedPart::default());
            drop(store);
            writer.finish().await;
        })
        .await;
    }

    #[tokio::test]
    async fn a_part_is_found_without_reading_all_attempts() {
        let site = crate::site::Site::file();
        let (store, writer) = site.open().await;
        let mut snapshot = site.snapshot().await;
        let one = Selection { episode: Some("a".parse().unwrap()), ..Selection::default() };
        let group = Selection { group: Some("g".parse().unwrap()), ..Selection::default() };
        let by_id = Condition::of(&one);
        let by_group = Condition::of(&group);
        let all = Scope::default().condition();
        let after = statements_after(7, &[(1, 2), (4, 5)]);
        let statements = [
            by_id.query(format!("SELECT * FROM episode e WHERE {}", by_id.sql)),
            by_group.query(format!("SELECT * FROM episode e WHERE {}", by_group.sql)),
            query(with_groups(&all, &after[0])),
            query(with_groups(&all, &after[1])),
            query(with_groups(&all, &since_sql(9))),
            query("SELECT count(*) FROM episode e WHERE 1 = 1 AND e.closed_at IS NULL"),
        ];
        for statement in statements {
            let plan = statement.explained().fetch_all(snapshot.connection()).await.unwrap();
            for row in plan {
                let step: String = row.try_get("detail").unwrap();
                let scans = step.starts_with("SCAN") && !step.contains("waiting");
                assert!(!scans, "{step}");
            }
        }
        drop(store);
        writer.finish().await;
    }
}
