//! Summaries of episodes: counts, without reading a body.

use std::collections::HashMap;

use episode::{Micros, Outcome};

use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::snapshot::condition::Condition;
use crate::snapshot::sealed::CallsHolder;
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
    /// Calls that ended as neither `complete` nor `refused`, those without an end included.
    pub incomplete: u64,
    /// Calls that were declined: nothing is missing of them.
    pub refused: u64,
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

/// Counts of the attempts `e`. A condition and [`BY_ATTEMPT`] follow.
pub(crate) const COUNTS: &str = "SELECT e.episode_key, count(c.call_key) AS calls, \
    count(*) FILTER (WHERE c.route IN \
        ('chat', 'completions', 'responses', 'messages', 'generate')) AS generations, \
    count(*) FILTER (WHERE EXISTS (SELECT 1 FROM choice k WHERE k.call_key = c.call_key \
        AND k.tokens IS NOT NULL)) AS with_ids, \
    count(c.call_key) FILTER (WHERE c.outcome IS NULL \
        OR c.outcome NOT IN ('complete', 'refused')) AS incomplete, \
    count(c.call_key) FILTER (WHERE c.outcome = 'refused') AS refused, \
    CAST(sum(c.prompt_tokens) AS BIGINT) AS prompt_tokens, \
    CAST(sum(c.completion_tokens) AS BIGINT) AS completion_tokens, \
    (SELECT value FROM reward r WHERE r.episode_key = e.episode_key AND r.call_id IS NULL \
        AND r.name = 'reward' ORDER BY r.reward_key DESC LIMIT 1) AS reward, \
    max(c.started_at) AS last_call_at, \
    (SELECT coalesce(l.reply_model, l.requested_model) FROM call l \
        WHERE l.episode_key = e.episode_key \
        AND coalesce(l.reply_model, l.requested_model) IS NOT NULL \
        ORDER BY l.started_at DESC LIMIT 1) AS model \
    FROM episode e LEFT JOIN call c ON c.episode_key = e.episode_key WHERE";
pub(crate) const BY_ATTEMPT: &str = "GROUP BY e.episode_key";

/// Counts of the calls of sealed attempts.
const SEALED: &str = "SELECT s.* FROM sealed s JOIN episode e USING (episode_key) WHERE";

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
        let chosen = Condition::of(selection);
        let episodes = self.episodes_where(&chosen).await?;
        let select = chosen.query(format!("{COUNTS} {} {BY_ATTEMPT}", chosen.sql));
        let rows = select.fetch_all(self.connection()).await?;
        let mut counts = by_episode(&rows)?;
        let select = chosen.query(format!("{SEALED} {}", chosen.sql));
        let sealed_rows = match self.has_sealed().await? {
            true => select.fetch_all(self.connection()).await?,
            false => Vec::new(),
        };
        let mut sealed = by_episode(&sealed_rows)?;

        // All statements read the same moment.
        let counted = episodes.into_iter().filter_map(|episode| {
            let key = episode.key;
            let row = counts.remove(&key)?;
            Some(summary_of(episode, row, sealed.remove(&key)))
        });
        counted.collect()
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
        let CallsHolder { part, key, .. } = self.holder(episode.key).await?;
        let row = query(LAST_OUTCOME).bind(key).fetch_optional(&mut part.connection).await?;
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
        let row = self.counts(episode.key).await?;
        let select = query(format!("{SEALED} e.episode_key = $1")).bind(episode.key);
        let sealed = match self.has_sealed().await? {
            true => select.fetch_optional(self.connection()).await?,
            false => None,
        };
        summary_of(episode, &row, sealed.as_ref())
    }

    /// The counts of the calls of an attempt that are in the store itself.
    pub(crate) async fn counts(&mut self, key: i64) -> Result<Row, sqlx::Error> {
        let select = query(format!("{COUNTS} e.episode_key = $1 {BY_ATTEMPT}"));
        select.bind(key).fetch_one(self.connection()).await
    }
}

fn by_episode(rows: &[Row]) -> Result<HashMap<i64, &Row>, sqlx::Error> {
    rows.iter().map(|row| Ok((row.try_get::<i64>("episode_key")?, row))).collect()
}

/// An attempt with its counts: those of `sealed`, where it is, and the reward of `row`.
fn summary_of(
    episode: AttemptRecord,
    row: &Row,
    sealed: Option<&Row>,
) -> Result<EpisodeSummary, SnapshotError> {
    let counts = sealed.unwrap_or(row);
    Ok(EpisodeSummary {
        episode,
        calls: count(counts, "calls")?,
        generations: count(counts, "generations")?,
        with_ids: count(counts, "with_ids")?,
        incomplete: count(counts, "incomplete")?,
        refused: count(counts, "refused")?,
        prompt_tokens: count(counts, "prompt_tokens")?,
        completion_tokens: count(counts, "completion_tokens")?,
        reward: row.try_get("reward")?,
        last_call_at: counts.try_get("last_call_at")?,
        model: counts.try_get("model")?,
    })
}

/// A count; 0 where a sum is over no row.
fn count(row: &Row, name: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<Option<i64>>(name)?.map_or(0, i64::unsigned_abs))
}
