//! A whole copy of a store while it is written to.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sqlx::Connection;
use thiserror::Error;

use crate::error::OpenError;
use crate::location::Location;
use crate::sqlite;

/// The reasons for which there is no copy. No file is left behind.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store is a server's database, which has tools of its own.
    #[error("`{0}` is a database of a server; use the server's own backup tool")]
    Server(String),
    /// The target exists.
    #[error("`{0}` exists already")]
    Exists(PathBuf),
    /// The copy could not be made.
    #[error("cannot copy the store")]
    Database(#[from] sqlx::Error),
    /// The copy could not be put in place.
    #[error("cannot write `{path}`")]
    Io {
        /// The copy.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// Copies a store that is a file to `to`: one moment of it, without free space. The copy gets its
/// name when it is whole and synced, not before. Returns its length in bytes.
///
/// The WAL of the store grows while it is copied and is checkpointed afterwards.
///
/// # Errors
/// [`BackupError`] when there is something at `to`, or the copy cannot be made.
pub async fn backup(from: impl Into<Location>, to: &Path) -> Result<u64, BackupError> {
    let from = match from.into() {
        Location::File(path) => path,
        server @ Location::Server(_) => return Err(BackupError::Server(server.to_string())),
    };
    refuse_existing(to)?;
    let io_error = |source| BackupError::Io { path: to.to_owned(), source };
    let folder = match to.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };

    // The temporary file, and so the copy, is its owner's alone.
    let mut connection = sqlite::open::for_reading(&from).await?;
    let copy = tempfile::Builder::new()
        .prefix(".backup-")
        .suffix(".tmp")
        .tempfile_in(folder)
        .map_err(io_error)?;
    sqlx::query("VACUUM INTO $1")
        .bind(copy.path().display().to_string())
        .execute(&mut connection)
        .await?;
    connection.close().await?;

    // Synced before it gets its name; the folder is synced after, so that the name lasts, too.
    copy.as_file().sync_all().map_err(io_error)?;
    let bytes = copy.as_file().metadata().map_err(io_error)?.len();
    copy.persist_noclobber(to).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists(to.to_owned()),
        _ => io_error(error.error),
    })?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error)?;
    Ok(bytes)
}

/// Refuses to overwrite a file. A WAL that an earlier store left beside `to` is refused as well:
/// SQLite would take it for the copy's own.
fn refuse_existing(to: &Path) -> Result<(), BackupError> {
    let wal = PathBuf::from(format!("{}-wal", to.display()));
    for path in [to.to_owned(), wal] {
        if path.symlink_metadata().is_ok() {
            return Err(BackupError::Exists(path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{begun, ended, open_at};
    use crate::{Selection, Snapshot, verify};

    #[tokio::test]
    async fn a_copy_is_made_while_calls_come_in() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
        let (store, writer) = open_at(&path).await;
        let mut before = 0;
        let mut record = async |count: i64| {
            for _ in 0..count {
                let begun = begun("e", before);
                let end = ended(begun.call_id);
                store.begin(begun).await.done().await.unwrap();
                store.end(end).await.done().await.unwrap();
                before += 1;
            }
        };
        record(20).await;
        let (copied, ()) = tokio::join!(backup(&path, &copy), record(20));
        assert_eq!(copied.unwrap(), std::fs::metadata(&copy).unwrap().len());
        let report = verify(&copy).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert!((20..=40).contains(&report.calls), "{report:?}");
        let mut snapshot = Snapshot::open(&copy).await.unwrap();
        let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
        assert_eq!(snapshot.calls(&episode).await.unwrap().len() as u64, report.calls);
        drop((store, snapshot));
        writer.finish().await;
        let (store, writer) = open_at(&copy).await;
        drop(store);
        writer.finish().await;
    }

    #[tokio::test]
    async fn what_is_there_is_not_replaced_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
        drop(open_at(&path).await);
        std::fs::write(&copy, "mine").unwrap();
        let refused = backup(&path, &copy).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("`{}` exists already", copy.display()));
        assert_eq!(std::fs::read(&copy).unwrap(), b"mine");
        let none = folder.path().join("none/copy.db");
        assert!(matches!(backup(&path, &none).await, Err(BackupError::Io { .. })));
        let missing = backup(&folder.path().join("b.db"), &none).await;
        assert!(matches!(missing, Err(BackupError::Open(OpenError::Missing(_)))));
        let left = std::fs::read_dir(folder.path()).unwrap();
        assert!(!left.flatten().any(|file| file.path().extension().is_some_and(|e| e == "tmp")));
    }
}
