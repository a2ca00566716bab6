//! Summaries of episodes: counts, without reading a body.

use episode::{Micros, Outcome};

use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::types::{AttemptRecord, Selection};

/// One attempt at an episode, counted.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeSummary {
    /// The attempt.
    pub episode: AttemptRecord,
    /// Calls begun.
    pub calls: u64,
    /// Calls to generating routes.
    pub generations: u64,
    /// Generating calls whose sampled tokens are known by id.
    pub with_ids: u64,
    /// Calls that did not end as `complete`, those without an end included.
    pub incomplete: u64,
    /// Prompt tokens, over all calls.
    pub prompt_tokens: u64,
    /// Sampled tokens, over all calls.
    pub completion_tokens: u64,
    /// The newest reward of the whole episode; `None` if there is none or it is null.
    pub reward: Option<f64>,
    /// The start of its last call.
    pub last_call_at: Option<Micros>,
    /// The model of the last call that names one: the server's name for it, else the agent's.
    pub model: Option<String>,
}

const COUNTS: &str = "SELECT count(*) AS calls, \
    count(*) FILTER (WHERE route IN ('chat', 'completions', 'responses', 'messages', 'generate')) \
        AS generations, \
    count(*) FILTER (WHERE EXISTS (SELECT 1 FROM choice k WHERE k.call_key = c.call_key \
        AND k.tokens IS NOT NULL)) AS with_ids, \
    count(*) FILTER (WHERE outcome IS DISTINCT FROM 'complete') AS incomplete, \
    CAST(sum(prompt_tokens) AS BIGINT) AS prompt_tokens, \
    CAST(sum(completion_tokens) AS BIGINT) AS completion_tokens, \
    (SELECT value FROM reward r WHERE r.episode_key = $1 AND r.call_id IS NULL \
        AND r.name = 'reward' ORDER BY r.reward_key DESC LIMIT 1) AS reward, \
    max(started_at) AS last_call_at, \
    (SELECT coalesce(l.reply_model, l.requested_model) FROM call l WHERE l.episode_key = $1 \
        AND coalesce(l.reply_model, l.requested_model) IS NOT NULL \
        ORDER BY l.started_at DESC LIMIT 1) AS model \
    FROM call c WHERE c.episode_key = $1";

const LAST_OUTCOME: &str = "SELECT outcome FROM call WHERE episode_key = $1 \
    AND route IN ('chat', 'completions', 'responses', 'messages', 'generate') \
    ORDER BY started_at DESC, call_id DESC LIMIT 1";

impl Snapshot {
    /// The selected episodes, counted; in the order of [`Snapshot::episodes`].
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn summaries(
        &mut self,
        selection: &Selection,
    ) -> Result<Vec<EpisodeSummary>, SnapshotError> {
        let mut summaries = Vec::new();
        for episode in self.episodes(selection).await? {
            summaries.push(self.summary(episode).await?);
        }
        Ok(summaries)
    }

    /// The outcome of the last call of an attempt to a generating route: the inner `None` if it has
    /// no end, the outer one if there is no such call.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_outcome(
        &mut self,
        episode: &AttemptRecord,
    ) -> Result<Option<Option<Outcome>>, SnapshotError> {
        let row = query(LAST_OUTCOME).bind(episode.key).fetch_optional(self.connection()).await?;
        let Some(row) = row else { return Ok(None) };
        let Some(word) = row.try_get::<Option<String>>("outcome")? else { return Ok(Some(None)) };
        let outcome = Outcome::from_word(&word);
        outcome.map(|outcome| Some(Some(outcome))).ok_or(SnapshotError::Word(word, "outcome"))
    }

    /// An attempt, counted.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn summary(
        &mut self,
        episode: AttemptRecord,
    ) -> Result<EpisodeSummary, SnapshotError> {
        let row = query(COUNTS).bind(episode.key).fetch_one(self.connection()).await?;
        summary_of(episode, &row)
    }
}

fn summary_of(episode: AttemptRecord, row: &Row) -> Result<EpisodeSummary, SnapshotError> {
    Ok(EpisodeSummary {
        episode,
        calls: count(row, "calls")?,
        generations: count(row, "generations")?,
        with_ids: count(row, "with_ids")?,
        incomplete: count(row, "incomplete")?,
        prompt_tokens: count(row, "prompt_tokens")?,
        completion_tokens: count(row, "completion_tokens")?,
        reward: row.try_get("reward")?,
        last_call_at: row.try_get("last_call_at")?,
        model: row.try_get("model")?,
    })
}

/// A count; 0 where a sum is over no row.
fn count(row: &Row, name: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<Option<i64>>(name)?.map_or(0, i64::unsigned_abs))
}
