//! A look at what is ready: what it asks of the database.

use episode::{CallId, EpisodeId, GroupId, Micros, TaskId};

use crate::query::{Query, query};
use crate::ready::Wanted;
use crate::snapshot::{Selection, Snapshot, SnapshotError};

/// How long after its closing a call of an attempt may still be under way.
const SETTLE_US: Micros = 10_000_000;

/// Calls that are asked about in one statement.
const CALLS_MAX: usize = 1000;

/// Attempts that get their position at once.
const FINISHED_MAX: usize = 1000;

/// Attempts that are free.
const FREE: &str = "FROM finished f JOIN episode e ON e.episode_key = f.episode_key \
    LEFT JOIN delivery d ON d.consumer = $1 AND d.episode_key = f.episode_key \
    LEFT JOIN group_size s ON s.group_id = e.group_id \
    WHERE f.position > $2 AND (d.episode_key IS NULL OR d.free_at <= $3) \
    AND ($4 IS NULL OR e.episode_id = $4) AND ($5 IS NULL OR e.group_id = $5) \
    AND ($6 IS NULL OR e.task_id = $6) \
    AND ($7 = 0 OR EXISTS (SELECT 1 FROM reward r WHERE r.episode_key = f.episode_key \
        AND r.call_id IS NULL AND r.name = 'reward'))";

/// Attempts that were closed while calls of theirs were under way, in the order of closing.
const WAITING: &str = "SELECT w.episode_key, e.closed_at, \
    (SELECT max(c.ended_at) FROM call c WHERE c.episode_key = w.episode_key) AS last, \
    EXISTS (SELECT 1 FROM call c \
        WHERE c.episode_key = w.episode_key AND c.outcome IS NULL) AS open \
    FROM waiting w JOIN episode e ON e.episode_key = w.episode_key \
    ORDER BY e.closed_at, w.episode_key";

/// A look at what is ready.
pub(crate) struct Look<'a> {
    pub(crate) wanted: &'a Wanted,
    /// What lies behind this position.
    pub(crate) floor: i64,
    /// Attempts whose calls are known to be under way.
    pub(crate) held: Vec<i64>,
}

impl Look<'_> {
    /// [`FREE`]; for a consumer, who comes back to it, without what is held.
    pub(crate) fn free(&self) -> String {
        if self.wanted.consumer.is_none() {
            return FREE.to_owned();
        }
        // No attempt has the key 0.
        let held = self.held.iter().fold("0".to_owned(), |list, key| format!("{list}, {key}"));
        format!("{FREE} AND f.episode_key NOT IN ({held})")
    }

    /// The values of [`FREE`].
    pub(crate) fn bind(&self, query: Query) -> Query {
        let Wanted { consumer, now, rewarded, .. } = self.wanted;
        let query = query.bind(consumer.as_deref()).bind(self.floor).bind(*now);
        self.only(query).bind(i64::from(*rewarded))
    }

    /// Which episodes.
    fn only(&self, query: Query) -> Query {
        let Selection { episode, group, task } = &self.wanted.selection;
        query
            .bind(episode.as_ref().map(EpisodeId::as_str))
            .bind(group.as_ref().map(GroupId::as_str))
            .bind(task.as_ref().map(TaskId::as_str))
    }
}

impl Snapshot {
    /// Attempts whose calls have ended since they were closed, or are given up, and when that was:
    /// for [`crate::Store::finish`]. A call that is given up is one whose recorder is not known to
    /// be at work, some time after the closing.
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
        let held = self.with_open_calls(open).await?;
        let mut found = Vec::new();
        for row in waiting {
            let (key, closed) = (row.try_get("episode_key")?, row.try_get::<Micros>("closed_at")?);
            let last = row.try_get::<Option<Micros>>("last")?.unwrap_or(closed).max(closed);
            let given_up = closed.saturating_add(SETTLE_US);
            let is_open = row.try_get::<bool>("open")?;
            if is_open && (now < given_up || held.contains(&key)) {
                continue;
            }
            // Clocks of several machines may differ.
            found.push((key, if is_open { last.max(given_up) } else { last }.min(now)));
        }
        found.truncate(FINISHED_MAX);
        Ok(found)
    }

    /// The keys of the attempts that these calls belong to, as far as they have not ended.
    pub(crate) async fn with_open_calls(
        &mut self,
        calls: &[CallId],
    ) -> Result<Vec<i64>, sqlx::Error> {
        let mut keys = Vec::new();
        for calls in calls.chunks(CALLS_MAX) {
            let numbers: Vec<String> = (1..=calls.len()).map(|at| format!("${at}")).collect();
            let of = format!(
                "SELECT DISTINCT episode_key FROM call WHERE outcome IS NULL AND call_id IN ({})",
                numbers.join(", ")
            );
            let of = calls.iter().fold(query(of), |of, call| of.bind(call.to_string()));
            keys.extend(of.scalars::<i64>(self.connection()).await?);
        }
        Ok(keys)
    }
}
