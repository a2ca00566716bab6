//! Rows of attempts: finding one, and reading its name.

use episode::{AttemptId, InvalidId};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::CommitError;

/// The key of an attempt.
///
/// # Errors
/// [`CommitError::Unknown`] where there is no such attempt.
pub(crate) async fn find_attempt(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
) -> Result<i64, CommitError> {
    let found = query("SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2")
        .bind(attempt.episode.as_str())
        .bind(attempt.attempt)
        .fetch_optional(connection)
        .await?;
    let row = found.ok_or_else(|| CommitError::Unknown(attempt.clone()))?;
    Ok(row.first()?)
}

/// The attempt that a row with its two columns names.
pub(crate) fn attempt_of(row: &Row) -> Result<AttemptId, sqlx::Error> {
    let episode: String = row.try_get("episode_id")?;
    let episode =
        episode.parse().map_err(|error: InvalidId| sqlx::Error::Decode(Box::new(error)))?;
    Ok(AttemptId { episode, attempt: row.try_get("attempt")? })
}
