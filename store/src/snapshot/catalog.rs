//! A folder of segments, and its catalog: numbered entries in files of their own, which are never
//! changed. An entry appears as a whole or not at all, and only after the file that it names. One
//! that replaces another counts in its place.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use episode::AttemptId;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;
use thiserror::Error;

/// The folder of the entries.
const ENTRIES: &str = "catalog";
/// The version of an entry. One that replaces another has the second: earlier versions would take
/// both.
const ENTRY_FORMAT: u64 = 1;
const REPLACING_FORMAT: u64 = 2;
/// The beginning of the name of a file that has no other yet.
const UNNAMED: &str = ".segment-";
/// The file that says in which bucket the files are that left the folder.
const BUCKET: &str = "bucket.json";
/// Digits of the number that names begin with.
const NUMBER_DIGITS: usize = 10;
/// Age of a file without an entry from which on its maker is taken for dead, unless it holds its
/// lock: a folder may be shared by machines that do not see each other's locks.
const STRAY_AFTER: Duration = Duration::from_secs(3600);
/// The beginning of what is hashed of the name of an attempt that was removed.
const REMOVED: &str = "rolltape removed 1";

/// The reasons for which a folder of segments cannot be used.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// A file or a folder could not be read or written.
    #[error("cannot use `{path}`")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// An entry of the catalog is not one that this version knows.
    #[error("`{path}` is no entry of a catalog: {why}")]
    Entry {
        /// The entry.
        path: PathBuf,
        /// The defect.
        why: String,
    },
    /// A file is not what the catalog says.
    #[error("`{0}` is not the file that was sealed: its hash differs")]
    Changed(PathBuf),
}

impl CatalogError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

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
    /// The number of the entry that it replaces, whose file is no longer read.
    pub replaces: Option<u64>,
    /// The attempts that were removed from what was sealed: hashes of their names, sorted. See
    /// [`CatalogEntry::hash_of`].
    pub removed: Vec<String>,
}

/// A file that has its name.
#[derive(Debug)]
pub(crate) struct KeptFile {
    pub(crate) name: String,
    /// Its BLAKE3 hash, as an entry has it.
    pub(crate) hash: String,
    pub(crate) bytes: u64,
    /// The lock of its maker: see [`SegmentFolder::making`].
    pub(crate) lock: Option<File>,
}

impl KeptFile {
    /// No file.
    fn none() -> Self {
        Self { name: String::new(), hash: String::new(), bytes: 0, lock: None }
    }
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
    /// [`CatalogError`] when the folder cannot be read, or an entry is not known.
    pub fn entries(&self) -> Result<Vec<CatalogEntry>, CatalogError> {
        let folder = self.0.join(ENTRIES);
        let listed = match folder.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(CatalogError::io(&folder))?,
        };

        let mut entries = Vec::new();
        for file in listed {
            let path = file.map_err(CatalogError::io(&folder))?.path();
            // Entries that are being written have other names.
            if path.extension().is_some_and(|extension| extension == "json") {
                let bytes = std::fs::read(&path).map_err(CatalogError::io(&path))?;
                let entry = CatalogEntry::parse(&bytes);
                entries.push(entry.map_err(|why| CatalogError::Entry { path, why })?);
            }
        }
        entries.sort_by_key(|entry| entry.number);
        Ok(entries)
    }

    /// The URL of the bucket that has the files that left the folder, if any may have left.
    ///
    /// # Errors
    /// [`CatalogError`] when the file that says so cannot be read.
    pub fn bucket(&self) -> Result<Option<String>, CatalogError> {
        let path = self.0.join(BUCKET);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(CatalogError::io(&path))?,
        };
        let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match document["url"].as_str() {
            Some(url) => Ok(Some(url.to_owned())),
            None => Err(CatalogError::Entry { path, why: "it names no `url`".to_owned() }),
        }
    }

    /// Says in which bucket the files are that leave the folder from now on, and those that left.
    pub(crate) fn set_bucket(&self, url: &str) -> Result<(), CatalogError> {
        let path = self.0.join(BUCKET);
        let written = NamedTempFile::new_in(&self.0).and_then(|mut file| {
            file.write_all(json!({ "url": url }).to_string().as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)
        });
        written.map_err(CatalogError::io(&path))?;
        self.sync(&self.0)
    }

    /// Those entries that none replaces. Nothing may be left of their files.
    pub fn live(entries: &[CatalogEntry]) -> Vec<&CatalogEntry> {
        let replaced: BTreeSet<u64> = entries.iter().filter_map(|entry| entry.replaces).collect();
        entries.iter().filter(|entry| !replaced.contains(&entry.number)).collect()
    }

    /// The entry that counts in place of that of a number; itself if none replaces it.
    pub(crate) fn last_of(entries: &[CatalogEntry], number: u64) -> Option<&CatalogEntry> {
        let mut last = entries.iter().find(|entry| entry.number == number)?;
        // An entry replaces an earlier one.
        while let Some(next) = entries
            .iter()
            .find(|entry| entry.replaces == Some(last.number) && entry.number > last.number)
        {
            last = next;
        }
        Some(last)
    }

    /// The entry that counts in place of that of a file; `None` where the file counts itself, or
    /// has no entry.
    pub(crate) fn in_place_of<'a>(
        entries: &'a [CatalogEntry],
        file: &str,
    ) -> Option<&'a CatalogEntry> {
        let entry = entries.iter().find(|entry| entry.file == file)?;
        Self::last_of(entries, entry.number).filter(|last| last.number != entry.number)
    }

    /// Makes the folder, where it is not there.
    pub(crate) fn make(&self) -> Result<(), CatalogError> {
        let entries = self.0.join(ENTRIES);
        std::fs::create_dir_all(&entries).map_err(CatalogError::io(&entries))
    }

    /// A file of the folder that is being made. Its lock tells it from one whose maker died, and
    /// is to be held until it has an entry.
    ///
    /// # Errors
    /// [`CatalogError`] when it cannot be made.
    pub fn making(&self) -> Result<NamedTempFile, CatalogError> {
        let mut named = tempfile::Builder::new();
        let file = named.prefix(UNNAMED).suffix(".tmp").tempfile_in(&self.0);
        let file = file.map_err(CatalogError::io(&self.0))?;
        // A file system without locks has no other process to tell it to.
        let _ = file.as_file().try_lock();
        Ok(file)
    }

    /// Removes files that no entry names: a maker that died left them.
    pub(crate) fn remove_strays(&self) -> Result<(), CatalogError> {
        let listed = self.0.read_dir().map_err(CatalogError::io(&self.0))?;
        let mut strays = Vec::new();
        for file in listed.flatten() {
            let name = file.file_name();
            if name.to_str().is_some_and(is_of_segments) && is_stray(&file.path()) {
                strays.push(file.path());
            }
        }
        if strays.is_empty() {
            return Ok(());
        }

        // Read last: what got its entry meanwhile stays.
        let named: BTreeSet<PathBuf> =
            self.entries()?.iter().map(|entry| self.file(entry)).collect();
        for path in strays.iter().filter(|path| !named.contains(*path)) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(CatalogError::io(path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a file of the folder its name, which begins with `number` and ends with `kind`.
    pub(crate) fn keep(
        &self,
        file: NamedTempFile,
        number: u64,
        kind: &str,
    ) -> Result<KeptFile, CatalogError> {
        let path = file.path().to_owned();
        let sealed = file.as_file().sync_all().and_then(|()| hash_of(&path));
        let (hash, bytes) = sealed.map_err(CatalogError::io(&path))?;

        let name = format!("{number:010}-{}.{kind}", &hash.to_hex()[..16]);
        let to = self.0.join(&name);
        let lock = file.persist(&to).map_err(|error| CatalogError::io(&to)(error.error))?;
        self.sync(&self.0)?;
        Ok(KeptFile { name, hash: hash.to_hex().to_string(), bytes, lock: Some(lock) })
    }

    /// Enters a file in the catalog, under the first number that is free.
    pub(crate) fn enter(&self, mut entry: CatalogEntry) -> Result<CatalogEntry, CatalogError> {
        // Another store that seals into this folder may be faster.
        while !self.enter_at(&entry)? {
            entry.number += 1;
        }
        Ok(entry)
    }

    /// Enters a file in the catalog under its number; false where that is taken.
    pub(crate) fn enter_at(&self, entry: &CatalogEntry) -> Result<bool, CatalogError> {
        let folder = self.0.join(ENTRIES);
        let to = self.0.join(Self::entry_name(entry.number));
        let written = NamedTempFile::new_in(&folder).and_then(|mut file| {
            file.write_all(entry.to_json().to_string().as_bytes())?;
            file.as_file().sync_all()?;
            Ok(file)
        });

        match written.map_err(CatalogError::io(&to))?.persist_noclobber(&to) {
            Ok(_) => self.sync(&folder).map(|()| true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(CatalogError::io(&to)(error.error)),
        }
    }

    fn sync(&self, folder: &Path) -> Result<(), CatalogError> {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(CatalogError::io(folder))
    }
}

/// True for a name that files of segments have, with an entry or before.
fn is_of_segments(name: &str) -> bool {
    let (number, rest) = name.split_at_checked(NUMBER_DIGITS).unwrap_or_default();
    let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_kind = rest.ends_with(".db") || rest.ends_with(".jsonl");
    name.starts_with(UNNAMED) || is_numbered && is_kind && rest.starts_with('-')
}

/// True for a file that is old and that nobody makes or reads.
fn is_stray(path: &Path) -> bool {
    let is_old = || {
        let changed = path.metadata().and_then(|file| file.modified()).ok()?;
        Some(changed.elapsed().ok()? > STRAY_AFTER)
    };
    let is_free = || File::open(path).is_ok_and(|file| file.try_lock().is_ok());
    is_old() == Some(true) && is_free()
}

/// The hash of a file, and its length.
pub(crate) fn hash_of(path: &Path) -> io::Result<(blake3::Hash, u64)> {
    let mut hasher = blake3::Hasher::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok((hasher.finalize(), bytes))
}

impl CatalogEntry {
    /// The entry of a file of `lines` lines that came late.
    pub(crate) fn of_late(
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
            hash: kept.hash,
            bytes: kept.bytes,
            attempts: lines,
            calls: 0,
            completion_tokens: 0,
            positions: (0, 0),
            joins: Vec::new(),
            replaces: None,
            removed: Vec::new(),
        }
    }

    /// An entry in place of `other`, without a file, from which some attempts are removed.
    pub(crate) fn replacing(other: &Self, number: u64, gone: &[AttemptId]) -> Self {
        let gone = gone.iter().map(|attempt| Self::hash_of(&other.store, attempt));
        let removed: BTreeSet<String> = other.removed.iter().cloned().chain(gone).collect();
        Self {
            removed: removed.into_iter().collect(),
            replaces: Some(other.number),
            joins: other.joins.clone(),
            ..Self::of_late(other.kind, &other.store, number, KeptFile::none(), 0)
        }
    }

    /// True where nothing is left of a file.
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// The name of an attempt of a store as it is kept once the attempt is removed: a hash, which
    /// only those know who know the name.
    pub fn hash_of(store: &str, attempt: &AttemptId) -> String {
        let name = format!("{REMOVED}\0{store}\0{}\0{}", attempt.episode, attempt.attempt);
        blake3::hash(name.as_bytes()).to_hex()[..32].to_owned()
    }

    /// True where an attempt was removed from what was sealed.
    pub fn has_removed(&self, attempt: &AttemptId) -> bool {
        self.removed.binary_search(&Self::hash_of(&self.store, attempt)).is_ok()
    }

    /// Compares the file at a path with the entry.
    ///
    /// # Errors
    /// [`CatalogError`] when it cannot be read or differs.
    pub fn check(&self, file: &Path) -> Result<(), CatalogError> {
        let (hash, bytes) = hash_of(file).map_err(CatalogError::io(file))?;
        match hash.to_hex().as_str() == self.hash && bytes == self.bytes {
            true => Ok(()),
            false => Err(CatalogError::Changed(file.to_owned())),
        }
    }

    /// The entry as JSON.
    pub fn to_json(&self) -> Value {
        let mut entry = json!({
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
        });

        if let Some(number) = self.replaces {
            entry["format"] = json!(REPLACING_FORMAT);
            entry["replaces"] = json!(number);
            entry["removed"] = json!(self.removed);
        }
        entry
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
        let replaces = match number("format")? {
            ENTRY_FORMAT => None,
            REPLACING_FORMAT => Some(number("replaces")?),
            _ => return Err("it is of a newer version of rolltape".to_owned()),
        };

        let file = text("file")?;
        let has_none = file.is_empty() && replaces.is_none();
        if has_none || file.contains(['/', '\\']) || file.starts_with('.') {
            return Err("`file` names something outside the folder".to_owned());
        }
        let word = text("kind")?;
        let kind = EntryKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or(format!(
            "the kind `{word}` is not known: it may be of a newer version of rolltape"
        ))?;
        let positions = object.get("positions").and_then(Value::as_array);
        let position = |at: usize| positions.and_then(|all| all.get(at)?.as_i64());
        let list = |name: &str| object.get(name).and_then(Value::as_array).into_iter().flatten();
        let removed = list("removed").filter_map(Value::as_str).map(str::to_owned);
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
            joins: list("joins").filter_map(Value::as_u64).collect(),
            replaces,
            removed: removed.collect(),
        })
    }
}
