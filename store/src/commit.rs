//! The one write transaction: a group of records, all or nothing.

use episode::{Begun, CallId, Choice, Ended, EpisodeId, Micros, Outcome, Reward, RewardScope, Tag};
use sqlx::{Connection, SqliteConnection};
use thiserror::Error;

use crate::body::{pack, pack_floats, pack_ids};

/// Why a record is not on disk.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The episode was closed; a re-run uses a new attempt.
    #[error("episode `{0}` attempt {1} is closed")]
    Closed(EpisodeId, u32),
    /// No call of this episode was recorded.
    #[error("no episode `{0}` attempt {1}")]
    Unknown(EpisodeId, u32),
    /// The episode has no such call.
    #[error("the episode has no call `{0}`")]
    UnknownCall(CallId),
    /// The database refused; nothing of the record was kept.
    #[error("cannot write to the store")]
    Database(#[from] sqlx::Error),
    /// The writer has stopped.
    #[error("the store is closed")]
    Stopped,
}

/// One thing to write.
#[derive(Debug, Clone)]
pub(crate) enum Record {
    Begun(Begun),
    Ended(Ended),
    Open { tag: Tag, at: Micros },
    Close { episode: EpisodeId, attempt: u32, at: Micros, status: Option<String> },
    Reward { episode: EpisodeId, attempt: u32, reward: Reward },
}

impl Record {
    /// Roughly what the record occupies while it waits, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Begun(begun) => begun.request.len(),
            Self::Ended(ended) => {
                let ids: usize = ended.prompts.iter().map(Vec::len).sum();
                ended.reply.len() + 4 * ids + ended.choices.iter().map(choice_bytes).sum::<usize>()
            }
            Self::Open { .. } | Self::Close { .. } | Self::Reward { .. } => 0,
        }
    }
}

fn choice_bytes(choice: &Choice) -> usize {
    4 * (choice.logprobs.len() + choice.token_ids.as_ref().map_or(0, Vec::len))
}

/// What became of one record of a group.
pub(crate) type Verdict = Result<(), CommitError>;

/// Writes `group` in one transaction. The outer error means that nothing was written; an inner
/// one is a refusal by the contract, which is itself on record where that makes sense.
pub(crate) async fn commit(
    connection: &mut SqliteConnection,
    group: &[&Record],
) -> Result<Vec<Verdict>, sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let mut verdicts = Vec::with_capacity(group.len());
    for record in group {
        let verdict = match record {
            Record::Begun(begun) => write_begun(&mut transaction, begun).await,
            Record::Ended(ended) => write_ended(&mut transaction, ended).await,
            Record::Open { tag, at } => announce(&mut transaction, tag, *at).await,
            Record::Close { episode, attempt, at, status } => {
                close(&mut transaction, (episode, *attempt), *at, status.as_deref()).await
            }
            Record::Reward { episode, attempt, reward } => {
                write_reward(&mut transaction, (episode, *attempt), reward).await
            }
        };
        match verdict {
            Err(CommitError::Database(error)) => return Err(error),
            other => verdicts.push(other),
        }
    }
    transaction.commit().await?;
    Ok(verdicts)
}

async fn write_begun(connection: &mut SqliteConnection, begun: &Begun) -> Verdict {
    let (episode_key, closed) = open_episode(connection, &begun.tag, begun.started_at).await?;
    let request_body = write_body(connection, &begun.request).await?;
    sqlx::query(
        "INSERT INTO call (call_id, episode_key, started_at, method, path, route, \
         requested_model, request_body, sampling) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(begun.call_id.to_string())
    .bind(episode_key)
    .bind(begun.started_at)
    .bind(&begun.method)
    .bind(&begun.path)
    .bind(begun.route.as_str())
    .bind(&begun.model)
    .bind(request_body)
    .bind(&begun.sampling)
    .execute(&mut *connection)
    .await?;
    if closed {
        refuse_late_call(connection, begun).await?;
        return Err(CommitError::Closed(begun.tag.episode.clone(), begun.tag.attempt));
    }
    Ok(())
}

/// The late call stays visible, but as refused.
async fn refuse_late_call(
    connection: &mut SqliteConnection,
    begun: &Begun,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE call SET ended_at = started_at, status = 409, outcome = ?, \
         error = 'the episode is closed' WHERE call_id = ?",
    )
    .bind(Outcome::Refused.as_str())
    .bind(begun.call_id.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

async fn announce(connection: &mut SqliteConnection, tag: &Tag, at: Micros) -> Verdict {
    match open_episode(connection, tag, at).await? {
        (_, true) => Err(CommitError::Closed(tag.episode.clone(), tag.attempt)),
        (_, false) => Ok(()),
    }
}

/// The key of the tag's episode, made if need be, and whether it is closed.
async fn open_episode(
    connection: &mut SqliteConnection,
    tag: &Tag,
    at: Micros,
) -> Result<(i64, bool), sqlx::Error> {
    let (key, closed): (i64, bool) = sqlx::query_as(
        "INSERT INTO episode (episode_id, attempt, group_id, task_id, source, opened_at) \
         VALUES (?, ?, ?, ?, ?, ?) \
         ON CONFLICT (episode_id, attempt) DO UPDATE SET \
         group_id = coalesce(group_id, excluded.group_id), \
         task_id = coalesce(task_id, excluded.task_id) \
         RETURNING episode_key, closed_at IS NOT NULL",
    )
    .bind(tag.episode.as_str())
    .bind(tag.attempt)
    .bind(tag.group.as_ref().map(|g| g.as_str()))
    .bind(tag.task.as_ref().map(|t| t.as_str()))
    .bind(tag.source.as_str())
    .bind(at)
    .fetch_one(&mut *connection)
    .await?;
    for (name, value) in &tag.labels {
        sqlx::query(
            "INSERT INTO label (episode_key, name, value) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(key)
        .bind(name)
        .bind(value)
        .execute(&mut *connection)
        .await?;
    }
    Ok((key, closed))
}

async fn write_body(connection: &mut SqliteConnection, body: &[u8]) -> Result<i64, sqlx::Error> {
    let packed = pack(body);
    let done = sqlx::query("INSERT INTO body (encoding, length, data) VALUES (?, ?, ?)")
        .bind(packed.encoding)
        .bind(body.len() as i64)
        .bind(packed.data)
        .execute(connection)
        .await?;
    Ok(done.last_insert_rowid())
}

async fn write_ended(connection: &mut SqliteConnection, ended: &Ended) -> Verdict {
    let reply_body = write_body(connection, &ended.reply).await?;
    let call_key: i64 = sqlx::query_scalar(
        "UPDATE call SET ended_at = ?, first_byte_at = ?, status = ?, outcome = ?, error = ?, \
         reply_body = ?, reply_model = ?, prompt_tokens = ?, completion_tokens = ?, \
         logprob_kind = ? WHERE call_id = ? AND ended_at IS NULL RETURNING call_key",
    )
    .bind(ended.ended_at)
    .bind(ended.first_byte_at)
    .bind(ended.status)
    .bind(ended.outcome.as_str())
    .bind(&ended.error)
    .bind(reply_body)
    .bind(&ended.model)
    .bind(ended.usage.prompt.map(|n| n as i64))
    .bind(ended.usage.completion.map(|n| n as i64))
    .bind(&ended.logprob_kind)
    .bind(ended.call_id.to_string())
    .fetch_one(&mut *connection)
    .await?;
    for (index, ids) in ended.prompts.iter().enumerate() {
        write_prompt(connection, (call_key, index as i64), ids).await?;
    }
    for choice in &ended.choices {
        write_choice(connection, call_key, choice).await?;
    }
    Ok(())
}

async fn write_prompt(
    connection: &mut SqliteConnection,
    (call_key, index): (i64, i64),
    ids: &[u32],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO prompt (call_key, prompt_index, shared, tokens, encoding, token_ids) \
         VALUES (?, ?, 0, ?, 0, ?)",
    )
    .bind(call_key)
    .bind(index)
    .bind(ids.len() as i64)
    .bind(pack_ids(ids))
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_choice(
    connection: &mut SqliteConnection,
    call_key: i64,
    choice: &Choice,
) -> Result<(), sqlx::Error> {
    let spans: Vec<_> = choice.versions.iter().map(|s| (&s.version, s.start, s.end)).collect();
    let versions = (!spans.is_empty())
        .then(|| serde_json::to_string(&spans).expect("strings and numbers are always JSON"));
    sqlx::query(
        "INSERT INTO choice (call_key, choice_index, prompt_index, tokens, encoding, token_ids, \
         logprobs, finish_reason, stop_reason, versions) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
    )
    .bind(call_key)
    .bind(choice.index)
    .bind(choice.prompt_index)
    .bind(choice.token_ids.as_ref().map(|ids| ids.len() as i64))
    .bind(choice.token_ids.as_ref().map(|ids| pack_ids(ids)))
    .bind(pack_floats(&choice.logprobs))
    .bind(&choice.finish_reason)
    .bind(&choice.stop_reason)
    .bind(versions)
    .execute(connection)
    .await?;
    Ok(())
}

async fn episode_key(
    connection: &mut SqliteConnection,
    (episode, attempt): (&EpisodeId, u32),
) -> Result<i64, CommitError> {
    sqlx::query_scalar("SELECT episode_key FROM episode WHERE episode_id = ? AND attempt = ?")
        .bind(episode.as_str())
        .bind(attempt)
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| CommitError::Unknown(episode.clone(), attempt))
}

/// Closing twice is not an error; the first word stands.
async fn close(
    connection: &mut SqliteConnection,
    which: (&EpisodeId, u32),
    at: Micros,
    status: Option<&str>,
) -> Verdict {
    let key = episode_key(connection, which).await?;
    sqlx::query(
        "UPDATE episode SET closed_at = coalesce(closed_at, ?), status = coalesce(status, ?) \
         WHERE episode_key = ?",
    )
    .bind(at)
    .bind(status)
    .bind(key)
    .execute(connection)
    .await?;
    Ok(())
}

async fn check_call(
    connection: &mut SqliteConnection,
    episode_key: i64,
    call: CallId,
) -> Result<(), CommitError> {
    let found: Option<i64> =
        sqlx::query_scalar("SELECT call_key FROM call WHERE call_id = ? AND episode_key = ?")
            .bind(call.to_string())
            .bind(episode_key)
            .fetch_optional(connection)
            .await?;
    found.map(drop).ok_or(CommitError::UnknownCall(call))
}

async fn write_reward(
    connection: &mut SqliteConnection,
    which: (&EpisodeId, u32),
    reward: &Reward,
) -> Verdict {
    let key = episode_key(connection, which).await?;
    let call_id = match reward.scope {
        RewardScope::Episode => None,
        RewardScope::Call(call) => {
            check_call(connection, key, call).await?;
            Some(call.to_string())
        }
    };
    sqlx::query(
        "INSERT INTO reward (episode_key, call_id, name, value, source, given_at) \
         VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(key)
    .bind(call_id)
    .bind(&reward.name)
    .bind(reward.value)
    .bind(&reward.source)
    .bind(reward.at)
    .execute(connection)
    .await?;
    Ok(())
}
