//! The tables of what was said of attempts, beside the rows.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::graph::scan::RecordedAttempt;
use crate::output::{annotations, comments};

/// A table of statements.
pub(crate) struct StatementTable {
    /// Its name, as that of the file has it.
    pub(crate) name: &'static str,
    pub(crate) schema: fn() -> SchemaRef,
    /// The statements about an attempt; without a row if there are none.
    pub(crate) batch: fn(&RecordedAttempt) -> Result<RecordBatch, ArrowError>,
}

/// All tables of statements.
pub(crate) const STATEMENTS: [StatementTable; 2] = [
    StatementTable {
        name: "annotations",
        schema: annotations::annotations_schema,
        batch: annotations::batch,
    },
    StatementTable { name: "comments", schema: comments::comments_schema, batch: comments::batch },
];
