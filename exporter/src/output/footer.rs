//! Notes on rows at the end of a Parquet file: the episodes of each row group, and an order of
//! floats that readers know.

use ::parquet::errors::ParquetError;
use arrow::array::{AsArray, RecordBatch};
use serde_json::{Value, json};

/// Key of the row groups, with their episodes, in the metadata of a file.
pub(crate) const ROW_GROUPS_KEY: &str = "rolltape_row_groups";
/// Most episodes of a row group that are listed. Of more, the first and the last are named.
const LISTED_MAX: usize = 1000;

/// Bytes after the metadata: its length, and the magic bytes.
const END_BYTES: usize = 8;
/// The order of a column in Thrift's compact form, a union of one empty struct: that of its type.
const TYPE_ORDER: [u8; 3] = [0x1c, 0, 0];
/// The total order of IEEE 754.
const IEEE_ORDER: [u8; 3] = [0x2c, 0, 0];

/// The episodes of the row groups of a file, while it is written.
#[derive(Debug, Default)]
pub(crate) struct RowGroupEpisodes {
    ended: Vec<Value>,
    /// The row group that is being written.
    open: RowGroup,
}

/// The episodes of one row group, in the order of its rows.
#[derive(Debug, Default)]
struct RowGroup {
    rows: usize,
    episodes: usize,
    /// The first of them.
    listed: Vec<String>,
    last: Option<String>,
}

impl RowGroupEpisodes {
    /// Adds the rows of a batch.
    pub(crate) fn add(&mut self, batch: &RecordBatch) {
        self.open.rows += batch.num_rows();
        let ids = batch.column_by_name("episode_id").and_then(|ids| ids.as_string_opt::<i32>());
        for id in ids.iter().flat_map(|ids| ids.iter()).flatten() {
            self.open.add(id);
        }
    }

    /// Ends the row group, if it has rows.
    pub(crate) fn end_group(&mut self) {
        let group = std::mem::take(&mut self.open);
        if group.rows > 0 {
            self.ended.push(group.described());
        }
    }

    /// Returns the row groups that were ended. Tables that name no episodes have none.
    pub(crate) fn value(self) -> Option<Value> {
        let is_named = self.ended.iter().any(|group| group["episodes"] != json!([]));
        is_named.then_some(Value::Array(self.ended))
    }
}

impl RowGroup {
    fn add(&mut self, id: &str) {
        if self.last.as_deref() == Some(id) {
            return;
        }
        self.last = Some(id.to_owned());
        self.episodes += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(id.to_owned());
        }
    }

    fn described(self) -> Value {
        match self.episodes > self.listed.len() {
            true => json!({ "rows": self.rows, "first": self.listed[0], "last": self.last }),
            false => json!({ "rows": self.rows, "episodes": self.listed }),
        }
    }
}

/// Says in the metadata, with which `bytes` end, that floats have the order of their type. The
/// statistics are the same in both orders: they are of no NaN, and -0 is below 0. Many readers do
/// not know the total order of IEEE 754 yet, and take no statistics of it.
///
/// # Errors
/// [`ParquetError`] where the metadata of `columns` columns of values does not end as it should.
pub(crate) fn use_type_order(bytes: &mut [u8], columns: usize) -> Result<(), ParquetError> {
    let unknown = || ParquetError::General("the metadata does not end with orders".to_owned());
    let orders_end = bytes.len().checked_sub(END_BYTES + 1).ok_or_else(unknown)?;
    let start = orders_end.checked_sub(columns * TYPE_ORDER.len()).ok_or_else(unknown)?;

    let (orders, rest) = bytes[start..orders_end].as_chunks_mut::<3>();
    let are_orders = orders.iter().all(|order| [TYPE_ORDER, IEEE_ORDER].contains(order));
    if !are_orders || !rest.is_empty() || bytes[orders_end] != 0 {
        return Err(unknown());
    }
    bytes[start..orders_end].as_chunks_mut::<3>().0.fill(TYPE_ORDER);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};

    use super::*;

    fn batch(ids: impl IntoIterator<Item = String>) -> RecordBatch {
        let ids: ArrayRef = Arc::new(StringArray::from_iter_values(ids));
        RecordBatch::try_from_iter([("episode_id", ids)]).unwrap()
    }

    fn names(ids: &[&str]) -> RecordBatch {
        batch(ids.iter().map(|id| (*id).to_owned()))
    }

    #[test]
    fn each_row_group_names_its_episodes_once() {
        let mut groups = RowGroupEpisodes::default();
        groups.add(&names(&["a", "a"]));
        groups.add(&names(&["a", "b"]));
        groups.end_group();
        groups.add(&names(&["b"]));
        groups.end_group();
        groups.end_group();
        let expected = json!([
            { "rows": 4, "episodes": ["a", "b"] },
            { "rows": 1, "episodes": ["b"] },
        ]);
        assert_eq!(groups.value(), Some(expected));
        assert_eq!(RowGroupEpisodes::default().value(), None);
    }

    #[test]
    fn of_very_many_episodes_the_first_and_the_last_are_named() {
        let mut groups = RowGroupEpisodes::default();
        groups.add(&batch((0..=LISTED_MAX).map(|n| format!("e{n:05}"))));
        groups.end_group();
        let expected = json!([{ "rows": 1001, "first": "e00000", "last": "e01000" }]);
        assert_eq!(groups.value(), Some(expected));
    }

    #[test]
    fn only_orders_are_changed() {
        let end = [0, 9, 0, 0, 0, b'P', b'A', b'R', b'1'];
        let mut known = [&[7, 0x2c, 0, 0, 0x1c, 0, 0][..], &end].concat();
        use_type_order(&mut known, 2).unwrap();
        assert_eq!(known, [&[7, 0x1c, 0, 0, 0x1c, 0, 0][..], &end].concat());
        let mut other = [&[7, 0x3c, 0, 0][..], &end].concat();
        assert!(use_type_order(&mut other, 1).is_err());
        assert!(use_type_order(&mut end.to_vec(), 1).is_err());
    }
}
