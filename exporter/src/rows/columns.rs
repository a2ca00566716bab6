//! Turns rows into Arrow arrays, one column at a time.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array,
    ListArray, RecordBatch, StringArray, StructArray, UInt16Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use crate::rows::messages::RowMessage;
use crate::rows::row::{Row, TurnRow};
use crate::rows::schema::{
    SCHEMA_VERSION, annotation_fields, message_fields, score_column, turn_fields,
};
use crate::rows::scores::{RowScores, TopScores};
use crate::rows::token_data::{Experts, Ragged};

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

        // Tokens and their versions.
        "input_ids" | "loss_mask" | "logprobs" | "versions" => token_column(field, rows)?,
        "policy_version_min" => longs(rows, |r| Some(r.tokens.trained_version_bounds()?.0)),
        "policy_version_max" => longs(rows, |r| Some(r.tokens.trained_version_bounds()?.1)),
        "mixed_versions" => {
            Arc::new(BooleanArray::from_iter(rows.iter().map(|r| r.mixed_versions)))
        }
        "staleness" => longs(rows, |r| r.staleness),

        // Rewards.
        "reward" => doubles(rows, |r| r.reward),
        "trajectory_reward" => doubles(rows, |r| r.trajectory_reward),
        "token_rewards" => token_rewards(field, rows)?,
        "group_size" => longs(rows, |r| r.group.as_ref().map(|g| g.episodes as i64)),
        "group_scored" => longs(rows, |r| r.group.as_ref().map(|g| g.scored as i64)),
        "group_reward_mean" => doubles(rows, |r| r.group.as_ref()?.reward_mean),
        "group_reward_std" => doubles(rows, |r| r.group.as_ref()?.reward_std),
        "advantage" => doubles(rows, |r| r.advantage),
        "row_weight" => doubles(rows, |r| Some(r.row_weight)),

        "turns" => structs(field, rows, |r| &r.turns, turns)?,
        "prompt" => structs(field, rows, |r| &r.dialogue.prompt, messages)?,
        "completion" => structs(field, rows, |r| &r.dialogue.completion, messages)?,
        "tools" => texts(field, rows.iter().map(|r| Some(r.dialogue.tools.iter())))?,
        "reasons" => texts(field, rows.iter().map(|r| Some(reasons(r))))?,

        name if name.starts_with("routed_experts") => experts_column(field, rows)?,
        "top_logprob_ids" | "top_logprob_tokens" | "top_logprobs" | "kept_token_ids" => {
            ragged_column(field, rows)?
        }
        "annotations" => annotations(field, rows)?,
        name if name.starts_with("score_") => scores_column(field, rows)?,
        // All others hold one text a row.
        name => strings(rows.iter().map(|r| text(name, r)))?,
    })
}

/// Returns the text of a column that holds one a row. An unknown name gives null, which the schema
/// refuses.
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
        "kv_cache" => row.kv_cache.as_deref(),
        "rewards" => Some(&row.rewards),
        "fidelity" => row.fidelity,
        "verdict" => Some(row.verdict),
        "episode_verdict" => Some(row.episode_verdict),
        "status" => Some(&row.status),
        "metadata" => Some(&row.metadata),
        "unread_parts" => Some(&row.dialogue.unread_parts),

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
        "loss_mask" => Arc::new(Int8Array::from(joined(tokens().map(|t| &t.loss_mask)))),
        "logprobs" => Arc::new(Float32Array::from(joined(tokens().map(|t| &t.logprobs)))),
        "versions" => Arc::new(Int32Array::from(joined(tokens().map(|t| &t.versions)))),
        _ => Arc::new(Int32Array::from(joined(tokens().map(|t| &t.input_ids)))),
    };
    list(field, tokens().map(|t| Some(t.input_ids.len())), values)
}

fn joined<'a, T: Copy + 'a>(lists: impl Iterator<Item = &'a Vec<T>> + Clone) -> Vec<T> {
    let mut all = Vec::with_capacity(lists.clone().map(Vec::len).sum());
    lists.for_each(|list| all.extend_from_slice(list));
    all
}

fn token_rewards(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    let lengths = rows.iter().map(|r| r.token_rewards.as_ref().map(Vec::len));
    let values = rows.iter().filter_map(|r| r.token_rewards.as_ref()).flatten().copied();
    list(field, lengths, Arc::new(Float64Array::from_iter(values)))
}

/// Makes a column with a list for each token, of values that the server reported beside it.
fn ragged_column(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    let arrays = || rows.iter().map(|row| &row.token_data);
    match field.name().as_str() {
        "top_logprob_ids" => ragged(field, arrays().map(|a| a.top_ids.as_ref()), |ids| {
            Ok(Arc::new(Int32Array::from_iter(ids.copied())))
        }),
        "top_logprob_tokens" => ragged(field, arrays().map(|a| a.top_tokens.as_ref()), |texts| {
            let texts: Vec<_> = texts.map(Option::as_deref).collect();
            strings(texts.into_iter())
        }),
        "top_logprobs" => ragged(field, arrays().map(|a| a.top_logprobs.as_ref()), |logprobs| {
            Ok(Arc::new(Float32Array::from_iter_values(logprobs.copied())))
        }),
        _ => ragged(field, arrays().map(|a| a.kept.as_ref()), |ids| {
            Ok(Arc::new(Int32Array::from_iter_values(ids.copied())))
        }),
    }
}

fn experts_column(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    let experts = || rows.iter().map(|row| row.token_data.experts.as_ref());
    match field.name().as_str() {
        "routed_experts_shape" => {
            let shapes: Vec<Option<Vec<i32>>> = experts().map(|e| e.map(shape)).collect();
            let sizes = Int32Array::from_iter_values(shapes.iter().flatten().flatten().copied());
            list(field, shapes.iter().map(|shape| shape.as_ref().map(Vec::len)), Arc::new(sizes))
        }
        "routed_experts_mask" => {
            let known = experts().flatten().flat_map(|e| e.known.iter().copied());
            let mask = Arc::new(Int8Array::from_iter_values(known));
            list(field, experts().map(|e| e.map(|e| e.known.len())), mask)
        }
        _ => {
            let lengths = experts().map(|e| e.map(|e| vec![e.width(); e.known.len()]));
            let values = experts().flatten().flat_map(|e| e.values.iter().copied());
            nested(field, lengths, Arc::new(UInt16Array::from_iter_values(values)))
        }
    }
}

/// Makes a column of the scores of one name.
fn scores_column(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    let (name, part) = score_column(field.name()).unwrap_or_default();
    let scores: Vec<Option<&RowScores>> =
        rows.iter().map(|row| row.scores.iter().find(|scores| scores.name == name)).collect();
    if part == "_logprobs" {
        let values = scores.iter().flatten().flat_map(|scores| scores.logprobs.iter().copied());
        let lengths = scores.iter().map(|scores| scores.map(|scores| scores.logprobs.len()));
        return list(field, lengths, Arc::new(Float32Array::from_iter_values(values)));
    }

    let tops = || scores.iter().map(|scores| scores.and_then(|scores| scores.top.as_ref()));
    let values: ArrayRef = match part {
        "_top_ids" => Arc::new(Int32Array::from_iter_values(
            tops().flatten().flat_map(|top| top.ids.iter().copied()),
        )),
        _ => Arc::new(Float32Array::from_iter_values(
            tops().flatten().flat_map(|top| top.logprobs.iter().copied()),
        )),
    };
    nested(field, tops().map(|top| top.map(TopScores::lengths)), values)
}

/// Returns the number of tokens, then the shape of one token.
fn shape(experts: &Experts) -> Vec<i32> {
    let sizes = std::iter::once(experts.known.len()).chain(experts.shape.iter().copied());
    sizes.map(|size| i32::try_from(size).unwrap_or(i32::MAX)).collect()
}

fn ragged<'a, T: 'a>(
    field: &Field,
    rows: impl Iterator<Item = Option<&'a Ragged<T>>>,
    array: impl Fn(&mut dyn Iterator<Item = &'a T>) -> Result<ArrayRef, ArrowError>,
) -> Result<ArrayRef, ArrowError> {
    let rows: Vec<Option<&Ragged<T>>> = rows.collect();
    let values = array(&mut rows.iter().flatten().flat_map(|row| &row.values))?;
    nested(field, rows.iter().map(|row| row.map(|row| row.lengths.clone())), values)
}

/// Makes a list column of two levels. Each row gives the lengths of its inner lists.
///
/// # Errors
/// When the column is no list, or a batch has more elements than 32 bits count.
pub(crate) fn nested(
    field: &Field,
    rows: impl Iterator<Item = Option<Vec<usize>>>,
    values: ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let DataType::List(item) = field.data_type() else {
        return Err(ArrowError::SchemaError(format!("column `{}` is not a list", field.name())));
    };
    let rows: Vec<Option<Vec<usize>>> = rows.collect();
    let inner = list(item, rows.iter().flatten().flatten().map(|length| Some(*length)), values)?;
    list(field, rows.iter().map(|row| row.as_ref().map(Vec::len)), inner)
}

/// Makes a list column of one level. `lengths` has one entry a row, none where the row has no list.
/// `values` has all elements in order.
pub(crate) fn list(
    field: &Field,
    lengths: impl Iterator<Item = Option<usize>>,
    values: ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let DataType::List(item) = field.data_type() else {
        return Err(ArrowError::SchemaError(format!("column `{}` is not a list", field.name())));
    };
    let lengths: Vec<Option<usize>> = lengths.collect();
    let validity: NullBuffer = lengths.iter().map(Option::is_some).collect();
    let offsets =
        OffsetBuffer::try_from_lengths(lengths.into_iter().map(Option::unwrap_or_default))
            .map_err(|error| ArrowError::InvalidArgumentError(error.to_string()))?;
    let nulls = Some(validity).filter(|validity| validity.null_count() > 0);
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?))
}

/// Makes a column of texts.
///
/// # Errors
/// When the texts of a batch have more bytes than 32 bits count.
pub(crate) fn strings<'a>(
    texts: impl Iterator<Item = Option<&'a str>> + Clone,
) -> Result<ArrayRef, ArrowError> {
    // Arrow itself panics where there are too many.
    let bytes = texts.clone().flatten().map(str::len).sum();
    i32::try_from(bytes).map_err(|_| ArrowError::OffsetOverflowError(bytes))?;
    Ok(Arc::new(StringArray::from_iter(texts)))
}

/// Makes a list column of texts.
pub(crate) fn texts<I>(
    field: &Field,
    rows: impl Iterator<Item = Option<I>>,
) -> Result<ArrayRef, ArrowError>
where
    I: ExactSizeIterator<Item: AsRef<str>>,
{
    let mut lengths = Vec::new();
    let mut values: Vec<String> = Vec::new();
    for row in rows {
        lengths.push(row.as_ref().map(ExactSizeIterator::len));
        values.extend(row.into_iter().flatten().map(|text| text.as_ref().to_owned()));
    }
    list(field, lengths.into_iter(), strings(values.iter().map(|text| Some(text.as_str())))?)
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
    let ids = turns.iter().map(|t| Some(t.call_id.as_str()));
    let words = turns.iter().map(|t| t.finish_reason.as_deref());
    let columns: Vec<ArrayRef> = vec![
        strings(ids)?,
        Arc::new(Int32Array::from_iter_values(turns.iter().map(|t| t.choice))),
        Arc::new(Int32Array::from_iter_values(turns.iter().map(|t| t.start))),
        Arc::new(Int32Array::from_iter_values(turns.iter().map(|t| t.end))),
        strings(words)?,
        Arc::new(Int64Array::from_iter(turns.iter().map(|t| t.version_start))),
        Arc::new(Int64Array::from_iter(turns.iter().map(|t| t.version_end))),
        Arc::new(Float64Array::from_iter(turns.iter().map(|t| t.temperature))),
        Arc::new(Float64Array::from_iter(turns.iter().map(|t| t.reward))),
        Arc::new(BooleanArray::from_iter(turns.iter().map(|t| t.continued))),
        Arc::new(Float64Array::from_iter(turns.iter().map(|t| t.mc_return))),
        strings(turns.iter().map(|t| Some(t.model.as_str())))?,
        Arc::new(Int32Array::from_iter(turns.iter().map(|t| t.message.map(|at| at as i32)))),
    ];
    StructArray::try_new(turn_fields(), columns, None)
}

fn annotations(field: &Field, rows: &[Row]) -> Result<ArrayRef, ArrowError> {
    let streams: Vec<_> = rows.iter().flat_map(|row| &row.annotations).collect();
    let fields = annotation_fields();
    let values = streams.iter().flat_map(|stream| stream.values.iter().copied());
    let columns = vec![
        strings(streams.iter().map(|stream| Some(stream.name.as_str())))?,
        strings(streams.iter().map(|stream| Some(stream.version.as_str())))?,
        list(
            &fields[2],
            streams.iter().map(|stream| Some(stream.values.len())),
            Arc::new(Float32Array::from_iter(values)),
        )?,
    ];
    let lengths = rows.iter().map(|row| Some(row.annotations.len()).filter(|count| *count > 0));
    list(field, lengths, Arc::new(StructArray::try_new(fields, columns, None)?))
}

pub(crate) fn messages(messages: &[&RowMessage]) -> Result<StructArray, ArrowError> {
    let text = |of: fn(&RowMessage) -> Option<&str>| strings(messages.iter().map(move |m| of(m)));
    let fields = message_fields();
    let calls = &fields[fields.len() - 1];
    let columns = vec![
        text(|m| Some(&m.role))?,
        text(|m| m.content.as_deref())?,
        text(|m| m.name.as_deref())?,
        text(|m| m.tool_call_id.as_deref())?,
        text(|m| m.reasoning.as_deref())?,
        texts(calls, messages.iter().map(|m| m.tool_calls.as_ref().map(|c| c.iter())))?,
    ];
    StructArray::try_new(fields, columns, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_32_bits_do_not_count_is_an_error() {
        let element = Arc::new(Field::new("element", DataType::Int32, false));
        let field = Field::new("ids", DataType::List(element), false);
        let none = || Arc::new(Int32Array::from(Vec::<i32>::new()));
        let list = |lengths: [usize; 2]| list(&field, lengths.into_iter().map(Some), none());
        assert!(list([1 << 30, 1 << 30]).is_err());
        assert_eq!(list([0, 0]).unwrap().len(), 2);
        let long = "a".repeat(64 << 20);
        let strings = |count| strings(std::iter::repeat_n(Some(long.as_str()), count));
        assert!(
            matches!(strings(32), Err(ArrowError::OffsetOverflowError(bytes)) if bytes == 1 << 31)
        );
        assert_eq!(strings(1).unwrap().len(), 1);
    }
}
