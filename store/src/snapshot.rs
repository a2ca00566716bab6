//! A read-only view of the store at one moment.

use std::path::Path;

use episode::{
    Call, CallId, Choice, Ended, EpisodeId, GroupId, Micros, Outcome, Reward, Route, TagSource,
    TaskId, TokenCounts,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};
use thiserror::Error;

use crate::body::{DecodeError, unpack_ids};
use crate::open::{self, OpenError};
use crate::rows::{begun_of, body_of, choice_of, damaged, episode_of, reward_of, side_of};

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
    /// Sampling parameters that every request of it gets, as `NAME=VALUE,...`.
    pub force_sampling: Option<String>,
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
             closed_at, status, force_sampling FROM episode \
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
            translated: row
                .try_get::<Option<String>, _>("translated")?
                .map(|word| Route::from_word(&word)),
            unasked: row.try_get("unasked")?,
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
        let mut choices: Vec<Choice> =
            rows.iter().map(|row| choice_of(row, call)).collect::<Result<_, _>>()?;
        let sides =
            sqlx::query("SELECT * FROM side WHERE call_key = ? ORDER BY choice_index, name")
                .bind(call_key)
                .fetch_all(&mut self.connection)
                .await?;
        for row in &sides {
            let (index, side) = side_of(row, call)?;
            choices
                .iter_mut()
                .filter(|c| c.index == index)
                .for_each(|c| c.sides.push(side.clone()));
        }
        Ok(choices)
    }

    /// The value under `name` in the store's settings.
    pub(crate) async fn setting(&mut self, name: &str) -> Result<Option<Vec<u8>>, SnapshotError> {
        Ok(sqlx::query_scalar("SELECT value FROM setting WHERE name = ?")
            .bind(name)
            .fetch_optional(&mut self.connection)
            .await?)
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
