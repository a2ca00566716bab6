//! A look at what is ready: what it asks of the database.

use episode::{CallId, EpisodeId, GroupId, Micros, TaskId};

use crate::query::{Query, query};
use crate::ready::Wanted;
use crate::snapshot::{Selection, Snapshot};

/// How long after its closing a call of an attempt may still be under way.
const SETTLE_US: Micros = 10_000_000;

/// Calls that are asked about in one statement.
const CALLS_MAX: usize = 1000;

/// Attempts that are free. A call that is still under way holds its attempt back: for a while, or,
/// where its recorder is the one that asks, as long as it lasts.
const FREE: &str = "FROM finished f JOIN episode e ON e.episode_key = f.episode_key \
    LEFT JOIN delivery d ON d.consumer = $1 AND d.episode_key = f.episode_key \
    LEFT JOIN group_size s ON s.group_id = e.group_id \
    WHERE f.position > $2 AND (d.episode_key IS NULL OR d.free_at <= $3) \
    AND ($4 IS NULL OR e.episode_id = $4) AND ($5 IS NULL OR e.group_id = $5) \
    AND ($6 IS NULL OR e.task_id = $6) \
    AND (f.finished_at <= $7 OR NOT EXISTS (SELECT 1 FROM call c \
        WHERE c.episode_key = f.episode_key AND c.outcome IS NULL)) \
    AND ($8 = 0 OR EXISTS (SELECT 1 FROM reward r WHERE r.episode_key = f.episode_key \
        AND r.call_id IS NULL AND r.name = 'reward'))";

/// The first position, of what is asked for, that may not be passed yet by a reader who does not
/// come back to it.
const HORIZON: &str = "SELECT f.position FROM finished f \
    JOIN episode e ON e.episode_key = f.episode_key WHERE f.position > $1 \
    AND ($3 IS NULL OR e.episode_id = $3) AND ($4 IS NULL OR e.group_id = $4) \
    AND ($5 IS NULL OR e.task_id = $5) \
    AND (f.finished_at > $2 OR f.episode_key IN (HELD)) AND EXISTS (SELECT 1 FROM call c \
        WHERE c.episode_key = f.episode_key AND c.outcome IS NULL) ORDER BY f.position LIMIT 1";

/// A look at what is ready.
pub(crate) struct Look<'a> {
    pub(crate) wanted: &'a Wanted,
    /// What lies behind this position.
    pub(crate) floor: i64,
    /// Attempts whose calls are known to be under way.
    pub(crate) held: Vec<i64>,
}

impl Look<'_> {
    /// [`FREE`], without what is held.
    pub(crate) fn free(&self) -> String {
        format!("{FREE} AND f.episode_key NOT IN ({})", self.held())
    }

    /// [`HORIZON`], with what is held.
    pub(crate) fn horizon(&self) -> Query {
        let first = query(HORIZON.replace("HELD", &self.held()));
        self.only(first.bind(self.floor).bind(self.wanted.now - SETTLE_US))
    }

    /// A list for a statement. No attempt has the key 0.
    fn held(&self) -> String {
        self.held.iter().fold("0".to_owned(), |list, key| format!("{list}, {key}"))
    }

    /// The values of [`FREE`].
    pub(crate) fn bind(&self, query: Query) -> Query {
        let Wanted { consumer, now, rewarded, .. } = self.wanted;
        let query = query.bind(consumer.as_deref()).bind(self.floor).bind(*now);
        self.only(query).bind(now - SETTLE_US).bind(i64::from(*rewarded))
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
