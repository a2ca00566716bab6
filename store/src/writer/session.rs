//! A writer's session: all that it holds beside its connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::postgres::PostgresSession;
use crate::sqlite::checkpoint::{self, CheckpointSignals};
use crate::sqlite::identity::FileIdentity;
use crate::sqlite::lock::WriterLock;
use crate::sqlite::open::reopen;
use crate::types::Durability;
use crate::unavailable::StoreUnavailable;

/// Time that a server may take over one group of records.
const SERVER_WAIT: Duration = Duration::from_secs(30);

/// The session of a writer.
#[derive(Debug)]
pub(crate) enum WriterSession {
    Sqlite(Box<SqliteSession>),
    Postgres(PostgresSession),
}

/// The session of a file's one writer.
#[derive(Debug)]
pub(crate) struct SqliteSession {
    path: PathBuf,
    durability: Durability,
    identity: FileIdentity,
    signals: Arc<CheckpointSignals>,
    checkpointer: JoinHandle<()>,
    lock: WriterLock,
}

impl WriterSession {
    /// The session at a file that is open and locked. Starts its checkpointer.
    pub(crate) fn of_file(path: &Path, durability: Durability, lock: WriterLock) -> Self {
        let signals = Arc::new(CheckpointSignals::default());
        let checkpointer = checkpoint::keep_short(path.to_owned(), Arc::clone(&signals));
        Self::Sqlite(Box::new(SqliteSession {
            path: path.to_owned(),
            durability,
            identity: FileIdentity::of(path),
            signals,
            checkpointer: tokio::spawn(checkpointer),
            lock,
        }))
    }

    /// The number that tells this writer from others of the same store.
    pub(crate) fn writer(&self) -> i64 {
        match self {
            Self::Sqlite(_) => 0,
            Self::Postgres(session) => session.writer,
        }
    }

    /// Opens a connection to write with, after the one before was lost.
    pub(crate) async fn reconnect(&mut self) -> Result<StoreConnection, StoreUnavailable> {
        match self {
            Self::Sqlite(session) => {
                let holds = session.identity.holds_for_reopening();
                session.check_identity(holds)?;
                let opened = reopen(&session.path, session.durability).await;
                opened
                    .map(StoreConnection::Sqlite)
                    .map_err(|error| cannot_reopen(&error).unwrap_or(StoreUnavailable::Disk))
            }
            Self::Postgres(session) => session
                .connect()
                .await
                .map_err(|error| cannot_reopen(&error).unwrap_or(StoreUnavailable::Gone)),
        }
    }

    /// The time that one group of records may take. There is no bound for a disk.
    pub(crate) fn commit_timeout(&self) -> Duration {
        match self {
            Self::Sqlite(_) => Duration::MAX,
            Self::Postgres(_) => SERVER_WAIT,
        }
    }

    /// Checks, after a commit, that the file is still at its path. If it was when the commit was
    /// done, others can read what was written.
    pub(crate) fn committed(&mut self) -> Result<(), StoreUnavailable> {
        let Self::Sqlite(session) = self else { return Ok(()) };
        session.signals.committed();
        let holds = session.identity.holds();
        session.check_identity(holds)
    }

    /// Does what is due between two groups.
    pub(crate) async fn maintain(&mut self, connection: Option<&mut StoreConnection>) {
        if let (Self::Sqlite(session), Some(StoreConnection::Sqlite(sqlite))) = (self, connection)
            && session.signals.take_due()
        {
            checkpoint_now(sqlite).await;
        }
    }

    /// Ends the session. A file is left whole, without a WAL.
    pub(crate) async fn close(self, mut connection: Option<StoreConnection>) {
        let lock = match self {
            Self::Postgres(_) => {
                // The server ends a session some time after it is closed; this frees its number at
                // once.
                if let Some(connection) = &mut connection {
                    let _ = query("SELECT pg_advisory_unlock_all()").execute(connection).await;
                }
                None
            }
            Self::Sqlite(session) => {
                // The checkpointer goes first, so that it does not reopen what is closed here.
                session.signals.close();
                let _ = session.checkpointer.await;
                if let Some(StoreConnection::Sqlite(sqlite)) = &mut connection {
                    checkpoint_now(sqlite).await;
                }
                Some(session.lock)
            }
        };

        if let Some(connection) = connection
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "the store did not close cleanly");
        }
        // Last, so that the next writer finds the file closed.
        drop(lock);
    }
}

impl SqliteSession {
    fn check_identity(&self, holds: bool) -> Result<(), StoreUnavailable> {
        if holds {
            return Ok(());
        }
        let path = self.path.display();
        tracing::error!(%path, "the store was moved or deleted while it was recorded to");
        Err(StoreUnavailable::Moved)
    }
}

async fn checkpoint_now(sqlite: &mut sqlx::SqliteConnection) {
    if let Err(error) = checkpoint::passive(sqlite).await {
        tracing::warn!(%error, "no checkpoint was made; the WAL keeps growing");
    }
}

/// Logs and classifies the error of a connection that could not be opened.
fn cannot_reopen(error: &sqlx::Error) -> Option<StoreUnavailable> {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::error!(%error, cause, "the store cannot be opened again");
    StoreUnavailable::of(error)
}
