//! Episodes at a glance: counts, without reading a body.

use crate::fields::Row;
use crate::query::query;
use crate::snapshot::{EpisodeRecord, Selection, Snapshot, SnapshotError};

/// One attempt at an episode, counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The attempt.
    pub episode: EpisodeRecord,
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
        AND r.name = 'reward' ORDER BY r.reward_key DESC LIMIT 1) AS reward \
    FROM call c WHERE c.episode_key = $1";

impl Snapshot {
    /// The selected episodes, counted; in the order of [`Snapshot::episodes`].
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn summaries(&mut self, only: &Selection) -> Result<Vec<Summary>, SnapshotError> {
        let mut summaries = Vec::new();
        for episode in self.episodes(only).await? {
            let row = query(COUNTS).bind(episode.key).fetch_one(self.connection()).await?;
            summaries.push(summary_of(episode, &row)?);
        }
        Ok(summaries)
    }
}

fn summary_of(episode: EpisodeRecord, row: &Row) -> Result<Summary, SnapshotError> {
    let count = |name| -> Result<u64, sqlx::Error> {
        Ok(row.try_get::<Option<i64>>(name)?.map_or(0, i64::unsigned_abs))
    };
    Ok(Summary {
        episode,
        calls: count("calls")?,
        generations: count("generations")?,
        with_ids: count("with_ids")?,
        incomplete: count("incomplete")?,
        prompt_tokens: count("prompt_tokens")?,
        completion_tokens: count("completion_tokens")?,
        reward: row.try_get("reward")?,
    })
}
