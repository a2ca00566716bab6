//! A whole copy of a store while it is written to.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use thiserror::Error;

use crate::database::offloaded::offload;
use crate::error::{OpenError, SnapshotError};
use crate::location::Location;
use crate::{open, sqlite};

/// The reasons for which there is no copy. No file is left behind.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] SnapshotError),
    /// The store is a server's database, which has tools of its own.
    #[error("`{0}` is a database of a server; use the server's own backup tool")]
    Server(String),
    /// The target exists.
    #[error("`{0}` exists already")]
    Exists(PathBuf),
    /// The store has nothing of this name.
    #[error("the store has no {0}")]
    Missing(String),
    /// An attempt that is copied is based on one that is not.
    #[error("a row of `{0}` is based on an episode that is not copied")]
    Needed(String),
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
/// name when it is whole and synced, not before. Returns its length in bytes. The copy of a store
/// of an earlier format is of the present one.
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

    let (connection, is_former) = open::beside(&from, sqlite::open::for_copying).await?;
    let copy = NewFile::beside(to)?;
    let path = copy.path();
    let copied = offload(move || {
        connection.fetch("VACUUM INTO $1", &[path.display().to_string().into()], 1)?;
        if is_former { sqlite::open::convert(&path) } else { Ok(()) }
    });
    copied.await??;
    copy.keep()
}

/// A file that gets its name when it is whole and synced.
pub(crate) struct NewFile {
    to: PathBuf,
    folder: PathBuf,
    file: NamedTempFile,
}

impl NewFile {
    /// An empty file in the folder of `to`, its owner's alone. Nothing may be at `to`.
    pub(crate) fn beside(to: &Path) -> Result<Self, BackupError> {
        refuse_existing(to)?;
        let folder = match to.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let made = tempfile::Builder::new().prefix(".backup-").suffix(".tmp").tempfile_in(folder);
        let file = made.map_err(|source| BackupError::Io { path: to.to_owned(), source })?;
        Ok(Self { to: to.to_owned(), folder: folder.to_owned(), file })
    }

    /// The path until then.
    pub(crate) fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// Gives the file its name. Returns its length.
    pub(crate) fn keep(self) -> Result<u64, BackupError> {
        let Self { to, folder, file } = self;
        let io_error = |source| BackupError::Io { path: to.clone(), source };
        // Synced before it gets its name; the folder is synced after, so that the name lasts, too.
        file.as_file().sync_all().map_err(io_error)?;
        let bytes = file.as_file().metadata().map_err(io_error)?.len();
        file.persist_noclobber(&to).map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => BackupError::Exists(to.clone()),
            _ => io_error(error.error),
        })?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error)?;
        Ok(bytes)
    }
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
    use episode::{CallEnd, CallId, CallStart, ReplyHead};
    use uuid::Uuid;

    use super::*;
    use crate::database::local::LocalConnection;
    use crate::tests::{begun, ended, open_at};
    use crate::{Durability, Selection, Snapshot, Store, verify};

    /// A store of the last format of the earlier history, written by commit ada9c43: what
    /// [`formerly_recorded`] says, of which `a` has a reward and is closed.
    const FORMER: &[u8] = include_bytes!("../../tests/format14.db.zst");

    /// Three calls of `a`, and one of `b` that has no end.
    fn formerly_recorded() -> Vec<(CallStart, Option<CallEnd>)> {
        let call = |at: u32| {
            let said = "what was said before; ".repeat(at as usize + 3);
            let begun = CallStart {
                call_id: CallId(Uuid::from_u128(at.into())),
                request: format!("{{\"turn\": \"{said}\"}}").into(),
                ..begun(if at < 3 { "a" } else { "b" }, i64::from(at) + 1)
            };
            // What that format had no place for.
            let mut ended = CallEnd {
                continued: None,
                head: ReplyHead::default(),
                replayed: None,
                ..ended(begun.call_id)
            };
            ended.prompts[0] = (0..600 + 40 * at).collect();
            (begun, (at < 3).then_some(ended))
        };
        (0..4).map(call).collect()
    }

    /// A file with [`FORMER`] in it.
    fn former(folder: &Path) -> PathBuf {
        let path = folder.join("former.db");
        std::fs::write(&path, zstd::decode_all(FORMER).unwrap()).unwrap();
        path
    }

    /// The columns of all tables and views, and the text of views and indexes.
    fn schema(path: &Path) -> Vec<String> {
        let store = sqlite::open::for_reading(path).unwrap();
        let columns = "SELECT concat_ws(' ', m.type, m.name, m.tbl_name, i.name, i.type, \
                       i.\"notnull\", i.dflt_value, i.pk, \
                       CASE m.type WHEN 'table' THEN '' ELSE m.sql END) AS line \
                       FROM sqlite_schema m LEFT JOIN pragma_table_xinfo(m.name) i \
                       ORDER BY m.name, i.cid";
        let rows = store.fetch(columns, &[], usize::MAX).unwrap();
        rows.iter().map(|row| row.named("line").unwrap()).collect()
    }

    #[tokio::test]
    async fn a_backup_converts_a_store_of_the_former_format() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (former(folder.path()), folder.path().join("copy.db"));
        backup(&path, &copy).await.unwrap();
        assert!(verify(&copy).await.unwrap().is_clean());

        let mut snapshot = Snapshot::open(&copy).await.unwrap();
        let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
        let mut calls = Vec::new();
        for episode in &episodes {
            calls.extend(snapshot.calls(episode).await.unwrap());
        }
        let calls: Vec<_> = calls.into_iter().map(|call| (call.begun, call.ended)).collect();
        assert_eq!(calls, formerly_recorded());
        let rewards = snapshot.rewards(&episodes[0]).await.unwrap();
        assert_eq!((rewards.len(), rewards[0].value), (1, Some(0.25)));
        assert_eq!(episodes[0].closed_at, Some(40));
        assert_eq!(snapshot.versions().await.unwrap()[0].label, "step_7");
        assert_eq!(snapshot.last_position().await.unwrap(), 1);
        drop(snapshot);

        let (store, writer) = open_at(&copy).await;
        store.begin(begun("b", 9)).await.done().await.unwrap();
        drop(store);
        writer.finish().await;
        assert!(verify(&copy).await.unwrap().is_clean());
    }

    #[tokio::test]
    async fn a_converted_store_has_the_tables_of_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (former(folder.path()), folder.path().join("copy.db"));
        let new = folder.path().join("new.db");
        backup(&path, &copy).await.unwrap();
        let (store, writer) = open_at(&new).await;
        drop(store);
        writer.finish().await;
        assert_eq!(schema(&copy), schema(&new));
    }

    #[tokio::test]
    async fn a_former_store_is_left_alone_and_names_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = former(folder.path());
        let bytes = std::fs::read(&path).unwrap();
        let refused = Store::open(&path, Durability::Power).await.unwrap_err();
        let command = format!("`rolltape backup --store {} --to NEW.db`", path.display());
        assert!(refused.to_string().contains(&command), "{refused}");
        let refused = Snapshot::open(&path).await.unwrap_err();
        assert!(refused.to_string().contains(&command), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[tokio::test]
    async fn a_store_that_is_too_old_names_the_commit_that_upgrades_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = former(folder.path());
        let wait = std::time::Duration::from_secs(1);
        let older = LocalConnection::for_writing(&path, wait).unwrap();
        older.run("DELETE FROM _sqlx_migrations WHERE version > 12").unwrap();
        drop(older);

        let refused = backup(&path, &folder.path().join("copy.db")).await.unwrap_err();
        assert!(refused.to_string().contains("(format 12), which commit ada9c43"), "{refused}");
        let refused = Store::open(&path, Durability::Power).await.unwrap_err();
        assert!(matches!(refused, OpenError::TooOld(_, 12)), "{refused}");
    }

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
