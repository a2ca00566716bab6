//! Candidates of the feed: finished attempts that are free, and closed ones that wait for calls.

use episode::{CallId, EpisodeId, GroupId, Micros, TaskId};

use crate::database::query::{Query, query};
use crate::error::SnapshotError;
use crate::feed::places::placed;
use crate::feed::types::FeedQuery;
use crate::snapshot::Snapshot;
use crate::types::Selection;

/// Time after the closing of an attempt during which its calls may still be under way.
const SETTLE_US: Micros = 10_000_000;

/// Calls that are looked up in one statement.
const CALLS_MAX: usize = 1000;

/// Attempts that get their positions in one transaction.
const FINISHED_MAX: usize = 1000;

/// Attempts that a consumer, `$1`, has not settled, and that nobody holds.
const UNSETTLED: &str = "FROM unsettled f JOIN episode e ON e.episode_key = f.episode_key \
    LEFT JOIN group_size s ON s.group_id = f.group_id \
    WHERE f.consumer = $1 AND f.free_at <= $3";

/// Attempts for a reader that keeps its own place, after the position `$2`.
const FINISHED: &str = "FROM finished f JOIN episode e ON e.episode_key = f.episode_key \
    LEFT JOIN group_size s ON s.group_id = e.group_id WHERE f.position > $2";

/// The condition that an attempt was given a reward.
const REWARDED: &str = "EXISTS (SELECT 1 FROM reward r WHERE r.episode_key = f.episode_key \
    AND r.call_id IS NULL AND r.name = 'reward')";

/// Groups of which a consumer, `$1`, may be handed something: parts that were handed out before,
/// and groups whose attempts are as many as their size, `$7` where it was not announced, or of
/// which one was finished by `$8`. Whether enough take a place is another question.
pub(crate) const OPEN_GROUPS: &str = "SELECT u.group_id FROM unsettled u WHERE u.consumer = $1 \
        AND u.item > 0 AND u.free_at <= $3 AND u.group_id IS NOT NULL \
    UNION SELECT g.group_id FROM gathering g WHERE g.consumer = $1 AND g.size IS NOT NULL \
        AND (g.size - g.members) <= 0 \
    UNION SELECT g.group_id FROM gathering g WHERE g.consumer = $1 AND g.size IS NULL \
        AND g.members >= $7 \
    UNION SELECT g.group_id FROM gathering g WHERE g.consumer = $1 AND g.since <= $8";

/// Attempts that were closed while calls of theirs were under way, in the order of closing. They
/// are few: a join of the other kind would let SQLite go through all attempts by an index.
const WAITING: &str = "SELECT w.episode_key, e.closed_at, \
    (SELECT max(c.ended_at) FROM call c WHERE c.episode_key = w.episode_key) AS last, \
    EXISTS (SELECT 1 FROM call c \
        WHERE c.episode_key = w.episode_key AND c.outcome IS NULL) AS open \
    FROM waiting w LEFT JOIN episode e ON e.episode_key = w.episode_key \
    ORDER BY e.closed_at, w.episode_key";

/// The part of a statement that selects the attempts a reader may be handed.
pub(crate) struct CandidateQuery<'a> {
    pub(crate) query: &'a FeedQuery,
    /// Only attempts after this position.
    pub(crate) floor: i64,
    /// Attempts whose calls are known to be under way.
    pub(crate) with_open_calls: Vec<i64>,
}

impl CandidateQuery<'_> {
    /// The `FROM` and `WHERE` of the statement. Its values are `$1` to `$6`. Only what is asked for
    /// is a condition, so that an index serves it.
    pub(crate) fn sql(&self) -> String {
        let FeedQuery { consumer, rewarded, selection, .. } = self.query;
        let (mut sql, names) = match consumer {
            Some(_) => (UNSETTLED.to_owned(), "f"),
            None => (FINISHED.to_owned(), "e"),
        };

        if selection.episode.is_some() {
            sql += " AND e.episode_id = $4";
        }
        if selection.group.is_some() {
            sql += &format!(" AND {names}.group_id = $5");
        }
        if selection.task.is_some() {
            sql += &format!(" AND {names}.task_id = $6");
        }
        if *rewarded {
            sql += &format!(" AND {REWARDED}");
        }
        // A reader with a cursor does not come back for those that it leaves out.
        if consumer.is_some() && !self.with_open_calls.is_empty() {
            let open: Vec<String> = self.with_open_calls.iter().map(i64::to_string).collect();
            sql += &format!(" AND f.episode_key NOT IN ({})", open.join(", "));
        }
        sql
    }

    /// The same, of attempts in groups that may be handed out. The values are `$1` to `$8`.
    pub(crate) fn grouped_sql(&self) -> String {
        match self.has_sums() {
            true => format!("{} AND f.group_id IN ({OPEN_GROUPS})", self.sql()),
            false => format!("{} AND e.group_id IS NOT NULL", self.sql()),
        }
    }

    /// True where the sums of a consumer are about all that the reader selects.
    pub(crate) fn has_sums(&self) -> bool {
        self.query.consumer.is_some() && self.query.selection == Selection::default()
    }

    /// The item as which a candidate was handed out before; 0 if never.
    pub(crate) fn item(&self) -> &'static str {
        if self.query.consumer.is_some() { "f.item" } else { "CAST(0 AS BIGINT)" }
    }

    /// The column `placed`: 1 where a candidate takes a place in its group, else 0. A reader with a
    /// cursor gets the same items again, so no later run changes them.
    pub(crate) fn placed(&self) -> String {
        match (self.query.failed_take_no_place, &self.query.consumer) {
            (false, None) => "CAST(1 AS BIGINT) AS placed".to_owned(),
            (failed, _) => format!("{} AS placed", placed(failed)),
        }
    }

    /// Binds the values.
    pub(crate) fn bind(&self, statement: Query) -> Query {
        let FeedQuery { consumer, now, selection, .. } = self.query;
        let Selection { episode, group, task } = selection;
        statement
            .bind(consumer.as_deref())
            .bind(self.floor)
            .bind(*now)
            .bind(episode.as_ref().map(EpisodeId::as_str))
            .bind(group.as_ref().map(GroupId::as_str))
            .bind(task.as_ref().map(TaskId::as_str))
    }
}

impl Snapshot {
    /// Attempts that wait no longer for their calls, and the times at which they were finished, for
    /// [`crate::Store::finish`]. `open` are the calls that are known to be under way. Another call
    /// without an end is given up some time after the closing: its recorder died.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn finished_since(
        &mut self,
        open: &[CallId],
        now: Micros,
    ) -> Result<Vec<(i64, Micros)>, SnapshotError> {
        let waiting = query(WAITING).fetch_all(self.connection()).await?;
        if waiting.is_empty() {
            return Ok(Vec::new());
        }

        let with_open_calls = self.with_open_calls(open).await?;
        let mut finished = Vec::new();
        for row in waiting {
            let (key, closed) = (row.try_get("episode_key")?, row.try_get::<Micros>("closed_at")?);
            let last = row.try_get::<Option<Micros>>("last")?.unwrap_or(closed).max(closed);
            let given_up = closed.saturating_add(SETTLE_US);
            let is_open = row.try_get::<bool>("open")?;
            if is_open && (now < given_up || with_open_calls.contains(&key)) {
                continue;
            }
            let finished_at = if is_open { last.max(given_up) } else { last };
            // Clocks of several machines may differ, and nothing is finished in the future.
            finished.push((key, finished_at.min(now)));
        }
        finished.truncate(FINISHED_MAX);
        Ok(finished)
    }

    /// The candidates of a reader.
    pub(crate) async fn candidates<'a>(
        &mut self,
        query: &'a FeedQuery,
    ) -> Result<CandidateQuery<'a>, sqlx::Error> {
        let floor = match &query.consumer {
            Some(consumer) => self.floor(consumer).await?.unwrap_or(query.after),
            None => query.after,
        };
        let with_open_calls = self.with_open_calls(&query.open).await?;
        Ok(CandidateQuery { query, floor, with_open_calls })
    }

    /// The position up to which a consumer knows all attempts; `None` if it is unknown.
    pub(crate) async fn floor(&mut self, consumer: &str) -> Result<Option<i64>, sqlx::Error> {
        let row = query("SELECT floor FROM consumer WHERE consumer = $1")
            .bind(consumer)
            .fetch_optional(self.connection())
            .await?;
        row.map(|row| row.first()).transpose()
    }

    /// The keys of the attempts that have one of these calls without an end.
    pub(crate) async fn with_open_calls(
        &mut self,
        calls: &[CallId],
    ) -> Result<Vec<i64>, sqlx::Error> {
        let mut keys = Vec::new();
        for chunk in calls.chunks(CALLS_MAX) {
            let numbers: Vec<String> = (1..=chunk.len()).map(|at| format!("${at}")).collect();
            let select = format!(
                "SELECT DISTINCT episode_key FROM call WHERE outcome IS NULL AND call_id IN ({})",
                numbers.join(", ")
            );
            let bound =
                chunk.iter().fold(query(select), |select, call| select.bind(call.to_string()));
            keys.extend(bound.scalars::<i64>(self.connection()).await?);
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Site;

    #[tokio::test]
    async fn a_poll_reads_no_more_attempts_than_wait() {
        let site = Site::file();
        let (store, writer) = site.open().await;
        drop(store);
        writer.finish().await;
        let plan = query(WAITING).plan(site.snapshot().await.connection()).await;
        let by_key = "SEARCH e USING INTEGER PRIMARY KEY";
        assert!(plan.contains("SCAN w") && plan.contains(by_key), "{plan}");
    }
}
