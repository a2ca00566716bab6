//! Opening a SQLite file: pragmas, migrations, and the refusal of files that are not stores or are
//! too new.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::database::local::LocalConnection;
use crate::error::OpenError;
use crate::migrations::SQLITE as MIGRATIONS;
use crate::sqlite::lock::WriterLock;
use crate::sqlite::private;
use crate::types::Durability;

/// `application_id` of the file header: "Roll".
const APPLICATION_ID: i64 = 0x526f_6c6c;
/// Time that a statement waits for another process that writes to the same file.
pub(crate) const BUSY_WAIT: Duration = Duration::from_secs(5);
/// The page cache of a reader, in KiB: episodes that were recorded side by side lie side by side,
/// and are read one after the other.
const READ_CACHE_KIB: u32 = 16 * 1024;
/// Rows that a reader fetches before they are asked for.
const READ_ROWS: usize = 512;
/// Checkpoints have a connection of their own.
const NO_AUTOCHECKPOINT: &str = "0";
/// Larger than the default of 4 KiB, because most rows are bodies of tens of kilobytes.
const PAGE_BYTES: u32 = 16 * 1024;

/// A connection to a store, and the number of its newest migration.
struct Examined {
    connection: SqliteConnection,
    format: i64,
}

/// The path of the store itself where there is a link to it: SQLite puts its other files beside the
/// store, not beside the link.
pub(crate) fn without_link(path: &Path) -> PathBuf {
    let is_link = path.is_symlink() && has_content(path);
    let found = is_link.then(|| path.canonicalize().ok()).flatten();
    found.unwrap_or_else(|| path.to_owned())
}

/// Opens the store at `path` for its one writer, making it if it is not there. The writer works in
/// a thread of its own.
pub(crate) async fn for_recording(
    path: &Path,
    durability: Durability,
) -> Result<(LocalConnection, WriterLock), OpenError> {
    let (connection, lock) = for_maintenance(path).await?;
    let local = reopen_here(path, durability).map_err(|error| database_error(path, error))?;
    // Only now: the last connection that closes takes the WAL away.
    connection.close().await.map_err(|error| database_error(path, error))?;
    Ok((local, lock))
}

/// Opens the store at `path` as its one writer does, making it if it is not there.
pub(crate) async fn for_maintenance(
    path: &Path,
) -> Result<(SqliteConnection, WriterLock), OpenError> {
    // A file that is not a store gets no lock file beside it.
    if has_content(path) {
        let connection = match examine(path).await {
            Ok(examined) => examined.connection,
            // SQLite does not say why it cannot open a file; the system does.
            Err(error @ OpenError::Database(..)) => {
                return Err(WriterLock::take(path).err().unwrap_or(error));
            }
            Err(error) => return Err(error),
        };
        // A connection that is dropped without this may delete the WAL at any later time.
        let _ = connection.close().await;
    } else if path.is_symlink() {
        return Err(OpenError::Link(path.display().to_string()));
    }

    let lock = WriterLock::take(path)?;
    Ok((create_or_migrate(path).await?, lock))
}

/// Opens the store at `path` beside its recorder, if it has one, to write single records.
pub(crate) async fn for_editing(path: &Path) -> Result<SqliteConnection, OpenError> {
    // Migrates an older one.
    for_reading(path).await?;
    private::narrow(path);
    reopen(path, Durability::Power).await.map_err(|error| database_error(path, error))
}

/// Opens the store at `path`, which exists and is migrated, for another writing connection.
pub(crate) async fn reopen(
    path: &Path,
    durability: Durability,
) -> Result<SqliteConnection, sqlx::Error> {
    write_options(path, durability).connect().await
}

/// The same, for a connection that is used in the caller's own thread.
pub(crate) fn reopen_here(
    path: &Path,
    durability: Durability,
) -> Result<LocalConnection, sqlx::Error> {
    let local = LocalConnection::for_writing(path, BUSY_WAIT)?;
    local.set("foreign_keys", true)?;
    local.set("synchronous", synchronous(durability))?;
    // Statements that may be undone copy pages aside; files for them cost more than the copies.
    local.set("temp_store", "MEMORY")?;
    local.set("wal_autocheckpoint", NO_AUTOCHECKPOINT)?;
    Ok(local)
}

/// Opens the store at `path` for reading only. One of an older format is migrated first.
pub(crate) async fn for_reading(path: &Path) -> Result<SqliteConnection, OpenError> {
    let Examined { connection, format } = examine(path).await?;
    if format == newest() {
        return Ok(connection);
    }
    drop(connection);

    // A recorder of the older version must not be running meanwhile.
    let _lock = WriterLock::take(path)?;
    create_or_migrate(path).await?;
    Ok(examine(path).await?.connection)
}

/// Opens the store at `path` for reading in the caller's own thread.
pub(crate) async fn for_local_reading(path: &Path) -> Result<LocalConnection, OpenError> {
    for_reading(path).await?;
    let local = LocalConnection::for_reading(path, BUSY_WAIT);
    // SQLite takes a negative size as KiB, a positive one as pages.
    local
        .and_then(|local| local.set("cache_size", -i64::from(READ_CACHE_KIB)).map(|()| local))
        .map_err(|error| database_error(path, error))
}

async fn create_or_migrate(path: &Path) -> Result<SqliteConnection, OpenError> {
    if has_content(path) {
        let examined = examine(path).await?;
        examined.connection.close().await.map_err(|error| database_error(path, error))?;
    } else {
        // SQLite gives its other files the mode of this one.
        private::make_empty(path)
            .map_err(|error| OpenError::Create(path.display().to_string(), error))?;
    }
    private::narrow(path);

    // This is synced in every mode: calls may be lost, the store may not.
    let mut connection = write_options(path, Durability::Power)
        .create_if_missing(true)
        .page_size(PAGE_BYTES)
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .journal_mode(SqliteJournalMode::Wal)
        .pragma("application_id", APPLICATION_ID.to_string())
        .connect()
        .await
        .map_err(|error| database_error(path, error))?;
    migrate(&mut connection).await.map_err(|error| migration_error(path, error))?;
    Ok(connection)
}

/// Boxed, so that the future is `Send`: the compiler cannot see that it is when it has to look
/// through sqlx's traits.
fn migrate(
    connection: &mut SqliteConnection,
) -> Pin<Box<dyn Future<Output = Result<(), MigrateError>> + Send + '_>> {
    Box::pin(MIGRATIONS.run_direct(None, connection, false))
}

fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Opens the file at `path` for reading, if it is a store that this version knows.
async fn examine(path: &Path) -> Result<Examined, OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.display().to_string()));
    }
    let mut connection =
        read_options(path).connect().await.map_err(|error| examine_error(path, error))?;

    // Checked before any table is read: another program's file may have tables of the same names.
    let application_id: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut connection)
        .await
        .map_err(|error| examine_error(path, error))?;
    if application_id != APPLICATION_ID {
        return Err(OpenError::NotAStore(path.display().to_string()));
    }

    let format = format(&mut connection).await.map_err(|error| database_error(path, error))?;
    if format > newest() {
        return Err(OpenError::Newer(path.display().to_string(), format));
    }
    Ok(Examined { connection, format })
}

/// The newest migration in the file; 0 when the process that made it died before the first one.
async fn format(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
            .fetch_one(&mut *connection)
            .await?;
    if tables == 0 {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

fn base_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_WAIT)
        .foreign_keys(true)
        .disable_statement_logging()
}

fn read_options(path: &Path) -> SqliteConnectOptions {
    base_options(path)
        .read_only(true)
        .row_buffer_size(READ_ROWS)
        // SQLite takes a negative size as KiB, a positive one as pages.
        .pragma("cache_size", format!("-{READ_CACHE_KIB}"))
}

fn write_options(path: &Path, durability: Durability) -> SqliteConnectOptions {
    base_options(path)
        .pragma("synchronous", synchronous(durability))
        .pragma("wal_autocheckpoint", NO_AUTOCHECKPOINT)
}

fn synchronous(durability: Durability) -> &'static str {
    match durability {
        // With `relaxed`, marks must be on disk before calls may be lost; nothing else waits.
        Durability::Power | Durability::Relaxed => "FULL",
        Durability::Process => "NORMAL",
    }
}

fn database_error(path: &Path, error: sqlx::Error) -> OpenError {
    OpenError::Database(path.display().to_string(), error)
}

fn examine_error(path: &Path, error: sqlx::Error) -> OpenError {
    match error {
        sqlx::Error::Database(ref inner) if inner.message().contains("not a database") => {
            OpenError::NotAStore(path.display().to_string())
        }
        other => database_error(path, other),
    }
}

fn migration_error(path: &Path, error: MigrateError) -> OpenError {
    match error {
        MigrateError::VersionMissing(version) => {
            OpenError::Newer(path.display().to_string(), version)
        }
        other => database_error(path, sqlx::Error::Migrate(Box::new(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn open(path: &Path) -> Result<(), OpenError> {
        create_or_migrate(path).await.map(drop)
    }

    #[tokio::test]
    async fn a_store_is_made_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        open(&path).await.unwrap();
        open(&path).await.unwrap();
        for_reading(&path).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_not_a_store_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("notes.txt");
        std::fs::write(&text, "some notes that are long enough to look like a header").unwrap();
        assert!(matches!(open(&text).await, Err(OpenError::NotAStore(_))));
        assert!(std::fs::read_to_string(&text).unwrap().starts_with("some notes"));

        let other = dir.path().join("other.db");
        let mut connection = base_options(&other).create_if_missing(true).connect().await.unwrap();
        sqlx::query("CREATE TABLE t (x)").execute(&mut connection).await.unwrap();
        drop(connection);
        assert!(matches!(open(&other).await, Err(OpenError::NotAStore(_))));
        assert!(matches!(
            for_reading(&dir.path().join("none.db")).await,
            Err(OpenError::Missing(_))
        ));
    }

    /// A store as an older version made it.
    async fn of_format(path: &Path, format: usize) -> SqliteConnection {
        let made = base_options(path).create_if_missing(true);
        let made = made.pragma("application_id", APPLICATION_ID.to_string()).connect().await;
        let mut made = made.unwrap();
        let older = sqlx::migrate::Migrator {
            migrations: MIGRATIONS.iter().take(format).cloned().collect::<Vec<_>>().into(),
            ..sqlx::migrate::Migrator::DEFAULT
        };
        older.run(&mut made).await.unwrap();
        made
    }

    #[tokio::test]
    async fn a_store_of_the_first_format_is_brought_up_to_date_by_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        drop(of_format(&path, 1).await);
        assert_eq!(examine(&path).await.unwrap().format, 1);
        for_reading(&path).await.unwrap();
        assert_eq!(examine(&path).await.unwrap().format, newest());
    }

    #[tokio::test]
    async fn rewards_of_the_fifth_format_are_about_what_they_were_about() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let mut old = of_format(&path, 5).await;
        let episode = "INSERT INTO episode (episode_id, attempt, source, opened_at) \
                       VALUES ('a', 0, 'path', 1)";
        sqlx::query(episode).execute(&mut old).await.unwrap();
        let call = episode::CallId(uuid::Uuid::from_u128(7));
        for about in [None, Some(call.to_string())] {
            let reward = "INSERT INTO reward (episode_key, call_id, name, value, source, given_at) \
                          VALUES (1, $1, 'reward', 0.5, 'test', 1)";
            sqlx::query(reward).bind(about).execute(&mut old).await.unwrap();
        }
        old.close().await.unwrap();
        let mut snapshot = crate::Snapshot::open(&path).await.unwrap();
        let found = snapshot.episodes(&crate::Selection::default()).await.unwrap();
        let rewards = snapshot.rewards(&found[0]).await.unwrap();
        let scopes: Vec<_> = rewards.into_iter().map(|reward| reward.scope).collect();
        assert_eq!(scopes, [episode::RewardScope::Episode, episode::RewardScope::Call(call)]);
    }

    #[tokio::test]
    async fn marks_of_the_fourth_format_mean_what_they_meant() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let mut old = of_format(&path, 4).await;
        for (name, mark) in [("sound", 0), ("open", 1), ("lossy", 2)] {
            let episode = "INSERT INTO episode (episode_id, attempt, source, opened_at, \
                           may_lack_calls) VALUES ($1, 0, 'path', 1, $2)";
            sqlx::query(episode).bind(name).bind(mark).execute(&mut old).await.unwrap();
        }
        old.close().await.unwrap();
        let marked = async || {
            let mut snapshot = crate::Snapshot::open(&path).await.unwrap();
            let all = snapshot.episodes(&crate::Selection::default()).await.unwrap();
            let marked = all.into_iter().filter(|episode| episode.may_lack_calls);
            marked.map(|episode| episode.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(marked().await, ["lossy", "open"]);
        let (store, writer) = crate::Store::open(&path, Durability::Relaxed).await.unwrap();
        drop(store);
        writer.finish().await;
        assert_eq!(marked().await, ["lossy", "open"], "whoever recorded it died");
    }

    #[tokio::test]
    async fn a_store_from_a_newer_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let mut connection = create_or_migrate(&path).await.unwrap();
        sqlx::query("UPDATE _sqlx_migrations SET version = 9000 + version")
            .execute(&mut connection)
            .await
            .unwrap();
        drop(connection);
        let error = open(&path).await.unwrap_err();
        assert!(matches!(error, OpenError::Newer(_, 9001..)), "{error}");
        assert!(matches!(for_reading(&path).await, Err(OpenError::Newer(_, 9001..))));
    }
}
