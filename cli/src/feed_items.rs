//! Rows of a reply of the feed, put together item by item as they come, and written out.

use std::collections::BTreeSet;

use arrow::array::{Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use clap::ValueEnum;
use serde::Deserialize;

use crate::exit::Failure;

/// How rows are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// One JSON object a line
    #[default]
    Ndjson,
    /// A stream of Arrow's IPC format
    Arrow,
}

/// The id of an episode, and which attempt at it.
pub(crate) type Attempt = (String, u32);

/// The rows of one item.
#[derive(Debug, PartialEq)]
pub(crate) struct ItemRows {
    pub(crate) position: i64,
    pub(crate) attempts: BTreeSet<Attempt>,
    pub(crate) rows: Rows,
}

/// Rows as they came.
#[derive(Debug, PartialEq)]
pub(crate) enum Rows {
    Lines(Vec<u8>),
    Batches(Vec<RecordBatch>),
}

/// Finds the items in one reply.
pub(crate) struct Cutter {
    reading: Reading,
    /// The item whose rows come.
    open: Option<ItemRows>,
}

enum Reading {
    /// What came of a line that is not whole.
    Lines(Vec<u8>),
    Batches(Box<StreamDecoder>),
}

/// What of a row names it.
#[derive(Deserialize)]
struct Named {
    episode_id: String,
    attempt: u32,
    feed_item: i64,
}

impl Cutter {
    /// A reply of which nothing came yet.
    pub(crate) fn new(form: Form) -> Self {
        let reading = match form {
            Form::Ndjson => Reading::Lines(Vec::new()),
            Form::Arrow => Reading::Batches(Box::default()),
        };
        Self { reading, open: None }
    }

    /// Takes the next bytes and gives the items that are whole with them.
    pub(crate) fn take(&mut self, bytes: Bytes) -> Result<Vec<ItemRows>, Failure> {
        let mut whole = Vec::new();
        for part in self.reading.parts(bytes)? {
            match &mut self.open {
                Some(open) if open.position == part.position => open.join(part),
                open => whole.extend(open.replace(part)),
            }
        }
        Ok(whole)
    }

    /// The reply has ended: gives its last item.
    pub(crate) fn end(mut self) -> Result<Option<ItemRows>, Failure> {
        match &mut self.reading {
            Reading::Lines(rest) if rest.is_empty() => {}
            Reading::Lines(_) => return Err(Failure::new("the server ended within a row")),
            Reading::Batches(decoder) => decoder.finish().map_err(|error| bad(&error))?,
        }
        Ok(self.open)
    }
}

impl Reading {
    /// The rows that are whole with these bytes.
    fn parts(&mut self, bytes: Bytes) -> Result<Vec<ItemRows>, Failure> {
        let mut parts = Vec::new();
        match self {
            Self::Lines(rest) => {
                rest.extend_from_slice(&bytes);
                let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let next = rest.split_off(end);
                let lines = std::mem::replace(rest, next);
                for line in lines.split_inclusive(|byte| *byte == b'\n') {
                    parts.push(of_line(line)?);
                }
            }
            Self::Batches(decoder) => {
                let mut bytes = Buffer::from(bytes);
                while !bytes.is_empty() {
                    let batch = decoder.decode(&mut bytes).map_err(|error| bad(&error))?;
                    let batch = batch.filter(|batch| batch.num_rows() > 0);
                    parts.extend(batch.map(of_batch).transpose()?);
                }
            }
        }
        Ok(parts)
    }
}

impl ItemRows {
    fn join(&mut self, more: Self) {
        self.attempts.extend(more.attempts);
        match (&mut self.rows, more.rows) {
            (Rows::Lines(rows), Rows::Lines(more)) => rows.extend(more),
            (Rows::Batches(rows), Rows::Batches(more)) => rows.extend(more),
            (rows, more) => *rows = more,
        }
    }
}

fn of_line(line: &[u8]) -> Result<ItemRows, Failure> {
    let named: Named = serde_json::from_slice(line).map_err(|error| bad(&error))?;
    let attempts = [(named.episode_id, named.attempt)].into();
    Ok(ItemRows { position: named.feed_item, attempts, rows: Rows::Lines(line.to_vec()) })
}

/// A batch is of one item.
fn of_batch(batch: RecordBatch) -> Result<ItemRows, Failure> {
    let items: &Int64Array = column(&batch, "feed_item")?;
    let position = items.value(0);
    if items.values().iter().any(|other| *other != position) {
        return Err(Failure::new("the server put two items into one batch"));
    }
    let names: &StringArray = column(&batch, "episode_id")?;
    let numbers: &Int32Array = column(&batch, "attempt")?;
    let one = |at: usize| (names.value(at).to_owned(), numbers.value(at).unsigned_abs());
    let attempts = (0..batch.num_rows()).map(one).collect();
    Ok(ItemRows { position, attempts, rows: Rows::Batches(vec![batch]) })
}

fn column<'a, T: Array + 'static>(batch: &'a RecordBatch, name: &str) -> Result<&'a T, Failure> {
    let column = batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
    column.ok_or_else(|| Failure::new(format!("the server sent no column `{name}`")))
}

fn bad(error: &dyn std::error::Error) -> Failure {
    Failure::of(error).context("the server did not send rows")
}

/// Makes the bytes that are written out: replies in Arrow's format become one stream.
#[derive(Default)]
pub(crate) struct Writer(Option<StreamWriter<Vec<u8>>>);

impl Writer {
    /// Rows as the next bytes.
    pub(crate) fn bytes(&mut self, rows: Rows) -> Result<Vec<u8>, Failure> {
        match rows {
            Rows::Lines(lines) => Ok(lines),
            Rows::Batches(batches) => self.encode(&batches).map_err(|error| Failure::of(&error)),
        }
    }

    fn encode(&mut self, batches: &[RecordBatch]) -> Result<Vec<u8>, ArrowError> {
        for batch in batches {
            let writer = match &mut self.0 {
                Some(writer) => writer,
                none => none.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
            };
            writer.write(batch)?;
        }
        Ok(self.0.as_mut().map_or_else(Vec::new, |writer| std::mem::take(writer.get_mut())))
    }

    /// The last bytes of what was written so far.
    pub(crate) fn end(&mut self) -> Result<Vec<u8>, Failure> {
        let Some(mut writer) = self.0.take() else { return Ok(Vec::new()) };
        writer.finish().map_err(|error| Failure::of(&error))?;
        writer.into_inner().map_err(|error| Failure::of(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::ArrayRef;

    use super::*;

    const ROWS: [(i64, &str, i32); 4] = [(3, "a", 0), (3, "b", 1), (3, "b", 1), (5, "a", 0)];

    fn line((item, episode, attempt): (i64, &str, i32)) -> String {
        format!(
            "{{\"episode_id\":\"{episode}\",\"attempt\":{attempt},\"x\":[1],\"feed_item\":{item}}}\n"
        )
    }

    fn batch(rows: &[(i64, &str, i32)]) -> RecordBatch {
        let columns: [(&str, ArrayRef); 3] = [
            ("feed_item", Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>())),
            ("episode_id", Arc::new(rows.iter().map(|row| Some(row.1)).collect::<StringArray>())),
            ("attempt", Arc::new(rows.iter().map(|row| Some(row.2)).collect::<Int32Array>())),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn stream(batches: &[RecordBatch]) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.into_inner().unwrap()
    }

    /// What comes of a reply that is read in pieces of so many bytes.
    fn cut(form: Form, reply: &[u8], size: usize) -> Result<Vec<ItemRows>, Failure> {
        let mut cutter = Cutter::new(form);
        let mut items = Vec::new();
        for piece in reply.chunks(size) {
            items.extend(cutter.take(Bytes::copy_from_slice(piece))?);
        }
        items.extend(cutter.end()?);
        Ok(items)
    }

    #[test]
    fn items_are_found_however_they_come() {
        let lines = ROWS.map(line);
        let reply = lines.concat();
        let arrow = stream(&[batch(&ROWS[..2]), batch(&ROWS[2..3]), batch(&ROWS[3..])]);
        let attempts = |names: &[(&str, u32)]| -> BTreeSet<Attempt> {
            names.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
        };
        for size in [1, 7, 64, 4096] {
            let found = cut(Form::Ndjson, reply.as_bytes(), size).unwrap();
            let of = |lines: &[String]| Rows::Lines(lines.concat().into_bytes());
            let first = attempts(&[("a", 0), ("b", 1)]);
            let last = attempts(&[("a", 0)]);
            assert_eq!(found[0].rows, of(&lines[..3]));
            assert_eq!(found[1].rows, of(&lines[3..]));
            let named = |found: &[ItemRows]| {
                let one = |item: &ItemRows| (item.position, item.attempts.clone());
                found.iter().map(one).collect::<Vec<_>>()
            };
            assert_eq!(named(&found), [(3, first), (5, last)]);
            assert_eq!(named(&cut(Form::Arrow, &arrow, size).unwrap()), named(&found));
        }
    }

    #[test]
    fn an_item_that_did_not_come_whole_is_none() {
        let reply = ROWS.map(line).concat();
        let mut cutter = Cutter::new(Form::Ndjson);
        let piece = |to: usize| Bytes::copy_from_slice(&reply.as_bytes()[..to]);
        assert_eq!(cutter.take(piece(reply.len() - 5)).unwrap(), [], "the next has not begun");
        assert!(cutter.end().is_err());
        let arrow = stream(&[batch(&ROWS[..3])]);
        assert!(cut(Form::Arrow, &arrow[..arrow.len() - 20], 9).is_err());
        for wrong in ["rows\n", "{\"episode_id\":\"a\",\"attempt\":0}\n"] {
            assert!(cut(Form::Ndjson, wrong.as_bytes(), 64).is_err());
        }
        assert!(cut(Form::Arrow, &stream(&[batch(&ROWS)]), 64).is_err(), "two items in a batch");
    }

    #[test]
    fn replies_of_arrow_become_one_stream() {
        let mut writer = Writer::default();
        let mut bytes = Vec::new();
        for rows in [&ROWS[..3], &ROWS[3..]] {
            for item in cut(Form::Arrow, &stream(&[batch(rows)]), 50).unwrap() {
                bytes.extend(writer.bytes(item.rows).unwrap());
            }
        }
        bytes.extend(writer.end().unwrap());
        assert_eq!(bytes, stream(&[batch(&ROWS[..3]), batch(&ROWS[3..])]));
        assert!(writer.end().unwrap().is_empty(), "nothing was written since");
    }
}
