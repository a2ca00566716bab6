//! Reading logs and bodies back.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use episode::{Body, KeptBody};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::encoding::pack::{Packed, hash, unpack};
use crate::error::{DecodeError, ReadError};
use crate::log::extent::{Extent, decode, gather};
use crate::log::fold::unfold;
use crate::log::format::{BODIES, EXTENTS, FOLDED};
use crate::log::hashed::HashedBodies;

/// Bytes of the bodies that a reader gives out to be held. Further ones are put together again each
/// time they are read.
pub(crate) const HELD_BYTES_MAX: usize = 32 << 20;

/// Both tracks of a log.
#[derive(Debug, Default)]
pub(crate) struct LogBytes {
    /// The bytes of bodies.
    pub(crate) bodies: Arc<Vec<u8>>,
    /// Token ids as varints.
    pub(crate) tokens: Vec<u8>,
}

/// A reader of bodies. It keeps the logs, rows and extents that it had to read for them.
#[derive(Debug, Default)]
pub(crate) struct LogReader {
    logs: HashMap<i64, LogBytes>,
    rows: HashMap<i64, Arc<BodyRow>>,
    extents: HashMap<i64, Arc<[Extent]>>,
    hashed: HashedBodies,
    /// Bytes of the bodies that were given out to be held.
    held: usize,
}

/// A body that was read once, and is put together again each time it is read.
#[derive(Debug)]
struct StoredBody {
    row: Arc<BodyRow>,
    extents: Arc<[Extent]>,
    /// The bytes of its log.
    log: Arc<Vec<u8>>,
}

/// The row of a body.
#[derive(Debug)]
pub(super) struct BodyRow {
    pub(super) encoding: i64,
    pub(super) length: usize,
    data: Vec<u8>,
    base_key: Option<i64>,
    pub(super) log_key: Option<i64>,
    hash: Option<Vec<u8>>,
}

/// The names that a statement gives to the columns of a body.
#[derive(Debug)]
pub(crate) struct BodyColumns {
    pub(crate) key: &'static str,
    pub(crate) encoding: &'static str,
    pub(crate) length: &'static str,
    pub(crate) data: &'static str,
    pub(crate) base_key: &'static str,
    pub(crate) log_key: &'static str,
    pub(crate) hash: &'static str,
}

const COLUMNS: BodyColumns = BodyColumns {
    key: "body_key",
    encoding: "encoding",
    length: "length",
    data: "data",
    base_key: "base_key",
    log_key: "reel_key",
    hash: "hash",
};

/// One segment of a log, decoded.
pub(crate) struct DecodedSegment<'a> {
    pub(crate) track: i64,
    pub(crate) context: usize,
    pub(crate) bytes: &'a [u8],
}

impl LogReader {
    /// The tracks of a log.
    pub(crate) async fn log(
        &mut self,
        connection: &mut StoreConnection,
        log_key: i64,
    ) -> Result<&LogBytes, ReadError> {
        if !self.logs.contains_key(&log_key) {
            self.load(connection, log_key, |_| ()).await?;
        }
        Ok(&self.logs[&log_key])
    }

    /// Reads a log, passing each segment to `visit`.
    pub(crate) async fn load(
        &mut self,
        connection: &mut StoreConnection,
        log_key: i64,
        mut visit: impl FnMut(DecodedSegment<'_>),
    ) -> Result<(), ReadError> {
        let segments = "SELECT track, start, length, context, encoding, data FROM segment \
                        WHERE reel_key = $1 ORDER BY track, start";
        let rows = query(segments).bind(log_key).fetch_all(connection).await?;

        let (mut bodies, mut tokens) = (Vec::new(), Vec::new());
        for row in rows {
            let track: i64 = row.try_get("track")?;
            let bytes = if track == BODIES { &mut bodies } else { &mut tokens };
            if row.try_get::<usize>("start")? != bytes.len() {
                return Err(DecodeError::Log.into());
            }

            let context = row.try_get("context")?;
            let context_start = bytes.len().checked_sub(context).ok_or(DecodeError::Log)?;
            let packed = Packed { encoding: row.try_get("encoding")?, data: row.try_get("data")? };
            let segment = unpack(packed, row.try_get("length")?, &bytes[context_start..])?;
            bytes.extend_from_slice(&segment);
            visit(DecodedSegment { track, context, bytes: &segment });
        }
        self.logs.insert(log_key, LogBytes { bodies: Arc::new(bodies), tokens });
        Ok(())
    }

    /// Takes a log that was read elsewhere.
    pub(crate) fn insert_log(&mut self, log_key: i64, log: LogBytes) {
        self.logs.insert(log_key, log);
    }

    /// A log, if it was read before.
    pub(crate) fn known_log(&self, log_key: i64) -> Option<&LogBytes> {
        self.logs.get(&log_key)
    }

    /// Keeps the row of a body and returns the body's key; `None` where the row has no body.
    pub(crate) fn keep_row(
        &mut self,
        row: &Row,
        columns: &BodyColumns,
    ) -> Result<Option<i64>, sqlx::Error> {
        let Some(key) = row.try_get::<Option<i64>>(columns.key)? else {
            return Ok(None);
        };
        let body = BodyRow {
            encoding: row.try_get(columns.encoding)?,
            length: row.try_get(columns.length)?,
            data: row.try_get(columns.data)?,
            base_key: row.try_get(columns.base_key)?,
            log_key: row.try_get(columns.log_key)?,
            hash: row.try_get(columns.hash)?,
        };
        self.rows.insert(key, Arc::new(body));
        Ok(Some(key))
    }

    /// A body, checked against its hash. The first ones are held.
    pub(crate) async fn body(
        &mut self,
        connection: &mut StoreConnection,
        body_key: i64,
    ) -> Result<Body, ReadError> {
        let bytes = self.bytes(connection, body_key).await?;
        if self.held + bytes.len() <= HELD_BYTES_MAX {
            self.held += bytes.len();
            return Ok(bytes.into());
        }

        let row = self.row(connection, body_key).await?;
        let (extents, log) = match (row.encoding, row.log_key) {
            (EXTENTS | FOLDED, Some(log_key)) => (
                self.extents(connection, body_key).await?,
                Arc::clone(&self.log(connection, log_key).await?.bodies),
            ),
            _ => Default::default(),
        };
        Ok(Body::kept(Arc::new(StoredBody { row, extents, log })))
    }

    /// The bytes of a body, checked against its hash.
    pub(crate) async fn bytes(
        &mut self,
        connection: &mut StoreConnection,
        body_key: i64,
    ) -> Result<Bytes, ReadError> {
        let row = self.row(connection, body_key).await?;
        let (bytes, found) = match (row.encoding, row.log_key) {
            (EXTENTS | FOLDED, Some(log_key)) => {
                let extents = self.extents(connection, body_key).await?;
                let log = self.log(connection, log_key).await?;
                let bytes = row.decode(&extents, &log.bodies)?;
                let found = match row.encoding {
                    EXTENTS => self.hashed.hash(log_key, &extents, &bytes),
                    _ => hash(&bytes),
                };
                (bytes, found)
            }
            _ => {
                let bytes = row.decode(&[], &[])?;
                let found = hash(&bytes);
                (bytes, found)
            }
        };

        row.check(&bytes, found)?;
        Ok(Bytes::from(bytes))
    }

    /// The extents of its log that a body consists of. They are encoded against those of a base,
    /// which has a base in turn.
    pub(crate) async fn extents(
        &mut self,
        connection: &mut StoreConnection,
        body_key: i64,
    ) -> Result<Arc<[Extent]>, ReadError> {
        // Down the chain of bases to one that is known, or to the first.
        let (mut chain, mut next) = (Vec::new(), Some(body_key));
        while let Some(key) = next.filter(|key| !self.extents.contains_key(key)) {
            let row = self.row(connection, key).await?;
            if chain.iter().any(|(seen, _)| *seen == key) {
                return Err(DecodeError::Log.into());
            }
            next = row.base_key;
            chain.push((key, row));
        }

        // And back up.
        let mut extents = next.map_or_else(Arc::default, |base| Arc::clone(&self.extents[&base]));
        for (key, row) in chain.into_iter().rev() {
            extents = decode(&row.data, &extents).ok_or(DecodeError::Log)?.into();
            self.extents.insert(key, Arc::clone(&extents));
        }
        Ok(extents)
    }

    pub(super) async fn row(
        &mut self,
        connection: &mut StoreConnection,
        body_key: i64,
    ) -> Result<Arc<BodyRow>, ReadError> {
        if !self.rows.contains_key(&body_key) {
            let row = query("SELECT * FROM body WHERE body_key = $1")
                .bind(body_key)
                .fetch_optional(connection)
                .await?
                .ok_or(DecodeError::Log)?;
            self.keep_row(&row, &COLUMNS)?;
        }
        Ok(Arc::clone(&self.rows[&body_key]))
    }
}

impl BodyRow {
    /// Refuses bytes that are not those that were written.
    pub(super) fn check(&self, bytes: &[u8], found: [u8; 16]) -> Result<(), DecodeError> {
        if bytes.len() != self.length {
            return Err(DecodeError::Length { expected: self.length, found: bytes.len() });
        }
        match self.hash.as_ref().is_some_and(|expected| *expected != found) {
            true => Err(DecodeError::Hash),
            false => Ok(()),
        }
    }

    /// The bytes of the body, which consists of `extents` of a log, or of the row alone.
    pub(super) fn decode(&self, extents: &[Extent], log: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let &Self { encoding, length, log_key, .. } = self;
        // Formats before the log compressed each body by itself.
        if !matches!((encoding, log_key), (EXTENTS | FOLDED, Some(_))) {
            return unpack(Packed { encoding, data: &self.data }, length, &[]);
        }
        let stored = gather(extents, log).ok_or(DecodeError::Log)?;
        match encoding {
            FOLDED => unfold(&stored, length).ok_or(DecodeError::Frame),
            _ => Ok(stored),
        }
    }
}

impl KeptBody for StoredBody {
    fn length(&self) -> usize {
        self.row.length
    }

    fn read(&self) -> Bytes {
        // It was decoded before, from the same bytes.
        self.row.decode(&self.extents, &self.log).unwrap_or_default().into()
    }

    fn shared_bytes(&self) -> usize {
        self.log.len()
    }
}
