//! Encode: batches of records as the bytes of a file.
//!
//! The same batches make the same bytes: nothing here depends on a clock or the machine.

use std::path::Path;
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::errors::ParquetError;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use thiserror::Error;

use crate::formats::Format;
use crate::output::{jsonl, parquet};

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Apache Parquet.
    Parquet,
    /// One JSON object a line.
    Jsonl,
    /// A stream of Arrow's IPC format.
    Arrow,
}

/// Why records could not be encoded.
#[derive(Debug, Error)]
#[error(transparent)]
pub enum EncodeError {
    /// What Arrow says.
    Arrow(#[from] ArrowError),
    /// What Parquet says.
    Parquet(#[from] ParquetError),
}

impl Encoding {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Parquet, Self::Jsonl, Self::Arrow];

    /// The word on the command line, and what names of files end in.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl => "jsonl",
            Self::Arrow => "arrow",
        }
    }

    /// What names of tables beside the rows end in: another usual ending of the same encoding, so
    /// that who reads all files with the first one gets rows alone.
    pub(crate) fn beside(self) -> &'static str {
        match self {
            Self::Parquet => "pq",
            Self::Jsonl => "ndjson",
            Self::Arrow => "arrows",
        }
    }

    /// The encoding of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.as_str() == word)
    }

    /// The encoding of a file of that name; none where the name says none, and so is a folder's.
    pub fn of_path(path: &Path) -> Option<Self> {
        Self::from_word(path.extension()?.to_str()?)
    }

    /// What a format is written in when nothing else is said.
    pub fn default_of(format: Format) -> Self {
        if format.is_document() { Self::Jsonl } else { Self::Parquet }
    }
}

/// Encodes one file. What it wrote is taken out again and again, so that no file is ever whole in
/// memory.
pub(crate) enum Encoder {
    Parquet { writer: ArrowWriter<Vec<u8>>, group_bytes: usize },
    Arrow(StreamWriter<Vec<u8>>),
    Jsonl { bytes: Vec<u8>, omit_null: bool },
}

impl Encoder {
    pub(crate) fn new(
        encoding: Encoding,
        format: Format,
        schema: &SchemaRef,
    ) -> Result<Self, EncodeError> {
        Ok(match encoding {
            Encoding::Parquet => {
                let properties = parquet::properties(schema)?;
                let schema = Arc::clone(schema);
                let writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
                Self::Parquet { writer, group_bytes: 0 }
            }
            Encoding::Arrow => Self::Arrow(StreamWriter::try_new(Vec::new(), schema)?),
            Encoding::Jsonl => Self::Jsonl { bytes: Vec::new(), omit_null: format.is_document() },
        })
    }

    /// Adds a batch of records that take about so many bytes.
    pub(crate) fn write(&mut self, batch: &RecordBatch, bytes: usize) -> Result<(), EncodeError> {
        match self {
            Self::Parquet { writer, group_bytes } => {
                writer.write(batch)?;
                *group_bytes += bytes;
                if *group_bytes >= parquet::GROUP_BYTES {
                    writer.flush()?;
                    *group_bytes = 0;
                }
            }
            Self::Arrow(writer) => writer.write(batch)?,
            Self::Jsonl { bytes, omit_null } => jsonl::write(batch, *omit_null, bytes)?,
        }
        Ok(())
    }

    /// The bytes that were written since they were last taken.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.waiting())
    }

    /// The same, left where they are.
    pub(crate) fn waiting(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Parquet { writer, .. } => writer.inner_mut(),
            Self::Arrow(writer) => writer.get_mut(),
            Self::Jsonl { bytes, .. } => bytes,
        }
    }

    /// Ends the file and gives its last bytes.
    pub(crate) fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Parquet { writer, .. } => drop(writer.finish()?),
            Self::Arrow(writer) => writer.finish()?,
            Self::Jsonl { .. } => {}
        }
        Ok(self.take())
    }
}
