//! Checkpoints beside the commits: a connection of their own copies the WAL into the database file,
//! so that no commit waits for it.
//!
//! A WAL starts over only when a commit finds all of it checkpointed. Under steady load there is
//! always a newer commit. So above a bound the writer itself does the last, short stretch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::database::local::LocalConnection;
use crate::database::offloaded::{OffloadedConnection, offload};
use crate::error::with_causes;
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

/// Pages of the WAL.
struct WalPages {
    all: i64,
    checkpointed: i64,
}

/// Checkpoints the store at `path` as its WAL grows, until the signals are closed.
pub(crate) async fn keep_short(path: PathBuf, signals: Arc<CheckpointSignals>) {
    let mut connection = None;
    let mut bound = WAL_BYTES_MAX;
    loop {
        signals.commit.notified().await;
        signals.until_not_due().await;
        if signals.is_closing.load(Ordering::Relaxed) {
            break;
        }

        match look(&mut connection, &path).await {
            Ok(bytes) if bytes >= bound => {
                // The writer is asked once, and again when the WAL has grown by as much again.
                bound = bytes + WAL_BYTES_MAX;
                signals.is_long.store(true, Ordering::Relaxed);
            }
            Ok(bytes) if bytes < WAL_BYTES_MAX => bound = WAL_BYTES_MAX,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    error = %with_causes(&error),
                    "no checkpoint was made; the WAL keeps growing"
                );
                connection = None;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Checkpoints if the WAL is long enough, and returns its length in bytes. Opens the connection if
/// there is none.
async fn look(held: &mut Option<OffloadedConnection>, path: &Path) -> Result<i64, sqlx::Error> {
    let connection = match held {
        Some(connection) => connection,
        None => {
            let path = path.to_owned();
            let opened = offload(move || open::reopen(&path, Durability::Power)).await??;
            held.insert(OffloadedConnection::new(opened))
        }
    };
    connection.run(checkpoint_if_long).await
}

fn checkpoint_if_long(file: &LocalConnection) -> Result<i64, sqlx::Error> {
    let page_bytes = file.number("PRAGMA page_size")?;
    let mut pages = checkpoint(file, NOOP)?;

    // Above the bound always, so that little is left for the writer.
    let pending = (pages.all - pages.checkpointed) * page_bytes;
    if pending >= CHECKPOINT_BYTES || pages.all * page_bytes >= WAL_BYTES_MAX {
        pages = checkpoint(file, PASSIVE)?;
    }
    Ok(pages.all * page_bytes)
}

fn checkpoint(file: &LocalConnection, pragma: &str) -> Result<WalPages, sqlx::Error> {
    let row = file.fetch(pragma, &[], 1)?.pop().ok_or(sqlx::Error::RowNotFound)?;
    Ok(WalPages { all: row.named("log")?, checkpointed: row.named("checkpointed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the WAL that are in the database file.
    fn copied(file: &LocalConnection) -> i64 {
        checkpoint(file, NOOP).unwrap().checkpointed
    }

    #[tokio::test]
    async fn the_checkpointer_waits_while_the_writer_has_to_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        std::fs::write(&path, "").unwrap();
        let file = open::reopen(&path, Durability::Power).unwrap();
        file.set("journal_mode", "WAL").unwrap();
        for sql in ["CREATE TABLE t (x BLOB)", "INSERT INTO t VALUES (zeroblob(16 << 20))"] {
            file.run(sql).unwrap();
        }

        let signals = Arc::new(CheckpointSignals::default());
        signals.is_long.store(true, Ordering::Relaxed);
        let checkpointer = tokio::spawn(keep_short(path, Arc::clone(&signals)));
        signals.committed();
        tokio::time::sleep(LOOK_EVERY * 6).await;
        assert_eq!(copied(&file), 0, "it would have been in the writer's way");

        signals.checkpointed();
        while copied(&file) == 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        signals.close();
        checkpointer.await.unwrap();
    }
}
