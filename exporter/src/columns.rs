//! Columns: rows turned into Arrow arrays, one column at a time.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array,
    ListArray, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use crate::messages::Message;
use crate::rows::{Row, TurnRow};
use crate::schema::{SCHEMA_VERSION, message_fields, turn_fields};

/// Makes one batch of the given rows, in the schema's order of columns.
///
/// # Errors
/// When a column's array does not have the schema's type, or a batch has more list elements than
/// 32 bits count.
pub(crate) fn batch(schema: &SchemaRef, rows: &[Row]) -> Result<RecordBatch, ArrowError> {
    let columns: Result<Vec<ArrayRef>, ArrowError> =
        schema.fields().iter().map(|field| column(field, rows)).collect();
    RecordBatch::try_new(Arc::clone(schema), columns?)
}

fn column(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    Ok(match field.name().as_str() {
        "schema_version" => ints(rows, |_| SCHEMA_VERSION),
        "attempt" => ints(rows, |r| r.attempt),
        "trajectory_index" => ints(rows, |r| r.trajectory_index),
        "num_trajectories" => ints(rows, |r| r.num_trajectories),
        "fork_position" => Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.fork_position))),
        "prompt_len" => ints(rows, |r| r.prompt_len),
        "input_ids" | "loss_mask" | "logprobs" | "versions" => token_column(field, rows)?,
        "policy_version_min" => longs(rows, |r| r.tokens.trained_versions().min()),
        "policy_version_max" => longs(rows, |r| r.tokens.trained_versions().max()),
        "reward" => doubles(rows, |r| r.reward),
        "advantage" => doubles(rows, |r| r.advantage),
        "row_weight" => doubles(rows, |r| Some(r.row_weight)),
        "turns" => structs(field, rows, |r| &r.turns, turns)?,
        "prompt" => structs(field, rows, |r| &r.dialogue.prompt, messages)?,
        "completion" => structs(field, rows, |r| &r.dialogue.completion, messages)?,
        "tools" => texts(field, rows.iter().map(|r| Some(r.dialogue.tools.iter())))?,
        "reasons" => texts(field, rows.iter().map(|r| Some(reasons(r))))?,
        name => Arc::new(StringArray::from_iter(rows.iter().map(|r| text(name, r)))),
    })
}

/// The columns that hold one text a row. An unknown name gives nulls, which the schema refuses.
fn text<'a>(name: &str, row: &'a Row) -> Option<&'a str> {
    match name {
        "episode_id" => Some(&row.episode_id),
        "trajectory_id" => Some(&row.trajectory_id),
        "parent_trajectory_id" => row.parent_trajectory_id.as_deref(),
        "kind" => Some(row.kind),
        "kind_reason" => Some(row.kind_reason),
        "group_id" => row.group_id.as_deref(),
        "task_id" => row.task_id.as_deref(),
        "model" => Some(&row.model),
        "tokenizer_fingerprint" => Some(&row.tokenizer_fingerprint),
        "logprob_kind" => Some(&row.logprob_kind),
        "rewards" => Some(&row.rewards),
        "fidelity" => row.fidelity,
        "verdict" => Some(row.verdict),
        "status" => Some(&row.status),
        "metadata" => Some(&row.metadata),
        _ => None,
    }
}

fn reasons(row: &Row) -> impl ExactSizeIterator<Item = &'static str> {
    row.reasons.iter().map(|reason| reason.as_str())
}

fn ints(rows: &[Row], of: impl Fn(&Row) -> i32) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(rows.iter().map(of)))
}

fn longs(rows: &[Row], of: impl Fn(&Row) -> Option<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter(rows.iter().map(of)))
}

fn doubles(rows: &[Row], of: impl Fn(&Row) -> Option<f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter(rows.iter().map(of)))
}

fn token_column(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    let tokens = || rows.iter().map(|r| &r.tokens);
    let values: ArrayRef = match field.name().as_str() {
        "loss_mask" => {
            Arc::new(Int8Array::from_iter_values(tokens().flat_map(|t| t.loss_mask.clone())))
        }
        "logprobs" => {
            Arc::new(Float32Array::from_iter_values(tokens().flat_map(|t| t.logprobs.clone())))
        }
        "versions" => {
            Arc::new(Int32Array::from_iter_values(tokens().flat_map(|t| t.versions.clone())))
        }
        _ => Arc::new(Int32Array::from_iter_values(tokens().flat_map(|t| t.input_ids.clone()))),
    };
    list(field, tokens().map(|t| Some(t.input_ids.len())), values)
}

/// A list column of one level. `lengths` has one entry a row, none where the row has no list;
/// `values` all elements in order.
fn list(
    field: &Field,
    lengths: impl Iterator<Item = Option<usize>>,
    values: ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let DataType::List(item) = field.data_type() else {
        return Err(ArrowError::SchemaError(format!("column `{}` is not a list", field.name())));
    };
    let lengths: Vec<Option<usize>> = lengths.collect();
    let nulls: NullBuffer = lengths.iter().map(Option::is_some).collect();
    let offsets = OffsetBuffer::from_lengths(lengths.into_iter().map(Option::unwrap_or_default));
    let nulls = Some(nulls).filter(|n| n.null_count() > 0);
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?))
}

fn texts<I>(field: &Field, rows: impl Iterator<Item = Option<I>>) -> Result<ArrayRef, ArrowError>
where
    I: ExactSizeIterator<Item: AsRef<str>>,
{
    let mut lengths = Vec::new();
    let mut values: Vec<String> = Vec::new();
    for row in rows {
        lengths.push(row.as_ref().map(ExactSizeIterator::len));
        values.extend(row.into_iter().flatten().map(|text| text.as_ref().to_owned()));
    }
    list(field, lengths.into_iter(), Arc::new(StringArray::from(values)))
}

fn structs<T>(
    field: &Field,
    rows: &[Row],
    of: impl Fn(&Row) -> &Vec<T>,
    array: impl Fn(&[&T]) -> Result<StructArray, ArrowError>,
) -> Result<ArrayRef, ArrowError> {
    let elements: Vec<&T> = rows.iter().flat_map(&of).collect();
    list(field, rows.iter().map(|r| Some(of(r).len())), Arc::new(array(&elements)?))
}

fn turns(turns: &[&TurnRow]) -> Result<StructArray, ArrowError> {
    let ids = turns.iter().map(|t| t.call_id.as_str());
    let words = turns.iter().map(|t| t.finish_reason.as_deref());
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(ids)),
        Arc::new(Int32Array::from_iter_values(turns.iter().map(|t| t.choice))),
        Arc::new(Int32Array::from_iter_values(turns.iter().map(|t| t.start))),
        Arc::new(Int32Array::from_iter_values(turns.iter().map(|t| t.end))),
        Arc::new(StringArray::from_iter(words)),
        Arc::new(Int64Array::from_iter(turns.iter().map(|t| t.version_start))),
        Arc::new(Int64Array::from_iter(turns.iter().map(|t| t.version_end))),
        Arc::new(Float64Array::from_iter(turns.iter().map(|t| t.temperature))),
        Arc::new(Float64Array::from_iter(turns.iter().map(|t| t.reward))),
        Arc::new(BooleanArray::from_iter(turns.iter().map(|t| t.continued))),
    ];
    StructArray::try_new(turn_fields(), columns, None)
}

fn messages(messages: &[&Message]) -> Result<StructArray, ArrowError> {
    let text = |of: fn(&Message) -> Option<&str>| -> ArrayRef {
        Arc::new(StringArray::from_iter(messages.iter().map(|m| of(m))))
    };
    let fields = message_fields();
    let calls = &fields[fields.len() - 1];
    let columns = vec![
        text(|m| Some(&m.role)),
        text(|m| m.content.as_deref()),
        text(|m| m.name.as_deref()),
        text(|m| m.tool_call_id.as_deref()),
        text(|m| m.reasoning.as_deref()),
        texts(calls, messages.iter().map(|m| m.tool_calls.as_ref().map(|c| c.iter())))?,
    ];
    StructArray::try_new(fields, columns, None)
}
