//! Single records, written by another process than the recorder.

use episode::{AttemptId, Comment, Micros, Reward};

use crate::commit::state::CommitState;
use crate::commit::{Record, SealedCalls, commit};
use crate::database::connection::StoreConnection;
use crate::error::{CommitError, CommitResult, OpenError};
use crate::location::Location;
use crate::open;
use crate::snapshot::Snapshot;
use crate::unavailable::StoreUnavailable;
use crate::writer::sealed_calls::of_sealed_calls;

/// A store that is edited beside its recorder. It takes no lock and writes to no log, so it may be
/// used while another process records.
#[derive(Debug)]
pub struct StoreEditor {
    at: Location,
    connection: StoreConnection,
}

impl StoreEditor {
    /// Opens the store at a location, which must exist.
    ///
    /// # Errors
    /// [`OpenError`] when there is none, it is too new, or it cannot be opened.
    pub async fn open(at: impl Into<Location>) -> Result<Self, OpenError> {
        let at = at.into();
        let connection = open::for_editing(&at).await?;
        Ok(Self { at, connection })
    }

    /// Closes an attempt at an episode: later calls are refused.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn close(
        mut self,
        attempt: AttemptId,
        at: Micros,
        status: Option<String>,
    ) -> Result<(), CommitError> {
        let written = self.write(&Record::Close { attempt, at, status }).await;
        let _ = self.connection.close().await;
        written
    }

    /// Appends a reward to an attempt.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when there is no such episode.
    pub async fn reward(self, attempt: AttemptId, reward: Reward) -> Result<(), CommitError> {
        self.write_of_calls(Record::Reward { attempt, reward, in_segment: false }).await
    }

    /// Appends what people say of attempts, all of it or nothing.
    ///
    /// # Errors
    /// As [`crate::Store::comment`].
    pub async fn comment(self, comments: Vec<(AttemptId, Comment)>) -> Result<(), CommitError> {
        self.write_of_calls(Record::Comment(comments, SealedCalls::new())).await
    }

    /// Writes a record about calls, some of which may be in segments.
    async fn write_of_calls(mut self, record: Record) -> CommitResult {
        let mut written = self.write(&record).await;
        if let Err(CommitError::Sealed(call)) = written {
            let snapshot = Snapshot::open(&self.at).await;
            written = match of_sealed_calls(record, call, snapshot).await {
                Ok(record) => self.write(&record).await,
                Err(error) => Err(error),
            };
        }
        let _ = self.connection.close().await;
        written
    }

    async fn write(&mut self, record: &Record) -> CommitResult {
        // No record of this kind uses a log.
        let mut no_logs = CommitState::default();
        let written = match self.connection.begin().await {
            Ok(()) => commit(&mut self.connection, &mut no_logs, &[record]).await,
            Err(error) => Err(error),
        };

        let results = written.map_err(|error| match StoreUnavailable::of(&error) {
            Some(reason) => CommitError::Unavailable(reason),
            None => CommitError::Database(error),
        })?;
        results.into_iter().next().unwrap_or(Err(CommitError::Stopped))
    }
}
