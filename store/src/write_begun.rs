//! The beginning of a call, inside the write transaction.

use episode::{Begun, CallKind, Outcome};

use crate::batch::Batch;
use crate::commit::{CommitError, Verdict};
use crate::link::Link;
use crate::query::query;
use crate::reel::Body;
use crate::reels::{Open, Reels};
use crate::write::add_body;

/// Writes the beginning of a call.
pub(crate) async fn write_begun(
    connection: &mut Link,
    reels: &mut Reels,
    begun: &Begun,
) -> Verdict {
    let mut open = reels.open(connection, &begun.tag, begun.started_at).await?;
    let body = open.reel.body(&begun.request);
    let row = statements(begun, &open, &body).run_to_row(connection).await?;
    let call_key: i64 = row.try_get("call_key")?;
    open.reel.remember(row.try_get("request_body")?, body);
    if row.try_get::<bool>("closed")? {
        refuse(connection, call_key).await?;
        reels.put(open);
        return Err(CommitError::Closed(begun.tag.episode.clone(), begun.tag.attempt));
    }
    reels.began(begun.call_id, call_key, &open);
    reels.put(open);
    Ok(())
}

fn statements(begun: &Begun, open: &Open, body: &Body) -> Batch {
    let lineage = &begun.lineage;
    let kind: CallKind = lineage.kind;
    let mut batch = Batch::default();
    add_body(&mut batch, open.reel.key, body);
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
        .bind(open.episode_key)
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
        .bind(kind.as_str())
        .bind(lineage.retry)
        .bind(open.episode_key);
    batch
}

/// The late call stays visible, but as refused.
async fn refuse(connection: &mut Link, call_key: i64) -> Result<(), sqlx::Error> {
    query(
        "UPDATE call SET ended_at = started_at, status = 409, outcome = $1, \
         error = 'the episode is closed' WHERE call_key = $2",
    )
    .bind(Outcome::Refused.as_str())
    .bind(call_key)
    .execute(connection)
    .await?;
    Ok(())
}
