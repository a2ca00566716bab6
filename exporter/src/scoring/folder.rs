//! A folder of scores: files of rows, each whole, and a document that says whose they are.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::errors::ParquetError;
use arrow::array::{AsArray, RecordBatch};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::rows::scores::RowScores;
use crate::scoring::sidecar::{SCORES_VERSION, ScoreSet, ScoredRow, decode, encode};

/// Name of the document of a folder.
const DOCUMENT: &str = "scores.json";
/// Bytes of scores, before compression, of a file. A longer row is a file of its own.
const FILE_BYTES: usize = 16 << 20;
/// Files whose rows are held in memory while they are read.
const READ_FILES_MAX: usize = 2;

/// Reason why a folder of scores cannot be used.
#[derive(Debug, Error)]
pub enum ScoreFolderError {
    /// There is no document of scores in it.
    #[error("`{0}` holds no scores: it has no {DOCUMENT}")]
    NotScores(PathBuf),
    /// A newer rolltape wrote it.
    #[error("`{0}` was written by a newer rolltape (scores {1}); upgrade this one to read it")]
    Newer(PathBuf, i32),
    /// It has other scores than those that are to be added.
    #[error("`{path}` holds scores of {held}, not of {asked}")]
    Other {
        /// The folder.
        path: PathBuf,
        /// The name of the model whose scores it has.
        held: String,
        /// The name of the model whose scores were to be added.
        asked: String,
    },
    /// Two folders have scores of one name.
    #[error("two folders hold scores named `{0}`")]
    SameName(String),
    /// A file could not be read or written.
    #[error("cannot use `{path}`")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file is not one of scores, or rows make none.
    #[error("cannot read scores of `{path}`")]
    Rows {
        /// The file.
        path: PathBuf,
        /// The error of Parquet.
        #[source]
        source: ParquetError,
    },
}

/// The document of a folder.
#[derive(Debug, Serialize, Deserialize)]
struct ScoresDocument {
    format_version: i32,
    #[serde(flatten)]
    set: ScoreSet,
}

/// The place of the scores of a row.
#[derive(Debug, Clone)]
struct RowPlace {
    ids_hash: String,
    file: usize,
    row: usize,
}

/// The scores that a folder has of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FoundScores {
    Scores(RowScores),
    /// Other ids were scored under its name.
    OtherIds,
    None,
}

/// A folder of the scores of one model.
#[derive(Debug)]
pub struct ScoreFolder {
    path: PathBuf,
    set: ScoreSet,
    files: Vec<PathBuf>,
    places: HashMap<String, RowPlace>,
    /// Rows of the files that were read last.
    read: Vec<(usize, Arc<Vec<RowScores>>)>,
    /// Rows that are in no file yet.
    pending: Vec<ScoredRow>,
    pending_bytes: usize,
}

impl ScoreFolder {
    /// Opens a folder to add scores, which is made if there is none.
    ///
    /// # Errors
    /// [`ScoreFolderError`] when it holds other scores, or something else.
    pub fn begin(path: &Path, set: ScoreSet) -> Result<Self, ScoreFolderError> {
        fs::create_dir_all(path).map_err(io_error(path))?;
        let document = path.join(DOCUMENT);
        if !document.exists() {
            let format_version = SCORES_VERSION;
            let told = serde_json::to_vec_pretty(&ScoresDocument { format_version, set })
                .map_err(|error| io_error(&document)(error.into()))?;
            put(&document, &told)?;
            return Self::open(path);
        }

        let folder = Self::open(path)?;
        match folder.set == set {
            true => Ok(folder),
            false => Err(ScoreFolderError::Other {
                path: path.to_owned(),
                held: words(&folder.set),
                asked: words(&set),
            }),
        }
    }

    /// Opens a folder to read it.
    ///
    /// # Errors
    /// [`ScoreFolderError`] when it is none of scores, or cannot be read.
    pub fn open(path: &Path) -> Result<Self, ScoreFolderError> {
        let told = match fs::read(path.join(DOCUMENT)) {
            Ok(told) => told,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ScoreFolderError::NotScores(path.to_owned()));
            }
            Err(error) => return Err(io_error(path)(error)),
        };
        let document: ScoresDocument = serde_json::from_slice(&told)
            .map_err(|_| ScoreFolderError::NotScores(path.to_owned()))?;
        if document.format_version > SCORES_VERSION {
            return Err(ScoreFolderError::Newer(path.to_owned(), document.format_version));
        }

        let mut folder = Self {
            path: path.to_owned(),
            set: document.set,
            files: parquet_files(path)?,
            places: HashMap::new(),
            read: Vec::new(),
            pending: Vec::new(),
            pending_bytes: 0,
        };
        folder.look_up()?;
        Ok(folder)
    }

    /// Returns whose scores it has.
    pub fn set(&self) -> &ScoreSet {
        &self.set
    }

    /// Returns the number of rows in its files.
    pub fn rows(&self) -> usize {
        self.places.len()
    }

    /// Returns true where the scores of these ids are there.
    pub fn holds(&self, trajectory_id: &str, ids_hash: &str) -> bool {
        self.places.get(trajectory_id).is_some_and(|place| place.ids_hash == ids_hash)
    }

    /// Adds a row. A file is written when there are rows for one.
    ///
    /// # Errors
    /// [`ScoreFolderError`] when a file cannot be written.
    pub fn add(&mut self, row: ScoredRow) -> Result<(), ScoreFolderError> {
        self.pending_bytes += row.bytes();
        self.pending.push(row);
        if self.pending_bytes >= FILE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes the rows that are in no file yet.
    ///
    /// # Errors
    /// [`ScoreFolderError`] when the file cannot be written.
    pub fn flush(&mut self) -> Result<(), ScoreFolderError> {
        let rows = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if rows.is_empty() {
            return Ok(());
        }

        // The name says what is in it, so that two processes never write one file.
        let keys = rows.iter().flat_map(|row| [row.trajectory_id.as_str(), &row.ids_hash]);
        let hash = blake3::hash(keys.collect::<Vec<_>>().join("\n").as_bytes()).to_hex();
        let path = self.path.join(format!("scores-{}.parquet", &hash[..16]));

        let bytes = encode(&self.set, &rows).map_err(rows_error(&path))?;
        put(&path, &bytes)?;
        let file = self.files.len();
        for (row, ScoredRow { trajectory_id, ids_hash, .. }) in rows.into_iter().enumerate() {
            self.places.insert(trajectory_id, RowPlace { ids_hash, file, row });
        }
        self.files.push(path);
        Ok(())
    }

    /// Returns the scores of a row with these ids.
    pub(crate) fn find(
        &mut self,
        trajectory_id: &str,
        ids_hash: &str,
    ) -> Result<FoundScores, ScoreFolderError> {
        let Some(place) = self.places.get(trajectory_id).cloned() else {
            return Ok(FoundScores::None);
        };
        if place.ids_hash != ids_hash {
            return Ok(FoundScores::OtherIds);
        }
        let rows = self.rows_of(place.file)?;
        Ok(rows.get(place.row).cloned().map_or(FoundScores::None, FoundScores::Scores))
    }

    /// Returns the rows of a file. Files are read in the order in which rows were scored, so a few
    /// of them are enough to hold.
    fn rows_of(&mut self, file: usize) -> Result<Arc<Vec<RowScores>>, ScoreFolderError> {
        if let Some((_, rows)) = self.read.iter().find(|(held, _)| *held == file) {
            return Ok(Arc::clone(rows));
        }
        let path = &self.files[file];
        let name = &self.set.name;
        let rows = read(path, &[], |batch| decode(name, batch))?;
        let rows = Arc::new(rows);
        self.read.truncate(READ_FILES_MAX - 1);
        self.read.insert(0, (file, Arc::clone(&rows)));
        Ok(rows)
    }

    /// Looks up which rows the files have. Of two with one name the last counts.
    fn look_up(&mut self) -> Result<(), ScoreFolderError> {
        for (file, path) in self.files.iter().enumerate() {
            let keys = read(path, &["trajectory_id", "ids_hash"], keys)?;
            for (row, (trajectory_id, ids_hash)) in keys.into_iter().enumerate() {
                self.places.insert(trajectory_id, RowPlace { ids_hash, file, row });
            }
        }
        Ok(())
    }
}

/// Returns the files of a folder, sorted by the time at which they were written, then by name.
fn parquet_files(folder: &Path) -> Result<Vec<PathBuf>, ScoreFolderError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let entry = entry.map_err(io_error(folder))?;
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "parquet") {
            let written = entry.metadata().and_then(|data| data.modified());
            found.push((written.map_err(io_error(&path))?, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Reads the named columns of a file, all where none is named.
fn read<T>(
    path: &Path,
    columns: &[&str],
    of_batch: impl Fn(&RecordBatch) -> Result<Vec<T>, ArrowError>,
) -> Result<Vec<T>, ScoreFolderError> {
    let file = File::open(path).map_err(io_error(path))?;
    let rows = || -> Result<Vec<T>, ParquetError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
        let mask = match columns {
            [] => ProjectionMask::all(),
            _ => ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied()),
        };
        let mut rows = Vec::new();
        for batch in builder.with_projection(mask).build()? {
            rows.extend(of_batch(&batch?)?);
        }
        Ok(rows)
    };
    rows().map_err(rows_error(path))
}

fn keys(batch: &RecordBatch) -> Result<Vec<(String, String)>, ArrowError> {
    let texts = |name: &str| batch.column_by_name(name)?.as_string_opt::<i32>();
    let columns = texts("trajectory_id").zip(texts("ids_hash"));
    let (ids, hashes) =
        columns.ok_or_else(|| ArrowError::SchemaError("not a table of scores".to_owned()))?;
    let both = ids.iter().flatten().zip(hashes.iter().flatten());
    Ok(both.map(|(id, hash)| (id.to_owned(), hash.to_owned())).collect())
}

/// Writes a file that is visible only when it is whole and on disk.
fn put(path: &Path, bytes: &[u8]) -> Result<(), ScoreFolderError> {
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(io_error(path))
}

fn words(set: &ScoreSet) -> String {
    let ScoreSet { name, model, version, top } = set;
    let version = if version.is_empty() { String::new() } else { format!(" at {version}") };
    format!("`{name}` by `{model}`{version} with --top {top}")
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ScoreFolderError {
    move |source| ScoreFolderError::Io { path: path.to_owned(), source }
}

fn rows_error(path: &Path) -> impl FnOnce(ParquetError) -> ScoreFolderError {
    move |source| ScoreFolderError::Rows { path: path.to_owned(), source }
}
