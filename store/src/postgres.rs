//! A store in a PostgreSQL database: its schema, its migrations, and the numbers of its writers.
//!
//! All of a store is in the schema `rolltape`. Several processes may write to it at a time. Each
//! holds an advisory lock on a number for as long as its session lives; the logs that it keeps in
//! memory go by that number. A restarted writer takes the lowest free number and continues the logs
//! under it.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::readers::ServerConnection;
use crate::error::OpenError;
use crate::location::{Location, ServerLocation};
use crate::migrations::{
    FORMAT, FormatState, POSTGRES as MIGRATIONS, convert_server, migrate_server,
};
use crate::types::Durability;

/// The oldest server that makes random keys by itself, as `server_version_num`.
const VERSION_MIN: i64 = 130_000;
/// Time that opening a connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Statements whose plans a connection keeps: there is one for each shape of a call.
const STATEMENTS_KEPT: usize = 256;

/// Begins a session. Another process may hold the schema's lock while it makes the tables.
const SESSION: &str = "SET search_path = rolltape; SET lock_timeout = '15s'; \
    SET client_min_messages = warning";

// Advisory locks are pairs of numbers. The first one is ours: "Roll". Number 0 is for the schema:
// all writers share it, and a process that changes the schema holds it alone.
const SHARE_SCHEMA: &str = "SELECT pg_advisory_lock_shared(1383034988, 0)";
const OWN_SCHEMA: &str = "SELECT pg_advisory_lock(1383034988, 0)";
const FREE_SCHEMA: &str = "SELECT pg_advisory_unlock(1383034988, 0)";
const TAKE_NUMBER: &str = "SELECT pg_try_advisory_lock(1383034988, CAST($1 AS INTEGER))";
const TAKE_ANY_NUMBER: &str = "SELECT CAST(n AS BIGINT) FROM generate_series(1, 10000) n \
    WHERE pg_try_advisory_lock(1383034988, n) LIMIT 1";

const HOLDS_NUMBER: &str = "SELECT EXISTS (SELECT 1 FROM pg_locks \
    WHERE locktype = 'advisory' AND granted AND classid = 1383034988 \
    AND CAST(objid AS BIGINT) = $1 AND pid = pg_backend_pid())";

/// The session of one writer at a server.
#[derive(Debug)]
pub(crate) struct PostgresSession {
    options: Box<PgConnectOptions>,
    durability: Durability,
    /// The number that the session holds; 0 before it holds one.
    pub(crate) writer: i64,
}

/// Facts about a server that decide whether it can hold a store.
struct ServerFacts {
    version: i64,
    encoding: String,
    syncs: bool,
}

/// Opens the store for one more writer, making it if it is not there.
pub(crate) async fn for_recording(
    options: &PgConnectOptions,
    durability: Durability,
) -> Result<(StoreConnection, PostgresSession), OpenError> {
    let name = name(options);
    let mut connection = connect(options).await.map_err(database_error(&name))?;
    check_server(&mut connection, &name, durability).await?;
    migrate(&mut connection, &name).await?;
    // Its prepared plans were made before the tables.
    drop(connection);

    let mut session = PostgresSession { options: Box::new(options.clone()), durability, writer: 0 };
    let mut connection = session.connect().await.map_err(database_error(&name))?;

    // Some servers that speak this protocol accept a lock and hold none; a pooler that changes
    // sessions loses it.
    let holds_number: bool = query(HOLDS_NUMBER)
        .bind(session.writer)
        .scalar(&mut connection)
        .await
        .map_err(database_error(&name))?;
    if !holds_number {
        let reason = "its advisory locks do not last as long as a session does";
        return Err(OpenError::Unfit(name, reason.to_owned()));
    }
    Ok((connection, session))
}

/// Opens the store for reading, on a connection that readers share if the location has some. A
/// store of an older format is migrated first.
pub(crate) async fn for_reading(at: &ServerLocation) -> Result<StoreConnection, OpenError> {
    let Some(readers) = at.readers() else { return for_editing(at).await };
    let Some(turn) = readers.turn().await else {
        return Err(OpenError::Busy(name(at), readers.connections_max()));
    };
    let mut connection = match turn.used().await {
        Some(used) => StoreConnection::Postgres(Box::new(ServerConnection::alone(used))),
        None => for_editing(at).await?,
    };
    if let StoreConnection::Postgres(connection) = &mut connection {
        connection.share(turn);
    }
    Ok(connection)
}

/// Opens the store on a connection of its own. One of an older format is migrated first.
pub(crate) async fn for_editing(options: &PgConnectOptions) -> Result<StoreConnection, OpenError> {
    let name = name(options);
    let mut connection = connect(options).await.map_err(database_error(&name))?;
    match format(&mut connection).await.map_err(database_error(&name))? {
        None => Err(OpenError::Missing(name)),
        Some(_) => migrate(&mut connection, &name).await.map(|()| connection),
    }
}

impl PostgresSession {
    /// Opens a connection to write with, and takes a number. It stays the same if no other process
    /// has it by now.
    pub(crate) async fn connect(&mut self) -> Result<StoreConnection, sqlx::Error> {
        let mut connection = connect(&self.options).await?;
        let synchronous = match self.durability {
            Durability::Power | Durability::Relaxed => "SET synchronous_commit = on",
            Durability::Process => "SET synchronous_commit = off",
        };
        query(synchronous).execute(&mut connection).await?;
        query(SHARE_SCHEMA).execute(&mut connection).await?;

        let is_retaken = self.writer > 0
            && query(TAKE_NUMBER).bind(self.writer).scalar::<bool>(&mut connection).await?;
        if !is_retaken {
            self.writer = query(TAKE_ANY_NUMBER).scalar(&mut connection).await?;
        }
        Ok(connection)
    }
}

async fn connect(options: &PgConnectOptions) -> Result<StoreConnection, sqlx::Error> {
    let options = options
        .clone()
        .application_name("rolltape")
        .statement_cache_capacity(STATEMENTS_KEPT)
        .disable_statement_logging();
    let mut connection = tokio::time::timeout(CONNECT_WAIT, PgConnection::connect_with(&options))
        .await
        .map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))??;
    connection.execute(SESSION).await?;
    Ok(StoreConnection::Postgres(Box::new(ServerConnection::alone(connection))))
}

/// Refuses a server that cannot hold a store, and warns of one that does not sync.
async fn check_server(
    connection: &mut StoreConnection,
    name: &str,
    durability: Durability,
) -> Result<(), OpenError> {
    let facts = server_facts(connection).await.map_err(database_error(name))?;
    if facts.version < VERSION_MIN {
        let reason = "the server is older than PostgreSQL 13";
        return Err(OpenError::Unfit(name.to_owned(), reason.to_owned()));
    }
    if facts.encoding != "UTF8" {
        let reason = format!("its encoding is {}, not UTF8", facts.encoding);
        return Err(OpenError::Unfit(name.to_owned(), reason));
    }
    if durability == Durability::Power && !facts.syncs {
        tracing::warn!(
            store = name,
            "the server runs with fsync = off: no commit survives a loss of power"
        );
    }
    Ok(())
}

async fn server_facts(connection: &mut StoreConnection) -> Result<ServerFacts, sqlx::Error> {
    let facts = "SELECT CAST(current_setting('server_version_num') AS BIGINT) AS version, \
                 current_setting('server_encoding') AS encoding, \
                 current_setting('fsync') = 'on' AS syncs";
    let row = query(facts).fetch_one(connection).await?;
    Ok(ServerFacts {
        version: row.try_get("version")?,
        encoding: row.try_get("encoding")?,
        syncs: row.try_get("syncs")?,
    })
}

/// Makes the tables, or changes them to the newest format.
async fn migrate(connection: &mut StoreConnection, name: &str) -> Result<(), OpenError> {
    if format_state(connection, name).await? == FormatState::Newest {
        return Ok(());
    }

    // Writers of the older format share this lock, so that waiting for it fails while one runs.
    let owned = query(OWN_SCHEMA).execute(connection).await;
    owned.map_err(|_| OpenError::OlderWriter(name.to_owned()))?;

    // Another process may have migrated meanwhile.
    let state = format_state(connection, name).await?;
    if state == FormatState::Former {
        convert_server(connection).await.map_err(database_error(name))?;
    }
    let migrated = match state {
        FormatState::Newest => Ok(()),
        FormatState::Behind | FormatState::Former => migrate_server(connection).await,
    };
    migrated.map_err(database_error(name))?;
    query(FREE_SCHEMA).execute(connection).await.map_err(database_error(name))
}

async fn format_state(
    connection: &mut StoreConnection,
    name: &str,
) -> Result<FormatState, OpenError> {
    let format = format(connection).await.map_err(database_error(name))?;
    MIGRATIONS.compare(name, format.unwrap_or(0))
}

/// The newest migration in the database; `None` where it holds no store.
async fn format(connection: &mut StoreConnection) -> Result<Option<i64>, sqlx::Error> {
    let has_table = "SELECT to_regclass('rolltape._sqlx_migrations') IS NOT NULL";
    if !query(has_table).scalar::<bool>(connection).await? {
        return Ok(None);
    }
    query(FORMAT).scalar(connection).await.map(Some)
}

/// The location without its password, for errors.
fn name(options: &PgConnectOptions) -> String {
    Location::Server(ServerLocation::new(options.clone())).to_string()
}

fn database_error(name: &str) -> impl FnOnce(sqlx::Error) -> OpenError {
    let name = name.to_owned();
    |error| OpenError::Database(name, error)
}

#[cfg(test)]
mod tests;
