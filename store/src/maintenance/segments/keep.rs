//! Segments whose files leave their folder, since a bucket has them. Their entries stay, and who
//! reads one brings it back: see `snapshot/away.rs`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::maintenance::segments::remove::remove_unread;
use crate::snapshot::catalog::{CatalogEntry, CatalogError, EntryKind, SegmentFolder};

/// A file of attempts that may leave.
struct LocalFile {
    path: PathBuf,
    /// The time at which it came to the folder: it was sealed, or brought back.
    came: SystemTime,
    bytes: u64,
}

impl SegmentFolder {
    /// Removes files of attempts until those left have so many bytes at most, those first that
    /// came first. Each of `held` is in the bucket at `url`. Returns how many files went.
    ///
    /// A file that is read stays, and so do those of what came late.
    ///
    /// # Errors
    /// [`CatalogError`] when a file cannot be removed.
    pub fn keep_newest(
        &self,
        held: &[&CatalogEntry],
        url: &str,
        bytes_max: u64,
    ) -> Result<u64, CatalogError> {
        let mut files = self.local_files(held)?;
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        if self.bucket()?.as_deref() != Some(url) {
            self.set_bucket(url)?;
        }

        files.sort_by_key(|file| file.came);
        let mut gone = 0;
        for file in files {
            if bytes <= bytes_max {
                break;
            }
            match remove_unread(&file.path) {
                Ok(true) => {
                    bytes -= file.bytes;
                    gone += 1;
                }
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => bytes -= file.bytes,
                Err(error) => return Err(CatalogError::io(file.path)(error)),
            }
        }
        Ok(gone)
    }

    fn local_files(&self, held: &[&CatalogEntry]) -> Result<Vec<LocalFile>, CatalogError> {
        let mut files = Vec::new();
        let held = held.iter().filter(|entry| entry.kind == EntryKind::Attempts);
        for entry in held.filter(|entry| !entry.is_empty()) {
            let path = self.file(entry);
            let found = path.metadata().and_then(|file| Ok((file.modified()?, file.len())));
            match found {
                Ok((came, bytes)) => files.push(LocalFile { path, came, bytes }),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(CatalogError::io(path)(error)),
            }
        }
        Ok(files)
    }
}
