//! A folder of segments, and its catalog: numbered entries in files of their own, which are never
//! changed. An entry appears as a whole or not at all, and only after the file that it names.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use crate::maintenance::segments::SegmentError;

/// The folder of the entries.
const ENTRIES: &str = "catalog";
/// The version of an entry.
const ENTRY_FORMAT: u64 = 1;

/// The kind of a file of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Attempts with their calls.
    Attempts,
    /// Rewards of attempts that were sealed before.
    Rewards,
    /// Annotations of calls that were sealed before.
    Annotations,
}

impl EntryKind {
    const ALL: [Self; 3] = [Self::Attempts, Self::Rewards, Self::Annotations];

    /// The word for it in an entry.
    fn word(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Rewards => "rewards",
            Self::Annotations => "annotations",
        }
    }

    /// True for a file of what came late, and not of attempts.
    pub fn is_late(self) -> bool {
        self != Self::Attempts
    }
}

/// An entry of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Its number, from 1; no two entries of a folder have one.
    pub number: u64,
    /// The kind of the file.
    pub kind: EntryKind,
    /// The store of which it was sealed.
    pub store: String,
    /// The name of the file.
    pub file: String,
    /// The BLAKE3 hash of the file, as 64 hexadecimal digits.
    pub hash: String,
    /// The length of the file.
    pub bytes: u64,
    /// Attempts in it; of what came late, the number of its lines.
    pub attempts: u64,
    /// Calls in it.
    pub calls: u64,
    /// Sampled tokens in it, by the count of the server.
    pub completion_tokens: u64,
    /// The positions of its first and its last attempt; 0 and 0 for what came late.
    pub positions: (i64, i64),
    /// The numbers of earlier entries with attempts of its groups: who compares attempts of a group
    /// reads them together.
    pub joins: Vec<u64>,
}

/// A file that has its name.
#[derive(Debug)]
pub(super) struct KeptFile {
    pub(super) name: String,
    pub(super) hash: blake3::Hash,
    pub(super) bytes: u64,
}

/// A folder of segments.
#[derive(Debug, Clone)]
pub struct SegmentFolder(PathBuf);

impl SegmentFolder {
    /// The folder of the entries, below that of the segments.
    pub const CATALOG: &str = ENTRIES;

    /// The folder at a path, which need not be there.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// True if there is a catalog at a path.
    pub fn is_at(path: &Path) -> bool {
        path.join(ENTRIES).is_dir()
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the file of an entry.
    pub fn file(&self, entry: &CatalogEntry) -> PathBuf {
        self.0.join(&entry.file)
    }

    /// The name of the entry of a number, below the folder.
    pub fn entry_name(number: u64) -> String {
        format!("{ENTRIES}/{number:010}.json")
    }

    /// All entries, in the order of their numbers.
    ///
    /// # Errors
    /// [`SegmentError`] when the folder cannot be read, or an entry is not known.
    pub fn entries(&self) -> Result<Vec<CatalogEntry>, SegmentError> {
        let folder = self.0.join(ENTRIES);
        let listed = match folder.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(SegmentError::io(&folder))?,
        };

        let mut entries = Vec::new();
        for file in listed {
            let path = file.map_err(SegmentError::io(&folder))?.path();
            // Entries that are being written have other names.
            if path.extension().is_some_and(|extension| extension == "json") {
                let bytes = std::fs::read(&path).map_err(SegmentError::io(&path))?;
                let entry = CatalogEntry::parse(&bytes);
                entries.push(entry.map_err(|why| SegmentError::Entry { path, why })?);
            }
        }
        entries.sort_by_key(|entry| entry.number);
        Ok(entries)
    }

    /// Makes the folder, where it is not there.
    pub(super) fn make(&self) -> Result<(), SegmentError> {
        let entries = self.0.join(ENTRIES);
        std::fs::create_dir_all(&entries).map_err(SegmentError::io(&entries))
    }

    /// Gives a file of the folder its name, which begins with `number` and ends with `kind`.
    pub(super) fn keep(
        &self,
        file: NamedTempFile,
        number: u64,
        kind: &str,
    ) -> Result<KeptFile, SegmentError> {
        let path = file.path().to_owned();
        let sealed = file.as_file().sync_all().and_then(|()| hash_of(&path));
        let (hash, bytes) = sealed.map_err(SegmentError::io(&path))?;

        let name = format!("{number:010}-{}.{kind}", &hash.to_hex()[..16]);
        let to = self.0.join(&name);
        file.persist(&to).map_err(|error| SegmentError::io(&to)(error.error))?;
        self.sync(&self.0)?;
        Ok(KeptFile { name, hash, bytes })
    }

    /// Enters a file in the catalog, under the first number that is free.
    pub(super) fn enter(&self, mut entry: CatalogEntry) -> Result<CatalogEntry, SegmentError> {
        let folder = self.0.join(ENTRIES);
        loop {
            let to = self.0.join(Self::entry_name(entry.number));
            let written = NamedTempFile::new_in(&folder).and_then(|mut file| {
                file.write_all(entry.to_json().to_string().as_bytes())?;
                file.as_file().sync_all()?;
                Ok(file)
            });
            let file = written.map_err(SegmentError::io(&to))?;
            match file.persist_noclobber(&to) {
                Ok(_) => break,
                // Another store that seals into this folder was faster.
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                    entry.number += 1;
                }
                Err(error) => return Err(SegmentError::io(&to)(error.error)),
            }
        }
        self.sync(&folder)?;
        Ok(entry)
    }

    fn sync(&self, folder: &Path) -> Result<(), SegmentError> {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(SegmentError::io(folder))
    }
}

/// The hash of a file, and its length.
pub(crate) fn hash_of(path: &Path) -> io::Result<(blake3::Hash, u64)> {
    let mut hasher = blake3::Hasher::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok((hasher.finalize(), bytes))
}

impl CatalogEntry {
    /// The entry of a file of `lines` lines that came late.
    pub(super) fn of_late(
        kind: EntryKind,
        store: &str,
        number: u64,
        kept: KeptFile,
        lines: u64,
    ) -> Self {
        Self {
            number,
            kind,
            store: store.to_owned(),
            file: kept.name,
            hash: kept.hash.to_hex().to_string(),
            bytes: kept.bytes,
            attempts: lines,
            calls: 0,
            completion_tokens: 0,
            positions: (0, 0),
            joins: Vec::new(),
        }
    }

    /// Compares the file at a path with the entry.
    ///
    /// # Errors
    /// [`SegmentError`] when it cannot be read or differs.
    pub fn check(&self, file: &Path) -> Result<(), SegmentError> {
        let (hash, bytes) = hash_of(file).map_err(SegmentError::io(file))?;
        match hash.to_hex().as_str() == self.hash && bytes == self.bytes {
            true => Ok(()),
            false => Err(SegmentError::Changed(file.to_owned())),
        }
    }

    /// The entry as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "format": ENTRY_FORMAT,
            "number": self.number,
            "kind": self.kind.word(),
            "store": self.store,
            "file": self.file,
            "hash": self.hash,
            "bytes": self.bytes,
            "attempts": self.attempts,
            "calls": self.calls,
            "completion_tokens": self.completion_tokens,
            "positions": [self.positions.0, self.positions.1],
            "joins": self.joins,
        })
    }

    /// The entry that some bytes are.
    ///
    /// # Errors
    /// The defect, in words.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let object: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let number = |name: &str| {
            object.get(name).and_then(Value::as_u64).ok_or(format!("`{name}` is no number"))
        };
        let text = |name: &str| {
            let found = object.get(name).and_then(Value::as_str).map(str::to_owned);
            found.ok_or(format!("`{name}` is no text"))
        };
        if number("format")? != ENTRY_FORMAT {
            return Err("it is of a newer version of rolltape".to_owned());
        }

        let file = text("file")?;
        if file.contains(['/', '\\']) || file.starts_with('.') {
            return Err("`file` names something outside the folder".to_owned());
        }
        let word = text("kind")?;
        let kind = EntryKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or(format!(
            "the kind `{word}` is not known: it may be of a newer version of rolltape"
        ))?;
        let positions = object.get("positions").and_then(Value::as_array);
        let position = |at: usize| positions.and_then(|all| all.get(at)?.as_i64());
        let joins = object.get("joins").and_then(Value::as_array);
        Ok(Self {
            number: number("number")?,
            kind,
            store: text("store")?,
            file,
            hash: text("hash")?,
            bytes: number("bytes")?,
            attempts: number("attempts")?,
            calls: number("calls")?,
            completion_tokens: number("completion_tokens")?,
            positions: position(0).zip(position(1)).ok_or("`positions` are not two numbers")?,
            joins: joins.into_iter().flatten().filter_map(Value::as_u64).collect(),
        })
    }
}
