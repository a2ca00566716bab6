//! The table of comments: its columns, and their arrays.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use episode::{Comment, Giver};

use crate::graph::scan::RecordedAttempt;

/// Version of the columns below; see [`crate::SCHEMA_VERSION`].
const COMMENTS_VERSION: i32 = 1;

/// Every column of the table: name, type as documents write it, and content.
const COMMENT_COLUMNS: [(&str, &str, &str); 11] = [
    ("schema_version", "int32", "version of this table: 1"),
    ("episode_id", "string", "one run of an agent under one id"),
    ("attempt", "int32", "which run of that episode, from 0"),
    ("call_id", "string, nullable", "the call that it is about; null for the whole attempt"),
    ("author", "string", "the name that its writer gives"),
    ("text", "string, nullable", "the comment"),
    ("score", "float64, nullable", "the score, which is no reward"),
    ("given_at", "int64", "time of the statement, in microseconds since 1970 in UTC"),
    ("given_by", "string, nullable", "as that of a [reward](rewards.md#who-gave-it)"),
    ("given_from", "string, nullable", "as that of a reward"),
    ("key_name", "string, nullable", "as that of a reward"),
];

/// Returns the Arrow schema of the table.
pub(crate) fn comments_schema() -> SchemaRef {
    let fields = COMMENT_COLUMNS.iter().map(|(name, documented, _)| {
        let (word, is_nullable) = match documented.strip_suffix(", nullable") {
            Some(word) => (word, true),
            None => (*documented, false),
        };
        let data_type = match word {
            "int32" => DataType::Int32,
            "int64" => DataType::Int64,
            "float64" => DataType::Float64,
            _ => DataType::Utf8,
        };
        Field::new(*name, data_type, is_nullable)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Makes the table of the comments on an attempt, in the order in which they were given.
///
/// # Errors
/// [`ArrowError`] when a batch has more elements than 32 bits count.
pub(crate) fn batch(attempt: &RecordedAttempt) -> Result<RecordBatch, ArrowError> {
    let schema = comments_schema();
    let columns = schema.fields().iter().map(|field| column(field.name(), attempt));
    RecordBatch::try_new(Arc::clone(&schema), columns.collect())
}

fn column(name: &str, attempt: &RecordedAttempt) -> ArrayRef {
    let all = &attempt.comments;
    let texts = |of: fn(&Comment) -> Option<String>| -> ArrayRef {
        Arc::new(StringArray::from_iter(all.iter().map(of)))
    };

    match name {
        "schema_version" => Arc::new(Int32Array::from(vec![COMMENTS_VERSION; all.len()])),
        "episode_id" => Arc::new(StringArray::from(vec![attempt.record.id.as_str(); all.len()])),
        "attempt" => Arc::new(Int32Array::from(vec![attempt.record.attempt as i32; all.len()])),
        "call_id" => texts(|comment| comment.call.map(|call| call.to_string())),
        "author" => texts(|comment| Some(comment.author.clone())),
        "text" => texts(|comment| comment.text.clone()),
        "score" => Arc::new(Float64Array::from_iter(all.iter().map(|comment| comment.score))),
        "given_at" => Arc::new(Int64Array::from_iter_values(all.iter().map(|c| c.at))),
        "given_by" => texts(|c| c.provenance.by.map(Giver::as_str).map(str::to_owned)),
        "given_from" => texts(|comment| comment.provenance.from.clone()),
        _ => texts(|comment| comment.provenance.key.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_page_shows_every_column_of_the_table() {
        let page = include_str!("../../../docs/annotations.md");
        for (name, ty, doc) in COMMENT_COLUMNS {
            let line = format!("| {name} | `{ty}` | {doc} |\n");
            assert!(page.contains(&line), "docs/annotations.md lacks the line\n{line}");
        }
    }
}
