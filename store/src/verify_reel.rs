//! The logs of a reel, read as far as they decode, and which of their bytes belong to a row.
//!
//! Every byte of a log was written for one row, so bytes that belong to none tell of a row that
//! is lost.

use std::ops::Range;

use crate::fields::Row;
use crate::link::Link;
use crate::pack::unpack;
use crate::pieces::Piece;
use crate::query::query;
use crate::read::{Logs, size};
use crate::reel::{TEXTS, TOKENS};
use crate::varint::take;

/// A stretch that is lost is filled up to here, so that what is behind it keeps its place.
const GAP_BYTES_MAX: usize = 1 << 30;

/// What is known of the bytes of one log.
#[derive(Debug, Default)]
pub(crate) struct Extent {
    length: usize,
    /// What does not decode; zeros stand in its place.
    lost: Vec<Range<usize>>,
    used: Vec<Range<usize>>,
}

/// A reel, read.
#[derive(Debug, Default)]
pub(crate) struct ReadReel {
    pub(crate) logs: Logs,
    pub(crate) texts: Extent,
    pub(crate) tokens: Extent,
    pub(crate) segments: u64,
}

impl ReadReel {
    /// Reads a reel; what is wrong with its segments is told to `broken`.
    pub(crate) async fn load(
        connection: &mut Link,
        reel_key: i64,
        mut broken: impl FnMut(String),
    ) -> Result<Self, sqlx::Error> {
        let mut reel = Self::default();
        let segments = "SELECT segment_key, track, start, length, context, encoding, data \
                        FROM segment WHERE reel_key = $1 ORDER BY track, start";
        for row in query(segments).bind(reel_key).fetch_all(connection).await? {
            reel.segments += 1;
            let read = match row.try_get("track")? {
                TEXTS => reel.texts.read(&mut reel.logs.texts, &row),
                TOKENS => reel.tokens.read(&mut reel.logs.tokens, &row),
                other => Err(format!("it is on track {other}, which there is not")),
            };
            if let Err(what) = read {
                let key: i64 = row.try_get("segment_key")?;
                broken(format!("`segment` {key} of `reel` {reel_key}: {what}"));
            }
        }
        Ok(reel)
    }
}

impl Extent {
    /// Puts a segment behind what was read, or zeros where it does not decode.
    fn read(&mut self, log: &mut Vec<u8>, row: &Row) -> Result<(), String> {
        let number = |name| size(row, name).map_err(|error| error.to_string());
        let (start, length, end) = (number("start")?, number("length")?, self.length);
        if start < end {
            return Err(format!("it begins at byte {start}, within the one before"));
        }
        if start - end > GAP_BYTES_MAX || length > GAP_BYTES_MAX {
            return Err(format!("it says that it is {length} bytes from byte {start} on"));
        }
        self.lose(log, start - end);
        let decoded = decoded(log, row, (length, number("context")?));
        match &decoded {
            Ok(bytes) => log.extend_from_slice(bytes),
            Err(_) => self.lose(log, length),
        }
        self.length = log.len();
        if start > end {
            return Err(format!("the bytes before it, from byte {end} on, are lost"));
        }
        decoded.map(drop)
    }

    fn lose(&mut self, log: &mut Vec<u8>, count: usize) {
        if count > 0 {
            self.lost.push(log.len()..log.len() + count);
            log.resize(log.len() + count, 0);
        }
    }

    /// Marks the pieces of a body as used.
    pub(crate) fn use_pieces(&mut self, pieces: &[Piece]) {
        let range = |piece: &Piece| {
            let start = usize::try_from(piece.start).ok()?;
            Some(start..start.checked_add(usize::try_from(piece.length).ok()?)?)
        };
        self.used.extend(pieces.iter().filter_map(range));
    }

    /// Marks `count` token ids from `start` on as used; `log` is what this is the extent of.
    ///
    /// # Errors
    /// Says what is wrong where they are not all there.
    pub(crate) fn use_ids(
        &mut self,
        log: &[u8],
        (start, count): (usize, usize),
    ) -> Result<(), String> {
        let not_there = || format!("its {count} ids from byte {start} on are not in the reel");
        let mut rest = log.get(start..).ok_or_else(not_there)?;
        for _ in 0..count {
            take(&mut rest).filter(|id| u32::try_from(*id).is_ok()).ok_or_else(not_there)?;
        }
        let range = start..log.len() - rest.len();
        if self.lost.iter().any(|lost| lost.start < range.end && range.start < lost.end) {
            return Err(format!("its {count} ids from byte {start} on are damaged"));
        }
        self.used.push(range);
        Ok(())
    }

    /// Stretches that belong to no row.
    pub(crate) fn unused(&mut self) -> Vec<Range<usize>> {
        self.used.sort_unstable_by_key(|range| (range.start, range.end));
        let (mut unused, mut end) = (Vec::new(), 0);
        for range in self.used.iter().filter(|range| !range.is_empty()) {
            if range.start > end {
                unused.push(end..range.start);
            }
            end = end.max(range.end);
        }
        if end < self.length {
            unused.push(end..self.length);
        }
        unused
    }
}

fn decoded(log: &[u8], row: &Row, (length, context): (usize, usize)) -> Result<Vec<u8>, String> {
    let before = log.len().checked_sub(context).ok_or("its context begins before the log")?;
    let data: &[u8] = row.try_get("data").map_err(|error| error.to_string())?;
    let encoding = row.try_get("encoding").map_err(|error| error.to_string())?;
    unpack((encoding, data), length, &log[before..]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_nothing_is_known() {
        let mut extent = Extent { length: 10, ..Extent::default() };
        assert_eq!(extent.unused(), vec![0..10; 1]);
        extent.use_pieces(&[Piece { start: 2, length: 3 }, Piece { start: 3, length: 4 }]);
        assert_eq!(extent.unused(), [0..2, 7..10]);
        let log = [1, 0x81, 1, 2, 3, 4, 5, 6, 7, 0x80];
        extent.use_ids(&log, (0, 2)).unwrap();
        assert_eq!(extent.unused(), vec![7..10; 1]);
        assert!(extent.use_ids(&log, (8, 2)).unwrap_err().contains("not in the reel"));
        extent.lost.push(7..8);
        assert!(extent.use_ids(&log, (6, 2)).unwrap_err().contains("damaged"));
        extent.use_ids(&log, (8, 1)).unwrap();
        assert_eq!(extent.unused(), [7..8, 9..10]);
    }
}
