//! Opening a PostgreSQL database: its schema, its migrations, and the numbers of those who write.
//!
//! All of a store is in the schema `rolltape`. Several may write to it at a time. Each holds an
//! advisory lock on a number, for as long as its session lives; what it keeps in memory, reels,
//! goes by that number. A restarted writer finds the lowest number free, and goes on with the
//! reels that are there under it.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};

use crate::link::Link;
use crate::location::Location;
use crate::open::{Durability, OpenError};
use crate::query::query;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/postgres");

/// The oldest server that makes random keys by itself, as `server_version_num`.
const VERSION_MIN: i64 = 130_000;
/// How long a connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Statements whose plans a connection keeps: there is one for each shape of a call.
const STATEMENTS_KEPT: usize = 256;

/// Begins a session. Another process may hold the schema's lock while it makes the tables.
const SESSION: &str = "SET search_path = rolltape; SET lock_timeout = '15s'; \
    SET client_min_messages = warning";

/// Advisory locks are pairs of numbers; the first one is ours: "Roll".
/// Number 0 is for the schema: shared by all who write, alone by whoever changes it.
const SHARE_SCHEMA: &str = "SELECT pg_advisory_lock_shared(1383034988, 0)";
const OWN_SCHEMA: &str = "SELECT pg_advisory_lock(1383034988, 0)";
const FREE_SCHEMA: &str = "SELECT pg_advisory_unlock(1383034988, 0)";
const TAKE: &str = "SELECT pg_try_advisory_lock(1383034988, CAST($1 AS INTEGER))";
const TAKE_ANY: &str = "SELECT CAST(n AS BIGINT) FROM generate_series(1, 10000) n \
    WHERE pg_try_advisory_lock(1383034988, n) LIMIT 1";

const HOLDS: &str = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted \
    AND classid = 1383034988 AND CAST(objid AS BIGINT) = $1 AND pid = pg_backend_pid())";

/// A place at a server that is written to.
#[derive(Debug)]
pub(crate) struct Slot {
    options: Box<PgConnectOptions>,
    durability: Durability,
    pub(crate) writer: i64,
}

type Opened = Result<Link, OpenError>;

/// Opens the store for one more writer, making it if it is not there.
pub(crate) async fn for_recording(
    options: &PgConnectOptions,
    durability: Durability,
) -> Result<(Link, Slot), OpenError> {
    let name = name(options);
    let failed = |error| OpenError::Database(name.clone(), error);
    let mut link = connect(options).await.map_err(failed)?;
    check_server(&mut link, (&name, durability)).await?;
    bring_up_to_date(&mut link, &name).await?;
    // Its plans know nothing of the tables yet.
    drop(link);
    let mut slot = Slot { options: Box::new(options.clone()), durability, writer: 0 };
    let mut link = slot.connect().await.map_err(failed)?;
    // Some that speak this wire take a lock and hold none; so does a pooler that changes sessions.
    if !query(HOLDS).bind(slot.writer).scalar::<bool>(&mut link).await.map_err(failed)? {
        let what = "advisory locks do not last there as long as a session does";
        return Err(OpenError::Unfit(name, what.to_owned()));
    }
    Ok((link, slot))
}

/// Opens the store beside those who record into it, for statements of few words.
pub(crate) async fn for_amending(options: &PgConnectOptions) -> Opened {
    for_reading(options).await
}

/// Opens the store for reading.
pub(crate) async fn for_reading(options: &PgConnectOptions) -> Opened {
    let name = name(options);
    let failed = |error| OpenError::Database(name.clone(), error);
    let mut link = connect(options).await.map_err(failed)?;
    match format(&mut link).await.map_err(failed)? {
        None => Err(OpenError::Missing(name)),
        Some(_) => bring_up_to_date(&mut link, &name).await.map(|()| link),
    }
}

impl Slot {
    /// A connection to write with. The number stays the same if nobody else has it by now.
    pub(crate) async fn connect(&mut self) -> Result<Link, sqlx::Error> {
        let mut link = connect(&self.options).await?;
        let synchronous = match self.durability {
            Durability::Power | Durability::Relaxed => "SET synchronous_commit = on",
            Durability::Process => "SET synchronous_commit = off",
        };
        query(synchronous).execute(&mut link).await?;
        query(SHARE_SCHEMA).execute(&mut link).await?;
        let known = self.writer;
        let is_ours = known > 0 && query(TAKE).bind(known).scalar::<bool>(&mut link).await?;
        if !is_ours {
            self.writer = query(TAKE_ANY).scalar(&mut link).await?;
        }
        Ok(link)
    }
}

async fn connect(options: &PgConnectOptions) -> Result<Link, sqlx::Error> {
    let options = options
        .clone()
        .application_name("rolltape")
        .statement_cache_capacity(STATEMENTS_KEPT)
        .disable_statement_logging();
    let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    let opened = tokio::time::timeout(CONNECT_WAIT, PgConnection::connect_with(&options));
    let mut connection = opened.await.map_err(late)??;
    connection.execute(SESSION).await?;
    Ok(Link::Server(Box::new(connection)))
}

async fn check_server(
    link: &mut Link,
    (name, durability): (&str, Durability),
) -> Result<(), OpenError> {
    let facts = "SELECT CAST(current_setting('server_version_num') AS BIGINT) AS version, \
                 current_setting('server_encoding') AS encoding, \
                 current_setting('fsync') = 'on' AS syncs";
    let facts = async {
        let row = query(facts).fetch_one(link).await?;
        let encoding: String = row.try_get("encoding")?;
        Ok((row.try_get("version")?, encoding, row.try_get::<bool>("syncs")?))
    };
    let (version, encoding, syncs): (i64, _, _) =
        facts.await.map_err(|error| OpenError::Database(name.to_owned(), error))?;
    let unfit = |what: &str| Err(OpenError::Unfit(name.to_owned(), what.to_owned()));
    if version < VERSION_MIN {
        return unfit("the server is older than PostgreSQL 13");
    }
    if encoding != "UTF8" {
        return unfit(&format!("its encoding is {encoding}, not UTF8"));
    }
    if durability == Durability::Power && !syncs {
        tracing::warn!(
            store = name,
            "the server runs with fsync = off: no commit survives a loss of power"
        );
    }
    Ok(())
}

/// Makes the tables, or changes them to the newest format.
async fn bring_up_to_date(link: &mut Link, name: &str) -> Result<(), OpenError> {
    let failed = |error| OpenError::Database(name.to_owned(), error);
    if is_newest(format(link).await.map_err(failed)?, name)? {
        return Ok(());
    }
    let owned = query(OWN_SCHEMA).execute(link).await;
    // Whoever writes shares the lock, in the older format.
    owned.map_err(|_| OpenError::OlderWriter(name.to_owned()))?;
    // Somebody else may have been faster.
    if !is_newest(format(link).await.map_err(failed)?, name)? {
        query("CREATE SCHEMA IF NOT EXISTS rolltape").execute(link).await.map_err(failed)?;
        if let Link::Server(connection) = link {
            let migrated = Box::pin(MIGRATIONS.run_direct(None, &mut **connection, false));
            migrated.await.map_err(|error| migration_failed(name, error))?;
        }
    }
    query(FREE_SCHEMA).execute(link).await.map_err(failed)
}

fn is_newest(format: Option<i64>, name: &str) -> Result<bool, OpenError> {
    let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
    match format {
        Some(format) if format > newest => Err(OpenError::Newer(name.to_owned(), format)),
        format => Ok(format == Some(newest)),
    }
}

/// The newest migration in the database; none where it holds no store.
async fn format(link: &mut Link) -> Result<Option<i64>, sqlx::Error> {
    let there = "SELECT to_regclass('rolltape._sqlx_migrations') IS NOT NULL";
    if !query(there).scalar::<bool>(link).await? {
        return Ok(None);
    }
    query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations").scalar(link).await.map(Some)
}

fn migration_failed(name: &str, error: MigrateError) -> OpenError {
    match error {
        MigrateError::VersionMissing(version) => OpenError::Newer(name.to_owned(), version),
        other => OpenError::Database(name.to_owned(), sqlx::Error::Migrate(Box::new(other))),
    }
}

fn name(options: &PgConnectOptions) -> String {
    Location::Server(Box::new(options.clone())).to_string()
}

#[cfg(test)]
mod tests;
