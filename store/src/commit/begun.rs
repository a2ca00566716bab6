//! The beginning of a call, inside the write transaction.

use episode::{CallStart, Outcome};

use crate::commit::body::add_body;
use crate::database::batch::Batch;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, CommitResult};
use crate::log::cache::{LogCache, OpenEpisode};
use crate::log::episode::EncodedBody;

/// Writes the beginning of a call.
pub(crate) async fn write_begun(
    connection: &mut StoreConnection,
    logs: &mut LogCache,
    begun: &CallStart,
) -> CommitResult {
    // Out of the cache while statements run: after an error it stays out, and is read back.
    let mut episode = logs.open_episode(connection, &begun.tag, begun.started_at).await?;
    let body = episode.log.add_body(&begun.request);
    let row = statements(begun, &episode, &body).run_to_row(connection).await?;
    let call_key: i64 = row.try_get("call_key")?;
    episode.log.remember_request(row.try_get("request_body")?, body);

    // The same statement that inserts the call tells whether its episode is closed, which saves a
    // trip for every call that is not late.
    let is_closed: bool = row.try_get("closed")?;
    if is_closed {
        refuse(connection, call_key).await?;
        logs.put(episode);
        return Err(CommitError::Closed(begun.tag.episode.clone(), begun.tag.attempt));
    }

    logs.call_begun(begun.call_id, call_key, &episode);
    logs.put(episode);
    Ok(())
}

fn statements(begun: &CallStart, episode: &OpenEpisode, body: &EncodedBody) -> Batch {
    let lineage = &begun.lineage;
    let mut batch = Batch::default();
    add_body(&mut batch, episode.log.key, body);

    // `{key}` is the key of that body. The row that comes back has all that the writer must know.
    batch
        .then(
            "INSERT INTO call (call_id, episode_key, started_at, method, path, route, \
             requested_model, request_body, sampling, client, session, agent, parent_agent, \
             kind, retry) \
             VALUES (?, ?, ?, ?, ?, ?, ?, {key}, ?, ?, ?, ?, ?, ?, ?) \
             RETURNING call_key, request_body, (SELECT closed_at IS NOT NULL FROM episode \
             WHERE episode_key = ?) AS closed",
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
        .bind(episode.key);
    batch
}

/// Ends a late call as refused. It stays visible.
async fn refuse(connection: &mut StoreConnection, call_key: i64) -> Result<(), sqlx::Error> {
    query(
        "UPDATE call SET ended_at = started_at, status = 409, outcome = $1, \
         error = 'the episode is closed' WHERE call_key = $2",
    )
    .bind(Outcome::Refused.as_str())
    .bind(call_key)
    .execute(connection)
    .await
}
