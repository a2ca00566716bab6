//! Calls without their bodies, prompts and arrays.

use episode::{AttemptId, CallId, EpisodeId, Micros};

use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::{parse, reward_of, spans_of};
use crate::snapshot::sealed::CallsHolder;

/// A call without what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// The store's own key. Later calls have larger ones.
    pub key: i64,
    /// The call.
    pub call_id: CallId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The store's own key of the attempt.
    pub episode_key: i64,
    /// The group of its attempt.
    pub group: Option<String>,
    /// The task of its attempt.
    pub task: Option<String>,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The word for the kind of endpoint.
    pub route: String,
    /// The server's name of the model, else the agent's.
    pub model: Option<String>,
    /// The agent's program.
    pub client: Option<String>,
    /// The agent's own name for the agent or thread.
    pub agent: Option<String>,
    /// The word for its purpose.
    pub kind: String,
    /// The time at which it began.
    pub started_at: Micros,
    /// The time of the first byte of the reply's body.
    pub first_byte_at: Option<Micros>,
    /// The time at which it ended.
    pub ended_at: Option<Micros>,
    /// HTTP status.
    pub status: Option<u16>,
    /// The word for how it ended; `None` while it runs.
    pub outcome: Option<String>,
    /// The error.
    pub error: Option<String>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Sampled tokens.
    pub completion_tokens: Option<u64>,
    /// The finish reason of the first choice.
    pub finish_reason: Option<String>,
    /// The label of the version of the first sampled token.
    pub version: Option<String>,
}

/// A reward and what it is of.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardRow {
    /// The store's own key. Later rewards have larger ones.
    pub key: i64,
    /// The attempt.
    pub attempt: AttemptId,
    /// The group of the attempt.
    pub group: Option<String>,
    /// The task of the attempt.
    pub task: Option<String>,
    /// The reward.
    pub reward: episode::Reward,
}

/// The last keys of a store: what is added later has larger ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastKeys {
    /// Of calls.
    pub call: i64,
    /// Of attempts.
    pub episode: i64,
    /// Of rewards.
    pub reward: i64,
    /// The position of the last attempt that was closed and has no call under way.
    pub finished: i64,
}

pub(super) const ROW: &str = "SELECT c.call_key, c.call_id, e.episode_key, e.episode_id, \
    e.attempt, e.group_id, e.task_id, c.method, c.path, c.route, \
    coalesce(c.reply_model, c.requested_model) AS model, c.client, c.agent, c.kind, \
    c.started_at, c.first_byte_at, c.ended_at, c.status, c.outcome, c.error, \
    c.prompt_tokens, c.completion_tokens, c.stamp_start, \
    (SELECT k.finish_reason FROM choice k WHERE k.call_key = c.call_key \
        ORDER BY k.choice_index LIMIT 1) AS finish_reason, \
    (SELECT k.versions FROM choice k WHERE k.call_key = c.call_key \
        ORDER BY k.choice_index LIMIT 1) AS versions \
    FROM call c JOIN episode e ON e.episode_key = c.episode_key";

/// The call of an attempt that began last, of those with the version of a token.
const LAST_VERSIONED: &str = "WHERE c.episode_key = $1 AND (c.stamp_start IS NOT NULL \
    OR EXISTS (SELECT 1 FROM choice v WHERE v.call_key = c.call_key AND v.versions IS NOT NULL)) \
    ORDER BY c.started_at DESC, c.call_key DESC LIMIT 1";

impl Snapshot {
    /// The label of the version of the last call of an attempt that has one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_version_of(
        &mut self,
        episode_key: i64,
    ) -> Result<Option<String>, SnapshotError> {
        let CallsHolder { part, key, .. } = self.holder(episode_key).await?;
        let last = query(format!("{ROW} {LAST_VERSIONED}")).bind(key);
        match last.fetch_optional(&mut part.connection).await? {
            Some(row) => Ok(row_of(&row)?.version),
            None => Ok(None),
        }
    }

    /// Calls that were written after the key `after`, in the order of their keys.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn call_rows_after(
        &mut self,
        after: i64,
        limit: u32,
    ) -> Result<Vec<CallRow>, SnapshotError> {
        let select = format!("{ROW} WHERE c.call_key > $1 ORDER BY c.call_key LIMIT $2");
        let rows = query(select).bind(after).bind(limit).fetch_all(self.connection()).await?;
        rows.iter().map(row_of).collect()
    }

    /// Those of these calls that have ended.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn ended_rows(&mut self, keys: &[i64]) -> Result<Vec<CallRow>, SnapshotError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let list: Vec<String> = keys.iter().map(i64::to_string).collect();
        let select = format!(
            "{ROW} WHERE c.call_key IN ({}) AND c.outcome IS NOT NULL ORDER BY c.ended_at",
            list.join(", ")
        );
        let rows = query(select).fetch_all(self.connection()).await?;
        rows.iter().map(row_of).collect()
    }

    /// The keys of calls without an end, after the key `after`.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn running_calls(&mut self, after: i64) -> Result<Vec<i64>, SnapshotError> {
        let select = "SELECT call_key FROM call WHERE call_key > $1 AND outcome IS NULL";
        Ok(query(select).bind(after).scalars(self.connection()).await?)
    }

    /// The rewards that were written after the key `after`.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn reward_rows_after(
        &mut self,
        after: i64,
        limit: u32,
    ) -> Result<Vec<RewardRow>, SnapshotError> {
        let select = "SELECT r.reward_key, e.episode_id, e.attempt, e.group_id, e.task_id, \
            r.scope, r.call_id, r.choice_index, r.token_start, r.token_end, r.name, r.value, \
            r.source, r.given_at, r.given_by, r.given_from, r.key_name, r.over_calls, \
            r.over_chain \
            FROM reward r JOIN episode e ON e.episode_key = r.episode_key \
            WHERE r.reward_key > $1 ORDER BY r.reward_key LIMIT $2";
        let rows = query(select).bind(after).bind(limit).fetch_all(self.connection()).await?;
        let of = |row: &Row| {
            Ok(RewardRow {
                key: row.try_get("reward_key")?,
                attempt: attempt_of(row)?,
                group: row.try_get("group_id")?,
                task: row.try_get("task_id")?,
                reward: reward_of(row)?,
            })
        };
        rows.iter().map(of).collect()
    }

    /// The keys of attempts that began after the first key or were finished after the position.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn changed_attempts(&mut self, last: LastKeys) -> Result<Vec<i64>, SnapshotError> {
        let select = "SELECT episode_key FROM episode WHERE episode_key > $1 \
            UNION SELECT episode_key FROM finished WHERE position > $2 ORDER BY 1 LIMIT 1000";
        let keys = query(select).bind(last.episode).bind(last.finished);
        Ok(keys.scalars(self.connection()).await?)
    }

    /// The last keys.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_keys(&mut self) -> Result<LastKeys, SnapshotError> {
        let select = "SELECT (SELECT coalesce(max(call_key), 0) FROM call) AS call_key, \
            (SELECT coalesce(max(episode_key), 0) FROM episode) AS episode_key, \
            (SELECT coalesce(max(reward_key), 0) FROM reward) AS reward_key, \
            (SELECT coalesce(max(position), 0) FROM finished) AS finished";
        let row = query(select).fetch_one(self.connection()).await?;
        Ok(LastKeys {
            call: row.try_get("call_key")?,
            episode: row.try_get("episode_key")?,
            reward: row.try_get("reward_key")?,
            finished: row.try_get("finished")?,
        })
    }
}

fn attempt_of(row: &Row) -> Result<AttemptId, SnapshotError> {
    let episode: EpisodeId = parse(row.try_get("episode_id")?, "episode id")?;
    Ok(AttemptId { episode, attempt: row.try_get("attempt")? })
}

pub(super) fn row_of(row: &Row) -> Result<CallRow, SnapshotError> {
    let versions: Option<String> = row.try_get("versions")?;
    let spans = versions.map_or(Ok(Vec::new()), |text| spans_of(&text))?;
    let count = |name| -> Result<Option<u64>, SnapshotError> {
        Ok(row.try_get::<Option<i64>>(name)?.map(i64::unsigned_abs))
    };

    Ok(CallRow {
        key: row.try_get("call_key")?,
        call_id: parse(row.try_get("call_id")?, "call id")?,
        attempt: attempt_of(row)?,
        episode_key: row.try_get("episode_key")?,
        group: row.try_get("group_id")?,
        task: row.try_get("task_id")?,
        method: row.try_get("method")?,
        path: row.try_get("path")?,
        route: row.try_get("route")?,
        model: row.try_get("model")?,
        client: row.try_get("client")?,
        agent: row.try_get("agent")?,
        kind: row.try_get("kind")?,
        started_at: row.try_get("started_at")?,
        first_byte_at: row.try_get("first_byte_at")?,
        ended_at: row.try_get("ended_at")?,
        status: row.try_get("status")?,
        outcome: row.try_get("outcome")?,
        error: row.try_get("error")?,
        prompt_tokens: count("prompt_tokens")?,
        completion_tokens: count("completion_tokens")?,
        finish_reason: row.try_get("finish_reason")?,
        version: match spans.into_iter().next() {
            Some(span) => Some(span.version),
            None => row.try_get("stamp_start")?,
        },
    })
}
