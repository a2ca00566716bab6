//! The one write transaction: a group of records, all or nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use episode::{Begun, CallId, Choice, Ended, EpisodeId, Micros, Reward, Tag};
use thiserror::Error;

use crate::feed::{FeedRecord, finish, write_feed};
use crate::link::Link;
use crate::query::query;
use crate::reels::Reels;
use crate::relaxed::{Key, mark, unmark};
use crate::trouble::Trouble;
use crate::versions::{VersionRecord, write_version};
use crate::write_begun::write_begun;
use crate::write_ended::write_ended;

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
    /// The store cannot be written at the moment; nothing of the record was kept.
    #[error("cannot write to the store: {0}")]
    Trouble(#[from] Trouble),
    /// Another reader was handed the same first.
    #[error("another reader was handed the same")]
    Taken,
    /// The lease holds nothing.
    #[error("lease `{0}` holds nothing: there is none, or what it held was handed out again")]
    NoLease(String),
    /// The call that ends was never begun.
    #[error("call `{0}` was not begun")]
    NotBegun(CallId),
    /// The database refused the record; nothing of it was kept.
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
    /// The first call of an episode that may lose later ones.
    First(Begun),
    Ended(Ended),
    Open {
        tag: Tag,
        at: Micros,
        force: Option<String>,
        group_size: Option<u32>,
    },
    Close {
        episode: EpisodeId,
        attempt: u32,
        at: Micros,
        status: Option<String>,
    },
    /// The episode is closed, and all of its calls are written.
    Settle(Key),
    /// Tells nothing: whether a record could be written.
    Probe,
    /// Of weights.
    Version(VersionRecord),
    Feed(FeedRecord),
    Reward {
        episode: EpisodeId,
        attempt: u32,
        reward: Reward,
    },
}

impl Record {
    /// Roughly what the record occupies while it waits, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Begun(begun) | Self::First(begun) => begun.request.len(),
            Self::Ended(ended) => {
                let ids: usize = ended.prompts.iter().map(Vec::len).sum();
                ended.reply.len() + 4 * ids + ended.choices.iter().map(choice_bytes).sum::<usize>()
            }
            Self::Open { .. }
            | Self::Close { .. }
            | Self::Settle(_)
            | Self::Probe
            | Self::Version(_)
            | Self::Feed(_)
            | Self::Reward { .. } => 0,
        }
    }
}

fn choice_bytes(choice: &Choice) -> usize {
    let sides: usize = choice.sides.iter().map(|side| side.json.len()).sum();
    4 * (choice.logprobs.len() + choice.token_ids.as_ref().map_or(0, Vec::len)) + sides
}

/// What became of one record of a group.
pub(crate) type Verdict = Result<(), CommitError>;

/// Writes `group` in the transaction that has begun, and ends it. The outer error means that
/// nothing was written; an inner one is a refusal by the contract, which is itself on record where
/// that makes sense.
pub(crate) async fn commit(
    connection: &mut Link,
    reels: &mut Reels,
    group: &[&Record],
) -> Result<Vec<Verdict>, sqlx::Error> {
    let written = write_group(connection, reels, group).await;
    match &written {
        Ok(_) => reels.committed(),
        Err(_) => reels.rolled_back(),
    }
    written
}

async fn write_group(
    connection: &mut Link,
    reels: &mut Reels,
    group: &[&Record],
) -> Result<Vec<Verdict>, sqlx::Error> {
    let mut verdicts = Vec::with_capacity(group.len());
    for record in group {
        match write(connection, reels, record).await {
            Err(CommitError::Database(error)) => return Err(error),
            other => verdicts.push(other),
        }
    }
    connection.commit().await?;
    Ok(verdicts)
}

async fn write(connection: &mut Link, reels: &mut Reels, record: &Record) -> Verdict {
    match record {
        Record::Begun(begun) => write_begun(connection, reels, begun).await,
        Record::First(begun) => {
            write_begun(connection, reels, begun).await?;
            Ok(mark(connection, &begun.tag.key(), reels.writer()).await?)
        }
        Record::Settle(key) => Ok(unmark(connection, key, reels.writer()).await?),
        Record::Probe => probe(connection).await,
        Record::Ended(ended) => write_ended(connection, reels, ended).await,
        Record::Version(version) => write_version(connection, version).await,
        Record::Feed(record) => write_feed(connection, record).await,
        Record::Open { tag, at, force, group_size } => {
            announce(connection, (tag, *at), force.as_deref(), *group_size).await
        }
        Record::Close { episode, attempt, at, status } => {
            close(connection, (episode, *attempt), *at, status.as_deref()).await
        }
        Record::Reward { episode, attempt, reward } => {
            write_reward(connection, (episode, *attempt), reward).await
        }
    }
}

/// Writes another value each time: the same one again, SQLite does not write.
async fn probe(connection: &mut Link) -> Verdict {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let number = PROBES.fetch_add(1, Ordering::Relaxed);
    let value = [number.to_le_bytes(), u64::from(std::process::id()).to_le_bytes()].concat();
    let probe = "INSERT INTO setting (name, value) VALUES ('probe', $1) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    Ok(query(probe).bind(value).execute(connection).await?)
}

async fn announce(
    connection: &mut Link,
    (tag, at): (&Tag, Micros),
    force: Option<&str>,
    group_size: Option<u32>,
) -> Verdict {
    let (key, closed) = open_episode(connection, tag, at).await?;
    if closed {
        return Err(CommitError::Closed(tag.episode.clone(), tag.attempt));
    }
    if force.is_some() {
        query("UPDATE episode SET force_sampling = $1 WHERE episode_key = $2")
            .bind(force)
            .bind(key)
            .execute(connection)
            .await?;
    }
    if let Some((group, size)) = tag.group.as_ref().zip(group_size) {
        let first = "INSERT INTO group_size (group_id, size) VALUES ($1, $2) \
                     ON CONFLICT DO NOTHING";
        query(first).bind(group.as_str()).bind(size).execute(connection).await?;
    }
    Ok(())
}

/// The key of the tag's episode, made if need be, and whether it is closed.
pub(crate) async fn open_episode(
    connection: &mut Link,
    tag: &Tag,
    at: Micros,
) -> Result<(i64, bool), sqlx::Error> {
    let row = query(
        "INSERT INTO episode (episode_id, attempt, group_id, task_id, source, opened_at) \
         VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (episode_id, attempt) DO UPDATE SET \
         group_id = coalesce(episode.group_id, excluded.group_id), \
         task_id = coalesce(episode.task_id, excluded.task_id) \
         RETURNING episode_key, closed_at IS NOT NULL AS closed",
    )
    .bind(tag.episode.as_str())
    .bind(tag.attempt)
    .bind(tag.group.as_ref().map(|g| g.as_str()))
    .bind(tag.task.as_ref().map(|t| t.as_str()))
    .bind(tag.source.as_str())
    .bind(at)
    .fetch_one(connection)
    .await?;
    let key: i64 = row.try_get("episode_key")?;
    for (name, value) in &tag.labels {
        let once = "INSERT INTO label (episode_key, name, value) VALUES ($1, $2, $3) \
                    ON CONFLICT DO NOTHING";
        query(once).bind(key).bind(name).bind(value).execute(connection).await?;
    }
    Ok((key, row.try_get("closed")?))
}

async fn episode_key(
    connection: &mut Link,
    (episode, attempt): (&EpisodeId, u32),
) -> Result<i64, CommitError> {
    let found = query("SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2")
        .bind(episode.as_str())
        .bind(attempt)
        .fetch_optional(connection)
        .await?;
    let row = found.ok_or_else(|| CommitError::Unknown(episode.clone(), attempt))?;
    Ok(row.first()?)
}

/// Closing twice is not an error; the first word stands.
async fn close(
    connection: &mut Link,
    which: (&EpisodeId, u32),
    at: Micros,
    status: Option<&str>,
) -> Verdict {
    let key = episode_key(connection, which).await?;
    query(
        "UPDATE episode SET closed_at = coalesce(closed_at, $1), status = coalesce(status, $2) \
         WHERE episode_key = $3",
    )
    .bind(at)
    .bind(status)
    .bind(key)
    .execute(connection)
    .await?;
    Ok(finish(connection, key).await?)
}

async fn check_call(
    connection: &mut Link,
    episode_key: i64,
    call: CallId,
) -> Result<(), CommitError> {
    let found = query("SELECT call_key FROM call WHERE call_id = $1 AND episode_key = $2")
        .bind(call.to_string())
        .bind(episode_key)
        .fetch_optional(connection)
        .await?;
    found.map(drop).ok_or(CommitError::UnknownCall(call))
}

async fn write_reward(connection: &mut Link, which: (&EpisodeId, u32), reward: &Reward) -> Verdict {
    let key = episode_key(connection, which).await?;
    let scope = reward.scope;
    if let Some(call) = scope.call() {
        check_call(connection, key, call).await?;
    }
    let (start, end) = scope.tokens().unzip();
    query(
        "INSERT INTO reward (episode_key, scope, call_id, choice_index, token_start, token_end, \
         name, value, source, given_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(key)
    .bind(scope.as_str())
    .bind(scope.call().map(|call| call.to_string()))
    .bind(scope.choice().map(i64::from))
    .bind(start.map(i64::from))
    .bind(end.map(i64::from))
    .bind(&reward.name)
    .bind(reward.value)
    .bind(&reward.source)
    .bind(reward.at)
    .execute(connection)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{begun, ended};

    #[test]
    fn arrays_beside_the_ids_count_while_a_record_waits() {
        let whole = ended(begun("a", 1).call_id);
        let mut bare = whole.clone();
        let sides = bare.choices.iter_mut().flat_map(|choice| choice.sides.drain(..));
        let sides: usize = sides.map(|side| side.json.len()).sum();
        assert!(sides > 0);
        assert_eq!(Record::Ended(whole).bytes(), Record::Ended(bare).bytes() + sides);
    }
}
