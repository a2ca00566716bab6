//! The table of annotations: its columns, and their arrays.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use episode::Annotation;

use crate::graph::scan::RecordedAttempt;
use crate::rows::columns::list;

/// Version of the columns below; see [`crate::SCHEMA_VERSION`].
const ANNOTATIONS_VERSION: i32 = 1;

/// Every column of the table: name, type as documents write it, and content.
const ANNOTATION_COLUMNS: [(&str, &str, &str); 10] = [
    ("schema_version", "int32", "version of this table: 1"),
    ("episode_id", "string", "one run of an agent under one id"),
    ("attempt", "int32", "which run of that episode, from 0"),
    ("call_id", "string", "the call that sampled the tokens"),
    ("choice", "int32", "the choice of that call"),
    ("name", "string", "the name of the stream"),
    ("version", "string", "the label of the trainer's weights"),
    ("start", "int32", "first token, counted from the first one that the choice sampled"),
    ("values", "list<float32>", "one number a token; null where nothing is said of it"),
    ("given_at", "int64", "time of the statement, in microseconds since 1970 in UTC"),
];

/// Returns the Arrow schema of the table.
pub(crate) fn annotations_schema() -> SchemaRef {
    let fields = ANNOTATION_COLUMNS.iter().map(|(name, documented, _)| {
        let data_type = match *documented {
            "int32" => DataType::Int32,
            "int64" => DataType::Int64,
            "list<float32>" => {
                DataType::List(Arc::new(Field::new("element", DataType::Float32, true)))
            }
            _ => DataType::Utf8,
        };
        Field::new(*name, data_type, false)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Makes the table of the annotations of an attempt, in the order in which they were given.
///
/// # Errors
/// [`ArrowError`] when a batch has more elements than 32 bits count.
pub(crate) fn batch(attempt: &RecordedAttempt) -> Result<RecordBatch, ArrowError> {
    let schema = annotations_schema();
    let columns = schema.fields().iter().map(|field| column(field, attempt));
    let columns: Result<Vec<ArrayRef>, ArrowError> = columns.collect();
    RecordBatch::try_new(Arc::clone(&schema), columns?)
}

fn column(field: &Field, attempt: &RecordedAttempt) -> Result<ArrayRef, ArrowError> {
    let all = &attempt.annotations;
    let texts = |of: fn(&Annotation) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(all.iter().map(of)))
    };
    // Positions and numbers of choices, which the file numbers with 32 bits.
    let ints = |of: fn(&Annotation) -> u32| -> ArrayRef {
        let numbers = all.iter().map(|a| i32::try_from(of(a)).unwrap_or(i32::MAX));
        Arc::new(Int32Array::from_iter_values(numbers))
    };

    Ok(match field.name().as_str() {
        "schema_version" => Arc::new(Int32Array::from(vec![ANNOTATIONS_VERSION; all.len()])),
        "episode_id" => Arc::new(StringArray::from(vec![attempt.record.id.as_str(); all.len()])),
        "attempt" => Arc::new(Int32Array::from(vec![attempt.record.attempt as i32; all.len()])),
        "call_id" => texts(|a| a.call.to_string()),
        "choice" => ints(|a| a.choice),
        "name" => texts(|a| a.name.clone()),
        "version" => texts(|a| a.version.clone()),
        "start" => ints(|a| a.start),
        "given_at" => Arc::new(Int64Array::from_iter_values(all.iter().map(|a| a.at))),
        _ => {
            let values = all.iter().flat_map(|a| &a.values);
            let values = values.map(|value| value.is_finite().then_some(*value));
            let lengths = all.iter().map(|a| Some(a.values.len()));
            list(field, lengths, Arc::new(Float32Array::from_iter(values)))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_page_shows_every_column_of_the_table() {
        let page = include_str!("../../../docs/annotations.md");
        for (name, ty, doc) in ANNOTATION_COLUMNS {
            let line = format!("| {name} | `{ty}` | {doc} |\n");
            assert!(page.contains(&line), "docs/annotations.md lacks the line\n{line}");
        }
    }
}
