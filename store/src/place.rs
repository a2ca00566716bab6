//! Whether the files that are written are still those that others find under their names.
//!
//! A file that was deleted or moved takes writes as before, and nobody will ever read them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What SQLite keeps beside a database in WAL mode, while it is open.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// The files of a store, by device and inode.
#[derive(Debug)]
pub(crate) struct Place([(PathBuf, Option<Id>); 3]);

type Id = (u64, u64);

impl Place {
    /// The files of the store that is open at `path`.
    pub(crate) fn of(path: &Path) -> Self {
        Self(SUFFIXES.map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            let file = PathBuf::from(name);
            let id = id(&file);
            (file, id)
        }))
    }

    /// Whether a new connection would open the same store. It finds the smaller files as others
    /// do, or makes them.
    pub(crate) fn holds_anew(&mut self) -> bool {
        let [_, smaller @ ..] = &mut self.0;
        smaller.iter_mut().for_each(|(_, known)| *known = None);
        let [(file, known), ..] = &self.0;
        known.is_some() && id(file) == *known
    }

    /// Whether each file is where it was.
    pub(crate) fn holds(&mut self) -> bool {
        self.0.iter_mut().all(|(file, known)| {
            let now = id(file);
            // SQLite makes the smaller files when it first needs them.
            *known = known.or(now);
            now.is_some() && now == *known
        })
    }
}

fn id(file: &Path) -> Option<Id> {
    std::fs::metadata(file).ok().map(|file| (file.dev(), file.ino()))
}
