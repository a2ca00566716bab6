//! One recorder to a store: an advisory lock on a file beside it.
//!
//! Not on the store itself: SQLite's own locks are POSIX locks, and a process loses all of those
//! on a file when it closes any one descriptor of it. The lock goes with the process, however
//! that ends; the file stays, because taking it away would let two processes lock two files.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::open::OpenError;

/// How often a lock that somebody has is tried again, and after how long.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The right to record into a store, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

impl Lock {
    /// Takes the lock of the store at `path`, and says who has it if that fails.
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        let failed = |error| OpenError::Lock(name.clone(), error);
        let beside = beside(path);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&beside)
            .map_err(failed)?;
        match patiently(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut who = String::new();
                // Who it is only helps; that somebody is there is known.
                let _ = file.read_to_string(&mut who);
                let who = if who.is_empty() { "unknown" } else { who.trim() };
                return Err(OpenError::InUse(name, who.to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // On a full disk the lock holds without a name in it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self(file))
    }
}

/// Tries for a moment: a process that was just started by the last one to hold the lock shares it
/// until it runs a program of its own.
fn patiently(file: &File) -> Result<(), TryLockError> {
    for _ in 0..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_TRIES),
            other => return other,
        }
    }
    file.try_lock()
}

/// Where the lock of the store at `path` is: the same for every name of the file.
fn beside(path: &Path) -> PathBuf {
    let whole = path.canonicalize().unwrap_or_else(|_| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize();
        folder.map_or_else(|_| path.to_owned(), |f| f.join(path.file_name().unwrap_or_default()))
    });
    let mut beside = whole.into_os_string();
    beside.push("-writer");
    beside.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_recorder_is_refused_by_any_name_and_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a.db"), dir.path().join("b.db"));
        std::fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &other).unwrap();
        let held = Lock::take(&path).unwrap();
        let error = Lock::take(&other).unwrap_err();
        assert!(
            matches!(&error, OpenError::InUse(_, who) if *who == std::process::id().to_string())
        );
        drop(held);
        Lock::take(&other).unwrap();
        assert!(matches!(Lock::take(&dir.path().join("no/a.db")), Err(OpenError::Lock(..))));
    }
}
