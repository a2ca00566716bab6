//! The items of a feed's reply: split as rows arrive, and encoded for output.

use std::collections::BTreeSet;

use arrow::array::{Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use clap::ValueEnum;
use episode::AttemptId;
use exporter::{Encoding, Feed, FeedOptions};
use serde::Deserialize;

use crate::exit::Failure;

/// Encoding of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FeedFormat {
    /// One JSON object per line
    #[default]
    Ndjson,
    /// An Arrow IPC stream
    Arrow,
}

/// One item of the feed with its rows.
#[derive(Debug, PartialEq)]
pub(crate) struct ReceivedItem {
    pub(crate) position: i64,
    pub(crate) attempts: BTreeSet<AttemptId>,
    pub(crate) rows: ReceivedRows,
}

/// Rows in the encoding in which they arrived.
#[derive(Debug, PartialEq)]
pub(crate) enum ReceivedRows {
    Lines(Vec<u8>),
    Batches(Vec<RecordBatch>),
}

/// Splits one reply into its items.
pub(crate) struct ItemSplitter {
    decoder: RowDecoder,
    /// The item whose rows are arriving.
    open: Option<ReceivedItem>,
}

/// The state of decoding.
enum RowDecoder {
    /// The beginning of a line that is not complete.
    Lines(Vec<u8>),
    Batches(Box<StreamDecoder>),
}

/// The columns that say which item and attempt a row belongs to.
#[derive(Deserialize)]
struct RowKey {
    episode_id: String,
    attempt: u32,
    feed_item: i64,
}

impl ItemSplitter {
    /// A splitter at the start of a reply.
    pub(crate) fn new(format: FeedFormat) -> Self {
        let decoder = match format {
            FeedFormat::Ndjson => RowDecoder::Lines(Vec::new()),
            FeedFormat::Arrow => RowDecoder::Batches(Box::default()),
        };
        Self { decoder, open: None }
    }

    /// Takes the next bytes. Returns the items that are complete with them.
    pub(crate) fn take(&mut self, bytes: Bytes) -> Result<Vec<ReceivedItem>, Failure> {
        let mut complete = Vec::new();
        for part in self.decoder.parts(bytes)? {
            match &mut self.open {
                Some(open) if open.position == part.position => open.join(part),
                open => complete.extend(open.replace(part)),
            }
        }
        Ok(complete)
    }

    /// Ends the reply. Returns its last item.
    pub(crate) fn end(mut self) -> Result<Option<ReceivedItem>, Failure> {
        match &mut self.decoder {
            RowDecoder::Lines(rest) if rest.is_empty() => {}
            RowDecoder::Lines(_) => return Err(Failure::new("the reply ended within a row")),
            RowDecoder::Batches(decoder) => decoder.finish().map_err(|error| not_rows(&error))?,
        }
        Ok(self.open)
    }
}

impl RowDecoder {
    /// The rows that are complete with these bytes, an item for each line or batch.
    fn parts(&mut self, bytes: Bytes) -> Result<Vec<ReceivedItem>, Failure> {
        let mut parts = Vec::new();
        match self {
            Self::Lines(rest) => {
                rest.extend_from_slice(&bytes);
                // The last line may be incomplete; it waits for the next bytes.
                let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let incomplete = rest.split_off(end);
                let lines = std::mem::replace(rest, incomplete);

                for line in lines.split_inclusive(|byte| *byte == b'\n') {
                    parts.push(item_of_line(line)?);
                }
            }
            Self::Batches(decoder) => {
                let mut buffer = Buffer::from(bytes);
                while !buffer.is_empty() {
                    let batch = decoder.decode(&mut buffer).map_err(|error| not_rows(&error))?;
                    // An empty batch has no row to take the item's position from.
                    if let Some(batch) = batch.filter(|batch| batch.num_rows() > 0) {
                        parts.push(item_of_batch(batch)?);
                    }
                }
            }
        }
        Ok(parts)
    }
}

impl ReceivedItem {
    fn join(&mut self, more: Self) {
        self.attempts.extend(more.attempts);
        match (&mut self.rows, more.rows) {
            (ReceivedRows::Lines(rows), ReceivedRows::Lines(more)) => rows.extend(more),
            (ReceivedRows::Batches(rows), ReceivedRows::Batches(more)) => rows.extend(more),
            (rows, more) => *rows = more,
        }
    }
}

fn item_of_line(line: &[u8]) -> Result<ReceivedItem, Failure> {
    let key: RowKey = serde_json::from_slice(line).map_err(|error| not_rows(&error))?;
    let attempts = [attempt_id(&key.episode_id, key.attempt)?].into();
    Ok(ReceivedItem { position: key.feed_item, attempts, rows: ReceivedRows::Lines(line.to_vec()) })
}

/// The item of a batch; a batch has rows of one item only.
fn item_of_batch(batch: RecordBatch) -> Result<ReceivedItem, Failure> {
    let items: &Int64Array = column(&batch, "feed_item")?;
    let position = items.value(0);
    if items.values().iter().any(|other| *other != position) {
        return Err(Failure::new("the server sent a batch with rows of two items"));
    }

    let ids: &StringArray = column(&batch, "episode_id")?;
    let numbers: &Int32Array = column(&batch, "attempt")?;
    let attempts = (0..batch.num_rows())
        .map(|row| attempt_id(ids.value(row), numbers.value(row).unsigned_abs()))
        .collect::<Result<_, _>>()?;
    Ok(ReceivedItem { position, attempts, rows: ReceivedRows::Batches(vec![batch]) })
}

fn attempt_id(episode: &str, attempt: u32) -> Result<AttemptId, Failure> {
    let episode = episode.parse().map_err(|error| not_rows(&error))?;
    Ok(AttemptId { episode, attempt })
}

fn column<'a, T: Array + 'static>(batch: &'a RecordBatch, name: &str) -> Result<&'a T, Failure> {
    batch
        .column_by_name(name)
        .and_then(|column| column.as_any().downcast_ref())
        .ok_or_else(|| Failure::new(format!("the server sent no column `{name}`")))
}

fn not_rows(error: &dyn std::error::Error) -> Failure {
    Failure::of(error).context("the server did not send rows")
}

/// Encodes rows for output. Arrow batches of all replies become one stream.
pub(crate) struct RowEncoder {
    format: FeedFormat,
    /// The stream of Arrow, once it has begun.
    stream: Option<StreamWriter<Vec<u8>>>,
    has_ended: bool,
}

impl RowEncoder {
    /// An encoder of rows that arrive in this format.
    pub(crate) fn new(format: FeedFormat) -> Self {
        Self { format, stream: None, has_ended: false }
    }

    /// Encodes rows.
    pub(crate) fn encode(&mut self, rows: ReceivedRows) -> Result<Vec<u8>, Failure> {
        match rows {
            ReceivedRows::Lines(lines) => Ok(lines),
            ReceivedRows::Batches(batches) => {
                self.encode_batches(&batches).map_err(|error| Failure::of(&error))
            }
        }
    }

    fn encode_batches(&mut self, batches: &[RecordBatch]) -> Result<Vec<u8>, ArrowError> {
        for batch in batches {
            let writer = match &mut self.stream {
                Some(writer) => writer,
                none => none.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
            };
            writer.write(batch)?;
        }
        Ok(self.stream.as_mut().map_or_else(Vec::new, |writer| std::mem::take(writer.get_mut())))
    }

    /// Ends the stream. Returns its last bytes. One of Arrow without a row has its schema.
    pub(crate) fn end(&mut self) -> Result<Vec<u8>, Failure> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(Vec::new());
        }
        match (self.stream.take(), self.format) {
            (Some(mut writer), _) => {
                writer.finish().map_err(|error| Failure::of(&error))?;
                writer.into_inner().map_err(|error| Failure::of(&error))
            }
            (None, FeedFormat::Arrow) => no_rows(),
            (None, FeedFormat::Ndjson) => Ok(Vec::new()),
        }
    }
}

/// A stream of Arrow that has no row.
fn no_rows() -> Result<Vec<u8>, Failure> {
    let options = FeedOptions { encoding: Encoding::Arrow, ..FeedOptions::default() };
    let empty = Feed::new(options).and_then(|mut feed| feed.finish());
    empty.map_err(|error| Failure::of(&error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::ArrayRef;
    use arrow::ipc::reader::StreamReader;

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

    /// The items of a reply that is read `size` bytes at a time.
    fn split(format: FeedFormat, reply: &[u8], size: usize) -> Result<Vec<ReceivedItem>, Failure> {
        let mut splitter = ItemSplitter::new(format);
        let mut items = Vec::new();
        for piece in reply.chunks(size) {
            items.extend(splitter.take(Bytes::copy_from_slice(piece))?);
        }
        items.extend(splitter.end()?);
        Ok(items)
    }

    #[test]
    fn items_are_found_however_they_come() {
        let lines = ROWS.map(line);
        let reply = lines.concat();
        let arrow = stream(&[batch(&ROWS[..2]), batch(&ROWS[2..3]), batch(&ROWS[3..])]);
        let attempts = |names: &[&str]| -> BTreeSet<AttemptId> {
            names.iter().map(|name| name.parse().unwrap()).collect()
        };
        for size in [1, 7, 64, 4096] {
            let found = split(FeedFormat::Ndjson, reply.as_bytes(), size).unwrap();
            let of = |lines: &[String]| ReceivedRows::Lines(lines.concat().into_bytes());
            let first = attempts(&["a/0", "b/1"]);
            let last = attempts(&["a/0"]);
            assert_eq!(found[0].rows, of(&lines[..3]));
            assert_eq!(found[1].rows, of(&lines[3..]));
            let named = |found: &[ReceivedItem]| {
                let one = |item: &ReceivedItem| (item.position, item.attempts.clone());
                found.iter().map(one).collect::<Vec<_>>()
            };
            assert_eq!(named(&found), [(3, first), (5, last)]);
            assert_eq!(named(&split(FeedFormat::Arrow, &arrow, size).unwrap()), named(&found));
        }
    }

    #[test]
    fn an_item_that_did_not_come_whole_is_none() {
        let reply = ROWS.map(line).concat();
        let mut splitter = ItemSplitter::new(FeedFormat::Ndjson);
        let piece = |to: usize| Bytes::copy_from_slice(&reply.as_bytes()[..to]);
        assert_eq!(splitter.take(piece(reply.len() - 5)).unwrap(), [], "the next has not begun");
        assert!(splitter.end().is_err());
        let arrow = stream(&[batch(&ROWS[..3])]);
        assert!(split(FeedFormat::Arrow, &arrow[..arrow.len() - 20], 9).is_err());
        for wrong in ["rows\n", "{\"episode_id\":\"a\",\"attempt\":0}\n"] {
            assert!(split(FeedFormat::Ndjson, wrong.as_bytes(), 64).is_err());
        }
        assert!(
            split(FeedFormat::Arrow, &stream(&[batch(&ROWS)]), 64).is_err(),
            "two items in a batch"
        );
    }

    #[test]
    fn replies_of_arrow_become_one_stream() {
        let mut writer = RowEncoder::new(FeedFormat::Arrow);
        let mut bytes = Vec::new();
        for rows in [&ROWS[..3], &ROWS[3..]] {
            for item in split(FeedFormat::Arrow, &stream(&[batch(rows)]), 50).unwrap() {
                bytes.extend(writer.encode(item.rows).unwrap());
            }
        }
        bytes.extend(writer.end().unwrap());
        assert_eq!(bytes, stream(&[batch(&ROWS[..3]), batch(&ROWS[3..])]));
        assert!(writer.end().unwrap().is_empty(), "nothing was written since");
    }

    #[test]
    fn a_stream_of_arrow_without_rows_has_a_schema() {
        let bytes = RowEncoder::new(FeedFormat::Arrow).end().unwrap();
        let stream = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        for column in ["input_ids", "feed_item"] {
            assert!(stream.schema().column_with_name(column).is_some(), "{column}");
        }
        assert_eq!(stream.count(), 0);
        assert!(RowEncoder::new(FeedFormat::Ndjson).end().unwrap().is_empty());
    }
}
