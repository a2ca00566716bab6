//! Encodes batches of records as the bytes of a file.
//!
//! The same batches make the same bytes: nothing here depends on a clock or the machine.

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::errors::ParquetError;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use thiserror::Error;

use crate::options::encoding::Encoding;
use crate::options::format::Format;
use crate::output::footer::{ROW_GROUPS_KEY, RowGroupEpisodes, use_type_order};
use crate::output::{jsonl, parquet};

/// Reason why records could not be encoded.
#[derive(Debug, Error)]
#[error(transparent)]
pub enum EncodeError {
    /// An error of Arrow.
    Arrow(#[from] ArrowError),
    /// An error of Parquet.
    Parquet(#[from] ParquetError),
}

/// Encodes one file. Its bytes are taken again and again, so no file is ever whole in memory.
pub(crate) enum Encoder {
    Parquet {
        writer: ArrowWriter<Vec<u8>>,
        /// Bytes of the records of the current row group, before compression.
        group_bytes: usize,
        episodes: RowGroupEpisodes,
    },
    Arrow(StreamWriter<Vec<u8>>),
    Jsonl {
        bytes: Vec<u8>,
        omit_null: bool,
    },
}

impl Encoder {
    /// Starts a file of records that are in the order of the columns `sorted_by`.
    pub(crate) fn new(
        encoding: Encoding,
        format: Format,
        schema: &SchemaRef,
        sorted_by: &[&str],
    ) -> Result<Self, EncodeError> {
        Ok(match encoding {
            Encoding::Parquet => {
                let properties = parquet::properties(schema, sorted_by)?;
                let schema = Arc::clone(schema);
                let writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
                Self::Parquet { writer, group_bytes: 0, episodes: RowGroupEpisodes::default() }
            }
            Encoding::Arrow => Self::Arrow(StreamWriter::try_new(Vec::new(), schema)?),
            Encoding::Jsonl => Self::Jsonl { bytes: Vec::new(), omit_null: format.is_document() },
        })
    }

    /// Adds a batch of records that take about this many bytes.
    pub(crate) fn write(&mut self, batch: &RecordBatch, bytes: usize) -> Result<(), EncodeError> {
        match self {
            Self::Parquet { writer, group_bytes, episodes } => {
                writer.write(batch)?;
                episodes.add(batch);
                *group_bytes += bytes;
                if *group_bytes >= parquet::GROUP_BYTES {
                    writer.flush()?;
                    episodes.end_group();
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
            Self::Parquet { writer, episodes, .. } => {
                episodes.end_group();
                if let Some(groups) = std::mem::take(episodes).value() {
                    writer.append_key_value_metadata(parquet::entry(ROW_GROUPS_KEY, &groups));
                }
                let columns = writer.finish()?.file_metadata().schema_descr().num_columns();
                use_type_order(writer.inner_mut(), columns)?;
            }
            Self::Arrow(writer) => writer.finish()?,
            Self::Jsonl { .. } => {}
        }
        Ok(self.take())
    }
}
