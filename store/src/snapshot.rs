//! A read-only view of the store at one moment.

use std::path::Path;
use std::str::FromStr;

use bytes::Bytes;
use episode::{
    Begun, Call, CallId, Choice, Ended, EpisodeId, GroupId, Micros, Outcome, Reward, RewardScope,
    Route, Tag, TagSource, TaskId, TokenCounts, VersionSpan,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};
use thiserror::Error;

use crate::body::{DecodeError, unpack, unpack_floats, unpack_ids};
use crate::open::{self, OpenError};

/// One attempt at an episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpisodeRecord {
    /// The store's own key.
    pub key: i64,
    /// The episode.
    pub id: EpisodeId,
    /// Which run of it; the first is 0.
    pub attempt: u32,
    /// The group whose rewards are compared.
    pub group: Option<GroupId>,
    /// The task.
    pub task: Option<TaskId>,
    /// Free labels, in the order first given.
    pub labels: Vec<(String, String)>,
    /// Where its name came from.
    pub source: TagSource,
    /// When its first call began.
    pub opened_at: Micros,
    /// When it was closed; no call is accepted after that.
    pub closed_at: Option<Micros>,
    /// How its run ended, in the words of who closed it: `completed`, `truncated`, `aborted`,
    /// `failed`.
    pub status: Option<String>,
}

/// Which episodes to read; an empty selection takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only this episode (all its attempts).
    pub episode: Option<EpisodeId>,
    /// Only episodes of this group.
    pub group: Option<GroupId>,
    /// Only episodes of this task.
    pub task: Option<TaskId>,
}

/// Why a store could not be read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database refused.
    #[error("cannot read the store")]
    Database(#[from] sqlx::Error),
    /// A stored value does not decode.
    #[error("call `{call}` does not decode")]
    Decode {
        /// The call.
        call: String,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// A stored word is not one that this version writes.
    #[error("`{0}` is not a known {1}")]
    Word(String, &'static str),
}

/// One moment of a store: what is committed later does not show.
#[derive(Debug)]
pub struct Snapshot {
    connection: SqliteConnection,
}

impl Snapshot {
    /// Opens the store at `path` for reading and fixes the moment.
    ///
    /// # Errors
    /// [`SnapshotError`] when there is no store, or it cannot be read.
    pub async fn open(path: &Path) -> Result<Self, SnapshotError> {
        let mut connection = open::for_reading(path).await?;
        // The transaction stays open as long as the snapshot: it is what fixes the moment. SQLite
        // fixes it at the first read, not at BEGIN.
        sqlx::query("BEGIN").execute(&mut connection).await?;
        sqlx::query("SELECT 1 FROM episode LIMIT 1").execute(&mut connection).await?;
        Ok(Self { connection })
    }

    /// Episodes sorted by group (those without one last), then id, then attempt.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episodes(
        &mut self,
        only: &Selection,
    ) -> Result<Vec<EpisodeRecord>, SnapshotError> {
        let rows = sqlx::query(
            "SELECT episode_key, episode_id, attempt, group_id, task_id, source, opened_at, \
             closed_at, status FROM episode \
             WHERE (?1 IS NULL OR episode_id = ?1) AND (?2 IS NULL OR group_id = ?2) \
             AND (?3 IS NULL OR task_id = ?3) \
             ORDER BY group_id IS NULL, group_id, episode_id, attempt",
        )
        .bind(only.episode.as_ref().map(EpisodeId::as_str))
        .bind(only.group.as_ref().map(GroupId::as_str))
        .bind(only.task.as_ref().map(TaskId::as_str))
        .fetch_all(&mut self.connection)
        .await?;
        let mut episodes = Vec::with_capacity(rows.len());
        for row in rows {
            let mut episode = episode_of(&row)?;
            episode.labels = self.labels(episode.key).await?;
            episodes.push(episode);
        }
        Ok(episodes)
    }

    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    async fn labels(&mut self, key: i64) -> Result<Vec<(String, String)>, sqlx::Error> {
        sqlx::query_as("SELECT name, value FROM label WHERE episode_key = ? ORDER BY label_key")
            .bind(key)
            .fetch_all(&mut self.connection)
            .await
    }

    /// All calls of one attempt, in the order in which they began.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a body does not decode.
    pub async fn calls(&mut self, episode: &EpisodeRecord) -> Result<Vec<Call>, SnapshotError> {
        let rows = sqlx::query(
            "SELECT c.*, q.encoding AS q_encoding, q.length AS q_length, q.data AS q_data, \
             p.encoding AS p_encoding, p.length AS p_length, p.data AS p_data \
             FROM call c JOIN body q ON q.body_key = c.request_body \
             LEFT JOIN body p ON p.body_key = c.reply_body \
             WHERE c.episode_key = ? ORDER BY c.started_at, c.call_id",
        )
        .bind(episode.key)
        .fetch_all(&mut self.connection)
        .await?;
        let mut calls = Vec::with_capacity(rows.len());
        for row in rows {
            let begun = begun_of(&row, episode)?;
            let ended = match row.try_get::<Option<String>, _>("outcome")? {
                None => None,
                Some(outcome) => Some(self.ended_of(&row, begun.call_id, &outcome).await?),
            };
            calls.push(Call { begun, ended });
        }
        Ok(calls)
    }

    async fn ended_of(
        &mut self,
        row: &SqliteRow,
        call_id: CallId,
        outcome: &str,
    ) -> Result<Ended, SnapshotError> {
        let outcome = Outcome::from_word(outcome)
            .ok_or_else(|| SnapshotError::Word(outcome.to_owned(), "outcome"))?;
        let count = |name| -> Result<Option<u64>, sqlx::Error> {
            Ok(row.try_get::<Option<i64>, _>(name)?.map(i64::unsigned_abs))
        };
        let call_key: i64 = row.try_get("call_key")?;
        Ok(Ended {
            call_id,
            ended_at: row.try_get("ended_at")?,
            first_byte_at: row.try_get("first_byte_at")?,
            status: row.try_get("status")?,
            outcome,
            error: row.try_get("error")?,
            reply: body_of(row, "p", call_id)?,
            model: row.try_get("reply_model")?,
            prompts: self.prompts(call_key, call_id).await?,
            choices: self.choices(call_key, call_id).await?,
            usage: TokenCounts {
                prompt: count("prompt_tokens")?,
                completion: count("completion_tokens")?,
            },
            logprob_kind: row
                .try_get::<Option<String>, _>("logprob_kind")?
                .unwrap_or_else(|| "unknown".to_owned()),
        })
    }

    async fn prompts(
        &mut self,
        call_key: i64,
        call: CallId,
    ) -> Result<Vec<Vec<u32>>, SnapshotError> {
        let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "SELECT encoding, token_ids FROM prompt WHERE call_key = ? ORDER BY prompt_index",
        )
        .bind(call_key)
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter()
            .map(|(encoding, ids)| unpack_ids(*encoding, ids).map_err(|e| damaged(call, e)))
            .collect()
    }

    async fn choices(&mut self, call_key: i64, call: CallId) -> Result<Vec<Choice>, SnapshotError> {
        let rows = sqlx::query("SELECT * FROM choice WHERE call_key = ? ORDER BY choice_index")
            .bind(call_key)
            .fetch_all(&mut self.connection)
            .await?;
        rows.iter().map(|row| choice_of(row, call)).collect()
    }

    /// All rewards of one attempt, in the order in which they were given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn rewards(&mut self, episode: &EpisodeRecord) -> Result<Vec<Reward>, SnapshotError> {
        let rows = sqlx::query(
            "SELECT call_id, name, value, source, given_at FROM reward \
             WHERE episode_key = ? ORDER BY reward_key",
        )
        .bind(episode.key)
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter().map(reward_of).collect()
    }
}

fn episode_of(row: &SqliteRow) -> Result<EpisodeRecord, SnapshotError> {
    let source: String = row.try_get("source")?;
    let group: Option<String> = row.try_get("group_id")?;
    let task: Option<String> = row.try_get("task_id")?;
    Ok(EpisodeRecord {
        key: row.try_get("episode_key")?,
        id: name_of(row.try_get("episode_id")?, "episode id")?,
        attempt: row.try_get("attempt")?,
        group: group.map(|g| name_of(g, "group id")).transpose()?,
        task: task.map(|t| name_of(t, "task id")).transpose()?,
        labels: Vec::new(),
        source: TagSource::from_word(&source)
            .ok_or_else(|| SnapshotError::Word(source.clone(), "source of a tag"))?,
        opened_at: row.try_get("opened_at")?,
        closed_at: row.try_get("closed_at")?,
        status: row.try_get("status")?,
    })
}

fn name_of<T: FromStr>(word: String, kind: &'static str) -> Result<T, SnapshotError> {
    word.parse().map_err(|_| SnapshotError::Word(word, kind))
}

fn begun_of(row: &SqliteRow, episode: &EpisodeRecord) -> Result<Begun, SnapshotError> {
    let call_id: CallId = name_of(row.try_get("call_id")?, "call id")?;
    Ok(Begun {
        call_id,
        tag: Tag {
            episode: episode.id.clone(),
            attempt: episode.attempt,
            group: episode.group.clone(),
            task: episode.task.clone(),
            labels: episode.labels.clone(),
            source: episode.source,
        },
        started_at: row.try_get("started_at")?,
        method: row.try_get("method")?,
        path: row.try_get("path")?,
        route: Route::from_word(&row.try_get::<String, _>("route")?),
        model: row.try_get("requested_model")?,
        request: body_of(row, "q", call_id)?,
        sampling: row.try_get("sampling")?,
    })
}

/// The body whose columns carry `prefix`; empty where there is none.
fn body_of(row: &SqliteRow, prefix: &str, call: CallId) -> Result<Bytes, SnapshotError> {
    let column = |name: &str| format!("{prefix}_{name}");
    let Some(encoding) = row.try_get::<Option<i64>, _>(column("encoding").as_str())? else {
        return Ok(Bytes::new());
    };
    let length: i64 = row.try_get(column("length").as_str())?;
    let data: Vec<u8> = row.try_get(column("data").as_str())?;
    unpack(encoding, data, length.unsigned_abs() as usize)
        .map(Bytes::from)
        .map_err(|e| damaged(call, e))
}

fn choice_of(row: &SqliteRow, call: CallId) -> Result<Choice, SnapshotError> {
    let encoding: i64 = row.try_get("encoding")?;
    let ids: Option<Vec<u8>> = row.try_get("token_ids")?;
    let logprobs: Vec<u8> = row.try_get("logprobs")?;
    let versions: Option<String> = row.try_get("versions")?;
    Ok(Choice {
        index: row.try_get("choice_index")?,
        prompt_index: row.try_get("prompt_index")?,
        token_ids: ids
            .map(|ids| unpack_ids(encoding, &ids))
            .transpose()
            .map_err(|e| damaged(call, e))?,
        logprobs: unpack_floats(encoding, &logprobs).map_err(|e| damaged(call, e))?,
        finish_reason: row.try_get("finish_reason")?,
        stop_reason: row.try_get("stop_reason")?,
        versions: versions.map_or(Ok(Vec::new()), |text| spans_of(&text))?,
    })
}

fn spans_of(text: &str) -> Result<Vec<VersionSpan>, SnapshotError> {
    let spans: Vec<(String, u32, u32)> = serde_json::from_str(text)
        .map_err(|_| SnapshotError::Word(text.to_owned(), "list of version spans"))?;
    Ok(spans.into_iter().map(|(version, start, end)| VersionSpan { version, start, end }).collect())
}

fn reward_of(row: &SqliteRow) -> Result<Reward, SnapshotError> {
    let call: Option<String> = row.try_get("call_id")?;
    Ok(Reward {
        scope: match call {
            None => RewardScope::Episode,
            Some(call) => RewardScope::Call(name_of(call, "call id")?),
        },
        name: row.try_get("name")?,
        value: row.try_get("value")?,
        source: row.try_get("source")?,
        at: row.try_get("given_at")?,
    })
}

fn damaged(call: CallId, source: DecodeError) -> SnapshotError {
    SnapshotError::Decode { call: call.to_string(), source }
}
