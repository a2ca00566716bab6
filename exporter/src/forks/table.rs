//! The table of forks: its columns, and their arrays.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int32Array, ListArray, RecordBatch, StringArray, builder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;

use super::Fork;

/// Version of the columns below; see [`crate::SCHEMA_VERSION`].
const FORKS_VERSION: i32 = 1;

/// Every column of the table: name, type as documents write it, and content.
pub const FORK_COLUMNS: [(&str, &str, &str); 23] = [
    ("schema_version", "int32", "version of this table: 1"),
    ("episode_id", "string", "one run of an agent under one id"),
    ("attempt", "int32", "which run of that episode, from 0"),
    ("call_id", "string", "the call whose prompt leaves the history"),
    ("trajectory_id", "string", "the first path that holds that call"),
    ("parent_call_id", "string", "the call in whose tokens, prompt or answer, it was left"),
    ("parent_trajectory_id", "string", "the first path that holds the newest turn of that history"),
    ("kind", "string", "the kind of the call's path"),
    ("position", "int32, nullable", "the first token that differs, from 0; null without ids"),
    ("in_sampled", "bool, nullable", "whether the model sampled the token that stands there"),
    ("prefill_tokens", "int32, nullable", "tokens of the prompt from there on"),
    ("lost_tokens", "int32, nullable", "tokens of the history from there on"),
    ("lost_sampled_tokens", "int32, nullable", "how many of those the model had sampled"),
    ("cause", "string", "the likely cause"),
    ("also", "list<string>", "other differences between the two calls"),
    ("advice", "string", "what to change"),
    ("text_before", "string", "what both have just before the place"),
    ("text_known", "string", "what the history has from there on"),
    ("text_sent", "string", "what was sent instead"),
    ("text_source", "string", "tokenizer, messages, logprobs, ids; empty where nothing is known"),
    ("ids_known", "list<int32>", "the first ids of the history from there on"),
    ("ids_sent", "list<int32>", "the first ids of the prompt from there on"),
    ("continued", "string, nullable", "with --continue, why the recorded ids were not sent"),
];

/// Returns the Arrow schema of the table.
pub fn forks_schema() -> SchemaRef {
    let fields = FORK_COLUMNS.iter().map(|(name, documented, _)| {
        let nullable = documented.ends_with(", nullable");
        Field::new(*name, data_type(documented.trim_end_matches(", nullable")), nullable)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn data_type(documented: &str) -> DataType {
    match documented {
        "int32" => DataType::Int32,
        "bool" => DataType::Boolean,
        "list<string>" => DataType::List(Arc::new(element(DataType::Utf8))),
        "list<int32>" => DataType::List(Arc::new(element(DataType::Int32))),
        _ => DataType::Utf8,
    }
}

fn element(data_type: DataType) -> Field {
    Field::new("element", data_type, false)
}

/// Makes the table of these forks.
///
/// # Errors
/// [`ArrowError`] when an array does not have the schema's type, which no fork is known to cause.
pub(crate) fn batch(forks: &[Fork]) -> Result<RecordBatch, ArrowError> {
    let columns = FORK_COLUMNS.iter().map(|(name, _, _)| column(name, forks));
    RecordBatch::try_new(forks_schema(), columns.collect())
}

fn column(name: &str, forks: &[Fork]) -> ArrayRef {
    let rows = || forks.iter();
    match name {
        "schema_version" => Arc::new(Int32Array::from(vec![FORKS_VERSION; forks.len()])),
        "in_sampled" => Arc::new(rows().map(|fork| fork.in_sampled).collect::<BooleanArray>()),
        "ids_known" => ids(rows().map(|fork| fork.ids_known.as_slice())),
        "ids_sent" => ids(rows().map(|fork| fork.ids_sent.as_slice())),
        "also" => words(rows()),
        "continued" => Arc::new(rows().map(|fork| fork.continued).collect::<StringArray>()),
        _ if rows().next().is_some_and(|fork| text(name, fork).is_some()) => {
            Arc::new(rows().map(|fork| text(name, fork)).collect::<StringArray>())
        }
        _ => numbers_or_no_texts(name, forks),
    }
}

/// Makes a column of numbers, or one of texts without rows. A column without rows has no value that
/// shows its type, so the schema decides.
fn numbers_or_no_texts(name: &str, forks: &[Fork]) -> ArrayRef {
    let mut columns = FORK_COLUMNS.iter();
    if !columns.any(|(column, documented, _)| *column == name && documented.starts_with("int32")) {
        return Arc::new(StringArray::from(Vec::<&str>::new()));
    }
    // Counts of tokens of one prompt, which the file numbers with 32 bits.
    let numbers = forks
        .iter()
        .map(|fork| number(name, fork).map(|number| i32::try_from(number).unwrap_or(i32::MAX)));
    Arc::new(numbers.collect::<Int32Array>())
}

fn text<'a>(name: &str, fork: &'a Fork) -> Option<&'a str> {
    Some(match name {
        "episode_id" => &fork.episode_id,
        "call_id" => &fork.call_id,
        "trajectory_id" => &fork.trajectory_id,
        "parent_call_id" => &fork.parent_call_id,
        "parent_trajectory_id" => &fork.parent_trajectory_id,
        "kind" => fork.kind,
        "cause" => fork.cause.as_str(),
        "advice" => fork.advice,
        "text_before" => &fork.text_before,
        "text_known" => &fork.text_known,
        "text_sent" => &fork.text_sent,
        "text_source" => fork.text_source,
        _ => return None,
    })
}

fn number(name: &str, fork: &Fork) -> Option<u32> {
    match name {
        "attempt" => Some(fork.attempt),
        "position" => fork.position,
        "prefill_tokens" => fork.prefill_tokens,
        "lost_tokens" => fork.lost_tokens,
        "lost_sampled_tokens" => fork.lost_sampled_tokens,
        _ => None,
    }
}

fn ids<'a>(rows: impl Iterator<Item = &'a [u32]>) -> ArrayRef {
    let mut lists = builder::ListBuilder::new(builder::Int32Builder::new())
        .with_field(element(DataType::Int32));
    for row in rows {
        // The scan took only ids that fit.
        row.iter().for_each(|id| lists.values().append_value(*id as i32));
        lists.append(true);
    }
    let lists: ListArray = lists.finish();
    Arc::new(lists)
}

fn words<'a>(rows: impl Iterator<Item = &'a Fork>) -> ArrayRef {
    let mut lists = builder::ListBuilder::new(builder::StringBuilder::new())
        .with_field(element(DataType::Utf8));
    for fork in rows {
        fork.also.iter().for_each(|cause| lists.values().append_value(cause.as_str()));
        lists.append(true);
    }
    Arc::new(lists.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_page_shows_every_column_of_the_table() {
        let page = include_str!("../../../docs/forks.md");
        for (name, ty, doc) in FORK_COLUMNS {
            let (ty, null) = ty.split_at(ty.find(", nullable").unwrap_or(ty.len()));
            let line = format!("| {name} | `{ty}`{null} | {doc} |\n");
            assert!(page.contains(&line), "docs/forks.md lacks the line\n{line}");
        }
    }

    #[test]
    fn a_table_without_rows_has_its_columns() {
        assert_eq!(batch(&[]).unwrap().num_rows(), 0);
    }
}
