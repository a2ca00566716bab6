//! Opening a SQLite file: pragmas, migrations, and the refusal of files that are not stores, are
//! too new or too old.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::database::local::{LocalConnection, is_no_database};
use crate::error::OpenError;
use crate::migrations::{FORMAT, FormatState, SQLITE as MIGRATIONS, convert_file, migrate_file};
use crate::sqlite::lock::WriterLock;
use crate::sqlite::private;
use crate::types::Durability;

/// `application_id` of the file header: "Roll".
const APPLICATION_ID: i64 = 0x526f_6c6c;
/// Time that a statement waits for another process that writes to the same file.
pub(crate) const BUSY_WAIT: Duration = Duration::from_secs(5);
/// The page cache of a reader, in KiB: episodes that were recorded side by side lie side by side,
/// and are read one after the other.
const READ_CACHE_KIB: i64 = 16 * 1024;
/// Checkpoints have a connection of their own.
const NO_AUTOCHECKPOINT: i64 = 0;
/// A commit writes the last page of some ten trees, whatever it adds to them: small pages are
/// bytes that are not written.
const PAGE_BYTES: i64 = 4 * 1024;

/// A connection to a store, and its format.
#[derive(Debug)]
struct Examined {
    connection: LocalConnection,
    state: FormatState,
}

/// The path of the store itself where there is a link to it: SQLite puts its other files beside the
/// store, not beside the link.
pub(crate) fn without_link(path: &Path) -> PathBuf {
    let is_link = path.is_symlink() && has_content(path);
    let found = is_link.then(|| path.canonicalize().ok()).flatten();
    found.unwrap_or_else(|| path.to_owned())
}

/// Opens the store at `path` for its one writer, making it if it is not there.
pub(crate) fn for_recording(
    path: &Path,
    durability: Durability,
) -> Result<(LocalConnection, WriterLock), OpenError> {
    let (connection, lock) = for_maintenance(path)?;
    let writer = reopen(path, durability).map_err(|error| database_error(path, error))?;
    // Only now: the last connection that closes takes the WAL away.
    drop(connection);
    Ok((writer, lock))
}

/// Opens the store at `path` as its one writer does, making it if it is not there.
pub(crate) fn for_maintenance(path: &Path) -> Result<(LocalConnection, WriterLock), OpenError> {
    // A file that is not a store gets no lock file beside it.
    if has_content(path) {
        match examine(path) {
            Ok(examined) => drop(examined.connection),
            // SQLite does not say why it cannot open a file; the system does.
            Err(error @ OpenError::Database(..)) => {
                return Err(WriterLock::take(path).err().unwrap_or(error));
            }
            Err(error) => return Err(error),
        }
    } else if path.is_symlink() {
        return Err(OpenError::Link(path.display().to_string()));
    }

    let lock = WriterLock::take(path)?;
    Ok((create_or_migrate(path)?, lock))
}

/// Opens the store at `path` beside its recorder, if it has one, to write single records.
pub(crate) fn for_editing(path: &Path) -> Result<LocalConnection, OpenError> {
    // Migrates an older one.
    drop(for_reading(path)?);
    private::narrow(path);
    reopen(path, Durability::Power).map_err(|error| database_error(path, error))
}

/// Opens the store at `path`, which exists and is migrated, for another writing connection.
pub(crate) fn reopen(path: &Path, durability: Durability) -> Result<LocalConnection, sqlx::Error> {
    let connection = LocalConnection::for_writing(path, BUSY_WAIT)?;
    connection.set("foreign_keys", true)?;
    connection.set("synchronous", synchronous(durability))?;
    // Statements that may be undone copy pages aside; files for them cost more than the copies.
    connection.set("temp_store", "MEMORY")?;
    connection.set("wal_autocheckpoint", NO_AUTOCHECKPOINT)?;
    Ok(connection)
}

/// Opens the store at `path` for reading only. One of an older format is migrated first.
pub(crate) fn for_reading(path: &Path) -> Result<LocalConnection, OpenError> {
    let Examined { connection, state } = examine(path)?;
    if state == FormatState::Newest {
        return Ok(connection);
    }
    drop(connection);

    // A recorder of the older version must not be running meanwhile.
    let _lock = WriterLock::take(path)?;
    drop(create_or_migrate(path)?);
    Ok(examine(path)?.connection)
}

/// Opens the segment at `path`, which is never changed: one of an older format is copied to a file
/// without a name, and the copy is migrated.
pub(crate) fn for_segment(path: &Path) -> Result<LocalConnection, OpenError> {
    let Examined { connection, state } = examine(path)?;
    if state == FormatState::Newest {
        return Ok(connection);
    }

    let copied = tempfile::NamedTempFile::new()
        .and_then(|copy| std::fs::copy(path, copy.path()).map(|_| copy))
        .map_err(|error| OpenError::Create(path.display().to_string(), error))?;
    let migrated = || {
        let writer = LocalConnection::for_writing(copied.path(), BUSY_WAIT)?;
        writer.set("journal_mode", "MEMORY")?;
        migrate_file(&writer)
    };
    migrated().map_err(|error| database_error(path, error))?;
    // An open file stays readable without its name.
    Ok(examine(copied.path())?.connection)
}

/// Opens the store at `path` for copying it. True if the copy must be converted by [`convert`].
pub(crate) fn for_copying(path: &Path) -> Result<(LocalConnection, bool), OpenError> {
    match inspect(path)? {
        Examined { connection, state: FormatState::Former } => Ok((connection, true)),
        _ => for_reading(path).map(|connection| (connection, false)),
    }
}

/// Converts a copy of a store of the earlier history.
pub(crate) fn convert(copy: &Path) -> Result<(), sqlx::Error> {
    let connection = LocalConnection::for_writing(copy, BUSY_WAIT)?;
    // No file is left beside the copy, which is synced when it is whole.
    connection.set("journal_mode", "MEMORY")?;
    convert_file(&connection)
}

/// Makes a store in the empty file at `path`, to be filled before it gets its name.
pub(crate) fn for_filling(path: &Path) -> Result<LocalConnection, sqlx::Error> {
    let connection = LocalConnection::for_writing(path, BUSY_WAIT)?;
    // No file is left beside it, and it is synced when it is whole.
    connection.set("journal_mode", "MEMORY")?;
    connection.set("synchronous", "OFF")?;
    connection.set("foreign_keys", false)?;
    connection.set("page_size", PAGE_BYTES)?;
    connection.set("auto_vacuum", "INCREMENTAL")?;
    connection.set("application_id", APPLICATION_ID)?;

    migrate_file(&connection)?;
    Ok(connection)
}

fn create_or_migrate(path: &Path) -> Result<LocalConnection, OpenError> {
    if has_content(path) {
        drop(examine(path)?);
    } else {
        // SQLite gives its other files the mode of this one.
        private::make_empty(path)
            .map_err(|error| OpenError::Create(path.display().to_string(), error))?;
    }
    private::narrow(path);
    migrated(path).map_err(|error| database_error(path, error))
}

/// Opens the file at `path`, which may be empty, and brings it to the newest format.
fn migrated(path: &Path) -> Result<LocalConnection, sqlx::Error> {
    // This is synced in every mode: calls may be lost, the store may not.
    let connection = reopen(path, Durability::Power)?;

    // Both only have an effect on an empty file, before it gets its journal.
    connection.set("page_size", PAGE_BYTES)?;
    connection.set("auto_vacuum", "INCREMENTAL")?;
    connection.set("journal_mode", "WAL")?;
    connection.set("application_id", APPLICATION_ID)?;

    migrate_file(&connection)?;
    Ok(connection)
}

/// Opens the file at `path` for reading, if it is a store that this version uses.
fn examine(path: &Path) -> Result<Examined, OpenError> {
    let examined = inspect(path)?;
    match examined.state {
        FormatState::Former => Err(OpenError::Former(path.display().to_string())),
        FormatState::Newest | FormatState::Behind => Ok(examined),
    }
}

/// Opens the file at `path` for reading, if it is a store that this version knows.
fn inspect(path: &Path) -> Result<Examined, OpenError> {
    let name = path.display().to_string();
    if !path.exists() {
        return Err(OpenError::Missing(name));
    }
    let connection = LocalConnection::for_reading(path, BUSY_WAIT);
    // SQLite takes a negative size as KiB, a positive one as pages.
    let connection = connection
        .and_then(|file| file.set("cache_size", -READ_CACHE_KIB).map(|()| file))
        .map_err(|error| examine_error(path, error))?;

    // Checked before any table is read: another program's file may have tables of the same names.
    let application_id = connection.number("PRAGMA application_id");
    if application_id.map_err(|error| examine_error(path, error))? != APPLICATION_ID {
        return Err(OpenError::NotAStore(name));
    }

    let format = format(&connection).map_err(|error| database_error(path, error))?;
    Ok(Examined { connection, state: MIGRATIONS.compare(&name, format)? })
}

/// The format of a file; 0 when the process that made it died before the first migration.
fn format(connection: &LocalConnection) -> Result<i64, sqlx::Error> {
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'";
    match connection.number(tables)? {
        0 => Ok(0),
        _ => connection.number(FORMAT),
    }
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
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
    match is_no_database(&error) {
        true => OpenError::NotAStore(path.display().to_string()),
        false => database_error(path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<(), OpenError> {
        create_or_migrate(path).map(drop)
    }

    #[test]
    fn a_store_is_made_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        open(&path).unwrap();
        open(&path).unwrap();
        let store = for_reading(&path).unwrap();
        let made = ["page_size", "auto_vacuum", "application_id"];
        let made = made.map(|name| store.number(&format!("PRAGMA {name}")).unwrap());
        assert_eq!(made, [PAGE_BYTES, 2, APPLICATION_ID]);
        let journal = store.fetch("PRAGMA journal_mode", &[], 1).unwrap();
        assert_eq!(journal[0].named::<String>("journal_mode").unwrap(), "wal");
    }

    #[test]
    fn what_is_not_a_store_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("notes.txt");
        std::fs::write(&text, "some notes that are long enough to look like a header").unwrap();
        assert!(matches!(open(&text), Err(OpenError::NotAStore(_))));
        assert!(std::fs::read_to_string(&text).unwrap().starts_with("some notes"));

        let other = dir.path().join("other.db");
        std::fs::write(&other, "").unwrap();
        let connection = LocalConnection::for_writing(&other, BUSY_WAIT).unwrap();
        connection.run("CREATE TABLE t (x)").unwrap();
        drop(connection);
        assert!(matches!(open(&other), Err(OpenError::NotAStore(_))));
        assert!(matches!(for_reading(&dir.path().join("none.db")), Err(OpenError::Missing(_))));
    }

    #[test]
    fn a_store_whose_making_was_cut_off_is_finished_by_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        std::fs::write(&path, "").unwrap();
        let begun = LocalConnection::for_writing(&path, BUSY_WAIT).unwrap();
        begun.set("application_id", APPLICATION_ID).unwrap();
        drop(begun);
        assert_eq!(examine(&path).unwrap().state, FormatState::Behind);
        for_reading(&path).unwrap();
        assert_eq!(examine(&path).unwrap().state, FormatState::Newest);
    }

    #[test]
    fn a_store_from_a_newer_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let connection = create_or_migrate(&path).unwrap();
        connection.run("UPDATE _sqlx_migrations SET version = 9000 + version").unwrap();
        drop(connection);
        let error = open(&path).unwrap_err();
        assert!(matches!(error, OpenError::Newer(_, 9001..)), "{error}");
        assert!(matches!(for_reading(&path), Err(OpenError::Newer(_, 9001..))));
    }
}
