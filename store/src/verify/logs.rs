//! Checking logs: each is read as far as it decodes, and every byte must belong to a row.
//!
//! Every byte of a log was written for one row, so that bytes which belong to none tell of a lost
//! row.

use std::ops::Range;
use std::sync::Arc;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::encoding::pack::{Packed, unpack};
use crate::encoding::varint::take;
use crate::log::extent::Extent;
use crate::log::format::{BODIES, TOKENS};
use crate::log::reader::LogBytes;

/// Bytes of the longest gap that is filled, so that the bytes after it keep their places.
const GAP_BYTES_MAX: usize = 1 << 30;

/// The use of the bytes of one track.
#[derive(Debug, Default)]
pub(crate) struct TrackUse {
    length: usize,
    /// Bytes that do not decode; zeros stand in their place.
    lost: Vec<Range<usize>>,
    used: Vec<Range<usize>>,
}

/// A log that was read for a check.
#[derive(Debug, Default)]
pub(crate) struct CheckedLog {
    pub(crate) bytes: LogBytes,
    pub(crate) bodies: TrackUse,
    pub(crate) tokens: TrackUse,
    pub(crate) segments: u64,
}

impl CheckedLog {
    /// Reads a log. Defects of its segments are passed to `damaged`.
    pub(crate) async fn load(
        connection: &mut StoreConnection,
        log_key: i64,
        mut damaged: impl FnMut(String),
    ) -> Result<Self, sqlx::Error> {
        let mut log = Self::default();
        let segments = "SELECT segment_key, track, start, length, context, encoding, data \
                        FROM segment WHERE reel_key = $1 ORDER BY track, start";
        for row in query(segments).bind(log_key).fetch_all(connection).await? {
            log.segments += 1;
            let read = match row.try_get("track")? {
                BODIES => log.bodies.read(Arc::make_mut(&mut log.bytes.bodies), &row),
                TOKENS => log.tokens.read(&mut log.bytes.tokens, &row),
                other => Err(format!("it is on track {other}, which does not exist")),
            };
            if let Err(defect) = read {
                let key: i64 = row.try_get("segment_key")?;
                damaged(format!("`segment` {key} of `reel` {log_key}: {defect}"));
            }
        }
        Ok(log)
    }
}

impl TrackUse {
    /// Appends a segment to `track`, or zeros where it does not decode.
    fn read(&mut self, track: &mut Vec<u8>, row: &Row) -> Result<(), String> {
        let (start, length) = (number(row, "start")?, number(row, "length")?);
        let end = self.length;
        if start < end {
            return Err(format!("it begins at byte {start}, within the one before"));
        }
        if start - end > GAP_BYTES_MAX || length > GAP_BYTES_MAX {
            return Err(format!("it claims {length} bytes from byte {start} on"));
        }

        // Zeros stand for what is missing before it, and for itself if it does not decode.
        self.fill(track, start - end);
        let decoded = decode(track, row, length);
        match &decoded {
            Ok(bytes) => track.extend_from_slice(bytes),
            Err(_) => self.fill(track, length),
        }
        self.length = track.len();

        if start > end {
            return Err(format!("the bytes before it, from byte {end} on, are lost"));
        }
        decoded.map(drop)
    }

    fn fill(&mut self, track: &mut Vec<u8>, count: usize) {
        if count > 0 {
            self.lost.push(track.len()..track.len() + count);
            track.resize(track.len() + count, 0);
        }
    }

    /// Marks the extents of a body as used.
    pub(crate) fn use_extents(&mut self, extents: &[Extent]) {
        self.used.extend(extents.iter().filter_map(range_of));
    }

    /// Marks `count` token ids of `track`, from byte `start` on, as used.
    ///
    /// # Errors
    /// The defect, in words, where they are not all there.
    pub(crate) fn use_ids(
        &mut self,
        track: &[u8],
        start: usize,
        count: usize,
    ) -> Result<(), String> {
        let missing = || format!("its {count} ids from byte {start} on are not in the log");
        let mut rest = track.get(start..).ok_or_else(missing)?;
        for _ in 0..count {
            take(&mut rest).filter(|id| u32::try_from(*id).is_ok()).ok_or_else(missing)?;
        }

        let range = start..track.len() - rest.len();
        if self.lost.iter().any(|lost| lost.start < range.end && range.start < lost.end) {
            return Err(format!("its {count} ids from byte {start} on are damaged"));
        }
        self.used.push(range);
        Ok(())
    }

    /// Ranges that belong to no row.
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

fn range_of(extent: &Extent) -> Option<Range<usize>> {
    let start = usize::try_from(extent.start).ok()?;
    Some(start..start.checked_add(usize::try_from(extent.length).ok()?)?)
}

fn decode(track: &[u8], row: &Row, length: usize) -> Result<Vec<u8>, String> {
    let context_start = track
        .len()
        .checked_sub(number(row, "context")?)
        .ok_or("its context begins before the log")?;
    let packed = Packed {
        encoding: row.try_get("encoding").map_err(|error| error.to_string())?,
        data: row.try_get("data").map_err(|error| error.to_string())?,
    };
    unpack(packed, length, &track[context_start..]).map_err(|error| error.to_string())
}

fn number(row: &Row, name: &str) -> Result<usize, String> {
    row.try_get(name).map_err(|error: sqlx::Error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_nothing_is_known() {
        let mut track = TrackUse { length: 10, ..TrackUse::default() };
        assert_eq!(track.unused(), vec![0..10; 1]);
        track.use_extents(&[Extent { start: 2, length: 3 }, Extent { start: 3, length: 4 }]);
        assert_eq!(track.unused(), [0..2, 7..10]);
        let log = [1, 0x81, 1, 2, 3, 4, 5, 6, 7, 0x80];
        track.use_ids(&log, 0, 2).unwrap();
        assert_eq!(track.unused(), vec![7..10; 1]);
        assert!(track.use_ids(&log, 8, 2).unwrap_err().contains("not in the log"));
        track.lost.push(7..8);
        assert!(track.use_ids(&log, 6, 2).unwrap_err().contains("damaged"));
        track.use_ids(&log, 8, 1).unwrap();
        assert_eq!(track.unused(), [7..8, 9..10]);
    }
}
