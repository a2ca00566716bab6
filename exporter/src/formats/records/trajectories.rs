//! `trajectories`: one record a row.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::{PendingRecords, RecordBuilder};
use crate::input::plan::AttemptNumbers;
use crate::rows::columns;
use crate::rows::row::Row;
use crate::rows::schema::scored_schema;

/// Rows that wait to be written.
pub(crate) struct TrajectoryRecords {
    schema: SchemaRef,
    pending: Vec<Row>,
    bytes: usize,
}

impl TrajectoryRecords {
    /// Makes records of rows with scores of these names.
    pub(crate) fn new(scores: &[String]) -> Self {
        Self { schema: scored_schema(scores), pending: Vec::new(), bytes: 0 }
    }
}

impl RecordBuilder for TrajectoryRecords {
    fn add_row(&mut self, row: Row, _: AttemptNumbers) -> bool {
        self.bytes += row.bytes();
        self.pending.push(row);
        true
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        self
    }
}

impl PendingRecords for TrajectoryRecords {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn take_batch(&mut self) -> Result<RecordBatch, ArrowError> {
        self.bytes = 0;
        columns::batch(&self.schema, &std::mem::take(&mut self.pending))
    }
}
