//! A connection to a store, whichever database holds it.

use sqlx::{Connection, Executor, PgConnection, SqliteConnection};

use crate::near::Near;

/// Reads little.
const FIRST_READ: &str = "SELECT 1 FROM episode LIMIT 1";

/// A connection.
#[derive(Debug)]
pub(crate) enum Link {
    /// To a file.
    File(SqliteConnection),
    /// To a file, for reading, in the thread that asks.
    Near(Near),
    /// To a server.
    Server(Box<PgConnection>),
}

impl Link {
    /// Begins a transaction that writes. It ends with [`Link::commit`], or with the connection.
    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::File(sqlite) => sqlite.execute("BEGIN IMMEDIATE").await.map(drop),
            Self::Near(near) => near.run("BEGIN"),
            Self::Server(postgres) => postgres.execute("BEGIN").await.map(drop),
        }
    }

    /// Makes what was written since [`Link::begin`] last.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::File(sqlite) => sqlite.execute("COMMIT").await.map(drop),
            Self::Near(near) => near.run("COMMIT"),
            Self::Server(postgres) => postgres.execute("COMMIT").await.map(drop),
        }
    }

    /// Fixes the moment that is read from now on. Either database does so at the first read, not
    /// at the `BEGIN`.
    pub(crate) async fn fix_moment(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::File(sqlite) => {
                sqlite.execute("BEGIN").await?;
                sqlite.execute(FIRST_READ).await.map(drop)
            }
            Self::Near(near) => {
                near.run("BEGIN")?;
                near.run(FIRST_READ)
            }
            Self::Server(postgres) => {
                postgres.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
                postgres.execute(FIRST_READ).await.map(drop)
            }
        }
    }

    /// The connection after a transaction that failed, without it. None where what became of the
    /// transaction is not known: a new connection begins without one.
    pub(crate) async fn recovered(self) -> Option<Self> {
        match self {
            Self::File(sqlite) => {
                let _ = sqlite.close().await;
                None
            }
            Self::Near(_) => None,
            Self::Server(mut postgres) => {
                let ended = postgres.execute("ROLLBACK").await;
                ended.is_ok().then_some(Self::Server(postgres))
            }
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Self::File(sqlite) => sqlite.close().await,
            Self::Near(near) => {
                drop(near);
                Ok(())
            }
            Self::Server(postgres) => postgres.close().await,
        }
    }

    /// What only SQLite can do.
    pub(crate) fn file(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        match self {
            Self::File(sqlite) => Ok(sqlite),
            Self::Near(_) | Self::Server(_) => {
                Err(sqlx::Error::Configuration("this is no file".into()))
            }
        }
    }
}
