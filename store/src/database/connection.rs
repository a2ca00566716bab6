//! A connection to a store, whichever database holds it.

use sqlx::{Connection, Executor, PgConnection, SqliteConnection};

use crate::database::local::LocalConnection;

/// A read that costs little. It fixes the moment of a transaction.
const FIRST_READ: &str = "SELECT 1 FROM episode LIMIT 1";

/// A connection to a store.
#[derive(Debug)]
pub(crate) enum StoreConnection {
    /// To a file; statements run in sqlx's thread.
    Sqlite(SqliteConnection),
    /// To a file; statements run in the caller's thread.
    Local(LocalConnection),
    /// To a server.
    Postgres(Box<PgConnection>),
}

impl StoreConnection {
    /// Begins a transaction that writes. It ends with [`Self::commit`], or with the connection.
    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(_) | Self::Local(_) => self.run("BEGIN IMMEDIATE").await,
            Self::Postgres(_) => self.run("BEGIN").await,
        }
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

    async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(sqlite) => sqlite.execute(sql).await.map(drop),
            Self::Local(local) => local.run(sql),
            Self::Postgres(postgres) => postgres.execute(sql).await.map(drop),
        }
    }

    /// Begins a transaction that reads one moment of the store. Either database fixes the moment at
    /// the first read, not at the `BEGIN`, so this also reads.
    pub(crate) async fn begin_snapshot(&mut self) -> Result<(), sqlx::Error> {
        let begin = match self {
            Self::Sqlite(_) | Self::Local(_) => "BEGIN",
            Self::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        };
        self.run(begin).await?;
        self.run(FIRST_READ).await
    }

    /// Ends a transaction that failed and returns the connection. `None` where the state of the
    /// transaction is not known: a new connection begins without one.
    pub(crate) async fn after_failure(self) -> Option<Self> {
        match self {
            Self::Sqlite(sqlite) => {
                let _ = sqlite.close().await;
                None
            }
            Self::Local(_) => None,
            Self::Postgres(mut postgres) => {
                let rollback = postgres.execute("ROLLBACK").await;
                rollback.is_ok().then_some(Self::Postgres(postgres))
            }
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(sqlite) => sqlite.close().await,
            Self::Local(local) => {
                drop(local);
                Ok(())
            }
            Self::Postgres(postgres) => postgres.close().await,
        }
    }

    /// The connection to a file, for statements that only SQLite has.
    pub(crate) fn sqlite(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        match self {
            Self::Sqlite(sqlite) => Ok(sqlite),
            Self::Local(_) | Self::Postgres(_) => {
                Err(sqlx::Error::Configuration("the store is not a file".into()))
            }
        }
    }
}
