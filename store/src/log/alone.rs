//! One body by itself, read with a part of its log: as much as a list of episodes may cost.

use bytes::Bytes;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::encoding::pack::{Packed, hash, unpack};
use crate::error::{DecodeError, ReadError};
use crate::log::extent::{Extent, append};
use crate::log::format::{BODIES, EXTENTS, FOLDED};
use crate::log::reader::LogReader;

/// The last segment up to a byte of a log that was compressed without what is before it.
const FIRST: &str = "SELECT start FROM segment WHERE reel_key = $1 AND track = $2 \
    AND start <= $3 AND context = 0 ORDER BY start DESC LIMIT 1";
const LENGTH: &str = "SELECT CAST(coalesce(sum(length), 0) AS BIGINT) FROM segment \
    WHERE reel_key = $1 AND track = $2 AND start >= $3 AND start < $4";
const SEGMENTS: &str = "SELECT start, length, context, encoding, data FROM segment \
    WHERE reel_key = $1 AND track = $2 AND start >= $3 AND start < $4 ORDER BY start";

/// Parts of a log that hold what a body consists of.
#[derive(Debug, Default)]
struct LogParts {
    parts: Vec<LogPart>,
    /// Bytes of all of them.
    length: u64,
}

/// Segments that follow each other, decoded.
#[derive(Debug)]
struct LogPart {
    start: u64,
    bytes: Vec<u8>,
}

impl LogReader {
    /// The bytes of one body, checked against its hash; `None` if they, or the parts of the log
    /// that hold them, are longer than `bytes_max`.
    pub(crate) async fn bytes_alone(
        &mut self,
        connection: &mut StoreConnection,
        body_key: i64,
        bytes_max: u64,
    ) -> Result<Option<Bytes>, ReadError> {
        let row = self.row(connection, body_key).await?;
        if row.length as u64 > bytes_max {
            return Ok(None);
        }

        let bytes = match (row.encoding, row.log_key) {
            (EXTENTS | FOLDED, Some(log_key)) => {
                let extents = self.extents(connection, body_key).await?;
                let mut parts = LogParts::default();
                for extent in extents.iter() {
                    if !parts.take(connection, log_key, *extent, bytes_max).await? {
                        return Ok(None);
                    }
                }
                let (moved, log) = parts.joined(&extents).ok_or(DecodeError::Log)?;
                row.decode(&moved, &log)?
            }
            _ => row.decode(&[], &[])?,
        };

        row.check(&bytes, hash(&bytes))?;
        Ok(Some(bytes.into()))
    }
}

impl LogParts {
    /// Reads the part that holds an extent, unless it is there. False if all parts together would
    /// be longer than `bytes_max`.
    async fn take(
        &mut self,
        connection: &mut StoreConnection,
        log_key: i64,
        extent: Extent,
        bytes_max: u64,
    ) -> Result<bool, ReadError> {
        if self.parts.iter().any(|part| part.holds(extent)) {
            return Ok(true);
        }
        let bound = |select| query(select).bind(log_key).bind(BODIES);
        let first = bound(FIRST).bind(number(extent.start)?).fetch_optional(connection).await?;
        let first = first.ok_or(DecodeError::Log)?.first::<i64>()?.unsigned_abs();
        if self.parts.iter().all(|part| part.start != first) {
            self.parts.push(LogPart { start: first, bytes: Vec::new() });
        }
        let part = self.parts.iter_mut().find(|part| part.start == first);
        let part = part.ok_or(DecodeError::Log)?;

        let (from, until) = (number(part.end())?, number(extent.end())?);
        let length: i64 = bound(LENGTH).bind(from).bind(until).scalar(connection).await?;
        self.length = self.length.saturating_add(length.unsigned_abs());
        if self.length > bytes_max {
            return Ok(false);
        }
        for row in bound(SEGMENTS).bind(from).bind(until).fetch_all(connection).await? {
            part.add(&row)?;
        }
        Ok(true)
    }

    /// The bytes of some extents behind each other, and where they are there; `None` if a part
    /// lacks one.
    fn joined(&self, extents: &[Extent]) -> Option<(Vec<Extent>, Vec<u8>)> {
        let (mut moved, mut log) = (Vec::new(), Vec::new());
        for extent in extents {
            let part = self.parts.iter().find(|part| part.holds(*extent))?;
            let start = usize::try_from(extent.start - part.start).ok()?;
            let bytes = part.bytes.get(start..)?.get(..usize::try_from(extent.length).ok()?)?;
            append(&mut moved, Extent { start: log.len() as u64, length: extent.length });
            log.extend_from_slice(bytes);
        }
        Some((moved, log))
    }
}

impl LogPart {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn holds(&self, extent: Extent) -> bool {
        self.start <= extent.start && extent.end() <= self.end()
    }

    /// Adds the segment that follows.
    fn add(&mut self, row: &Row) -> Result<(), ReadError> {
        if row.try_get::<i64>("start")? != number(self.end())? {
            return Err(DecodeError::Log.into());
        }
        let context_start = self.bytes.len().checked_sub(row.try_get("context")?);
        let context = &self.bytes[context_start.ok_or(DecodeError::Log)?..];
        let packed = Packed { encoding: row.try_get("encoding")?, data: row.try_get("data")? };
        let segment = unpack(packed, row.try_get("length")?, context)?;
        self.bytes.extend_from_slice(&segment);
        Ok(())
    }
}

/// A byte of a log as the store counts.
fn number(byte: u64) -> Result<i64, DecodeError> {
    i64::try_from(byte).map_err(|_| DecodeError::Log)
}
