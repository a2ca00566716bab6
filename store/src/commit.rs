//! The one write transaction: a group of records, all or nothing.
//!
//! The writer's loop (`writer/run.rs`) begins a transaction and calls [`commit`] with the records
//! that wait. Each record becomes a few statements. A record that the store's rules refuse, such as
//! a call of a closed episode, fails alone: the others are committed. An error of the database
//! fails the whole group, and the loop tries its records one by one.
//!
//! The two records of a call are large and have files of their own, `begun` and `ended`, and
//! `whole` where both are in one group. The others are below.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use episode::{AttemptId, CallId, Micros, Replay};

use crate::attempts::find_attempt;
use crate::commit::annotate::annotate;
use crate::commit::begun::write_begun;
use crate::commit::comment::write_comments;
use crate::commit::cut::cut;
use crate::commit::ended::write_ended;
use crate::commit::episode_row::{NamedBy, evict, upsert_episode};
use crate::commit::keys::{add_key, erase_signing_key, revoke_keys};
use crate::commit::marks::{mark, set_may_lack_calls, unmark};
use crate::commit::part::end_part;
use crate::commit::reward::write_reward;
use crate::commit::state::CommitState;
use crate::commit::whole::{WholeCall, write_whole};
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, CommitResult};
use crate::feed::unsettled::note_size;
use crate::feed::write::{number_closed, write_feed};
use crate::types::Announcement;
use crate::versions::write_version;

mod annotate;
mod begun;
mod body;
mod comment;
mod cut;
mod ended;
mod episode_row;
pub(crate) mod gate;
mod gates;
mod keys;
pub(crate) mod marks;
mod open_calls;
mod part;
mod record;
mod reward;
pub(crate) mod seal;
pub(crate) mod state;
mod whole;

pub(crate) use self::record::{Record, SealedCalls};

/// Writes `group` in the transaction that has begun on `connection`, and commits it.
///
/// `state` holds what the writer knows of the episodes in use, to store only the bytes that are new
/// in a call. It follows the transaction: after an error it forgets what the group added.
///
/// # Errors
/// The outer error means that nothing was written. An inner one means that the store's rules
/// refuse that record; the refusal of a late call is itself on record.
pub(crate) async fn commit(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    group: &[&Record],
) -> Result<Vec<CommitResult>, sqlx::Error> {
    let written = write_group(connection, state, group).await;

    match &written {
        Ok(_) => state.committed(),
        Err(_) => state.rolled_back(),
    }
    written
}

async fn write_group(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    group: &[&Record],
) -> Result<Vec<CommitResult>, sqlx::Error> {
    let ends = match connection {
        StoreConnection::Local(_) => places_of_ends(group),
        // There the two records of a call are few statements, each a trip.
        StoreConnection::Offloaded(_) | StoreConnection::Postgres(_) => HashMap::new(),
    };
    let mut results: Vec<Option<CommitResult>> = group.iter().map(|_| None).collect();
    for (place, record) in group.iter().enumerate() {
        if results[place].is_some() {
            continue;
        }
        let end = record.started_call().and_then(|call| ends.get(&call));
        let written = match (record, end.map(|place| (*place, group[*place]))) {
            (Record::CallStart(begun, key), Some((place_of_end, Record::CallEnd(ended)))) => {
                let key = key.as_deref();
                let written = write_whole(connection, state, WholeCall { begun, ended, key }).await;
                let of_end = written.as_ref().map_err(|_| CommitError::NotBegun(ended.call_id));
                results[place_of_end] = Some(of_end.copied());
                written
            }
            _ => write(connection, state, record).await,
        };
        match written {
            // StorePart of the record may be written, so the transaction cannot be committed.
            Err(CommitError::Database(error)) => return Err(error),
            result => results[place] = Some(result),
        }
    }

    connection.commit().await?;
    Ok(results.into_iter().map(|result| result.unwrap_or(Err(CommitError::Stopped))).collect())
}

/// The places of the ends of calls, if calls may begin in the same group.
fn places_of_ends(group: &[&Record]) -> HashMap<CallId, usize> {
    let ends = group.iter().enumerate().filter_map(|(place, record)| match record {
        Record::CallEnd(end) => Some((end.call_id, place)),
        _ => None,
    });
    match group.iter().any(|record| record.started_call().is_some()) {
        true => ends.collect(),
        false => HashMap::new(),
    }
}

async fn write(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    record: &Record,
) -> CommitResult {
    match record {
        Record::CallStart(begun, key) => {
            write_begun(connection, state, begun, key.as_deref()).await
        }
        Record::FirstCallStart(begun, key) => {
            write_begun(connection, state, begun, key.as_deref()).await?;
            Ok(mark(connection, &AttemptId::from(&begun.tag), state.writer()).await?)
        }
        Record::CallEnd(ended) => write_ended(connection, state, ended).await,
        Record::Cut { calls, at } => cut(connection, state, calls, *at).await,

        Record::Open(announcement) => {
            state.gates.forget(&AttemptId::from(&announcement.tag));
            connection.begin_part().await?;
            let opened = open(connection, state, announcement).await;
            end_part(connection, opened).await
        }
        Record::AddKey(key) => {
            state.gates.forget_episode(&key.attempt.episode);
            add_key(connection, key).await
        }
        Record::RevokeKeys { attempt, key_id, at } => {
            state.gates.forget_episode(&attempt.episode);
            revoke_keys(connection, attempt, key_id.as_deref(), *at).await
        }
        Record::EraseSigningKey => Ok(erase_signing_key(connection).await?),
        Record::Limits(limits) => {
            state.set_limits(*limits);
            Ok(())
        }

        Record::Close { attempt, at, status } => {
            close(connection, attempt, *at, status.as_deref()).await?;
            state.drop_attempt(attempt);
            Ok(())
        }
        Record::Unmark(attempt) => Ok(unmark(connection, attempt, state.writer()).await?),
        Record::MayLackCalls(attempt) => Ok(set_may_lack_calls(connection, attempt).await?),
        Record::Reward { attempt, reward, in_segment } => {
            write_reward(connection, attempt, reward, *in_segment).await
        }
        Record::Annotate(annotations, sealed) => {
            connection.begin_part().await?;
            let annotated = annotate(connection, annotations, sealed).await;
            end_part(connection, annotated).await
        }
        Record::Comment(comments, sealed) => {
            connection.begin_part().await?;
            let commented = write_comments(connection, comments, sealed).await;
            end_part(connection, commented).await
        }
        Record::Version(version) => write_version(connection, version).await,
        Record::Feed(record) => write_feed(connection, record).await,
        Record::Probe => probe(connection).await,
    }
}

async fn open(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    announcement: &Announcement,
) -> CommitResult {
    let Announcement { tag, at, force, continues, replay, group_size, budget } = announcement;
    let episode = upsert_episode(connection, tag, *at, NamedBy::Control).await?;
    if episode.is_closed {
        return Err(CommitError::Closed(tag.into()));
    }

    if let Some(group) = &tag.group {
        for evicted in evict(connection, group).await? {
            state.gates.forget(&evicted);
        }
    }
    let budget = budget.or(episode.budget);
    query(
        "UPDATE episode SET force_sampling = coalesce($1, force_sampling), calls_max = $2, \
         tokens_max = $3, seconds_max = $4, continues = coalesce($5, continues), \
         replay = coalesce($6, replay) WHERE episode_key = $7",
    )
    .bind(force.as_deref())
    .bind(limit(budget.calls))
    .bind(limit(budget.tokens))
    .bind(limit(budget.seconds))
    .bind(continues.as_deref())
    .bind(replay.as_ref().map(Replay::to_text))
    .bind(episode.key)
    .execute(connection)
    .await?;

    // The first announcement decides the size of a group.
    if let (Some(group), Some(size)) = (&tag.group, *group_size) {
        note_size(connection, group.as_str(), size).await?;
    }
    Ok(())
}

/// A limit as a column has it.
pub(crate) fn limit(limit: Option<u64>) -> Option<i64> {
    limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX))
}

/// Closing twice is no error; the first time and status stand.
async fn close(
    connection: &mut StoreConnection,
    attempt: &AttemptId,
    at: Micros,
    status: Option<&str>,
) -> CommitResult {
    let key = find_attempt(connection, attempt).await?;
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

/// Writes another value each time: SQLite writes no page that did not change.
async fn probe(connection: &mut StoreConnection) -> CommitResult {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let number = PROBES.fetch_add(1, Ordering::Relaxed);
    let value = [number.to_le_bytes(), u64::from(std::process::id()).to_le_bytes()].concat();
    let upsert = "INSERT INTO setting (name, value) VALUES ('probe', $1) \
                  ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    Ok(query(upsert).bind(value).execute(connection).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{begun, ended};

    #[test]
    fn arrays_beside_the_ids_count_while_a_record_waits() {
        let whole = ended(begun("a", 1).call_id);
        let mut bare = whole.clone();
        let sides = bare.choices.iter_mut().flat_map(|choice| choice.token_columns.drain(..));
        let sides: usize = sides.map(|side| side.json.len()).sum();
        assert!(sides > 0);
        assert_eq!(Record::CallEnd(whole).bytes(), Record::CallEnd(bare).bytes() + sides);
    }
}
