//! The one write transaction: a group of records, all or nothing.
//!
//! The writer's loop (`writer/run.rs`) begins a transaction and calls [`commit`] with the records
//! that wait. Each record becomes a few statements. A record that the store's rules refuse, such as
//! a call of a closed episode, fails alone: the others are committed. An error of the database
//! fails the whole group, and the loop tries its records one by one.
//!
//! The two records of a call are large and have files of their own, `begun` and `ended`. The others
//! are below.

use std::sync::atomic::{AtomicU64, Ordering};

use episode::{CallEnd, CallId, CallStart, Choice, Micros, Reward, Tag};

use crate::commit::begun::write_begun;
use crate::commit::ended::write_ended;
use crate::commit::episode_row::{find_episode, upsert_episode};
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, CommitResult};
use crate::feed::types::FeedRecord;
use crate::feed::write::{number_closed, write_feed};
use crate::log::cache::LogCache;
use crate::types::AttemptId;
use crate::versions::{VersionRecord, write_version};
use crate::writer::loss::{mark, unmark};

mod begun;
mod body;
mod ended;
pub(crate) mod episode_row;
pub(crate) mod seal;

/// One thing to write.
#[derive(Debug, Clone)]
pub(crate) enum Record {
    /// A call begins: its request.
    CallStart(CallStart),
    /// The first call of an episode whose later calls may be lost (`--durability relaxed`). Its
    /// commit marks the episode.
    FirstCallStart(CallStart),
    /// A call ends: its reply, token ids and logprobs.
    CallEnd(CallEnd),
    /// An episode is announced before its first call.
    Open { tag: Tag, at: Micros, force: Option<String>, group_size: Option<u32> },
    /// An attempt is closed: later calls are refused.
    Close { attempt: AttemptId, at: Micros, status: Option<String> },
    /// All calls of a closed attempt are written, so its mark goes.
    Unmark(AttemptId),
    /// An attempt, or a part of it, gets a reward.
    Reward { attempt: AttemptId, reward: Reward },
    /// A version of the weights is seen.
    Version(VersionRecord),
    /// Items of the feed are leased or settled.
    Feed(FeedRecord),
    /// Nothing: tests whether a record could be written.
    Probe,
}

/// Writes `group` in the transaction that has begun on `connection`, and commits it.
///
/// `logs` holds what the writer knows of the episodes in use, to store only the bytes that are new
/// in a call. It follows the transaction: after an error it forgets what the group added.
///
/// # Errors
/// The outer error means that nothing was written. An inner one means that the store's rules
/// refuse that record; the refusal of a late call is itself on record.
pub(crate) async fn commit(
    connection: &mut StoreConnection,
    logs: &mut LogCache,
    group: &[&Record],
) -> Result<Vec<CommitResult>, sqlx::Error> {
    let written = write_group(connection, logs, group).await;

    match &written {
        Ok(_) => logs.committed(),
        Err(_) => logs.rolled_back(),
    }
    written
}

async fn write_group(
    connection: &mut StoreConnection,
    logs: &mut LogCache,
    group: &[&Record],
) -> Result<Vec<CommitResult>, sqlx::Error> {
    let mut results = Vec::with_capacity(group.len());
    for record in group {
        match write(connection, logs, record).await {
            // Part of the record may be written, so the transaction cannot be committed.
            Err(CommitError::Database(error)) => return Err(error),
            result => results.push(result),
        }
    }

    connection.commit().await?;
    Ok(results)
}

async fn write(
    connection: &mut StoreConnection,
    logs: &mut LogCache,
    record: &Record,
) -> CommitResult {
    match record {
        Record::CallStart(begun) => write_begun(connection, logs, begun).await,
        Record::FirstCallStart(begun) => {
            write_begun(connection, logs, begun).await?;
            Ok(mark(connection, &AttemptId::from(&begun.tag), logs.writer()).await?)
        }
        Record::CallEnd(ended) => write_ended(connection, logs, ended).await,
        Record::Open { tag, at, force, group_size } => {
            open(connection, tag, *at, force.as_deref(), *group_size).await
        }
        Record::Close { attempt, at, status } => {
            close(connection, attempt, *at, status.as_deref()).await
        }
        Record::Unmark(attempt) => Ok(unmark(connection, attempt, logs.writer()).await?),
        Record::Reward { attempt, reward } => write_reward(connection, attempt, reward).await,
        Record::Version(version) => write_version(connection, version).await,
        Record::Feed(record) => write_feed(connection, record).await,
        Record::Probe => probe(connection).await,
    }
}

async fn open(
    connection: &mut StoreConnection,
    tag: &Tag,
    at: Micros,
    force: Option<&str>,
    group_size: Option<u32>,
) -> CommitResult {
    let episode = upsert_episode(connection, tag, at).await?;
    if episode.is_closed {
        return Err(CommitError::Closed(tag.episode.clone(), tag.attempt));
    }

    if force.is_some() {
        query("UPDATE episode SET force_sampling = $1 WHERE episode_key = $2")
            .bind(force)
            .bind(episode.key)
            .execute(connection)
            .await?;
    }
    // The first announcement decides the size of a group.
    if let (Some(group), Some(size)) = (&tag.group, group_size) {
        let insert = "INSERT INTO group_size (group_id, size) VALUES ($1, $2) \
                      ON CONFLICT DO NOTHING";
        query(insert).bind(group.as_str()).bind(size).execute(connection).await?;
    }
    Ok(())
}

/// Closing twice is no error; the first time and status stand.
async fn close(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    at: Micros,
    status: Option<&str>,
) -> CommitResult {
    let key = find_episode(connection, attempt).await?;
    query(
        "UPDATE episode SET closed_at = coalesce(closed_at, $1), status = coalesce(status, $2) \
         WHERE episode_key = $3",
    )
    .bind(at)
    .bind(status)
    .bind(key)
    .execute(connection)
    .await?;
    Ok(number_closed(connection, key).await?)
}

async fn write_reward(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    reward: &Reward,
) -> CommitResult {
    let key = find_episode(connection, attempt).await?;
    let scope = reward.scope;
    // `call_id` is no reference in the table, so the database would not refuse it.
    if let Some(call) = scope.call() {
        check_call(connection, key, call).await?;
    }

    let (token_start, token_end) = scope.tokens().unzip();
    query(
        "INSERT INTO reward (episode_key, scope, call_id, choice_index, token_start, token_end, \
         name, value, source, given_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
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
    .execute(connection)
    .await?;
    Ok(())
}

async fn check_call(
    connection: &mut StoreConnection,
    episode_key: i64,
    call: CallId,
) -> CommitResult {
    let found = query("SELECT call_key FROM call WHERE call_id = $1 AND episode_key = $2")
        .bind(call.to_string())
        .bind(episode_key)
        .fetch_optional(connection)
        .await?;
    found.map(drop).ok_or(CommitError::UnknownCall(call))
}

/// Writes another value each time: SQLite writes no page that did not change.
async fn probe(connection: &mut StoreConnection) -> CommitResult {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let number = PROBES.fetch_add(1, Ordering::Relaxed);
    let value = [number.to_le_bytes(), u64::from(std::process::id()).to_le_bytes()].concat();
    let upsert = "INSERT INTO setting (name, value) VALUES ('probe', $1) \
                  ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    Ok(query(upsert).bind(value).execute(connection).await?)
}

impl Record {
    /// The memory that the record occupies while it waits, roughly, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::CallStart(begun) | Self::FirstCallStart(begun) => begun.request.len(),
            Self::CallEnd(ended) => {
                let ids: usize = ended.prompts.iter().map(Vec::len).sum();
                ended.reply.len() + 4 * ids + ended.choices.iter().map(choice_bytes).sum::<usize>()
            }
            Self::Open { .. }
            | Self::Close { .. }
            | Self::Unmark(_)
            | Self::Reward { .. }
            | Self::Version(_)
            | Self::Feed(_)
            | Self::Probe => 0,
        }
    }
}

fn choice_bytes(choice: &Choice) -> usize {
    let sides: usize = choice.sides.iter().map(|side| side.json.len()).sum();
    4 * (choice.logprobs.len() + choice.token_ids.as_ref().map_or(0, Vec::len)) + sides
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
        assert_eq!(Record::CallEnd(whole).bytes(), Record::CallEnd(bare).bytes() + sides);
    }
}
