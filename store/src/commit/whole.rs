//! A call whose start and end are in one group: one row, written once.
//!
//! This is for files, whose writer is alone: it learns the key of a row without a trip.

use episode::{CallEnd, CallStart, Continued, Route};

use crate::commit::begun::write_into;
use crate::commit::body::add_body;
use crate::commit::ended::{EndStatements, write_tokens};
use crate::commit::seal::seal;
use crate::commit::state::CommitState;
use crate::database::batch::Batch;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::CommitResult;
use crate::log::episode::EncodedBody;

/// Both records of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct WholeCall<'a> {
    pub(super) begun: &'a CallStart,
    pub(super) ended: &'a CallEnd,
    /// The id of the API key that it came with.
    pub(super) key: Option<&'a str>,
}

/// Writes a call. One that its episode does not take is written as a start alone, which is refused.
pub(super) async fn write_whole(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    call: WholeCall<'_>,
) -> CommitResult {
    let WholeCall { begun, ended, key } = call;
    let mut episode = state.open_episode(connection, begun, key).await?;
    if is_refused(connection, episode.key, key).await? {
        return write_into(connection, state, episode, begun, key).await;
    }

    let log_key = episode.log.key;
    let request = episode.log.add_body(&begun.request.read());
    let request_key = insert_body(connection, log_key, &request)?;
    episode.log.remember_request(request_key, request);
    let reply = episode.log.add_body(&ended.reply.read());
    let reply_key = insert_body(connection, log_key, &reply)?;
    let keys = CallKeys { episode: episode.key, request: request_key, reply: reply_key, log_key };
    let call_key = call_row(call, &keys).run_to_key(connection)?;

    let statements = EndStatements { batch: Batch::default(), call_key };
    write_tokens(connection, &mut episode.log, statements, ended).await?;
    state.count_tokens(&episode.attempt, key, ended);
    state.put(episode.attempt, episode.log);
    Ok(())
}

/// True if the episode was closed, or its keys changed, since its gate was read: another process
/// may have done that.
async fn is_refused(
    connection: &mut StoreConnection,
    episode_key: i64,
    key: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let refused = "SELECT closed_at IS NOT NULL OR (keyed = 1 AND NOT EXISTS \
                   (SELECT 1 FROM api_key WHERE key_id = $2 AND revoked_at IS NULL)) \
                   FROM episode WHERE episode_key = $1";
    query(refused)
        .bind(episode_key)
        .bind(key)
        .scalar::<i64>(connection)
        .await
        .map(|found| found == 1)
}

fn insert_body(
    connection: &StoreConnection,
    log_key: i64,
    body: &EncodedBody,
) -> Result<i64, sqlx::Error> {
    let mut batch = Batch::default();
    add_body(&mut batch, log_key, body);
    batch.run_to_key(connection)
}

/// The keys that the row of a call refers to.
struct CallKeys {
    episode: i64,
    request: i64,
    reply: i64,
    log_key: i64,
}

/// The statement for the row of a call.
fn call_row(call: WholeCall<'_>, keys: &CallKeys) -> Batch {
    let WholeCall { begun, ended, key } = call;
    let (lineage, stamps) = (&begun.lineage, &ended.stamps);
    let mut batch = Batch::default();

    batch
        .then(
            "INSERT INTO call (call_id, episode_key, started_at, method, path, route, \
             requested_model, request_body, sampling, client, session, agent, parent_agent, \
             kind, retry, key_id, reply_body, ended_at, first_byte_at, status, outcome, error, \
             reply_model, prompt_tokens, completion_tokens, logprob_kind, translated, unasked, \
             stamp_start, stamp_end, sampled_with, engine, routed, heartbeats, \
             reel_key, seal, continued, reply_head, replayed) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, \
             $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, \
             $35, $36, $37, $38, $39)",
        )
        .bind(begun.call_id.to_string())
        .bind(keys.episode)
        .bind(begun.started_at)
        .bind(begun.method.clone())
        .bind(begun.path.clone())
        .bind(begun.route.as_str())
        .bind(begun.model.clone())
        .bind(keys.request)
        .bind(begun.sampling.clone())
        .bind(lineage.client.clone())
        .bind(lineage.session.clone())
        .bind(lineage.agent.clone())
        .bind(lineage.parent.clone())
        .bind(lineage.kind.as_str())
        .bind(lineage.retry)
        .bind(key)
        .bind(keys.reply)
        .bind(ended.ended_at)
        .bind(ended.first_byte_at)
        .bind(ended.status)
        .bind(ended.outcome.as_str())
        .bind(ended.error.clone())
        .bind(ended.model.clone())
        .bind(ended.usage.prompt.map(|tokens| tokens as i64))
        .bind(ended.usage.completion.map(|tokens| tokens as i64))
        .bind(ended.logprob_kind.clone())
        .bind(ended.translated.map(Route::as_str))
        .bind(ended.unasked.clone())
        .bind(stamps.start.clone())
        .bind(stamps.end.clone())
        .bind(ended.sampled_with.clone())
        .bind(ended.engine.clone())
        .bind(ended.routed.clone())
        .bind(ended.heartbeats)
        .bind(keys.log_key)
        .bind(seal(ended).to_vec())
        .bind(ended.continued.map(Continued::to_json))
        .bind(ended.head.to_text())
        .bind(ended.replayed.map(|call| call.to_string()));
    batch
}

#[cfg(test)]
mod tests {
    use episode::{AttemptId, CallStart};

    use super::*;
    use crate::Selection;
    use crate::commit::{Record, commit};
    use crate::error::CommitError;
    use crate::site::{Site, on_both};
    use crate::tests::{begun, ended};
    use crate::types::Durability;
    use crate::writer::session::WriterSession;

    /// Turns of an episode, each with its end.
    fn turns() -> Vec<(CallStart, CallEnd)> {
        let turn = |at| {
            let start = begun("a", at);
            let mut end = ended(start.call_id);
            end.ended_at += at;
            (start, end)
        };
        (0..4).map(turn).collect()
    }

    #[tokio::test]
    async fn a_call_that_is_written_whole_is_read_like_one_in_two_parts() {
        on_both(async |site| {
            let (mut connection, session) =
                WriterSession::open(&site.at, Durability::Power).await.unwrap();
            let mut state = CommitState::new(session.writer());
            let turns = turns();
            for (at, (start, end)) in turns.iter().enumerate() {
                let start = Record::CallStart(start.clone(), None);
                let end = Record::CallEnd(end.clone());
                let groups = match at % 2 {
                    0 => vec![vec![&start, &end]],
                    _ => vec![vec![&start], vec![&end]],
                };
                for group in groups {
                    connection.begin().await.unwrap();
                    let written = commit(&mut connection, &mut state, &group).await.unwrap();
                    assert!(written.iter().all(Result::is_ok), "{written:?}");
                }
            }
            session.close(Some(connection)).await;

            let mut snapshot = crate::Snapshot::open(&site.at).await.unwrap();
            let found = snapshot.episodes(&Selection::default()).await.unwrap();
            let calls = snapshot.calls(&found[0]).await.unwrap();
            let read: Vec<_> = calls.into_iter().map(|call| call.ended.unwrap()).collect();
            let sent: Vec<_> = turns.into_iter().map(|(_, end)| end).collect();
            assert_eq!(read, sent);
            let damage = crate::verify(&site.at).await.unwrap().damage;
            assert!(damage.is_empty(), "{damage:?}");
        })
        .await;
    }

    #[tokio::test]
    async fn a_late_call_is_refused_with_its_end() {
        let site = Site::file();
        let (mut connection, session) =
            WriterSession::open(&site.at, Durability::Power).await.unwrap();
        let mut state = CommitState::new(session.writer());
        let first = begun("a", 1);
        let attempt = AttemptId::from(&first.tag);
        let late = begun("a", 3);
        let end = Record::CallEnd(ended(late.call_id));
        let close = Record::Close { attempt, at: 2, status: None };
        let [first, late] = [first, late].map(|start| Record::CallStart(start, None));
        let mut results = Vec::new();
        for group in [vec![&first], vec![&close], vec![&late, &end]] {
            connection.begin().await.unwrap();
            results.extend(commit(&mut connection, &mut state, &group).await.unwrap());
        }
        session.close(Some(connection)).await;
        assert!(
            matches!(
                results.as_slice(),
                [Ok(()), Ok(()), Err(CommitError::Closed(..)), Err(CommitError::NotBegun(_))]
            ),
            "{results:?}"
        );
        let damage = crate::verify(&site.at).await.unwrap().damage;
        assert!(damage.is_empty(), "{damage:?}");
    }
}
