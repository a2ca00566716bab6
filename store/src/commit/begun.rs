//! The beginning of a call, inside the write transaction.

use episode::{CallStart, Outcome};

use crate::commit::body::add_body;
use crate::commit::state::{CommitState, OpenEpisode};
use crate::database::batch::Batch;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, CommitResult};
use crate::log::episode::EncodedBody;

/// Writes the beginning of a call. `api_key` is the id of the API key that it came with.
pub(crate) async fn write_begun(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    begun: &CallStart,
    api_key: Option<&str>,
) -> CommitResult {
    let episode = state.open_episode(connection, begun, api_key).await?;
    write_into(connection, state, episode, begun, api_key).await
}

/// Writes the beginning of a call that its gate let into `episode`.
pub(super) async fn write_into(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    // Out of the cache while statements run: after an error it stays out, and is read back.
    mut episode: OpenEpisode,
    begun: &CallStart,
    api_key: Option<&str>,
) -> CommitResult {
    let tag = &begun.tag;
    let body = episode.log.add_body(&begun.request.read());
    let row = statements(begun, &episode, &body, api_key).run_to_row(connection).await?;
    let call_key: i64 = row.try_get("call_key")?;
    episode.log.remember_request(row.try_get("request_body")?, body);

    // The same statement that inserts the call tells whether its episode takes it, which saves a
    // trip for every call that is not late. Another process may have made or revoked a key.
    let refused = match row.try_get::<i64>("refused")? {
        0 => None,
        1 => Some(CommitError::Closed(tag.into())),
        _ if api_key.is_some() => Some(CommitError::Revoked),
        _ => Some(CommitError::NeedsKey(tag.episode.clone())),
    };
    if let Some(refused) = refused {
        refuse(connection, call_key, &refused).await?;
        state.gates.forget(&episode.attempt);
        state.put(episode.attempt, episode.log);
        return Err(refused);
    }

    state.call_begun(begun.call_id, call_key, &episode.attempt, api_key);
    state.put(episode.attempt, episode.log);
    Ok(())
}

fn statements(
    begun: &CallStart,
    episode: &OpenEpisode,
    body: &EncodedBody,
    api_key: Option<&str>,
) -> Batch {
    let lineage = &begun.lineage;
    let mut batch = Batch::default();
    add_body(&mut batch, episode.log.key, body);

    // `last_insert_rowid()` is the key of that body. The row that comes back has what the writer
    // must know.
    batch
        .then(
            "INSERT INTO call (call_id, episode_key, started_at, method, path, route, \
             requested_model, request_body, sampling, client, session, agent, parent_agent, \
             kind, retry, key_id) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, last_insert_rowid(), $8, $9, $10, $11, $12, $13, \
             $14, $15) \
             RETURNING call_key, request_body, \
             CAST((SELECT CASE WHEN e.closed_at IS NOT NULL THEN 1 WHEN e.keyed = 1 \
             AND NOT EXISTS (SELECT 1 FROM api_key k \
              WHERE k.key_id = $15 AND k.revoked_at IS NULL) THEN 2 ELSE 0 END \
             FROM episode e WHERE e.episode_key = $2) AS BIGINT) AS refused",
        )
        .bind(begun.call_id.to_string())
        .bind(episode.key)
        .bind(begun.started_at)
        .bind(begun.method.clone())
        .bind(begun.path.clone())
        .bind(begun.route.as_str())
        .bind(begun.model.clone())
        .bind(begun.sampling.clone())
        .bind(lineage.client.clone())
        .bind(lineage.session.clone())
        .bind(lineage.agent.clone())
        .bind(lineage.parent.clone())
        .bind(lineage.kind.as_str())
        .bind(lineage.retry)
        .bind(api_key);
    batch
}

/// Ends a late call as refused. It stays visible.
async fn refuse(
    connection: &mut StoreConnection,
    call_key: i64,
    refused: &CommitError,
) -> Result<(), sqlx::Error> {
    let (status, error) = match refused {
        CommitError::Closed(..) => (409, "the episode is closed".to_owned()),
        other => (401, other.to_string()),
    };
    query(
        "UPDATE call SET ended_at = started_at, status = $1, outcome = $2, error = $3 \
         WHERE call_key = $4",
    )
    .bind(status)
    .bind(Outcome::Refused.as_str())
    .bind(error)
    .bind(call_key)
    .execute(connection)
    .await
}
