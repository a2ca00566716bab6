//! Names of the files of an export.

use std::path::{Path, PathBuf};

use crate::input::plan::Shard;
use crate::options::encoding::Encoding;
use crate::options::format::Format;
use crate::output::target::WriteError;

/// Names of the files of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Part of the names before the number and the encoding.
    stem: String,
    /// Name of the one file, where one was named.
    named: Option<String>,
    encoding: Encoding,
    pub(crate) manifest: String,
}

impl Layout {
    /// Returns the folder of an export and the names of its files.
    pub(crate) fn new(
        path: &Path,
        format: Format,
        encoding: Option<Encoding>,
        shard: Option<Shard>,
    ) -> Result<(PathBuf, Self), WriteError> {
        match Encoding::of_path(path) {
            Some(of_name) => Self::of_file(path, of_name, encoding),
            None => Ok((path.to_owned(), Self::of_folder(format, encoding, shard))),
        }
    }

    /// Returns the names of an export to one file, whose name says the encoding `of_name`.
    fn of_file(
        path: &Path,
        of_name: Encoding,
        asked: Option<Encoding>,
    ) -> Result<(PathBuf, Self), WriteError> {
        if let Some(other) = asked.filter(|asked| *asked != of_name) {
            let encoding = other.as_str();
            return Err(WriteError::OtherEncoding { path: path.to_owned(), encoding });
        }
        // The parent of a bare file name is empty, which no system call takes for a folder.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).to_owned();

        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let named = path.file_name().map(|name| name.to_string_lossy().into_owned());
        // Files that differ only in their encoding have manifests of their own.
        let manifest = match of_name {
            Encoding::Parquet => format!("{stem}.manifest.json"),
            other => format!("{stem}.{}.manifest.json", other.as_str()),
        };
        Ok((folder, Self { stem, named, encoding: of_name, manifest }))
    }

    fn of_folder(format: Format, encoding: Option<Encoding>, shard: Option<Shard>) -> Self {
        let encoding = encoding.unwrap_or_else(|| Encoding::default_of(format));
        let shard = shard.map(Shard::suffix).unwrap_or_default();
        let stem = format!("{}{shard}", format.as_str());
        let manifest = match format {
            Format::Trajectories => format!("manifest{shard}.json"),
            _ => format!("{stem}.manifest.json"),
        };
        Self { stem, named: None, encoding, manifest }
    }

    /// Returns the name of the manifest of a shard in a folder.
    pub(crate) fn manifest_of(format: Format, shard: Shard) -> String {
        Self::of_folder(format, None, Some(shard)).manifest
    }

    /// Returns the name of the list of files that are being published. It is gone once the manifest
    /// is there.
    pub(crate) fn begun(&self) -> String {
        format!(".{}.begun", self.manifest)
    }

    pub(crate) fn is_one_file(&self) -> bool {
        self.named.is_some()
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the name of a table beside the rows, such as `forks`. Readers of the whole folder
    /// leave it out: Spark and pyarrow skip names that begin with `_`; DuckDB, polars and
    /// `datasets` skip other endings.
    pub(crate) fn side_table(&self, what: &str, addition: u32) -> String {
        let ending = self.encoding.side_table_ending();
        let shard = self.stem.strip_prefix(Format::Trajectories.as_str());
        let stem = match &self.named {
            Some(_) => format!("{}.{what}", self.stem),
            None => format!("_{what}{}", shard.unwrap_or_default()),
        };
        match addition {
            0 => format!("{stem}.{ending}"),
            n => format!("{stem}.{n}.{ending}"),
        }
    }

    /// Returns the name of the file of a partition, below the folder of the export. `addition`
    /// counts what `--new` has added before.
    pub(crate) fn file(&self, partition: &str, addition: u32) -> String {
        let ending = self.encoding.as_str();
        let name = match (&self.named, addition) {
            (Some(name), _) => name.clone(),
            (None, 0) => format!("{}.{ending}", self.stem),
            (None, n) => format!("{}.{n}.{ending}", self.stem),
        };
        if partition.is_empty() { name } else { format!("{partition}/{name}") }
    }
}
