//! Encodes batches of records as the bytes of a file.
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

/// Encoding of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Apache Parquet.
    Parquet,
    /// One JSON object a line.
    Jsonl,
    /// A stream of Arrow's IPC format.
    Arrow,
}

/// Reason why records could not be encoded.
#[derive(Debug, Error)]
#[error(transparent)]
pub enum EncodeError {
    /// An error of Arrow.
    Arrow(#[from] ArrowError),
    /// An error of Parquet.
    Parquet(#[from] ParquetError),
}

impl Encoding {
    /// All encodings.
    pub const ALL: [Self; 3] = [Self::Parquet, Self::Jsonl, Self::Arrow];

    /// Returns the word on the command line, which is also the ending of names of files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl => "jsonl",
            Self::Arrow => "arrow",
        }
    }

    /// Returns the ending of names of tables beside the rows. It is another usual ending of the
    /// same encoding, so a reader of all files with the first one gets only rows.
    pub(crate) fn side_table_ending(self) -> &'static str {
        match self {
            Self::Parquet => "pq",
            Self::Jsonl => "ndjson",
            Self::Arrow => "arrows",
        }
    }

    /// Returns the encoding of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.as_str() == word)
    }

    /// Returns the encoding of a file's name; none for a name without one, which is a folder's.
    pub fn of_path(path: &Path) -> Option<Self> {
        Self::from_word(path.extension()?.to_str()?)
    }

    /// Returns the encoding of a format when none is named.
    pub fn default_of(format: Format) -> Self {
        if format.is_document() { Self::Jsonl } else { Self::Parquet }
    }
}

/// Encodes one file. Its bytes are taken again and again, so no file is ever whole in memory.
pub(crate) enum Encoder {
    Parquet {
        writer: ArrowWriter<Vec<u8>>,
        /// Bytes of the records of the current row group, before compression.
        group_bytes: usize,
    },
    Arrow(StreamWriter<Vec<u8>>),
    Jsonl {
        bytes: Vec<u8>,
        omit_null: bool,
    },
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

    /// Adds a batch of records that take about this many bytes.
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

    /// Takes the bytes that were written since the last time.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.pending())
    }

    /// Returns the bytes that were written and not taken.
    pub(crate) fn pending(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Parquet { writer, .. } => writer.inner_mut(),
            Self::Arrow(writer) => writer.get_mut(),
            Self::Jsonl { bytes, .. } => bytes,
        }
    }

    /// Ends the file and returns its last bytes.
    pub(crate) fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Parquet { writer, .. } => drop(writer.finish()?),
            Self::Arrow(writer) => writer.finish()?,
            Self::Jsonl { .. } => {}
        }
        Ok(self.take())
    }
}
