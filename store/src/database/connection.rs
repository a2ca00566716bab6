//! A connection to a store, whichever database holds it.

use sqlx::Executor;

use crate::database::local::LocalConnection;
use crate::database::offloaded::OffloadedConnection;
use crate::database::readers::ServerConnection;

/// A read that costs little. It fixes the moment of a transaction.
const FIRST_READ: &str = "SELECT 1 FROM episode LIMIT 1";

/// A connection to a store.
#[derive(Debug)]
pub(crate) enum StoreConnection {
    /// To a file; statements run in the caller's thread.
    Local(LocalConnection),
    /// To a file; statements run on threads for work that blocks.
    Offloaded(OffloadedConnection),
    /// To a server.
    Postgres(Box<ServerConnection>),
}

impl StoreConnection {
    /// True if the store is a file.
    pub(crate) fn is_file(&self) -> bool {
        !matches!(self, Self::Postgres(_))
    }

    /// Begins a transaction that writes. It ends with [`Self::commit`], or with the connection.
    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        let begin = if self.is_file() { "BEGIN IMMEDIATE" } else { "BEGIN" };
        self.run(begin).await
    }

    /// Makes durable what was written since [`Self::begin`].
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.run("COMMIT").await
    }

    /// Begins a part of the transaction that [`Self::keep_part`] or [`Self::undo_part`] ends.
    pub(crate) async fn begin_part(&mut self) -> Result<(), sqlx::Error> {
        self.run("SAVEPOINT part").await
    }

    /// Ends a part of the transaction.
    pub(crate) async fn keep_part(&mut self) -> Result<(), sqlx::Error> {
        self.run("RELEASE SAVEPOINT part").await
    }

    /// Ends a part of the transaction and undoes it.
    pub(crate) async fn undo_part(&mut self) -> Result<(), sqlx::Error> {
        self.run("ROLLBACK TO SAVEPOINT part").await?;
        self.keep_part().await
    }

    /// Runs statements without values and ignores their rows. A file takes one at a time.
    pub(crate) async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Local(local) => local.run(sql),
            Self::Offloaded(file) => file.run(move |local| local.run(sql)).await,
            Self::Postgres(postgres) => (&mut ***postgres).execute(sql).await.map(drop),
        }
    }

    /// Begins a transaction that reads one moment of the store. Either database fixes the moment at
    /// the first read, not at the `BEGIN`, so this also reads.
    pub(crate) async fn begin_snapshot(&mut self) -> Result<(), sqlx::Error> {
        let begin = match self.is_file() {
            true => "BEGIN",
            false => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        };
        self.run(begin).await?;
        self.run(FIRST_READ).await
    }

    /// Ends a transaction that failed and returns the connection. `None` where the state of the
    /// transaction is not known: a new connection begins without one.
    pub(crate) async fn after_failure(self) -> Option<Self> {
        match self {
            Self::Local(_) | Self::Offloaded(_) => None,
            Self::Postgres(mut postgres) => {
                let rollback = (&mut **postgres).execute("ROLLBACK").await;
                rollback.is_ok().then_some(Self::Postgres(postgres))
            }
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Local(_) | Self::Offloaded(_) => Ok(()),
            Self::Postgres(postgres) => postgres.close().await,
        }
    }
}
