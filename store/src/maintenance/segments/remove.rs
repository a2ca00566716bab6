//! Removing attempts from segments. A segment never changes: another one is made without them, and
//! its entry says which it replaces. Files of what came late are replaced likewise.
//!
//! 1. The rest is copied to a file without its name, which is synced and gets its name.
//! 2. It is entered in the catalog. From here on readers take it, and not the one before.
//! 3. A store that knows the segment turns to the new one, in one transaction.
//! 4. The file that was replaced is removed, once no reader has it open.
//!
//! What a store still wants to be removed stands in its table `forgotten`, so a removal that died
//! is taken up by the next prune or sealing.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use episode::AttemptId;

use crate::attempts::attempt_of;
use crate::database::query::query;
use crate::maintenance::extract::copy_attempts;
use crate::maintenance::segments::files::call_times;
use crate::maintenance::segments::late::LATE;
use crate::maintenance::segments::{SegmentError, between_steps};
use crate::snapshot::Snapshot;
use crate::snapshot::away;
use crate::snapshot::catalog::{CatalogEntry, EntryKind, KeptFile, SegmentFolder};

/// The attempts of a segment.
const HELD: &str = "SELECT e.episode_key, e.episode_id, e.attempt, \
    coalesce((SELECT position FROM finished f WHERE f.episode_key = e.episode_key), 0) AS position \
    FROM episode e";

/// The result of removing attempts from segments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentRemoval {
    /// Entries that replace others.
    pub entries: Vec<CatalogEntry>,
    /// Files that were replaced and removed.
    pub files_removed: u64,
    /// Files that were replaced and are still read: the next removal or sealing removes them.
    pub files_in_use: Vec<PathBuf>,
}

impl SegmentRemoval {
    /// The reason for which replaced files are still there.
    pub fn in_use(&self) -> Option<String> {
        let first = self.files_in_use.first()?;
        Some(match self.files_in_use.len() - 1 {
            0 => format!("`{}` was replaced, and is still read", first.display()),
            rest => {
                format!("`{}` and {rest} more were replaced, and are still read", first.display())
            }
        })
    }
}

/// An entry that is to be entered, with the lock of its file.
type MadeEntry = (CatalogEntry, Option<File>);

/// Attempts to remove, of one store.
#[derive(Debug)]
pub(super) struct Unwanted<'a> {
    pub(super) store: &'a str,
    pub(super) attempts: &'a BTreeSet<AttemptId>,
    /// Hashes of attempts that left all segments before: what came late of them goes, too.
    pub(super) gone: BTreeSet<String>,
}

impl Unwanted<'_> {
    fn has_late(&self, attempt: &AttemptId) -> bool {
        self.attempts.contains(attempt)
            || self.gone.contains(&CatalogEntry::hash_of(self.store, attempt))
    }
}

/// Removes attempts from all segments of a folder that hold them. The stores that sealed them are
/// not asked: their next sealing removes what they know of these attempts.
///
/// # Errors
/// [`SegmentError`] when a file cannot be read or written. What was removed before is gone.
pub async fn remove_from_folder(
    folder: &SegmentFolder,
    attempts: &BTreeSet<AttemptId>,
) -> Result<SegmentRemoval, SegmentError> {
    let folder = std::path::absolute(folder.path()).map_err(SegmentError::io(folder.path()))?;
    let folder = SegmentFolder::at(folder);
    let mut removal = SegmentRemoval::default();
    // Segments first: what is late of an attempt that is there stays as long as it does.
    for is_late in [false, true] {
        let entries = folder.entries()?;
        let live = SegmentFolder::live(&entries).into_iter();
        for entry in live.filter(|entry| entry.kind.is_late() == is_late) {
            let store = entry.store.as_str();
            let gone = if is_late { folder.gone(store).await? } else { BTreeSet::new() };
            let unwanted = Unwanted { store, attempts, gone };
            removal.entries.extend(folder.without(entry.number, &unwanted).await?);
        }
    }
    folder.sweep(&mut removal)?;
    Ok(removal)
}

impl SegmentFolder {
    /// Replaces the file of an entry by one without some attempts, if it has any of them. The entry
    /// may have been replaced before: then the last one counts. Returns the entry that was made.
    pub(super) async fn without(
        &self,
        number: u64,
        unwanted: &Unwanted<'_>,
    ) -> Result<Option<CatalogEntry>, SegmentError> {
        // Another one that replaces the same file makes this begin anew.
        loop {
            let entries = self.entries()?;
            let Some(entry) = SegmentFolder::last_of(&entries, number) else { return Ok(None) };
            if entry.is_empty() || entry.store != unwanted.store {
                return Ok(None);
            }
            let next = entries.last().map_or(1, |entry| entry.number + 1);
            let rest = match entry.kind {
                EntryKind::Attempts => self.rest_of_attempts(entry, unwanted, next).await,
                EntryKind::Rewards | EntryKind::Annotations => {
                    self.rest_of_late(entry, unwanted, next).await
                }
            };

            let (rest, _lock) = match rest {
                // The file was replaced and removed meanwhile.
                Err(error) if error.is_missing() && self.entries()? != entries => continue,
                Err(error) => return Err(error),
                Ok(None) => return Ok(None),
                Ok(Some(rest)) => rest,
            };
            between_steps()?;
            if self.enter_at(&rest)? {
                between_steps()?;
                return Ok(Some(rest));
            }
            self.drop_unnamed(&rest)?;
        }
    }

    /// Hashes of the attempts of a store that were removed and are in no segment.
    async fn gone(&self, store: &str) -> Result<BTreeSet<String>, SegmentError> {
        loop {
            let entries = self.entries()?;
            match self.gone_of(&entries, store).await {
                // A file was replaced and removed meanwhile.
                Err(error) if error.is_missing() && self.entries()? != entries => {}
                gone => return gone,
            }
        }
    }

    async fn gone_of(
        &self,
        entries: &[CatalogEntry],
        store: &str,
    ) -> Result<BTreeSet<String>, SegmentError> {
        let segments = SegmentFolder::live(entries).into_iter();
        let segments: Vec<_> =
            segments.filter(|entry| entry.store == store && !entry.kind.is_late()).collect();
        let mut gone: BTreeSet<String> =
            segments.iter().flat_map(|entry| entry.removed.iter().cloned()).collect();

        for entry in segments {
            if gone.is_empty() || entry.is_empty() {
                continue;
            }
            let mut segment = away::open_segment(&self.file(entry), false).await?;
            for row in query(HELD).fetch_all(&mut segment).await? {
                gone.remove(&CatalogEntry::hash_of(store, &attempt_of(&row)?));
            }
        }
        Ok(gone)
    }

    /// Removes a file whose entry was not made, unless another one made the same.
    fn drop_unnamed(&self, entry: &CatalogEntry) -> Result<(), SegmentError> {
        let is_named = self.entries()?.iter().any(|other| other.file == entry.file);
        if entry.is_empty() || is_named {
            return Ok(());
        }
        let path = self.file(entry);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(SegmentError::io(path)(error)),
            _ => Ok(()),
        }
    }

    /// The entry of a segment without some attempts. `None` where it has none of them.
    async fn rest_of_attempts(
        &self,
        entry: &CatalogEntry,
        unwanted: &Unwanted<'_>,
        number: u64,
    ) -> Result<Option<MadeEntry>, SegmentError> {
        let path = self.checked(entry).await?;
        let mut source = Snapshot::of_segment(&path).await?;
        let (mut keys, mut gone, mut positions) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        for row in query(HELD).fetch_all(source.connection()).await? {
            let attempt = attempt_of(&row)?;
            if unwanted.attempts.contains(&attempt) {
                gone.push(attempt);
            } else {
                keys.insert(row.try_get("episode_key")?);
                positions.insert(row.try_get::<i64>("position")?);
            }
        }
        if gone.is_empty() {
            return Ok(None);
        }

        let rest = CatalogEntry::replacing(entry, number, &gone);
        if keys.is_empty() {
            return Ok(Some((rest, None)));
        }
        let file = self.making()?;
        let calls = copy_attempts(source, &keys, file.path().to_owned()).await?;
        let times = call_times(file.path()).await?;
        let KeptFile { name, hash, bytes, lock } = self.keep(file, number, "db")?;
        let ends = positions.first().copied().zip(positions.last().copied());
        let entry = CatalogEntry {
            file: name,
            hash,
            bytes,
            attempts: keys.len() as u64,
            calls,
            completion_tokens: times.tokens,
            positions: ends.unwrap_or((0, 0)),
            ..rest
        };
        Ok(Some((entry, lock)))
    }

    /// The entry of a file of what came late, without what is said of some attempts.
    async fn rest_of_late(
        &self,
        entry: &CatalogEntry,
        unwanted: &Unwanted<'_>,
        number: u64,
    ) -> Result<Option<MadeEntry>, SegmentError> {
        let Some(late) = LATE.iter().find(|late| late.kind == entry.kind) else { return Ok(None) };
        let path = self.checked(entry).await?;
        let file = self.making()?;
        let mut to = BufWriter::new(file.as_file());
        let (mut kept, mut gone) = (0, Vec::new());
        let from = File::open(&path).map_err(SegmentError::io(&path))?;
        for line in BufReader::new(from).lines() {
            let line = line.map_err(SegmentError::io(&path))?;
            let named = late.read(&line).and_then(|row| row.named());
            let named = named.map_err(|why| SegmentError::entry(&path, why))?;
            if unwanted.has_late(&named) {
                gone.push(named);
            } else {
                writeln!(to, "{line}").map_err(SegmentError::io(file.path()))?;
                kept += 1;
            }
        }
        to.flush().map_err(SegmentError::io(file.path()))?;
        drop(to);
        if gone.is_empty() {
            return Ok(None);
        }

        let rest = CatalogEntry::replacing(entry, number, &gone);
        if kept == 0 {
            return Ok(Some((rest, None)));
        }
        let KeptFile { name, hash, bytes, lock } = self.keep(file, number, late.suffix)?;
        Ok(Some((CatalogEntry { file: name, hash, bytes, attempts: kept, ..rest }, lock)))
    }

    /// Removes files that were replaced and that no reader has open, and those that a process that
    /// died left without an entry.
    pub(super) fn sweep(&self, removal: &mut SegmentRemoval) -> Result<(), SegmentError> {
        let entries = self.entries()?;
        let replaced: BTreeSet<u64> = entries.iter().filter_map(|entry| entry.replaces).collect();
        let replaced = entries.iter().filter(|entry| replaced.contains(&entry.number));
        for entry in replaced.filter(|entry| !entry.is_empty()) {
            let path = self.file(entry);
            match remove_unread(&path) {
                Ok(true) => {
                    removal.files_removed += 1;
                    between_steps()?;
                }
                Ok(false) => removal.files_in_use.push(path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(SegmentError::io(path)(error)),
            }
        }
        Ok(self.remove_strays()?)
    }
}

/// Removes a file unless a reader has it open: see `Snapshot::segment`.
pub(super) fn remove_unread(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(false),
        // A file system without locks: whoever reads keeps what is open.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    std::fs::remove_file(path)?;
    Ok(true)
}
