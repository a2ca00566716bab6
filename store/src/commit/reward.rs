//! Writes rewards.

use episode::{AttemptId, CallId, Giver, Reward};

use crate::attempts::find_attempt;
use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, CommitResult};

/// Appends a reward, over the calls of the attempt that have ended.
pub(super) async fn write_reward(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    reward: &Reward,
) -> CommitResult {
    let key = find_attempt(connection, attempt).await?;
    let scope = reward.scope;
    // `call_id` is no reference in the table, so the database would not refuse it.
    if let Some(call) = scope.call() {
        check_call(connection, key, call).await?;
    }

    let over = chain::extend(connection, key).await?;
    let given = &reward.provenance;
    let (token_start, token_end) = scope.tokens().unzip();
    query(
        "INSERT INTO reward (episode_key, scope, call_id, choice_index, token_start, token_end, \
         name, value, source, given_at, given_by, given_from, key_name, over_calls, over_chain) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    )
    .bind(key)
    .bind(scope.as_str())
    .bind(scope.call().map(|call| call.to_string()))
    .bind(scope.choice().map(i64::from))
    .bind(token_start.map(i64::from))
    .bind(token_end.map(i64::from))
    .bind(&reward.name)
    .bind(reward.value)
    .bind(&reward.source)
    .bind(reward.at)
    .bind(given.by.map(Giver::as_str))
    .bind(given.from.as_deref())
    .bind(given.key.as_deref())
    .bind(over.map(|over| over.calls as i64))
    .bind(over.map(|over| over.digest.to_vec()))
    .execute(connection)
    .await?;
    Ok(())
}

/// Checks that the attempt has a call.
pub(super) async fn check_call(
    connection: &mut StoreConnection,
    episode_key: i64,
    call: CallId,
) -> CommitResult {
    let found = query("SELECT call_key FROM call WHERE call_id = $1 AND episode_key = $2")
        .bind(call.to_string())
        .bind(episode_key)
        .fetch_optional(connection)
        .await?;
    if found.is_some() {
        return Ok(());
    }
    let sealed = query("SELECT 1 FROM sealed WHERE episode_key = $1").bind(episode_key);
    match sealed.fetch_optional(connection).await? {
        Some(_) => Err(CommitError::Sealed(call)),
        None => Err(CommitError::UnknownCall(call)),
    }
}
