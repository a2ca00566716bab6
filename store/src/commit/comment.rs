//! Writes comments.

use episode::{AttemptId, Comment, Giver};

use crate::attempts::find_attempt;
use crate::commit::reward::check_call;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::CommitResult;

/// Appends comments, each to its attempt.
pub(super) async fn write_comments(
    connection: &mut StoreConnection,
    comments: &[(AttemptId, Comment)],
) -> CommitResult {
    for (attempt, comment) in comments {
        let key = find_attempt(connection, attempt).await?;
        if let Some(call) = comment.call {
            check_call(connection, key, call).await?;
        }

        let given = &comment.provenance;
        query(
            "INSERT INTO comment (episode_key, call_id, author, text, score, given_at, given_by, \
             given_from, key_name) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(key)
        .bind(comment.call.map(|call| call.to_string()))
        .bind(&comment.author)
        .bind(comment.text.as_deref())
        .bind(comment.score)
        .bind(comment.at)
        .bind(given.by.map(Giver::as_str))
        .bind(given.from.as_deref())
        .bind(given.key.as_deref())
        .execute(connection)
        .await?;
    }
    Ok(())
}
