//! Giving free pages of a file back to the file system.

use std::path::Path;

use crate::database::local::LocalConnection;

/// Gives back 4096 pages, 16 or 64 MiB, so that no step fills the WAL.
const STEP: &str = "PRAGMA incremental_vacuum(4096)";
const FREE_PAGES: &str = "PRAGMA freelist_count";
/// The value of `PRAGMA auto_vacuum` of a file that can give pages back one by one.
const INCREMENTAL: i64 = 2;

/// The result of giving space back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeSpace {
    /// The file is as short as its contents.
    Returned,
    /// A reader holds an older snapshot of the file; SQLite shortens the file once that is closed.
    HeldByReader,
}

/// Gives free pages back. A store of an older version cannot do it page by page: it is rewritten
/// once, which needs room for a copy, and can from then on.
pub(crate) fn give_back(file: &LocalConnection) -> Result<FreeSpace, sqlx::Error> {
    if !can_shrink(file)? {
        if free_pages(file)? > 0 {
            file.run("PRAGMA auto_vacuum = INCREMENTAL")?;
            file.run("VACUUM")?;
        }
        return checkpoint(file);
    }

    let mut free = free_pages(file)?;
    while free > 0 {
        file.run(STEP)?;
        let left = free_pages(file)?;
        // A reader may keep SQLite from freeing anything.
        if left >= free {
            break;
        }
        free = left;
        checkpoint(file)?;
    }
    checkpoint(file)
}

/// Rewrites the file without what rows left, and empties the WAL.
pub(crate) fn rewrite(file: &LocalConnection) -> Result<FreeSpace, sqlx::Error> {
    file.run("VACUUM")?;
    checkpoint(file)
}

/// True if a file can give pages back one by one.
pub(crate) fn can_shrink(file: &LocalConnection) -> Result<bool, sqlx::Error> {
    Ok(file.number("PRAGMA auto_vacuum")? == INCREMENTAL)
}

/// The number of free pages of a file.
pub(crate) fn free_pages(file: &LocalConnection) -> Result<i64, sqlx::Error> {
    file.number(FREE_PAGES)
}

/// Gives so many free pages back, in a transaction of its own.
pub(crate) fn give_back_some(file: &LocalConnection, pages: i64) -> Result<(), sqlx::Error> {
    file.run(&format!("PRAGMA incremental_vacuum({pages})"))
}

/// Copies the whole WAL into the file and shortens both.
fn checkpoint(file: &LocalConnection) -> Result<FreeSpace, sqlx::Error> {
    let is_blocked = file.number("PRAGMA wal_checkpoint(TRUNCATE)")? != 0;
    Ok(if is_blocked { FreeSpace::HeldByReader } else { FreeSpace::Returned })
}

/// The length of a store's file in bytes; 0 when it cannot be told.
pub(crate) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}
