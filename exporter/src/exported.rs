//! Which episodes an export holds, read back from its files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::errors::ParquetError;
use arrow::array::AsArray;
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use serde::Deserialize;
use thiserror::Error;

use crate::parquet::{FORMAT, FORMAT_VERSION, Target, digest};

/// Why an export could not be read.
#[derive(Debug, Error)]
pub enum ExportedError {
    /// There is no manifest, or it is another program's.
    #[error("`{0}` is not the manifest of an export")]
    NotAnExport(PathBuf),
    /// The export was written by a newer rolltape.
    #[error("`{0}` was written by a newer rolltape (manifest {1}); upgrade this one to read it")]
    Newer(PathBuf, u32),
    /// The file is not the one that its manifest names.
    #[error("`{0}` is not what its manifest says: the export did not finish, or was changed")]
    Changed(PathBuf),
    /// A file could not be read.
    #[error("cannot read `{path}`")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The file holds no rows of ours.
    #[error("cannot read the rows of `{path}`")]
    Rows {
        /// The file.
        path: PathBuf,
        /// What Parquet says.
        #[source]
        source: ParquetError,
    },
}

/// What is read of a manifest.
#[derive(Deserialize)]
struct Manifest {
    format: String,
    format_version: u32,
    files: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    path: PathBuf,
    sha256: String,
}

/// The attempts at episodes that have a row in an export. `path` is its folder, its manifest or
/// its Parquet file.
///
/// # Errors
/// [`ExportedError`] when it is not a whole export that this version can read.
pub fn exported(path: &Path) -> Result<BTreeSet<(String, u32)>, ExportedError> {
    let named = path.extension().is_some_and(|extension| extension == "json");
    let manifest = if named { path.to_owned() } else { Target::new(path).manifest };
    let text = fs::read(&manifest).map_err(at(&manifest))?;
    let read: Manifest = serde_json::from_slice(&text)
        .ok()
        .filter(|read: &Manifest| read.format == FORMAT)
        .ok_or_else(|| ExportedError::NotAnExport(manifest.clone()))?;
    if read.format_version > FORMAT_VERSION {
        return Err(ExportedError::Newer(manifest, read.format_version));
    }
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let mut episodes = BTreeSet::new();
    for Entry { path, sha256 } in read.files {
        let path = folder.join(path);
        let (_, found) = digest(&path).map_err(at(&path))?;
        if found != sha256 {
            return Err(ExportedError::Changed(path));
        }
        let file = File::open(&path).map_err(at(&path))?;
        add_rows(file, &mut episodes).map_err(|source| ExportedError::Rows { path, source })?;
    }
    Ok(episodes)
}

fn add_rows(file: File, episodes: &mut BTreeSet<(String, u32)>) -> Result<(), ParquetError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let columns = ["episode_id", "attempt"];
    let columns = ProjectionMask::columns(builder.parquet_schema(), columns);
    for batch in builder.with_projection(columns).build()? {
        let batch = batch?;
        let missing = || ArrowError::SchemaError("no episodes and attempts".to_owned());
        let ids = batch.column_by_name("episode_id").and_then(|ids| ids.as_string_opt::<i32>());
        let attempts = batch.column_by_name("attempt");
        let attempts = attempts.and_then(|column| column.as_primitive_opt::<Int32Type>());
        let (ids, attempts) = ids.zip(attempts).ok_or_else(missing)?;
        for (id, attempt) in ids.iter().flatten().zip(attempts.values()) {
            episodes.insert((id.to_owned(), attempt.unsigned_abs()));
        }
    }
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ExportedError {
    move |source| ExportedError::Io { path: path.to_owned(), source }
}
