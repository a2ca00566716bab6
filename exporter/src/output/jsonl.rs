//! JSON lines: a batch of records as one JSON object a line.
//!
//! Columns of JSON are written as JSON, not as text of it. A number that is not finite is null,
//! since JSON has no word for it.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type};
use arrow::datatypes::{Int8Type, Int32Type, Int64Type, UInt16Type};
use arrow::error::ArrowError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::rows::schema::is_json;

/// Adds the lines of a batch. With `omit_null`, a column that is null has no key in its line.
pub(crate) fn write(
    batch: &RecordBatch,
    omit_null: bool,
    out: &mut Vec<u8>,
) -> Result<(), ArrowError> {
    let schema = batch.schema();
    for row in 0..batch.num_rows() {
        let columns = schema.fields().iter().zip(batch.columns());
        let shown = columns.filter(|(_, column)| !(omit_null && column.is_null(row)));
        object(shown, row, out)?;
        out.push(b'\n');
    }
    Ok(())
}

fn object<'a>(
    columns: impl Iterator<Item = (&'a FieldRef, &'a ArrayRef)>,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<(), ArrowError> {
    out.push(b'{');
    for (index, (field, column)) in columns.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        put(field.name(), out)?;
        out.push(b':');
        value(field, column, row, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn value(field: &Field, array: &ArrayRef, row: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    if array.is_null(row) {
        out.extend_from_slice(b"null");
        return Ok(());
    }

    match array.data_type() {
        DataType::Boolean => put(&array.as_boolean().value(row), out),
        DataType::Int8 => put(&array.as_primitive::<Int8Type>().value(row), out),
        DataType::Int32 => put(&array.as_primitive::<Int32Type>().value(row), out),
        DataType::Int64 => put(&array.as_primitive::<Int64Type>().value(row), out),
        DataType::UInt16 => put(&array.as_primitive::<UInt16Type>().value(row), out),
        DataType::Float32 => put(&array.as_primitive::<Float32Type>().value(row), out),
        DataType::Float64 => put(&array.as_primitive::<Float64Type>().value(row), out),

        DataType::Utf8 if is_json(field) => document(array.as_string::<i32>().value(row), out),
        DataType::Utf8 => put(array.as_string::<i32>().value(row), out),
        // Base64, as JSON libraries that know bytes read them.
        DataType::Binary => put(&STANDARD.encode(array.as_binary::<i32>().value(row)), out),

        DataType::List(item) => list(item, &array.as_list::<i32>().value(row), out),
        DataType::Struct(fields) => {
            object(fields.iter().zip(array.as_struct().columns()), row, out)
        }
        other => Err(ArrowError::NotYetImplemented(format!("{other} as JSON"))),
    }
}

/// Writes a JSON document on one line. Line breaks that were recorded with it are left out.
fn document(text: &str, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    if text.contains(['\n', '\r']) {
        let parsed: serde_json::Value = serde_json::from_str(text).map_err(external)?;
        return put(&parsed, out);
    }
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn list(item: &Field, values: &ArrayRef, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    out.push(b'[');
    for index in 0..values.len() {
        if index > 0 {
            out.push(b',');
        }
        value(item, values, index, out)?;
    }
    out.push(b']');
    Ok(())
}

fn put<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    serde_json::to_writer(out, value).map_err(external)
}

fn external(error: serde_json::Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rewards::groups::GroupSummary;
    use crate::rows::annotations::TokenStream;
    use crate::rows::columns::batch;
    use crate::rows::row::Row;
    use crate::rows::schema::schema;
    use crate::rows::token_data::{Experts, Ragged, TokenData};
    use crate::tests::fixture::{call, episode, rows_of, with_bodies};

    #[test]
    fn a_row_is_one_line_that_reads_back() {
        let user = json!({ "role": "user", "content": "line\nbreak" });
        let mut rows =
            rows_of(&episode(vec![with_bodies(call(1, &[1, 2], &[&[3]]), &[user], "\"yo\"")]));
        rows[0].reward = Some(0.1);
        rows[0].row_weight = f64::NAN;
        rows[0].tokens.logprobs = vec![0.0, 0.0, -0.1];
        rows[0].metadata = "{\n\"a\": [1]}".to_owned();
        let mut out = Vec::new();
        let found = batch(&schema(), &rows).unwrap();
        write(&found, false, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["input_ids"], json!([1, 2, 3]));
        assert_eq!(read["logprobs"][2].as_f64().map(|l| l as f32), Some(-0.1));
        assert_eq!((&read["reward"], &read["row_weight"]), (&json!(0.1), &Value::Null));
        assert_eq!(read["metadata"], json!({ "a": [1] }));
        assert_eq!(read["prompt"][0]["content"], "line\nbreak");
        assert_eq!(read["tools"][0]["function"]["name"], "f");
        assert_eq!(read["parent_trajectory_id"], Value::Null);
        let mut omitted = Vec::new();
        write(&found, true, &mut omitted).unwrap();
        let read: Value = serde_json::from_slice(&omitted).unwrap();
        assert_eq!(read.get("parent_trajectory_id"), None);
        assert_eq!(read["turns"][0]["reward"], Value::Null);
    }

    /// One element for each of three tokens.
    fn each<T>(values: [T; 3]) -> Option<Ragged<T>> {
        Some(Ragged { lengths: vec![1; 3], values: values.into() })
    }

    /// A row in which no column is null. A column that is added has to be set here too.
    fn whole_row() -> Row {
        let mut row = rows_of(&episode(vec![call(1, &[1, 2], &[&[3]])])).remove(0);
        row.parent_trajectory_id = Some("e/0/0".to_owned());
        row.fork_position = Some(1);
        row.kv_cache = Some("fp8".to_owned());
        row.task_id = Some("t".to_owned());
        row.mixed_versions = Some(false);
        row.staleness = Some(1);
        row.reward = Some(1.0);
        row.trajectory_reward = Some(1.0);
        row.token_rewards = Some(vec![None, None, Some(1.0)]);
        row.advantage = Some(0.5);
        let (reward_mean, reward_std) = (Some(0.5), Some(0.5));
        row.group = Some(GroupSummary { reward_mean, reward_std, ..GroupSummary::default() });
        row.token_data = TokenData {
            top_ids: each([Some(1), None, Some(3)]),
            top_tokens: each([Some("a".to_owned()), None, Some("c".to_owned())]),
            top_logprobs: each([-0.5, -1.5, -2.5]),
            kept: each([1, 2, 3]),
            experts: Some(Experts {
                shape: vec![1, 2],
                values: vec![0, 1, 2, 65_535, 0, 0],
                known: vec![1, 1, 0],
            }),
            unread: 0,
        };
        row.annotations = vec![TokenStream {
            name: "entropies".to_owned(),
            version: "7".to_owned(),
            values: vec![None, Some(0.5), Some(0.25)],
        }];
        row
    }

    #[test]
    fn every_column_of_the_contract_is_written() {
        let found = batch(&schema(), &[whole_row()]).unwrap();
        let mut out = Vec::new();
        write(&found, false, &mut out).unwrap();
        let read: Value = serde_json::from_slice(&out).unwrap();
        for field in schema().fields() {
            assert!(!read[field.name()].is_null(), "{} is null", field.name());
        }
        assert_eq!(read["routed_experts"], json!([[0, 1], [2, 65_535], [0, 0]]));
        assert_eq!(read["top_logprob_ids"], json!([[1], [null], [3]]));
        assert_eq!(read["annotations"][0]["values"], json!([null, 0.5, 0.25]));
    }
}
