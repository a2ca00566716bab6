//! A writer's session: all that it holds beside its connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::commit::marks::finalize_marks;
use crate::database::connection::StoreConnection;
use crate::database::local::LocalConnection;
use crate::database::query::query;
use crate::error::{OpenError, with_causes};
use crate::location::Location;
use crate::postgres::PostgresSession;
use crate::sqlite::checkpoint::{self, CheckpointSignals};
use crate::sqlite::identity::FileIdentity;
use crate::sqlite::lock::WriterLock;
use crate::sqlite::open::{BUSY_WAIT, reopen};
use crate::types::Durability;
use crate::unavailable::StoreUnavailable;
use crate::{open, postgres, sqlite};

/// Time that a server may take over one group of records.
const SERVER_WAIT: Duration = Duration::from_secs(30);
/// Longest time that a group waits for snapshots to end when the WAL is to start over. A piece of
/// the feed is made in less.
const SNAPSHOT_WAIT: Duration = Duration::from_millis(250);

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
    /// Opens a store to record into it, making it if it is not there.
    pub(crate) async fn open(
        at: &Location,
        durability: Durability,
    ) -> Result<(StoreConnection, Self), OpenError> {
        let (mut connection, session) = match at {
            Location::File(path) => {
                let path = &sqlite::open::without_link(path);
                let open = move |path: &Path| sqlite::open::for_recording(path, durability);
                let (local, lock) = open::beside(path, open).await?;
                (StoreConnection::Local(local), Self::of_file(path, durability, lock))
            }
            Location::Server(options) => {
                let (connection, session) = postgres::for_recording(options, durability).await?;
                (connection, Self::Postgres(session))
            }
        };

        // A writer of this number that died may have lost calls.
        finalize_marks(&mut connection, session.writer())
            .await
            .map_err(|error| OpenError::Database(at.to_string(), error))?;
        Ok((connection, session))
    }

    /// The session at a file that is open and locked. Starts its checkpointer.
    fn of_file(path: &Path, durability: Durability, lock: WriterLock) -> Self {
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
                let opened = reopen(&session.path, session.durability);
                opened
                    .map(StoreConnection::Local)
                    .map_err(|error| cannot_reopen(&error).unwrap_or(StoreUnavailable::Disk))
            }
            Self::Postgres(session) => session
                .connect()
                .await
                .map_err(|error| cannot_reopen(&error).unwrap_or(StoreUnavailable::Gone)),
        }
    }

    /// Waits for a step of a commit; `None` where a server takes too long over it. There is no
    /// bound for a disk.
    pub(crate) async fn bounded<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Sqlite(_) => Some(step.await),
            Self::Postgres(_) => timeout(SERVER_WAIT, step).await.ok(),
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
    pub(crate) fn maintain(&mut self, connection: Option<&StoreConnection>) {
        if let (Self::Sqlite(session), Some(StoreConnection::Local(local))) = (self, connection)
            && session.signals.is_due()
        {
            start_wal_over(local);
            session.signals.checkpointed();
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
                if let Some(StoreConnection::Local(local)) = &connection {
                    checkpoint_now(local);
                }
                Some(session.lock)
            }
        };

        if let Some(connection) = connection
            && let Err(error) = connection.close().await
        {
            tracing::warn!(error = %with_causes(&error), "the store did not close cleanly");
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

/// Copies the whole WAL and lets the next commit write at its beginning. Waits for snapshots that
/// are about to end: where readers follow each other closely, there is always one.
fn start_wal_over(local: &LocalConnection) {
    let restart = || {
        local.wait_for_locks(SNAPSHOT_WAIT)?;
        let restarted = local.run(checkpoint::RESTART);
        local.wait_for_locks(BUSY_WAIT)?;
        restarted
    };
    if let Err(error) = restart() {
        tracing::warn!(
            error = %with_causes(&error),
            "no checkpoint was made; the WAL keeps growing"
        );
    }
}

fn checkpoint_now(local: &LocalConnection) {
    if let Err(error) = local.run(checkpoint::PASSIVE) {
        tracing::warn!(
            error = %with_causes(&error),
            "no checkpoint was made; the WAL keeps growing"
        );
    }
}

/// Logs and classifies the error of a connection that could not be opened.
fn cannot_reopen(error: &sqlx::Error) -> Option<StoreUnavailable> {
    tracing::error!(error = %with_causes(error), "the store cannot be opened again");
    StoreUnavailable::of(error)
}
