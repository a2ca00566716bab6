//! Checkpoints, beside the commits: what is in the WAL goes into the database file from a
//! connection of its own, so that no commit waits for it.
//!
//! A WAL starts over only when a commit finds all of it checkpointed. Under steady load there is
//! always a newer commit; so above a bound the writer itself does the last, short stretch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::Notify;

use crate::file;
use crate::open::Durability;

/// Bytes of the WAL that are worth a checkpoint.
const CHECKPOINT_BYTES: i64 = 8 << 20;
/// Bytes of the WAL above which the writer does the last stretch itself. Only a reader that
/// holds on to an old moment lets it grow further.
const WAL_BYTES_MAX: i64 = 64 << 20;
/// Time between two looks at the WAL while there are commits.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the writer and the checkpointer tell each other.
#[derive(Debug, Default)]
pub(crate) struct Wal {
    news: Notify,
    is_long: AtomicBool,
    is_closing: AtomicBool,
}

impl Wal {
    /// Says that something was committed.
    pub(crate) fn grew(&self) {
        self.news.notify_one();
    }

    /// Whether the writer is to checkpoint now; asked once for each time that it is.
    pub(crate) fn is_due(&self) -> bool {
        self.is_long.swap(false, Ordering::Relaxed)
    }

    /// Lets the checkpointer end.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.news.notify_one();
    }
}

/// Checkpoints the store at `path` as its WAL grows, until it is told to end.
pub(crate) async fn keep_short(path: PathBuf, wal: Arc<Wal>) {
    let mut held = None;
    let mut bound = WAL_BYTES_MAX;
    loop {
        wal.news.notified().await;
        if wal.is_closing.load(Ordering::Relaxed) {
            break;
        }
        match look(&mut held, &path).await {
            Ok(bytes) if bytes >= bound => {
                bound = bytes + WAL_BYTES_MAX;
                wal.is_long.store(true, Ordering::Relaxed);
            }
            Ok(bytes) if bytes < WAL_BYTES_MAX => bound = WAL_BYTES_MAX,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "no checkpoint; the store goes on in its WAL");
                held = None;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    if let Some((connection, _)) = held {
        let _ = connection.close().await;
    }
}

/// Checkpoints if that is worth it; the bytes that the WAL then has.
async fn look(held: &mut Option<(SqliteConnection, i64)>, path: &Path) -> Result<i64, sqlx::Error> {
    if held.is_none() {
        let mut connection = file::again(path, Durability::Power).await?;
        let page = sqlx::query_scalar("PRAGMA page_size").fetch_one(&mut connection).await?;
        *held = Some((connection, page));
    }
    let Some((connection, page)) = held else { return Ok(0) };
    let page = *page;
    let (mut pages, done) = checkpoint(connection, "PRAGMA wal_checkpoint(NOOP)").await?;
    // Above the bound, so that little is left for the writer.
    if (pages - done) * page >= CHECKPOINT_BYTES || pages * page >= WAL_BYTES_MAX {
        (pages, _) = checkpoint(connection, PASSIVE).await?;
    }
    Ok(pages * page)
}

const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// Copies what can be copied without waiting for anyone.
pub(crate) async fn passive(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    checkpoint(connection, PASSIVE).await.map(drop)
}

/// Pages in the WAL, and how many of them are checkpointed.
async fn checkpoint(
    connection: &mut SqliteConnection,
    how: &'static str,
) -> Result<(i64, i64), sqlx::Error> {
    let (_, pages, done): (i64, i64, i64) = sqlx::query_as(how).fetch_one(connection).await?;
    Ok((pages, done))
}
