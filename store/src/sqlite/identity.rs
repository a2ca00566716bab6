//! The identity of the files that are written, to notice when they are moved or deleted.
//!
//! An open file that was deleted or moved takes writes as before, and nobody will ever read them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Suffixes of the files of a database in WAL mode, while it is open.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// The files of a store, each with the device and inode that it had when it was opened.
#[derive(Debug)]
pub(crate) struct FileIdentity([KnownFile; 3]);

#[derive(Debug)]
struct KnownFile {
    path: PathBuf,
    inode: Option<Inode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

impl FileIdentity {
    /// The files of the store that is open at `path`.
    pub(crate) fn of(path: &Path) -> Self {
        Self(SUFFIXES.map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            let path = PathBuf::from(name);
            KnownFile { inode: Inode::of(&path), path }
        }))
    }

    /// True where a new connection would open the same store. Forgets the WAL and the shared
    /// memory: the new connection finds them as others do, or makes them.
    pub(crate) fn holds_for_reopening(&mut self) -> bool {
        let [database, side_files @ ..] = &mut self.0;
        side_files.iter_mut().for_each(|file| file.inode = None);
        database.inode.is_some() && Inode::of(&database.path) == database.inode
    }

    /// True where each file is still at its path.
    pub(crate) fn holds(&mut self) -> bool {
        self.0.iter_mut().all(|file| {
            let found = Inode::of(&file.path);
            // SQLite makes the side files when it first needs them.
            file.inode = file.inode.or(found);
            found.is_some() && found == file.inode
        })
    }
}

impl Inode {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), number: metadata.ino() })
    }
}
