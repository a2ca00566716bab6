//! What a store wants to be removed from its segments, and how it turns to the segments that
//! replace others.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use episode::{AttemptId, Micros};

use crate::attempts::attempt_of;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::location::Location;
use crate::maintenance::prune::remove::remove_line;
use crate::maintenance::segments::files::add_file;
use crate::maintenance::segments::lock::{lock_file, lock_server};
use crate::maintenance::segments::remove::{SegmentRemoval, Unwanted};
use crate::maintenance::segments::{SegmentError, between_steps};
use crate::open;
use crate::snapshot::catalog::{CatalogEntry, SegmentFolder};

const WANTED: &str = "SELECT EXISTS (SELECT 1 FROM forgotten)";
const FILES: &str = "SELECT * FROM segment_file f WHERE EXISTS \
    (SELECT 1 FROM forgotten g WHERE g.segment_file_key = f.segment_file_key) \
    ORDER BY segment_file_key";
const OF_FILE: &str = "SELECT episode_id, attempt, has_late FROM forgotten \
    WHERE segment_file_key = $1";
const OF_FOLDER: &str = "SELECT * FROM segment_file WHERE folder = $1 ORDER BY segment_file_key";
const HELD: &str = "SELECT e.episode_key, e.episode_id, e.attempt FROM sealed s \
    JOIN episode e USING (episode_key) WHERE s.segment_file_key = $1";
const TURN: &str = "UPDATE sealed SET segment_file_key = $2 WHERE segment_file_key = $1";
const INHERIT: &str = "UPDATE segment_file SET \
    is_taken_out = (SELECT o.is_taken_out FROM segment_file o WHERE o.segment_file_key = $1), \
    has_stale = (SELECT o.has_stale FROM segment_file o WHERE o.segment_file_key = $1) \
    WHERE segment_file_key = $2";
const DROP_FILE: [&str; 2] = [
    "DELETE FROM forgotten WHERE segment_file_key = $1",
    "DELETE FROM segment_file WHERE segment_file_key = $1",
];

/// Removes from the segments of the store at a location what was pruned from the store.
///
/// # Errors
/// [`SegmentError`] when a segment cannot be read or written, or another process seals the store.
/// What is left to do is done by the next call, or by the next sealing.
pub(crate) async fn forget_pruned(at: &Location) -> Result<SegmentRemoval, SegmentError> {
    let mut removal = SegmentRemoval::default();
    let mut connection = open::for_editing(at).await?;
    if query(WANTED).scalar::<bool>(&mut connection).await? {
        let _lock = match at {
            Location::File(path) => Some(lock_file(path)?),
            Location::Server(_) => {
                lock_server(at, &mut connection).await?;
                None
            }
        };
        if connection.is_file() {
            // As in `seal`.
            query("PRAGMA foreign_keys = OFF").execute(&mut connection).await?;
        }
        forget(&mut connection, &mut removal).await?;
    }
    connection.close().await?;
    Ok(removal)
}

/// A file that a store knows.
struct FileOfStore {
    key: i64,
    folder: SegmentFolder,
    name: String,
    sealed_at: Micros,
    is_taken_out: bool,
}

impl FileOfStore {
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            key: row.try_get("segment_file_key")?,
            folder: SegmentFolder::at(row.try_get::<String>("folder")?),
            name: row.try_get("name")?,
            sealed_at: row.try_get("sealed_at")?,
            is_taken_out: row.try_get::<i64>("is_taken_out")? != 0,
        })
    }
}

/// Removes from segments what was pruned. The store's lock is held.
pub(super) async fn forget(
    connection: &mut StoreConnection,
    removal: &mut SegmentRemoval,
) -> Result<(), SegmentError> {
    for row in query(FILES).fetch_all(connection).await? {
        let file = FileOfStore::of(&row)?;
        let (mut attempts, mut has_late) = (BTreeSet::new(), false);
        for row in query(OF_FILE).bind(file.key).fetch_all(connection).await? {
            attempts.insert(attempt_of(&row)?);
            has_late |= row.try_get::<i64>("has_late")? != 0;
        }
        remove_from(&file, &attempts, has_late, removal).await?;
        catch_up(connection, &file).await?;
        between_steps()?;
        query(DROP_FILE[0]).bind(file.key).execute(connection).await?;
        file.folder.sweep(removal)?;
    }
    Ok(())
}

/// Replaces a segment, and the files of what came late of its store.
async fn remove_from(
    file: &FileOfStore,
    attempts: &BTreeSet<AttemptId>,
    has_late: bool,
    removal: &mut SegmentRemoval,
) -> Result<(), SegmentError> {
    check_folder(file.folder.path())?;
    let entries = file.folder.entries()?;
    let named = entries.iter().find(|entry| entry.file == file.name);
    // A file without an entry goes as a whole.
    let Some(entry) = named else { return Ok(()) };

    let unwanted = Unwanted { store: &entry.store, attempts, gone: BTreeSet::new() };
    removal.entries.extend(file.folder.without(entry.number, &unwanted).await?);
    let live = SegmentFolder::live(&entries).into_iter();
    for late in live.filter(|late| has_late && late.kind.is_late() && late.store == entry.store) {
        removal.entries.extend(file.folder.without(late.number, &unwanted).await?);
    }
    Ok(())
}

/// Refuses a folder that is not there: it may be one that is not mounted.
fn check_folder(folder: &Path) -> Result<(), SegmentError> {
    folder.read_dir().map(drop).map_err(SegmentError::io(folder))
}

/// Turns the store to what replaces any of the files that it knows in a folder.
pub(super) async fn catch_up_all(
    connection: &mut StoreConnection,
    folder: &SegmentFolder,
) -> Result<(), SegmentError> {
    let name = folder.path().display().to_string();
    for row in query(OF_FOLDER).bind(name).fetch_all(connection).await? {
        catch_up(connection, &FileOfStore::of(&row)?).await?;
    }
    Ok(())
}

/// Turns the store to what replaces a file, if anything does. The lines of attempts that were
/// removed go.
async fn catch_up(
    connection: &mut StoreConnection,
    file: &FileOfStore,
) -> Result<(), SegmentError> {
    let entries = file.folder.entries()?;
    let Some(entry) = entries.iter().find(|entry| entry.file == file.name) else {
        return drop_without_entry(connection, file).await;
    };
    let last = SegmentFolder::last_of(&entries, entry.number).unwrap_or(entry);
    if last.number == entry.number {
        return Ok(());
    }

    connection.begin().await?;
    remove_lines(connection, file, last).await?;
    let key = add_file(connection, &file.folder, last, file.sealed_at).await?;
    query(INHERIT).bind(file.key).bind(key).execute(connection).await?;
    query(TURN).bind(file.key).bind(key).execute(connection).await?;
    for statement in DROP_FILE {
        query(statement).bind(file.key).execute(connection).await?;
    }
    Ok(connection.commit().await?)
}

/// Removes the lines of attempts that were removed from a segment.
async fn remove_lines(
    connection: &mut StoreConnection,
    file: &FileOfStore,
    last: &CatalogEntry,
) -> Result<(), SegmentError> {
    for row in query(HELD).bind(file.key).fetch_all(connection).await? {
        if last.is_empty() || last.has_removed(&attempt_of(&row)?) {
            remove_line(connection, row.try_get("episode_key")?).await?;
        }
    }
    Ok(())
}

/// Drops a file that never got an entry: a sealing died before that, and nobody reads it.
async fn drop_without_entry(
    connection: &mut StoreConnection,
    file: &FileOfStore,
) -> Result<(), SegmentError> {
    let is_used = query(HELD).bind(file.key).fetch_optional(connection).await?.is_some();
    if file.is_taken_out || is_used {
        return Ok(());
    }
    let path = file.folder.path().join(&file.name);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(SegmentError::io(path)(error));
        }
        _ => {}
    }

    connection.begin().await?;
    for statement in DROP_FILE {
        query(statement).bind(file.key).execute(connection).await?;
    }
    Ok(connection.commit().await?)
}
