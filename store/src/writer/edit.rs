//! Single records, written by another process than the recorder.

use episode::{AttemptId, Comment, Micros, Reward};

use crate::commit::state::CommitState;
use crate::commit::{Record, commit};
use crate::database::connection::StoreConnection;
use crate::error::{CommitError, CommitResult, OpenError};
use crate::location::Location;
use crate::open;
use crate::unavailable::StoreUnavailable;

/// A store that is edited beside its recorder. It takes no lock and writes to no log, so it may be
/// used while another process records.
#[derive(Debug)]
pub struct StoreEditor(StoreConnection);

impl StoreEditor {
    /// Opens the store at a location, which must exist.
    ///
    /// # Errors
    /// [`OpenError`] when there is none, it is too new, or it cannot be opened.
    pub async fn open(at: impl Into<Location>) -> Result<Self, OpenError> {
        Ok(Self(open::for_editing(&at.into()).await?))
    }

    /// Closes an attempt at an episode: later calls are refused.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn close(
        self,
        attempt: AttemptId,
        at: Micros,
        status: Option<String>,
    ) -> Result<(), CommitError> {
        self.write(Record::Close { attempt, at, status }).await
    }

    /// Appends a reward to an attempt.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn reward(self, attempt: AttemptId, reward: Reward) -> Result<(), CommitError> {
        self.write(Record::Reward { attempt, reward }).await
    }

    /// Appends what people say of attempts, all of it or nothing.
    ///
    /// # Errors
    /// As [`crate::Store::comment`].
    pub async fn comment(self, comments: Vec<(AttemptId, Comment)>) -> Result<(), CommitError> {
        self.write(Record::Comment(comments)).await
    }

    async fn write(mut self, record: Record) -> CommitResult {
        // No record of this kind uses a log.
        let mut no_logs = CommitState::default();
        let written = match self.0.begin().await {
            Ok(()) => commit(&mut self.0, &mut no_logs, &[&record]).await,
            Err(error) => Err(error),
        };
        let _ = self.0.close().await;

        let results = written.map_err(|error| match StoreUnavailable::of(&error) {
            Some(reason) => CommitError::Unavailable(reason),
            None => CommitError::Database(error),
        })?;
        results.into_iter().next().unwrap_or(Err(CommitError::Stopped))
    }
}
