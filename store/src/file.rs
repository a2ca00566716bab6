//! Opening a file of SQLite's: pragmas, migrations, and the refusal of what is not ours or too new.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::lock::Lock;
use crate::near::{self, Near};
use crate::open::{Durability, OpenError};

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/sqlite");

/// `application_id` of the file header: "Roll".
const APPLICATION_ID: i64 = 0x526f_6c6c;
/// How long a statement waits for another process that writes to the same file.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// Pages that a reader keeps, in KiB: episodes that were recorded side by side lie side by side,
/// and are read one after the other.
const READ_CACHE_KIB: u32 = 16 * 1024;
/// Rows that a reader fetches before they are asked for.
const READ_ROWS: usize = 512;
/// Larger than the default of 4 KiB, because most rows are bodies of tens of kilobytes.
const PAGE_BYTES: u32 = 16 * 1024;

/// Opens the store at `path` for the one writer, making it if it is not there.
pub(crate) async fn for_recording(
    path: &Path,
    durability: Durability,
) -> Result<(SqliteConnection, Lock), OpenError> {
    if is_there(path) {
        // What is not a store gets no lock beside it.
        let (connection, _) = match examine(path).await {
            Ok(looked) => looked,
            // SQLite does not say why it cannot open a file; the system does.
            Err(error @ OpenError::Database(..)) => {
                return Err(Lock::take(path).err().unwrap_or(error));
            }
            Err(error) => return Err(error),
        };
        // A connection that is let go of without this may delete the WAL at any later time.
        let _ = connection.close().await;
    }
    let lock = Lock::take(path)?;
    Ok((for_writing(path, durability).await?, lock))
}

/// Opens the store at `path` beside its recorder, if it has one, for statements of few words.
pub(crate) async fn for_amending(path: &Path) -> Result<SqliteConnection, OpenError> {
    // Brings an older one up to date.
    for_reading(path).await?;
    let again = again(path, Durability::Power).await;
    again.map_err(|error| OpenError::Database(path.display().to_string(), error))
}

/// Opens the store at `path`, made before, for another writing connection.
pub(crate) async fn again(
    path: &Path,
    durability: Durability,
) -> Result<SqliteConnection, sqlx::Error> {
    writing(path, durability).connect().await
}

fn writing(path: &Path, durability: Durability) -> SqliteConnectOptions {
    let synchronous = match durability {
        // With `relaxed`, marks must be on disk before calls may be lost; nobody waits for more.
        Durability::Power | Durability::Relaxed => SqliteSynchronous::Full,
        Durability::Process => SqliteSynchronous::Normal,
    };
    // Checkpoints have a connection of their own.
    base(path).synchronous(synchronous).pragma("wal_autocheckpoint", "0")
}

fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

async fn for_writing(path: &Path, durability: Durability) -> Result<SqliteConnection, OpenError> {
    let name = path.display().to_string();
    let database = |e| OpenError::Database(name.clone(), e);
    if is_there(path) {
        examine(path).await?.0.close().await.map_err(database)?;
    }
    // Making and migrating are synced in every mode: what is lost may be calls, not the store.
    let mut connection = writing(path, Durability::Power)
        .create_if_missing(true)
        .page_size(PAGE_BYTES)
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .journal_mode(SqliteJournalMode::Wal)
        .pragma("application_id", APPLICATION_ID.to_string())
        .connect()
        .await
        .map_err(database)?;
    migrate(&mut connection).await.map_err(|e| migration_failed(&name, e))?;
    if durability == Durability::Process {
        let normal = sqlx::query("PRAGMA synchronous = NORMAL").execute(&mut connection).await;
        normal.map_err(database)?;
    }
    Ok(connection)
}

/// Boxed, so that the future may move between threads: the compiler cannot see that it may when
/// it has to look through the traits below.
fn migrate(
    connection: &mut SqliteConnection,
) -> Pin<Box<dyn Future<Output = Result<(), MigrateError>> + Send + '_>> {
    Box::pin(MIGRATIONS.run_direct(None, connection, false))
}

/// Opens the store at `path` for reading only. One of an older format is brought up to date first.
pub(crate) async fn for_reading(path: &Path) -> Result<SqliteConnection, OpenError> {
    let (connection, format) = examine(path).await?;
    if format == newest() {
        return Ok(connection);
    }
    drop(connection);
    // Not under the hands of a recorder of the older version.
    let _lock = Lock::take(path)?;
    for_writing(path, Durability::Power).await?;
    Ok(examine(path).await?.0)
}

/// The same, for the thread that asks.
pub(crate) async fn for_reading_here(path: &Path) -> Result<Near, OpenError> {
    for_reading(path).await?;
    let opened = near::open(path, BUSY_WAIT, READ_CACHE_KIB);
    opened.map_err(|error| OpenError::Database(path.display().to_string(), error))
}

fn newest() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

/// Looks at what is at `path`: a reading connection and the number of its format.
async fn examine(path: &Path) -> Result<(SqliteConnection, i64), OpenError> {
    let name = path.display().to_string();
    if !path.exists() {
        return Err(OpenError::Missing(name));
    }
    let not_ours = |e: sqlx::Error| match e {
        sqlx::Error::Database(ref inner) if inner.message().contains("not a database") => {
            OpenError::NotAStore(name.clone())
        }
        other => OpenError::Database(name.clone(), other),
    };
    let reading = base(path).read_only(true).row_buffer_size(READ_ROWS);
    // Less than nothing is KiB, not pages.
    let reading = reading.pragma("cache_size", format!("-{READ_CACHE_KIB}"));
    let mut connection = reading.connect().await.map_err(not_ours)?;
    let id: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut connection)
        .await
        .map_err(not_ours)?;
    if id != APPLICATION_ID {
        return Err(OpenError::NotAStore(name));
    }
    let format = format(&mut connection).await.map_err(|e| OpenError::Database(name.clone(), e))?;
    if format > newest() {
        return Err(OpenError::Newer(name, format));
    }
    Ok((connection, format))
}

/// The newest migration in the file; 0 when its maker died before the first one was done.
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

fn base(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_WAIT)
        .foreign_keys(true)
        .disable_statement_logging()
}

fn migration_failed(name: &str, error: MigrateError) -> OpenError {
    match error {
        MigrateError::VersionMissing(version) => OpenError::Newer(name.to_owned(), version),
        other => OpenError::Database(name.to_owned(), sqlx::Error::Migrate(Box::new(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn open(path: &Path) -> Result<(), OpenError> {
        for_writing(path, Durability::Power).await.map(drop)
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
        let mut connection = base(&other).create_if_missing(true).connect().await.unwrap();
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
        let made = base(path).create_if_missing(true);
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
        assert_eq!(examine(&path).await.unwrap().1, 1);
        for_reading(&path).await.unwrap();
        assert_eq!(examine(&path).await.unwrap().1, newest());
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
        let mut connection = for_writing(&path, Durability::Power).await.unwrap();
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
