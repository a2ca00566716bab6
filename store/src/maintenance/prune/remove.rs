//! The removal of one attempt within a transaction.

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::feed::unsettled::forget;
use crate::maintenance::prune::plan::{Fate, fate_now};
use crate::maintenance::prune::{KeepReason, PruneCandidate, PruneFilter};

/// Deletions of the calls of one episode, children first. References are not checked row by row:
/// for each deleted row, SQLite would read whole tables whose references have no index. The
/// connection to a file must have `foreign_keys` off.
const CALLS: [&str; 9] = [
    "DELETE FROM link WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM annotation WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM side WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM choice WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM prompt WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM body WHERE body_key IN (SELECT request_body FROM call WHERE episode_key = $1 \
     UNION ALL SELECT reply_body FROM call WHERE episode_key = $1 AND reply_body IS NOT NULL)",
    "DELETE FROM call WHERE episode_key = $1",
    "DELETE FROM segment WHERE reel_key IN (SELECT reel_key FROM reel WHERE episode_key = $1)",
    "DELETE FROM reel WHERE episode_key = $1",
];

/// Deletions of the rest of the episode, likewise.
const REST: [&str; 11] = [
    "DELETE FROM comment WHERE episode_key = $1",
    "DELETE FROM reward WHERE episode_key = $1",
    "DELETE FROM label WHERE episode_key = $1",
    "DELETE FROM mark WHERE episode_key = $1",
    "DELETE FROM api_key WHERE episode_key = $1",
    "DELETE FROM delivery WHERE episode_key = $1",
    "DELETE FROM finished WHERE episode_key = $1",
    "DELETE FROM waiting WHERE episode_key = $1",
    "DELETE FROM sealed WHERE episode_key = $1",
    "DELETE FROM admitted WHERE (episode_id, attempt) IN \
     (SELECT episode_id, attempt FROM episode WHERE episode_key = $1)",
    "DELETE FROM episode WHERE episode_key = $1",
];

/// Keeps other recorders of a database from writing to the episode until the transaction ends.
const LOCK: &str = "SELECT 1 FROM episode WHERE episode_key = $1 FOR UPDATE";

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The attempt is gone.
    Removed,
    /// It changed after it was planned, and is kept.
    Kept(KeepReason),
    /// It changed and no longer fits the filter, or was gone before.
    NotMeant,
}

/// Removes an attempt in the transaction that has begun on `connection`, unless it changed since it
/// was planned.
pub(crate) async fn remove(
    connection: &mut StoreConnection,
    candidate: &PruneCandidate,
    filter: &PruneFilter,
) -> Result<Removal, sqlx::Error> {
    if !connection.is_file() {
        query(LOCK).bind(candidate.key).execute(connection).await?;
    }
    match fate_now(connection, candidate.key, filter).await? {
        Some(Fate::Goes) => {}
        Some(Fate::Kept(reason)) => return Ok(Removal::Kept(reason)),
        Some(Fate::NotMeant) | None => return Ok(Removal::NotMeant),
    }
    forget(connection, candidate.key).await?;
    remove_calls(connection, candidate.key).await?;
    for deletion in REST {
        query(deletion).bind(candidate.key).execute(connection).await?;
    }
    Ok(Removal::Removed)
}

/// Removes the calls of an episode, with all that belongs to them, in the transaction that has
/// begun on `connection`.
pub(crate) async fn remove_calls(
    connection: &mut StoreConnection,
    key: i64,
) -> Result<(), sqlx::Error> {
    for deletion in CALLS {
        query(deletion).bind(key).execute(connection).await?;
    }
    Ok(())
}
