//! The row of an episode: finding it, or making it.

use episode::{Micros, Tag};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::CommitError;
use crate::types::AttemptId;

/// An attempt in the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpisodeRow {
    pub(crate) key: i64,
    pub(crate) is_closed: bool,
}

/// The row of the tag's attempt, made if need be. Groups, tasks and labels that the tag has and the
/// row lacks are added; those that it has stay.
pub(crate) async fn upsert_episode(
    connection: &mut StoreConnection,
    tag: &Tag,
    at: Micros,
) -> Result<EpisodeRow, sqlx::Error> {
    let row = query(
        "INSERT INTO episode (episode_id, attempt, group_id, task_id, source, opened_at) \
         VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (episode_id, attempt) DO UPDATE SET \
         group_id = coalesce(episode.group_id, excluded.group_id), \
         task_id = coalesce(episode.task_id, excluded.task_id) \
         RETURNING episode_key, closed_at IS NOT NULL AS closed",
    )
    .bind(tag.episode.as_str())
    .bind(tag.attempt)
    .bind(tag.group.as_ref().map(|group| group.as_str()))
    .bind(tag.task.as_ref().map(|task| task.as_str()))
    .bind(tag.source.as_str())
    .bind(at)
    .fetch_one(connection)
    .await?;
    let episode =
        EpisodeRow { key: row.try_get("episode_key")?, is_closed: row.try_get("closed")? };

    // A label that the episode has keeps its first value.
    for (name, value) in &tag.labels {
        let insert = "INSERT INTO label (episode_key, name, value) VALUES ($1, $2, $3) \
                      ON CONFLICT DO NOTHING";
        query(insert).bind(episode.key).bind(name).bind(value).execute(connection).await?;
    }
    Ok(episode)
}

/// The key of an attempt.
///
/// # Errors
/// [`CommitError::Unknown`] where there is no such attempt.
pub(crate) async fn find_episode(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
) -> Result<i64, CommitError> {
    let found = query("SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2")
        .bind(attempt.episode.as_str())
        .bind(attempt.attempt)
        .fetch_optional(connection)
        .await?;
    let row =
        found.ok_or_else(|| CommitError::Unknown(attempt.episode.clone(), attempt.attempt))?;
    Ok(row.first()?)
}
