//! Giving free pages of a file back to the file system.

use std::path::Path;

use sqlx::{Row, SqliteConnection};

/// Pages that one step gives back, so that no step fills the WAL: 64 MiB.
const STEP_PAGES: u32 = 4096;
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
pub(crate) async fn give_back(connection: &mut SqliteConnection) -> Result<FreeSpace, sqlx::Error> {
    if number(connection, "PRAGMA auto_vacuum").await? != INCREMENTAL {
        if number(connection, "PRAGMA freelist_count").await? > 0 {
            sqlx::query("PRAGMA auto_vacuum = INCREMENTAL").execute(&mut *connection).await?;
            sqlx::query("VACUUM").execute(&mut *connection).await?;
        }
        return checkpoint(connection).await;
    }

    let mut free = number(connection, "PRAGMA freelist_count").await?;
    while free > 0 {
        let step = format!("PRAGMA incremental_vacuum({STEP_PAGES})");
        sqlx::query(sqlx::AssertSqlSafe(step)).execute(&mut *connection).await?;
        let left = number(connection, "PRAGMA freelist_count").await?;
        // A reader may keep SQLite from freeing anything.
        if left >= free {
            break;
        }
        free = left;
        checkpoint(connection).await?;
    }
    checkpoint(connection).await
}

/// Copies the whole WAL into the file and shortens both.
async fn checkpoint(connection: &mut SqliteConnection) -> Result<FreeSpace, sqlx::Error> {
    let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(connection).await?;
    let is_blocked = row.try_get::<i64, _>(0)? != 0;
    Ok(if is_blocked { FreeSpace::HeldByReader } else { FreeSpace::Returned })
}

async fn number(
    connection: &mut SqliteConnection,
    pragma: &'static str,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(pragma).fetch_one(connection).await
}

/// The length of a store's file in bytes; 0 when it cannot be told.
pub(crate) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}
