//! Reads the attempts that an export holds from its files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::errors::ParquetError;
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use episode::AttemptId;
use sha2::{Digest, Sha256};
use store::{Snapshot, SnapshotError};
use thiserror::Error;

use crate::options::format::Format;
use crate::output::layout::Layout;
use crate::output::manifest::{FORMAT_VERSION, Manifest};

/// Reason why an export could not be read.
#[derive(Debug, Error)]
pub enum ReadExportError {
    /// There is no manifest, or it is another program's.
    #[error("`{0}` is not the manifest of an export")]
    NotAnExport(PathBuf),
    /// The export was written by a newer rolltape.
    #[error("`{0}` was written by a newer rolltape (manifest {1}); upgrade this one to read it")]
    Newer(PathBuf, u32),
    /// The file is not the one that its manifest names.
    #[error("`{0}` is not what its manifest says: the export did not finish, or was changed")]
    Changed(PathBuf),
    /// The export is of another store than the one at hand.
    #[error("`{0}` holds attempts of another store, or of this one before it was restored")]
    OtherStore(PathBuf),
    /// The store could not be read.
    #[error("cannot read the store")]
    Store(#[from] SnapshotError),
    /// A file could not be read.
    #[error("cannot read `{path}`")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file holds no rows of an export.
    #[error("cannot read the rows of `{path}`")]
    Rows {
        /// The file.
        path: PathBuf,
        /// The error of Parquet.
        #[source]
        source: ParquetError,
    },
}

/// Returns the attempts that have a row in an export, of those that the store of the snapshot has.
///
/// Attempts of an export are named by their positions in the store, where they have one. `path` is
/// a folder, a manifest, or the one file that was named for an export. Of a folder all exports
/// count: every format and every shard.
///
/// # Errors
/// [`ReadExportError`] when it is not a whole export that this version can read.
pub async fn exported_attempts(
    path: &Path,
    snapshot: &mut Snapshot,
) -> Result<BTreeSet<AttemptId>, ReadExportError> {
    let mut attempts = BTreeSet::new();
    let store = snapshot.store_id().await?;
    for path in manifests(path)? {
        let mut manifest = add_named(&path, &mut attempts)?;
        let of_store = store.as_ref().and_then(|store| manifest.positions.remove(store));
        let Some(of_store) = of_store else { continue };
        if !of_store.is_of(snapshot).await? {
            return Err(ReadExportError::OtherStore(path));
        }
        attempts.extend(snapshot.names_at(of_store.held.ranges()).await?.into_values());
    }
    Ok(attempts)
}

/// Returns the manifests that `path` stands for; never none.
fn manifests(path: &Path) -> Result<Vec<PathBuf>, ReadExportError> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(vec![path.to_owned()]);
    }
    let Ok((folder, layout)) = Layout::new(path, Format::Trajectories, None, None) else {
        return Err(ReadExportError::NotAnExport(path.to_owned()));
    };
    let usual = folder.join(&layout.manifest);
    if layout.is_one_file() {
        return Ok(vec![usual]);
    }

    // A folder may hold several exports.
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(io_error(&folder))? {
        let path = entry.map_err(io_error(&folder))?.path();
        if path.file_name().is_some_and(|name| is_manifest(&name.to_string_lossy())) {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() { Err(ReadExportError::NotAnExport(usual)) } else { Ok(found) }
}

/// Returns true for the name of the manifest of a plain export, a shard, another format or a named
/// file.
fn is_manifest(name: &str) -> bool {
    name == "manifest.json"
        || name.ends_with(".manifest.json")
        || (name.starts_with("manifest-") && name.ends_with(".json"))
}

/// Adds the attempts that one manifest names, whose files must be as it says.
fn add_named(path: &Path, attempts: &mut BTreeSet<AttemptId>) -> Result<Manifest, ReadExportError> {
    let text = fs::read(path).map_err(io_error(path))?;
    let manifest =
        Manifest::read(&text).ok_or_else(|| ReadExportError::NotAnExport(path.to_owned()))?;
    if manifest.format_version > FORMAT_VERSION {
        return Err(ReadExportError::Newer(path.to_owned(), manifest.format_version));
    }

    let folder = path.parent().unwrap_or(Path::new(""));
    for entry in &manifest.files {
        let path = folder.join(&entry.path);
        if digest(&path).map_err(io_error(&path))? != entry.sha256 {
            return Err(ReadExportError::Changed(path));
        }
        // The first manifests did not name the episodes, so their rows are read.
        let names_none = manifest.episodes.is_empty() && manifest.format_version == 1;
        if names_none && path.extension().is_some_and(|e| e == "parquet") {
            let file = File::open(&path).map_err(io_error(&path))?;
            add_rows(file, attempts).map_err(|source| ReadExportError::Rows { path, source })?;
        }
    }

    attempts.extend(manifest.episodes.iter().filter_map(|name| name.parse().ok()));
    Ok(manifest)
}

/// Returns the SHA-256 of a file, in hexadecimal.
fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn add_rows(file: File, attempts: &mut BTreeSet<AttemptId>) -> Result<(), ParquetError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let columns = ProjectionMask::columns(builder.parquet_schema(), ["episode_id", "attempt"]);
    for batch in builder.with_projection(columns).build()? {
        add_batch(&batch?, attempts)?;
    }
    Ok(())
}

fn add_batch(batch: &RecordBatch, attempts: &mut BTreeSet<AttemptId>) -> Result<(), ArrowError> {
    let ids = batch.column_by_name("episode_id").and_then(|column| column.as_string_opt::<i32>());
    let numbers =
        batch.column_by_name("attempt").and_then(|column| column.as_primitive_opt::<Int32Type>());
    let (ids, numbers) = ids
        .zip(numbers)
        .ok_or_else(|| ArrowError::SchemaError("no episodes and attempts".to_owned()))?;
    for (id, attempt) in ids.iter().flatten().zip(numbers.values()) {
        // What is no id names no episode of a store.
        if let Ok(episode) = id.parse() {
            attempts.insert(AttemptId { episode, attempt: attempt.unsigned_abs() });
        }
    }
    Ok(())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ReadExportError {
    move |source| ReadExportError::Io { path: path.to_owned(), source }
}
