//! Giving space back to the file system after rows are gone.

use std::path::Path;

use sqlx::{Row, SqliteConnection};

use crate::link::Link;
use crate::query::query;

/// Pages that one step gives back, so that no step fills the write-ahead log: 64 MiB.
const STEP_PAGES: u32 = 4096;
/// What `PRAGMA auto_vacuum` says of a file that can give pages back one by one.
const INCREMENTAL: i64 = 2;

/// What became of free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// The file is as short as its contents.
    Returned,
    /// Something reads an older moment of the file; SQLite shortens it when that is done.
    Held,
}

/// Gives free pages back. A store of an older version cannot do it page by page: it is written
/// anew once, for which there must be room, and can from then on.
pub(crate) async fn give_back(connection: &mut SqliteConnection) -> Result<Space, sqlx::Error> {
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
        if left >= free {
            break;
        }
        free = left;
        checkpoint(connection).await?;
    }
    checkpoint(connection).await
}

/// Brings what the write-ahead log holds into the file.
async fn checkpoint(connection: &mut SqliteConnection) -> Result<Space, sqlx::Error> {
    let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(connection).await?;
    Ok(if row.try_get::<i64, _>(0)? == 0 { Space::Returned } else { Space::Held })
}

async fn number(
    connection: &mut SqliteConnection,
    pragma: &'static str,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(pragma).fetch_one(connection).await
}

/// Bytes of the tables of a store on a server, with their indexes.
pub(crate) async fn server_bytes(link: &mut Link) -> Result<u64, sqlx::Error> {
    let bytes = "SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS BIGINT) \
                 FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace \
                 AND c.relkind = 'r'";
    Ok(query(bytes).scalar::<i64>(link).await?.unsigned_abs())
}

/// The length of a store's file; 0 when it cannot be told.
pub(crate) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}
