//! Which episodes an export holds, read back from its files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::errors::ParquetError;
use arrow::array::AsArray;
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::formats::Format;
use crate::output::layout::Layout;
use crate::output::manifest::{FORMAT_VERSION, Manifest};

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

/// The attempts at episodes that have a row in an export. `path` is a folder, of which all exports
/// count (every format, every shard), a manifest, or the one file that was named for an export.
///
/// # Errors
/// [`ExportedError`] when it is not a whole export that this version can read.
pub fn exported(path: &Path) -> Result<BTreeSet<(String, u32)>, ExportedError> {
    let mut episodes = BTreeSet::new();
    for manifest in manifests(path)? {
        add(&manifest, &mut episodes)?;
    }
    Ok(episodes)
}

/// The manifests that `path` stands for; never none.
fn manifests(path: &Path) -> Result<Vec<PathBuf>, ExportedError> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(vec![path.to_owned()]);
    }
    let Ok((folder, layout)) = Layout::new(path, Format::Trajectories, None, None) else {
        return Err(ExportedError::NotAnExport(path.to_owned()));
    };
    let one = folder.join(&layout.manifest);
    if layout.is_one_file() {
        return Ok(vec![one]);
    }
    // Of a plain export, of its shards, of other formats and of named files.
    let is_manifest = |name: &str| {
        name == "manifest.json"
            || name.ends_with(".manifest.json")
            || (name.starts_with("manifest-") && name.ends_with(".json"))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(at(&folder))? {
        let path = entry.map_err(at(&folder))?.path();
        if path.file_name().is_some_and(|name| is_manifest(&name.to_string_lossy())) {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() { Err(ExportedError::NotAnExport(one)) } else { Ok(found) }
}

/// Adds the attempts of one manifest whose files are what it says.
fn add(manifest: &Path, episodes: &mut BTreeSet<(String, u32)>) -> Result<(), ExportedError> {
    let text = fs::read(manifest).map_err(at(manifest))?;
    let read =
        Manifest::read(&text).ok_or_else(|| ExportedError::NotAnExport(manifest.to_owned()))?;
    if read.format_version > FORMAT_VERSION {
        return Err(ExportedError::Newer(manifest.to_owned(), read.format_version));
    }
    let folder = manifest.parent().unwrap_or(Path::new(""));
    for file in &read.files {
        let path = folder.join(&file.path);
        if digest(&path).map_err(at(&path))? != file.sha256 {
            return Err(ExportedError::Changed(path));
        }
        // Manifests from before they named the episodes themselves.
        if read.episodes.is_empty() && path.extension().is_some_and(|e| e == "parquet") {
            let file = File::open(&path).map_err(at(&path))?;
            add_rows(file, episodes).map_err(|source| ExportedError::Rows { path, source })?;
        }
    }
    let named = read.episodes.iter().filter_map(|name| name.rsplit_once('/'));
    episodes.extend(named.filter_map(|(id, n)| Some((id.to_owned(), n.parse().ok()?))));
    Ok(())
}

/// The SHA-256 of a file, in hexadecimal.
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
