//! The row of an episode: finding it, or making it.

use episode::{AttemptId, EpisodeId, GroupId, Micros, Tag, TaskId};

use crate::attempts::attempt_of;
use crate::database::connection::StoreConnection;
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::CommitError;
use crate::feed::unsettled::ungroup;
use crate::types::Budget;

/// Labels of one attempt.
const LABELS_MAX: i64 = 100;

/// An attempt in the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpisodeRow {
    pub(crate) key: i64,
    pub(crate) is_closed: bool,
    pub(crate) is_keyed: bool,
    pub(crate) opened_at: Micros,
    pub(crate) budget: Budget,
}

/// The source of a group, a task and labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// The control listener. Its words stand.
    Control,
    /// A call, with a key or without. Its words count only where control said none.
    Call { has_key: bool },
}

/// The columns that an upsert returns.
const RETURNED: &str = "episode_key, closed_at IS NOT NULL AS closed, announced, keyed, group_id, \
    task_id, opened_at, calls_max, tokens_max, seconds_max";

/// The row of the tag's attempt, made if need be.
///
/// The first words of calls stay until control announces the attempt. From then on its group, task
/// and labels are those that control gave, and a call that names others is refused.
///
/// # Errors
/// [`CommitError`] if the words of the tag, or a key that it lacks, keep it out.
pub(crate) async fn upsert_episode(
    connection: &mut StoreConnection,
    tag: &Tag,
    at: Micros,
    named_by: NamedBy,
) -> Result<EpisodeRow, CommitError> {
    let row = match named_by {
        NamedBy::Control => announce(connection, tag, at).await?,
        NamedBy::Call { has_key } => enter(connection, tag, at, has_key).await?,
    };

    let key = row.try_get("episode_key")?;
    let is_closed: bool = row.try_get("closed")?;

    if !is_closed {
        let stands = row.try_get::<i64>("announced")? == 1;
        if stands {
            check_word("group", tag.group.as_ref().map(GroupId::as_str), &row)?;
            check_word("task", tag.task.as_ref().map(TaskId::as_str), &row)?;
        }
        add_labels(connection, key, tag, stands.then_some(named_by)).await?;
    }

    Ok(EpisodeRow {
        key,
        is_closed,
        is_keyed: row.try_get::<i64>("keyed")? == 1,
        opened_at: row.try_get("opened_at")?,
        budget: budget_of(&row)?,
    })
}

/// The row for a call. It is not made for a call without a key in an episode that has keys, nor for
/// one that names a group whose members control announces.
async fn enter(
    connection: &mut StoreConnection,
    tag: &Tag,
    at: Micros,
    has_key: bool,
) -> Result<Row, CommitError> {
    let upsert = format!(
        "INSERT INTO episode (episode_id, attempt, group_id, task_id, source, opened_at) \
         SELECT $1, $2, $3, $4, $5, $6 \
         WHERE ($7 = 1 OR NOT EXISTS (SELECT 1 FROM episode k \
             WHERE k.episode_id = $1 AND k.keyed = 1)) \
         AND ($3 IS NULL OR NOT EXISTS (SELECT 1 FROM episode g \
             WHERE g.group_id = $3 AND g.announced = 1) \
             OR EXISTS (SELECT 1 FROM episode o \
                 WHERE o.episode_id = $1 AND o.attempt = $2 AND o.announced = 1)) \
         ON CONFLICT (episode_id, attempt) DO UPDATE SET \
         group_id = CASE WHEN episode.announced = 1 OR episode.closed_at IS NOT NULL \
             THEN episode.group_id ELSE coalesce(episode.group_id, excluded.group_id) END, \
         task_id = CASE WHEN episode.announced = 1 OR episode.closed_at IS NOT NULL \
             THEN episode.task_id ELSE coalesce(episode.task_id, excluded.task_id) END \
         RETURNING {RETURNED}"
    );

    let row = named(upsert, tag, at).bind(i64::from(has_key)).fetch_optional(connection).await?;
    match row {
        Some(row) => Ok(row),
        None => Err(refusal(connection, tag, has_key).await?),
    }
}

/// The row of an attempt that control announces. What calls said before goes.
async fn announce(
    connection: &mut StoreConnection,
    tag: &Tag,
    at: Micros,
) -> Result<Row, CommitError> {
    let forget = "DELETE FROM label WHERE episode_key IN (SELECT episode_key FROM episode \
                  WHERE episode_id = $1 AND attempt = $2 AND announced = 0 \
                  AND closed_at IS NULL)";
    query(forget).bind(tag.episode.as_str()).bind(tag.attempt).execute(connection).await?;

    // A closed attempt stays as it is.
    let upsert = format!(
        "INSERT INTO episode (episode_id, attempt, group_id, task_id, source, opened_at, \
         announced) VALUES ($1, $2, $3, $4, $5, $6, 1) \
         ON CONFLICT (episode_id, attempt) DO UPDATE SET \
         group_id = CASE WHEN episode.closed_at IS NOT NULL THEN episode.group_id \
             WHEN episode.announced = 1 THEN coalesce(episode.group_id, excluded.group_id) \
             ELSE excluded.group_id END, \
         task_id = CASE WHEN episode.closed_at IS NOT NULL THEN episode.task_id \
             WHEN episode.announced = 1 THEN coalesce(episode.task_id, excluded.task_id) \
             ELSE excluded.task_id END, \
         announced = CASE WHEN episode.closed_at IS NULL THEN 1 ELSE episode.announced END \
         RETURNING {RETURNED}"
    );
    Ok(named(upsert, tag, at).fetch_one(connection).await?)
}

/// Takes a group that control announces from the attempts whose calls claimed it, and returns
/// these.
pub(crate) async fn evict(
    connection: &mut StoreConnection,
    group: &GroupId,
) -> Result<Vec<AttemptId>, CommitError> {
    let evict = "UPDATE episode SET group_id = NULL WHERE group_id = $1 AND announced = 0 \
                 RETURNING episode_key, episode_id, attempt";
    let rows = query(evict).bind(group.as_str()).fetch_all(connection).await?;
    for row in &rows {
        ungroup(connection, row.try_get("episode_key")?).await?;
    }
    Ok(rows.iter().map(attempt_of).collect::<Result<_, _>>()?)
}

fn named(statement: String, tag: &Tag, at: Micros) -> Query {
    query(statement)
        .bind(tag.episode.as_str())
        .bind(tag.attempt)
        .bind(tag.group.as_ref().map(|group| group.as_str()))
        .bind(tag.task.as_ref().map(|task| task.as_str()))
        .bind(tag.source.as_str())
        .bind(at)
}

/// Refuses a group or a task that is not the one that control announced.
fn check_word(kind: &'static str, said: Option<&str>, row: &Row) -> Result<(), CommitError> {
    let Some(said) = said else { return Ok(()) };
    let stands: Option<String> = row.try_get(&format!("{kind}_id"))?;
    match stands.as_deref() == Some(said) {
        true => Ok(()),
        false => Err(CommitError::Announced(kind, said.to_owned())),
    }
}

/// Adds the labels that the attempt lacks. A label that it has keeps its value. Where control
/// announced the attempt, `named_by` is set: another value is refused, and so is a new label of a
/// call.
async fn add_labels(
    connection: &mut StoreConnection,
    key: i64,
    tag: &Tag,
    named_by: Option<NamedBy>,
) -> Result<(), CommitError> {
    for (name, value) in &tag.labels {
        let select = "SELECT value FROM label WHERE episode_key = $1 AND name = $2";
        let known = query(select).bind(key).bind(name).fetch_optional(&mut *connection).await?;
        let known: Option<String> = known.map(|row| row.first()).transpose()?;
        match known {
            Some(known) if known == *value => {}
            Some(_) if named_by.is_none() => {}
            None if matches!(named_by, None | Some(NamedBy::Control)) => {
                insert_label(connection, key, name, value).await?;
            }
            _ => return Err(CommitError::Announced("label", format!("{name}={value}"))),
        }
    }
    Ok(())
}

async fn insert_label(
    connection: &mut StoreConnection,
    key: i64,
    name: &str,
    value: &str,
) -> Result<(), CommitError> {
    let insert = "INSERT INTO label (episode_key, name, value) SELECT $1, $2, $3 \
                  WHERE (SELECT count(*) FROM label WHERE episode_key = $1) < $4 \
                  ON CONFLICT DO NOTHING RETURNING label_key";
    let inserted = query(insert)
        .bind(key)
        .bind(name)
        .bind(value)
        .bind(LABELS_MAX)
        .fetch_optional(connection)
        .await?;
    inserted.map(drop).ok_or(CommitError::TooManyLabels(LABELS_MAX))
}

/// The reason for which an attempt was not made for a call that names `tag`.
async fn refusal(
    connection: &mut StoreConnection,
    tag: &Tag,
    has_key: bool,
) -> Result<CommitError, sqlx::Error> {
    if !has_key && is_keyed(connection, &tag.episode).await? {
        return Ok(CommitError::NeedsKey(tag.episode.clone()));
    }
    let group = tag.group.as_ref().map(ToString::to_string).unwrap_or_default();
    Ok(CommitError::Announced("group", group))
}

async fn is_keyed(
    connection: &mut StoreConnection,
    episode: &EpisodeId,
) -> Result<bool, sqlx::Error> {
    let keyed = "SELECT 1 FROM episode WHERE episode_id = $1 AND keyed = 1 LIMIT 1";
    let found = query(keyed).bind(episode.as_str()).fetch_optional(connection).await?;
    Ok(found.is_some())
}

/// The budget in a row of `episode` or `api_key`.
pub(crate) fn budget_of(row: &Row) -> Result<Budget, sqlx::Error> {
    let limit = |name| {
        let limit: Option<i64> = row.try_get(name)?;
        Ok::<_, sqlx::Error>(limit.map(i64::unsigned_abs))
    };
    // A key has no `seconds_max`: it expires.
    let seconds = limit("seconds_max").unwrap_or_default();
    Ok(Budget { calls: limit("calls_max")?, tokens: limit("tokens_max")?, seconds })
}
