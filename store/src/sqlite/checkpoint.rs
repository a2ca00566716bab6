//! Checkpoints beside the commits: a connection of their own copies the WAL into the database file,
//! so that no commit waits for it.
//!
//! A WAL starts over only when a commit finds all of it checkpointed. Under steady load there is
//! always a newer commit. So above a bound the writer itself does the last, short stretch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::Notify;

use crate::sqlite::open;
use crate::types::Durability;

/// Bytes of the WAL that are worth a checkpoint.
const CHECKPOINT_BYTES: i64 = 8 << 20;
/// Bytes of the WAL above which the writer does the last stretch itself. Only a reader that holds
/// on to one snapshot for longer than the writer waits lets it grow further.
const WAL_BYTES_MAX: i64 = 64 << 20;
/// Time between two looks at the WAL while there are commits.
const LOOK_EVERY: Duration = Duration::from_millis(50);

const NOOP: &str = "PRAGMA wal_checkpoint(NOOP)";
/// Copies as much of the WAL as can be copied without waiting for anyone.
pub(crate) const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Copies all of the WAL and waits, within the connection's bound, until no snapshot reads it.
pub(crate) const RESTART: &str = "PRAGMA wal_checkpoint(RESTART)";

/// Signals between the writer and the checkpointer.
#[derive(Debug, Default)]
pub(crate) struct CheckpointSignals {
    commit: Notify,
    is_long: AtomicBool,
    is_closing: AtomicBool,
}

impl CheckpointSignals {
    /// Tells the checkpointer of a commit.
    pub(crate) fn committed(&self) {
        self.commit.notify_one();
    }

    /// True while the writer has to checkpoint.
    pub(crate) fn is_due(&self) -> bool {
        self.is_long.load(Ordering::Relaxed)
    }

    /// Tells the checkpointer that the writer has checkpointed, or tried to.
    pub(crate) fn checkpointed(&self) {
        self.is_long.store(false, Ordering::Relaxed);
    }

    /// Waits while the writer has to checkpoint: of two checkpoints at a time SQLite refuses the
    /// second at once.
    async fn until_not_due(&self) {
        while self.is_due() && !self.is_closing.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Lets the checkpointer end.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.commit.notify_one();
    }
}

/// The checkpointer's connection.
struct Checkpointer {
    connection: SqliteConnection,
    page_bytes: i64,
}

/// Pages of the WAL.
struct WalPages {
    all: i64,
    checkpointed: i64,
}

/// Checkpoints the store at `path` as its WAL grows, until the signals are closed.
pub(crate) async fn keep_short(path: PathBuf, signals: Arc<CheckpointSignals>) {
    let mut checkpointer = None;
    let mut bound = WAL_BYTES_MAX;
    loop {
        signals.commit.notified().await;
        signals.until_not_due().await;
        if signals.is_closing.load(Ordering::Relaxed) {
            break;
        }

        match look(&mut checkpointer, &path).await {
            Ok(bytes) if bytes >= bound => {
                // The writer is asked once, and again when the WAL has grown by as much again.
                bound = bytes + WAL_BYTES_MAX;
                signals.is_long.store(true, Ordering::Relaxed);
            }
            Ok(bytes) if bytes < WAL_BYTES_MAX => bound = WAL_BYTES_MAX,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "no checkpoint was made; the WAL keeps growing");
                checkpointer = None;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }

    if let Some(checkpointer) = checkpointer {
        let _ = checkpointer.connection.close().await;
    }
}

/// Checkpoints if the WAL is long enough, and returns its length in bytes. Opens the connection if
/// there is none.
async fn look(held: &mut Option<Checkpointer>, path: &Path) -> Result<i64, sqlx::Error> {
    let checkpointer = match held {
        Some(checkpointer) => checkpointer,
        None => held.insert(Checkpointer::open(path).await?),
    };
    let page_bytes = checkpointer.page_bytes;
    let mut pages = checkpoint(&mut checkpointer.connection, NOOP).await?;

    // Above the bound always, so that little is left for the writer.
    let pending = (pages.all - pages.checkpointed) * page_bytes;
    if pending >= CHECKPOINT_BYTES || pages.all * page_bytes >= WAL_BYTES_MAX {
        pages = checkpoint(&mut checkpointer.connection, PASSIVE).await?;
    }
    Ok(pages.all * page_bytes)
}

impl Checkpointer {
    async fn open(path: &Path) -> Result<Self, sqlx::Error> {
        let mut connection = open::reopen(path, Durability::Power).await?;
        let page_bytes = sqlx::query_scalar("PRAGMA page_size").fetch_one(&mut connection).await?;
        Ok(Self { connection, page_bytes })
    }
}

async fn checkpoint(
    connection: &mut SqliteConnection,
    pragma: &'static str,
) -> Result<WalPages, sqlx::Error> {
    let (_, all, checkpointed): (i64, i64, i64) =
        sqlx::query_as(pragma).fetch_one(connection).await?;
    Ok(WalPages { all, checkpointed })
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

    use super::*;

    /// Pages of the WAL that are in the database file.
    async fn copied(connection: &mut SqliteConnection) -> i64 {
        checkpoint(connection, NOOP).await.unwrap().checkpointed
    }

    #[tokio::test]
    async fn the_checkpointer_keeps_still_while_the_writer_has_to_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .pragma("wal_autocheckpoint", "0");
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        for sql in ["CREATE TABLE t (x BLOB)", "INSERT INTO t VALUES (zeroblob(16 << 20))"] {
            sqlx::query(sql).execute(&mut connection).await.unwrap();
        }

        let signals = Arc::new(CheckpointSignals::default());
        signals.is_long.store(true, Ordering::Relaxed);
        let checkpointer = tokio::spawn(keep_short(path, Arc::clone(&signals)));
        signals.committed();
        tokio::time::sleep(LOOK_EVERY * 6).await;
        assert_eq!(copied(&mut connection).await, 0, "it would have been in the writer's way");

        signals.checkpointed();
        while copied(&mut connection).await == 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        signals.close();
        checkpointer.await.unwrap();
    }
}
