//! The marks on attempts of which calls may be lost: see `writer/loss.rs`.

use episode::AttemptId;

use crate::database::connection::StoreConnection;
use crate::database::query::query;

/// Marks an attempt for `writer`, in the transaction of its first call.
pub(crate) async fn mark(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    writer: i64,
) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO mark (writer, episode_key) SELECT $3, episode_key FROM episode \
                  WHERE episode_id = $1 AND attempt = $2 ON CONFLICT DO NOTHING";
    query(insert)
        .bind(attempt.episode.as_str())
        .bind(attempt.attempt)
        .bind(writer)
        .execute(connection)
        .await
}

/// Removes the mark of an attempt.
pub(crate) async fn unmark(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    writer: i64,
) -> Result<(), sqlx::Error> {
    let delete = "DELETE FROM mark WHERE writer = $3 AND episode_key = \
                  (SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2)";
    query(delete)
        .bind(attempt.episode.as_str())
        .bind(attempt.attempt)
        .bind(writer)
        .execute(connection)
        .await
}

/// Makes the marks final that `writer` left when it died.
pub(crate) async fn finalize_marks(
    connection: &mut StoreConnection,
    writer: i64,
) -> Result<(), sqlx::Error> {
    let finalize = "UPDATE episode SET may_lack_calls = 1 \
                    WHERE episode_key IN (SELECT episode_key FROM mark WHERE writer = $1)";
    query(finalize).bind(writer).execute(connection).await?;
    remove_marks(connection, writer).await
}

/// Removes all marks of `writer`.
pub(crate) async fn remove_marks(
    connection: &mut StoreConnection,
    writer: i64,
) -> Result<(), sqlx::Error> {
    query("DELETE FROM mark WHERE writer = $1").bind(writer).execute(connection).await
}

/// Notes that an attempt may lack calls, for good.
pub(crate) async fn set_may_lack_calls(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
) -> Result<(), sqlx::Error> {
    let update = "UPDATE episode SET may_lack_calls = 1 WHERE episode_id = $1 AND attempt = $2";
    query(update).bind(attempt.episode.as_str()).bind(attempt.attempt).execute(connection).await
}
