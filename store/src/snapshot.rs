//! A read-only view of the store at one moment.

use std::path::Path;

use episode::{Call, EpisodeId, GroupId, Micros, Reward, TagSource, TaskId};
use thiserror::Error;

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
    /// There is no such file.
    #[error("no store at `{0}`")]
    Missing(String),
}

/// One moment of a store: what is committed later does not show.
#[derive(Debug)]
pub struct Snapshot {}

impl Snapshot {
    /// Opens the store at `path` for reading and fixes the moment.
    ///
    /// # Errors
    /// [`SnapshotError`] when there is no store, or it cannot be read.
    pub async fn open(path: &Path) -> Result<Self, SnapshotError> {
        Err(SnapshotError::Missing(path.display().to_string()))
    }

    /// Episodes sorted by group, then id, then attempt.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episodes(
        &mut self,
        _only: &Selection,
    ) -> Result<Vec<EpisodeRecord>, SnapshotError> {
        Ok(Vec::new())
    }

    /// All calls of one attempt, in the order in which they began.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a body does not decode.
    pub async fn calls(&mut self, _episode: &EpisodeRecord) -> Result<Vec<Call>, SnapshotError> {
        Ok(Vec::new())
    }

    /// All rewards of one attempt, in the order in which they were given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn rewards(
        &mut self,
        _episode: &EpisodeRecord,
    ) -> Result<Vec<Reward>, SnapshotError> {
        Ok(Vec::new())
    }
}
