//! One recorder to a store: an advisory lock on a file beside it.
//!
//! The lock is not on the store itself: SQLite's own locks are POSIX locks, and a process loses all
//! of those on a file when it closes any one descriptor of it. The lock ends with the process,
//! however that ends. The file stays: if it were deleted, two processes could lock two files.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::OpenError;
use crate::sqlite::private::{has_one_name, open_or_make};

/// Attempts at a lock that another process holds.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// Bytes of a lock file that can be a process id.
const HOLDER_BYTES_MAX: u64 = 32;

/// The word of a holder that prunes, behind its process id.
const PRUNES: &str = "prune";

/// The right to record into a store, until it is dropped.
#[derive(Debug)]
pub(crate) struct WriterLock(File);

/// The process that holds a lock, as it wrote itself into the file.
struct Holder {
    process: String,
    prunes: bool,
}

impl WriterLock {
    /// Takes the lock of the store at `path`.
    ///
    /// # Errors
    /// [`OpenError::InUse`] or [`OpenError::Pruned`] with the process that holds it, or
    /// [`OpenError::Lock`].
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let store = path.display().to_string();
        let mut file = open_or_make(&lock_path(path))
            .map_err(|error| OpenError::Lock(store.clone(), error))?;

        match lock_with_retries(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let Holder { process, prunes } = holder(&mut file);
                return Err(match prunes {
                    true => OpenError::Pruned(store, process),
                    false => OpenError::InUse(store, process),
                });
            }
            Err(TryLockError::Error(error)) => return Err(OpenError::Lock(store, error)),
        }

        let lock = Self(file);
        lock.write_holder("");
        Ok(lock)
    }

    /// Tells whoever asks for the lock that its holder prunes.
    pub(crate) fn note_prune(&self) {
        self.write_holder(PRUNES);
    }

    /// Writes who holds the lock, and what for. On a full disk the lock holds without that; also
    /// where the file has another name, under which somebody else may need what is in it.
    fn write_holder(&self, what_for: &str) {
        let mut file = &self.0;
        if has_one_name(file) {
            let line = format!("{} {what_for}", std::process::id());
            let _ = file
                .set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", line.trim_end()));
        }
    }
}

/// The holder of a lock, as the file tells it. That only helps the reader of the error, so a file
/// that cannot be read is no error of its own.
fn holder(file: &mut File) -> Holder {
    let mut line = String::new();
    let _ = file.take(HOLDER_BYTES_MAX).read_to_string(&mut line);
    let (process, what_for) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    let process = if is_number { process } else { "unknown" };
    Holder { process: process.to_owned(), prunes: what_for == PRUNES }
}

/// Tries for a moment: a process that the last holder has just forked shares its lock until it
/// executes a program of its own.
fn lock_with_retries(file: &File) -> Result<(), TryLockError> {
    for _ in 0..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_TRIES),
            other => return other,
        }
    }
    file.try_lock()
}

/// The lock file of the store at `path`. Links are resolved, so that every name of the store has
/// the same lock.
fn lock_path(path: &Path) -> PathBuf {
    let store = path.canonicalize().unwrap_or_else(|_| within_canonical_folder(path));
    let mut lock = store.into_os_string();
    lock.push("-writer");
    lock.into()
}

/// The path of a file that does not exist yet, with the links of its folder resolved.
fn within_canonical_folder(path: &Path) -> PathBuf {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match folder.canonicalize() {
        Ok(folder) => folder.join(path.file_name().unwrap_or_default()),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_recorder_is_refused_and_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a.db"), dir.path().join("b.db"));
        std::fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &other).unwrap();
        let held = WriterLock::take(&path).unwrap();
        let error = WriterLock::take(&other).unwrap_err();
        assert!(
            matches!(&error, OpenError::InUse(_, who) if *who == std::process::id().to_string())
        );
        held.note_prune();
        let error = WriterLock::take(&path).unwrap_err();
        assert!(error.to_string().contains("being pruned"), "{error}");
        drop(held);
        WriterLock::take(&other).unwrap();
        assert!(matches!(WriterLock::take(&dir.path().join("no/a.db")), Err(OpenError::Lock(..))));
    }

    #[test]
    fn what_lies_in_the_place_of_the_lock_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mine) = (dir.path().join("a.db"), dir.path().join("mine"));
        let lock = dir.path().join("a.db-writer");
        std::fs::write(&mine, "mine").unwrap();
        std::os::unix::fs::symlink(&mine, &lock).unwrap();
        assert!(matches!(WriterLock::take(&path), Err(OpenError::Lock(..))));
        std::fs::remove_file(&lock).unwrap();
        std::fs::hard_link(&mine, &lock).unwrap();
        WriterLock::take(&path).unwrap();
        assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
    }
}
