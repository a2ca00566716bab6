//! Single records, written by another process than the recorder.

use episode::{EpisodeId, Micros, Reward};

use crate::commit::{CommitError, Record, commit};
use crate::link::Link;
use crate::location::Location;
use crate::open::{self, OpenError};
use crate::reels::Reels;
use crate::trouble::Trouble;

/// A store to make statements about. Takes no lock and touches no reel, so it may be used while
/// another process records.
#[derive(Debug)]
pub struct Amend(Link);

impl Amend {
    /// Opens the store that is `at` a place, which must be there.
    ///
    /// # Errors
    /// [`OpenError`] when there is none, it is too new, or it cannot be opened.
    pub async fn open(at: impl Into<Location>) -> Result<Self, OpenError> {
        Ok(Self(open::for_amending(&at.into()).await?))
    }

    /// Closes an attempt at an episode: later calls are refused.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn close(
        self,
        (episode, attempt): (EpisodeId, u32),
        at: Micros,
        status: Option<String>,
    ) -> Result<(), CommitError> {
        self.write(Record::Close { episode, attempt, at, status }).await
    }

    /// Appends a reward.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn reward(
        self,
        (episode, attempt): (EpisodeId, u32),
        reward: Reward,
    ) -> Result<(), CommitError> {
        self.write(Record::Reward { episode, attempt, reward }).await
    }

    async fn write(mut self, record: Record) -> Result<(), CommitError> {
        let mut none = Reels::default();
        let written = match self.0.begin().await {
            Ok(()) => commit(&mut self.0, &mut none, &[&record]).await,
            Err(error) => Err(error),
        };
        let _ = self.0.close().await;
        let verdict = written.map_err(|error| {
            Trouble::of(&error).map_or(CommitError::Database(error), CommitError::Trouble)
        })?;
        verdict.into_iter().next().unwrap_or(Err(CommitError::Stopped))
    }
}
