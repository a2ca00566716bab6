//! Attempts that a consumer has not settled: the rows that polls and counts read, however much is
//! settled.
//!
//! The table `unsettled` has a row for each finished attempt up to a consumer's floor that it has
//! not settled. `gathering` counts those of a group that were never handed out, and the row of the
//! consumer sums them up. All are written under the lock of the feed.

use std::collections::BTreeMap;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::SnapshotError;
use crate::feed::lock::lock;
use crate::snapshot::Snapshot;

/// Attempts that are taken over in one transaction: calls wait for it.
const FILLED_MAX: i64 = if cfg!(test) { 3 } else { 4000 };

/// The position up to which a consumer with the floor `$1` is filled next; null if there is none.
const NEXT_FLOOR: &str = "SELECT max(x.position) FROM (SELECT f.position FROM finished f \
    WHERE f.position > $1 ORDER BY f.position LIMIT $2) AS x";

/// The attempts after the floor `$2` up to `$3` that the consumer `$1` has not settled.
const FILL: &str = "INSERT INTO unsettled (consumer, position, episode_key, finished_at, group_id, \
    task_id, item, free_at) SELECT $1, f.position, f.episode_key, f.finished_at, e.group_id, \
    e.task_id, coalesce(d.item, 0), coalesce(d.free_at, 0) \
    FROM finished f JOIN episode e ON e.episode_key = f.episode_key \
    LEFT JOIN delivery d ON d.consumer = $1 AND d.episode_key = f.episode_key \
    WHERE f.position > $2 AND f.position <= $3 \
    AND (d.episode_key IS NULL OR d.free_at IS NOT NULL)";

/// Those of them that were never handed out.
const FRESH: &str = "FROM unsettled u WHERE u.consumer = $1 AND u.position > $2 \
    AND u.position <= $3 AND u.item = 0";

/// The consumers that do not know all finished attempts.
const BEHIND: &str = "SELECT c.consumer FROM consumer c \
    WHERE EXISTS (SELECT 1 FROM finished f WHERE f.position > c.floor) ORDER BY c.consumer";

impl Snapshot {
    /// True where attempts were finished that a consumer does not know yet:
    /// [`crate::Store::fill_consumer`] makes it know them.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn is_behind(&mut self, consumer: &str) -> Result<bool, SnapshotError> {
        let is_behind = "SELECT EXISTS (SELECT 1 FROM finished f WHERE f.position > \
            (SELECT c.floor FROM consumer c WHERE c.consumer = $1)) AS behind";
        Ok(query(is_behind).bind(consumer).scalar(self.connection()).await?)
    }

    /// The names of the consumers of which [`Self::is_behind`] is true.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn consumers_behind(&mut self) -> Result<Vec<String>, SnapshotError> {
        Ok(query(BEHIND).scalars(self.connection()).await?)
    }
}

/// Takes over the next finished attempts for a consumer, some thousand at most, and raises its
/// floor to the last of them.
pub(crate) async fn fill(
    connection: &mut StoreConnection,
    consumer: &str,
) -> Result<(), sqlx::Error> {
    let floor = query("SELECT floor FROM consumer WHERE consumer = $1").bind(consumer);
    let Some(row) = floor.fetch_optional(connection).await? else { return Ok(()) };
    let floor: i64 = row.first()?;
    let next = query(NEXT_FLOOR).bind(floor).bind(FILLED_MAX);
    let Some(next) = next.scalar::<Option<i64>>(connection).await? else { return Ok(()) };

    // The sums tell new groups by the rows of `gathering`, which are made after them.
    let sums = format!(
        "UPDATE consumer SET floor = $3, \
         alone = alone + (SELECT count(*) {FRESH} AND u.group_id IS NULL), \
         grouped = grouped + (SELECT count(*) {FRESH} AND u.group_id IS NOT NULL), \
         group_count = group_count + (SELECT count(DISTINCT u.group_id) {FRESH} \
             AND u.group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM gathering g \
             WHERE g.group_id = u.group_id AND g.consumer = $1)) WHERE consumer = $1"
    );
    let gather = format!(
        "INSERT INTO gathering (group_id, consumer, size, members, since) \
         SELECT u.group_id, u.consumer, (SELECT s.size FROM group_size s \
             WHERE s.group_id = u.group_id), count(*), min(u.finished_at) \
         {FRESH} AND u.group_id IS NOT NULL GROUP BY u.group_id, u.consumer \
         ON CONFLICT (group_id, consumer) DO UPDATE SET \
         members = gathering.members + excluded.members, since = CASE \
             WHEN excluded.since < gathering.since THEN excluded.since ELSE gathering.since END"
    );
    for statement in [FILL.to_owned(), sums, gather] {
        let filled = query(statement).bind(consumer).bind(floor).bind(next);
        filled.execute(connection).await?;
    }
    Ok(())
}

/// Does to the rows of a lease what was done to its deliveries.
pub(crate) async fn follow(
    connection: &mut StoreConnection,
    consumer: &str,
    lease: &str,
) -> Result<(), sqlx::Error> {
    let settled = "DELETE FROM unsettled WHERE consumer = $1 AND episode_key IN (SELECT \
        d.episode_key FROM delivery d WHERE d.lease = $2 AND d.consumer = $1 \
        AND d.free_at IS NULL)";
    query(settled).bind(consumer).bind(lease).execute(connection).await?;
    let changed = "UPDATE unsettled SET item = d.item, free_at = d.free_at FROM delivery d \
        WHERE d.lease = $2 AND d.consumer = $1 AND d.free_at IS NOT NULL \
        AND unsettled.consumer = $1 AND unsettled.episode_key = d.episode_key";
    query(changed).bind(consumer).bind(lease).execute(connection).await
}

/// Takes attempts that a consumer was never handed out of its sums, by their groups.
pub(crate) async fn take_out(
    connection: &mut StoreConnection,
    consumer: &str,
    attempts: &BTreeMap<Option<String>, i64>,
) -> Result<(), sqlx::Error> {
    let (mut alone, mut grouped, mut gone) = (0, 0, 0);
    for (group, count) in attempts {
        let Some(group) = group else {
            alone += count;
            continue;
        };
        grouped += count;
        let fewer = "UPDATE gathering SET members = members - $3 \
                     WHERE group_id = $1 AND consumer = $2 RETURNING members";
        let fewer = query(fewer).bind(group).bind(consumer).bind(*count);
        if fewer.scalar::<i64>(connection).await? <= 0 {
            let empty = "DELETE FROM gathering WHERE group_id = $1 AND consumer = $2";
            query(empty).bind(group).bind(consumer).execute(connection).await?;
            gone += 1;
        }
    }

    let sums = "UPDATE consumer SET alone = alone - $2, grouped = grouped - $3, \
                group_count = group_count - $4 WHERE consumer = $1";
    let sums = query(sums).bind(consumer).bind(alone).bind(grouped).bind(gone);
    sums.execute(connection).await
}

/// Forgets an attempt that is deleted, for every consumer.
pub(crate) async fn forget(connection: &mut StoreConnection, key: i64) -> Result<(), sqlx::Error> {
    lock(connection).await?;
    leave_groups(connection, key).await?;
    query("DELETE FROM unsettled WHERE episode_key = $1").bind(key).execute(connection).await
}

/// Takes an attempt that lost its group out of it, for every consumer.
pub(crate) async fn ungroup(connection: &mut StoreConnection, key: i64) -> Result<(), sqlx::Error> {
    lock(connection).await?;
    for consumer in leave_groups(connection, key).await? {
        let alone = "UPDATE consumer SET alone = alone + 1 WHERE consumer = $1";
        query(alone).bind(consumer).execute(connection).await?;
    }
    let ungroup = "UPDATE unsettled SET group_id = NULL WHERE episode_key = $1";
    query(ungroup).bind(key).execute(connection).await
}

/// Takes an attempt out of the sums of the consumers that were never handed it, and returns these.
async fn leave_groups(
    connection: &mut StoreConnection,
    key: i64,
) -> Result<Vec<String>, sqlx::Error> {
    let fresh = "SELECT consumer, group_id FROM unsettled WHERE episode_key = $1 AND item = 0";
    let rows = query(fresh).bind(key).fetch_all(connection).await?;
    let mut consumers = Vec::with_capacity(rows.len());
    for row in &rows {
        let consumer: String = row.try_get("consumer")?;
        let one = BTreeMap::from([(row.try_get("group_id")?, 1)]);
        take_out(connection, &consumer, &one).await?;
        consumers.push(consumer);
    }
    Ok(consumers)
}

/// Notes the size that a group was announced with, unless it has one.
pub(crate) async fn note_size(
    connection: &mut StoreConnection,
    group: &str,
    size: u32,
) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO group_size (group_id, size) VALUES ($1, $2) \
                  ON CONFLICT DO NOTHING RETURNING group_id";
    let new = query(insert).bind(group).bind(size).fetch_optional(connection).await?;
    if new.is_none() {
        return Ok(());
    }
    lock(connection).await?;
    let gathering = "UPDATE gathering SET size = $2 WHERE group_id = $1 AND size IS NULL";
    query(gathering).bind(group).bind(size).execute(connection).await
}
