//! A read-only view of the store at one moment.

use std::collections::{BTreeMap, HashMap};

use episode::{CallId, EpisodeId, GroupId, Micros, Reward, RewardScope, TagSource, TaskId};
use thiserror::Error;

use crate::fields::Row;
use crate::link::Link;
use crate::location::Location;
use crate::open::{self, OpenError};
use crate::pack::DecodeError;
use crate::query::{Query, query};
use crate::rows::{episode_of, reward_of};

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
    /// Whether calls of it may be missing: see [`crate::Durability::Relaxed`].
    pub may_lack_calls: bool,
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

/// What an episode `e` must be; null takes all.
const ONLY: &str = "($1 IS NULL OR e.episode_id = $1) AND ($2 IS NULL OR e.group_id = $2) \
    AND ($3 IS NULL OR e.task_id = $3)";

impl Selection {
    fn bind(&self, query: Query) -> Query {
        query
            .bind(self.episode.as_ref().map(EpisodeId::as_str))
            .bind(self.group.as_ref().map(GroupId::as_str))
            .bind(self.task.as_ref().map(TaskId::as_str))
    }
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
    #[error("{what} does not decode")]
    Decode {
        /// A call or an episode.
        what: String,
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
    connection: Link,
    /// Whether any choice has arrays beside its ids; none until somebody asks.
    has_sides: Option<bool>,
}

impl Snapshot {
    /// Opens the store that is `at` a place for reading and fixes the moment.
    ///
    /// # Errors
    /// [`SnapshotError`] when there is no store, or it cannot be read.
    pub async fn open(at: impl Into<Location>) -> Result<Self, SnapshotError> {
        Self::of(open::for_reading(&at.into()).await?).await
    }

    /// The same, for a process that does little else: where the store is a file it is read by the
    /// thread that asks, which is quicker and lets nothing else run on it meanwhile.
    ///
    /// # Errors
    /// As [`Snapshot::open`].
    pub async fn open_here(at: impl Into<Location>) -> Result<Self, SnapshotError> {
        Self::of(open::for_reading_here(&at.into()).await?).await
    }

    async fn of(mut connection: Link) -> Result<Self, SnapshotError> {
        // The transaction stays open as long as the snapshot: it is what fixes the moment.
        connection.fix_moment().await?;
        Ok(Self { connection, has_sides: None })
    }

    /// Episodes sorted by group (those without one last), then id, then attempt.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episodes(
        &mut self,
        only: &Selection,
    ) -> Result<Vec<EpisodeRecord>, SnapshotError> {
        let all = format!(
            "SELECT e.*, EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key) \
             AS marked FROM episode e WHERE {ONLY} \
             ORDER BY group_id IS NULL, group_id, episode_id, attempt"
        );
        let rows = only.bind(query(all)).fetch_all(&mut self.connection).await?;
        let labels = format!(
            "SELECT l.episode_key, l.name, l.value FROM label l JOIN episode e \
             USING (episode_key) WHERE {ONLY} ORDER BY l.label_key"
        );
        let labels = only.bind(query(labels)).fetch_all(&mut self.connection).await?;
        let mut of_episode: HashMap<i64, Vec<(String, String)>> = HashMap::new();
        for row in &labels {
            let label = (row.try_get("name")?, row.try_get("value")?);
            of_episode.entry(row.try_get("episode_key")?).or_default().push(label);
        }
        let labeled = |row| {
            let mut episode = episode_of(row)?;
            episode.labels = of_episode.remove(&episode.key).unwrap_or_default();
            Ok(episode)
        };
        rows.iter().map(labeled).collect()
    }

    /// The episode that holds a call.
    pub(crate) async fn episode_with(
        &mut self,
        call: CallId,
    ) -> Result<Option<EpisodeRecord>, SnapshotError> {
        let row = query(
            "SELECT e.*, EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key) \
             AS marked FROM episode e JOIN call c USING (episode_key) WHERE c.call_id = $1",
        )
        .bind(call.to_string())
        .fetch_optional(&mut self.connection)
        .await?;
        match row {
            None => Ok(None),
            Some(row) => Ok(Some(self.labeled(episode_of(&row)?).await?)),
        }
    }

    pub(crate) async fn labeled(
        &mut self,
        mut episode: EpisodeRecord,
    ) -> Result<EpisodeRecord, sqlx::Error> {
        episode.labels = self.labels(episode.key).await?;
        Ok(episode)
    }

    /// Whether any choice has arrays beside its ids. Few stores have, and asking once is quicker
    /// than looking beside each choice.
    pub(crate) async fn has_sides(&mut self) -> Result<bool, sqlx::Error> {
        if let Some(known) = self.has_sides {
            return Ok(known);
        }
        let first = query("SELECT 1 FROM side LIMIT 1").fetch_optional(&mut self.connection);
        let found = first.await?.is_some();
        self.has_sides = Some(found);
        Ok(found)
    }

    pub(crate) fn connection(&mut self) -> &mut Link {
        &mut self.connection
    }

    async fn labels(&mut self, key: i64) -> Result<Vec<(String, String)>, sqlx::Error> {
        let labels = "SELECT name, value FROM label WHERE episode_key = $1 ORDER BY label_key";
        let rows = query(labels).bind(key).fetch_all(&mut self.connection).await?;
        rows.iter().map(|row| Ok((row.try_get("name")?, row.try_get("value")?))).collect()
    }

    /// The value under `name` in the store's settings.
    pub(crate) async fn setting(&mut self, name: &str) -> Result<Option<Vec<u8>>, SnapshotError> {
        let row = query("SELECT value FROM setting WHERE name = $1")
            .bind(name)
            .fetch_optional(&mut self.connection)
            .await?;
        Ok(row.map(|row| row.first()).transpose()?)
    }

    /// The last reward of that name that each attempt was given as a whole, up to a time, by the
    /// key of the attempt; null where it could not be scored.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episode_rewards(
        &mut self,
        name: &str,
        until: Micros,
    ) -> Result<BTreeMap<i64, Option<f64>>, SnapshotError> {
        let rows = query(
            "SELECT episode_key, value FROM reward \
             WHERE call_id IS NULL AND name = $1 AND given_at <= $2 ORDER BY reward_key",
        )
        .bind(name)
        .bind(until)
        .fetch_all(&mut self.connection)
        .await?;
        let of = |row: &Row| Ok((row.try_get("episode_key")?, row.try_get("value")?));
        rows.iter().map(of).collect()
    }

    /// How many tokens the choice of a span sampled; `None` where the scope is no span, the call
    /// has not ended, or its ids are not known.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn sampled(&mut self, scope: RewardScope) -> Result<Option<u32>, SnapshotError> {
        let RewardScope::Tokens { call, choice, .. } = scope else { return Ok(None) };
        let row = query(
            "SELECT k.tokens FROM choice k JOIN call c USING (call_key) \
             WHERE c.call_id = $1 AND k.choice_index = $2",
        )
        .bind(call.to_string())
        .bind(i64::from(choice))
        .fetch_optional(&mut self.connection)
        .await?;
        let tokens: Option<i64> = row.map(|row| row.try_get("tokens")).transpose()?.flatten();
        Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()))
    }

    /// All rewards of one attempt, in the order in which they were given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn rewards(&mut self, episode: &EpisodeRecord) -> Result<Vec<Reward>, SnapshotError> {
        let rows = query(
            "SELECT scope, call_id, choice_index, token_start, token_end, name, value, source, \
             given_at FROM reward WHERE episode_key = $1 ORDER BY reward_key",
        )
        .bind(episode.key)
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter().map(reward_of).collect()
    }
}
