//! API keys inside the write transaction.

use episode::{AttemptId, Micros, TagSource};

use crate::attempts::find_attempt;
use crate::commit::limit;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, CommitResult};
use crate::types::ApiKeyRecord;

/// Records a key. Its attempt is made if need be, and takes only calls with a key from then on.
pub(crate) async fn add_key(connection: &mut StoreConnection, key: &ApiKeyRecord) -> CommitResult {
    let AttemptId { episode, attempt } = &key.attempt;
    let row = query(
        "INSERT INTO episode (episode_id, attempt, source, opened_at, keyed) \
         VALUES ($1, $2, $3, $4, 1) ON CONFLICT (episode_id, attempt) DO UPDATE SET \
         keyed = CASE WHEN episode.closed_at IS NULL THEN 1 ELSE episode.keyed END \
         RETURNING episode_key, closed_at IS NOT NULL AS closed",
    )
    .bind(episode.as_str())
    .bind(*attempt)
    .bind(TagSource::Key.as_str())
    .bind(key.made_at)
    .fetch_one(&mut *connection)
    .await?;
    if row.try_get("closed")? {
        return Err(CommitError::Closed(key.attempt.clone()));
    }

    // A key that is made twice within a microsecond is one key.
    let insert = "INSERT INTO api_key (key_id, episode_key, made_at, expires_at, calls_max, \
                  tokens_max) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";
    query(insert)
        .bind(&key.id)
        .bind(row.try_get::<i64>("episode_key")?)
        .bind(key.made_at)
        .bind(key.expires_at)
        .bind(limit(key.budget.calls))
        .bind(limit(key.budget.tokens))
        .execute(connection)
        .await?;
    Ok(())
}

/// Revokes a key of an attempt, or all of them.
pub(crate) async fn revoke_keys(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    key_id: Option<&str>,
    at: Micros,
) -> CommitResult {
    let key = find_attempt(connection, attempt).await?;
    let revoke = "UPDATE api_key SET revoked_at = coalesce(revoked_at, $1) \
                  WHERE episode_key = $2 AND ($3 IS NULL OR key_id = $3) RETURNING api_key_key";
    let revoked = query(revoke).bind(at).bind(key).bind(key_id).fetch_all(connection).await?;
    if let Some(key_id) = key_id.filter(|_| revoked.is_empty()) {
        return Err(CommitError::UnknownKey(key_id.to_owned()));
    }
    let lock = "UPDATE episode SET keyed = 1 WHERE episode_key = $1";
    Ok(query(lock).bind(key).execute(connection).await?)
}

/// Erases the secret that earlier versions kept here. In a file, its bytes are overwritten.
pub(crate) async fn erase_signing_key(connection: &mut StoreConnection) -> Result<(), sqlx::Error> {
    if connection.is_file() {
        query("PRAGMA secure_delete = ON").execute(connection).await?;
    }
    query("DELETE FROM setting WHERE name = 'key'").execute(connection).await
}
