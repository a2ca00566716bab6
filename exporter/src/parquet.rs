//! Parquet: the file of rows and the manifest beside it.
//!
//! Both are written under a temporary name in the folder they are meant for, synced, then renamed,
//! so that a reader sees a whole file or none. The manifest comes last and names the file's hash.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, Encoding, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::WriterProperties;
use ::parquet::schema::types::ColumnPath;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::columns::batch;
use crate::rows::Row;
use crate::schema::{SCHEMA_VERSION, huggingface, schema};

/// The name of the file in the folder that an export is written to.
const FILE_NAME: &str = "trajectories.parquet";
/// The first word of a manifest; what tells our files from others.
pub(crate) const FORMAT: &str = "rolltape-trajectories";
/// Version of the manifest's own form.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Rows are turned into arrays when they hold this many bytes.
const BATCH_BYTES: usize = 8 << 20;
/// A row group is written when its rows hold this many bytes before compression. Memory is bounded
/// by this, one batch and one episode.
const GROUP_BYTES: usize = 128 << 20;
/// Level of zstd compression.
const ZSTD_LEVEL: i32 = 3;

/// Why a file could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The target is there and no manifest says that an export wrote it.
    #[error("`{path}` exists and is not an export; choose another path or allow overwriting")]
    Foreign {
        /// The target.
        path: PathBuf,
    },
    /// The rows do not make the file's columns.
    #[error("cannot make columns of the rows")]
    Columns(#[source] ArrowError),
    /// The file could not be encoded or written.
    #[error("cannot write `{path}`")]
    Encode {
        /// The target.
        path: PathBuf,
        /// What Parquet says.
        #[source]
        source: ParquetError,
    },
    /// The folder or a file in it could not be used.
    #[error("cannot write `{path}`")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// Where an export goes: a file of rows and a manifest in one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) folder: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) manifest: PathBuf,
}

impl Target {
    /// A path that ends in `.parquet` is the file; any other path is a folder for it.
    pub(crate) fn new(out: &Path) -> Self {
        if out.extension().is_some_and(|e| e == "parquet") {
            // The parent of a bare file name is empty, which no system call takes for a folder.
            let parent = out.parent().filter(|p| !p.as_os_str().is_empty());
            let folder = parent.unwrap_or(Path::new(".")).to_owned();
            let manifest = out.with_extension("manifest.json");
            return Self { folder, file: out.to_owned(), manifest };
        }
        let manifest = out.join("manifest.json");
        Self { folder: out.to_owned(), file: out.join(FILE_NAME), manifest }
    }

    /// The file of another table: `forks.parquet` in the folder, `NAME.forks.parquet` beside a file
    /// of rows that has a name of its own.
    pub(crate) fn beside(&self, table: &str) -> PathBuf {
        match self.file.file_name().is_some_and(|name| name == FILE_NAME) {
            true => self.folder.join(format!("{table}.parquet")),
            false => self.file.with_extension(format!("{table}.parquet")),
        }
    }

    /// An export may be replaced by its next run; what others wrote may not.
    fn check(&self) -> Result<(), WriteError> {
        let ours = fs::read(&self.manifest)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Format>(&bytes).ok())
            .is_some_and(|manifest| manifest.format == FORMAT);
        let files = [self.file.clone(), self.beside("forks"), self.manifest.clone()];
        let foreign = files.into_iter().find(|path| !ours && path.exists());
        foreign.map_or(Ok(()), |path| Err(WriteError::Foreign { path }))
    }
}

/// What is read of an existing manifest.
#[derive(Deserialize)]
struct Format {
    format: String,
}

/// What stands in a manifest.
#[derive(Debug, Serialize)]
pub(crate) struct Manifest<'a, O, N> {
    format: &'static str,
    format_version: u32,
    schema_version: i32,
    created_by: String,
    rows: u64,
    files: Vec<FileEntry>,
    options: &'a O,
    notes: &'a N,
}

#[derive(Debug, Serialize)]
struct FileEntry {
    path: String,
    rows: u64,
    bytes: u64,
    sha256: String,
}

/// A whole file that is not in its place yet.
pub(crate) struct Written {
    pub(crate) file: NamedTempFile,
    pub(crate) path: PathBuf,
    pub(crate) rows: u64,
}

impl Written {
    fn entry(&self) -> Result<FileEntry, WriteError> {
        let Self { file, path, rows } = self;
        let (bytes, sha256) = digest(file.path()).map_err(at(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(FileEntry { path: name, rows: *rows, bytes, sha256 })
    }
}

/// A file of rows that is being written.
pub(crate) struct RowFile {
    target: Target,
    schema: SchemaRef,
    writer: ArrowWriter<NamedTempFile>,
    pending: Vec<Row>,
    pending_bytes: usize,
    group_bytes: usize,
    rows: u64,
    beside: Vec<Written>,
}

impl RowFile {
    /// Starts a file beside `target`, which is looked at but not touched.
    pub(crate) fn create(target: Target, overwrite: bool) -> Result<Self, WriteError> {
        if !overwrite {
            target.check()?;
        }
        fs::create_dir_all(&target.folder).map_err(at(&target.folder))?;
        let schema = schema();
        let writer = ArrowWriter::try_new(
            temporary(&target.folder)?,
            SchemaRef::clone(&schema),
            Some(properties(&schema).map_err(encoding(&target.file))?),
        )
        .map_err(encoding(&target.file))?;
        let (pending, beside) = (Vec::new(), Vec::new());
        let (pending_bytes, group_bytes, rows) = (0, 0, 0);
        Ok(Self { target, schema, writer, pending, pending_bytes, group_bytes, rows, beside })
    }

    /// Where the file goes.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Has the manifest name another file, which is put in place with this one.
    pub(crate) fn with(mut self, written: Written) -> Self {
        self.beside.push(written);
        self
    }

    /// Adds one row.
    pub(crate) fn write(&mut self, row: Row) -> Result<(), WriteError> {
        self.pending_bytes += row.bytes();
        self.pending.push(row);
        self.rows += 1;
        if self.pending_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let batch = batch(&self.schema, &self.pending).map_err(WriteError::Columns)?;
        self.writer.write(&batch).map_err(encoding(&self.target.file))?;
        self.pending.clear();
        self.group_bytes += std::mem::take(&mut self.pending_bytes);
        if self.group_bytes >= GROUP_BYTES {
            self.writer.flush().map_err(encoding(&self.target.file))?;
            self.group_bytes = 0;
        }
        Ok(())
    }

    /// Ends the file, puts it in place, and the manifest after it.
    pub(crate) fn finish<O: Serialize, N: Serialize>(
        mut self,
        options: &O,
        notes: &N,
    ) -> Result<Vec<PathBuf>, WriteError> {
        self.flush()?;
        let Self { target, writer, rows, beside, .. } = self;
        let file = writer.into_inner().map_err(encoding(&target.file))?;
        let mut written = vec![Written { file, path: target.file, rows }];
        written.extend(beside);
        let manifest = Manifest {
            format: FORMAT,
            format_version: FORMAT_VERSION,
            schema_version: SCHEMA_VERSION,
            created_by: created_by(),
            rows,
            files: written.iter().map(Written::entry).collect::<Result<_, _>>()?,
            options,
            notes,
        };
        let mut second = temporary(&target.folder)?;
        let text = serde_json::to_string_pretty(&manifest).map_err(io::Error::from);
        text.and_then(|text| writeln!(second, "{text}")).map_err(at(&target.manifest))?;
        let mut files = Vec::with_capacity(written.len() + 1);
        for Written { file, path, .. } in written {
            place(file, &path)?;
            files.push(path);
        }
        place(second, &target.manifest)?;
        File::open(&target.folder).and_then(|f| f.sync_all()).map_err(at(&target.folder))?;
        files.push(target.manifest);
        Ok(files)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::Io { path: path.to_owned(), source }
}

pub(crate) fn encoding(path: &Path) -> impl FnOnce(ParquetError) -> WriteError {
    move |source| WriteError::Encode { path: path.to_owned(), source }
}

/// A file that others may read once it is in place, as far as the umask lets them.
pub(crate) fn temporary(folder: &Path) -> Result<NamedTempFile, WriteError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".export-").suffix(".tmp");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(at(folder))
}

/// The bytes are on disk before the name is: a crash leaves the old file or the new one.
fn place(file: NamedTempFile, path: &Path) -> Result<(), WriteError> {
    file.as_file().sync_all().map_err(at(path))?;
    file.persist(path).map(drop).map_err(|e| at(path)(e.error))
}

pub(crate) fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => {
                hash.update(&buffer[..n]);
                bytes += n as u64;
            }
        }
    }
    let hex = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((bytes, hex))
}

fn created_by() -> String {
    format!("rolltape {}", env!("CARGO_PKG_VERSION"))
}

/// Nothing here may depend on a clock or the machine: the same rows make the same bytes.
pub(crate) fn properties(schema: &Schema) -> Result<WriterProperties, ParquetError> {
    let entry = |key: &str, value: Value| KeyValue::new(key.to_owned(), value.to_string());
    let logprobs = ColumnPath::from(["logprobs", "list", "element"].map(str::to_owned).to_vec());
    Ok(WriterProperties::builder()
        .set_created_by(created_by())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_column_dictionary_enabled(logprobs.clone(), false)
        .set_column_encoding(logprobs, Encoding::BYTE_STREAM_SPLIT)
        .set_key_value_metadata(Some(vec![
            entry("rolltape_schema_version", SCHEMA_VERSION.into()),
            entry("huggingface", huggingface(schema)),
        ]))
        .build())
}

#[cfg(test)]
mod tests {
    use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use ::parquet::basic::LogicalType;
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Float32Type, Int32Type};
    use serde_json::json;

    use super::*;
    use crate::COLUMNS;
    use crate::fixture::{call, episode, rows_of, text_call, with_bodies};

    fn sample_rows() -> Vec<Row> {
        let user = json!({ "role": "user", "content": "hi" });
        let arguments = json!({ "name": "f", "arguments": "{\"n\": 1}" });
        let said = json!({ "role": "assistant", "content": null,
            "tool_calls": [{ "id": "c", "type": "function", "function": arguments }] });
        let told = json!({ "role": "tool", "content": "2", "tool_call_id": "c" });
        rows_of(&episode(vec![
            with_bodies(call(1, &[1, 2], &[&[3], &[4, 5]]), std::slice::from_ref(&user), ""),
            with_bodies(call(2, &[1, 2, 3, 6], &[&[7]]), &[user.clone(), said, told], "done"),
            text_call(3, &[user], "other"),
        ]))
    }

    fn write(out: &Path, overwrite: bool) -> Result<Vec<PathBuf>, WriteError> {
        let mut file = RowFile::create(Target::new(out), overwrite)?;
        sample_rows().into_iter().try_for_each(|row| file.write(row))?;
        file.finish(&json!({}), &json!({}))
    }

    #[test]
    fn the_file_reads_back_with_the_schema_of_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(&folder.path().join("out"), false).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&files[0]).unwrap());
        let reader = reader.unwrap();
        assert_eq!(reader.schema().fields(), schema().fields());
        let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
        assert_eq!(batches.len(), 1);
        let ids = batches[0]["input_ids"].as_list::<i32>();
        assert_eq!(ids.len(), 3);
        assert_eq!(ids.value(0).as_primitive::<Int32Type>().values(), &[1, 2, 3, 6, 7]);
        assert_eq!(ids.value(2).len(), 0);
        let logprobs = batches[0]["logprobs"].as_list::<i32>().value(0);
        assert_eq!(logprobs.as_primitive::<Float32Type>().values(), &[0.0, 0.0, -0.5, 0.0, -0.5]);
    }

    #[test]
    fn json_columns_have_the_logical_type_wherever_they_stand() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(&folder.path().join("a.parquet"), false).unwrap();
        let reader = SerializedFileReader::new(File::open(&files[0]).unwrap()).unwrap();
        let metadata = reader.metadata().file_metadata();
        let json: Vec<String> = metadata
            .schema_descr()
            .columns()
            .iter()
            .filter(|c| c.logical_type_ref() == Some(&LogicalType::Json))
            .map(|c| c.path().string())
            .collect();
        assert_eq!(
            json,
            [
                "rewards",
                "prompt.list.element.tool_calls.list.element",
                "completion.list.element.tool_calls.list.element",
                "tools.list.element",
                "metadata",
            ]
        );
        assert!(metadata.created_by().unwrap().starts_with("rolltape "));
        let group = reader.metadata().row_group(0);
        let logprobs = group.columns().iter().find(|c| c.column_path().parts()[0] == "logprobs");
        let encodings: Vec<_> = logprobs.unwrap().encodings().collect();
        assert!(encodings.contains(&Encoding::BYTE_STREAM_SPLIT), "{encodings:?}");
    }

    #[test]
    fn the_same_rows_make_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let read = |files: Vec<PathBuf>| files.iter().map(|f| fs::read(f).unwrap()).collect();
        let first: Vec<Vec<u8>> = read(write(&out, false).unwrap());
        let second: Vec<Vec<u8>> = read(write(&out, false).unwrap());
        assert_eq!(first, second);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 2, "a temporary file is left");
    }

    #[test]
    fn what_others_wrote_is_replaced_only_when_told() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("mine.parquet");
        fs::write(&out, "mine").unwrap();
        assert!(matches!(write(&out, false), Err(WriteError::Foreign { path }) if path == out));
        assert_eq!(fs::read(&out).unwrap(), b"mine");
        let files = write(&out, true).unwrap();
        assert_eq!(files[1], folder.path().join("mine.manifest.json"));
        write(&out, false).unwrap();
    }

    #[test]
    fn the_manifest_names_the_file_and_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), false).unwrap();
        let manifest: Value = serde_json::from_slice(&fs::read(&files[1]).unwrap()).unwrap();
        let (bytes, sha256) = digest(&files[0]).unwrap();
        let entry = json!({
            "path": "trajectories.parquet", "rows": 3, "bytes": bytes, "sha256": sha256 });
        assert_eq!(manifest["files"], json!([entry]));
        assert_eq!((&manifest["format"], &manifest["rows"]), (&json!(FORMAT), &json!(3)));
    }

    #[test]
    fn every_column_has_a_line_of_its_own() {
        let mut names: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COLUMNS.len());
        assert!(COLUMNS.iter().all(|c| !c.doc.is_empty()));
    }
}
