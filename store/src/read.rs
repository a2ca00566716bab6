//! Reading reels back: logs, bodies.

use std::collections::HashMap;

use bytes::Bytes;
use thiserror::Error;

use crate::events::unfold;
use crate::fields::Row;
use crate::link::Link;
use crate::pack::{DecodeError, hash, unpack};
use crate::pieces::{Piece, decode, gather};
use crate::query::query;
use crate::reel::{FOLDED, PIECES, TEXTS};
use crate::snapshot::SnapshotError;

/// Why something could not be read back.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ReadError {
    /// The error for whoever asked for `what`.
    pub(crate) fn of(self, what: String) -> SnapshotError {
        match self {
            Self::Database(error) => error.into(),
            Self::Decode(source) => SnapshotError::Decode { what, source },
        }
    }
}

/// Both logs of a reel.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) texts: Vec<u8>,
    pub(crate) tokens: Vec<u8>,
}

/// Reads bodies, and keeps what it had to read for them.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    logs: HashMap<i64, Logs>,
    stored: HashMap<i64, Stored>,
    pieces: HashMap<i64, Vec<Piece>>,
}

/// The row of a body.
#[derive(Debug, Clone)]
struct Stored {
    encoding: i64,
    length: usize,
    data: Bytes,
    base_key: Option<i64>,
    reel_key: Option<i64>,
    hash: Option<Bytes>,
}

/// What the columns of a body are called: its key, encoding, length, data, base, reel and hash.
pub(crate) type Names = [&'static str; 7];

const NAMES: Names = ["body_key", "encoding", "length", "data", "base_key", "reel_key", "hash"];

/// One segment of a log, decoded.
pub(crate) struct Fresh<'a> {
    pub(crate) track: i64,
    pub(crate) context: usize,
    pub(crate) bytes: &'a [u8],
}

impl Reader {
    /// The logs of a reel.
    pub(crate) async fn logs(
        &mut self,
        connection: &mut Link,
        reel_key: i64,
    ) -> Result<&Logs, ReadError> {
        if !self.logs.contains_key(&reel_key) {
            self.load(connection, reel_key, |_| ()).await?;
        }
        Ok(&self.logs[&reel_key])
    }

    /// Reads the logs of a reel, segment by segment.
    pub(crate) async fn load(
        &mut self,
        connection: &mut Link,
        reel_key: i64,
        mut each: impl FnMut(Fresh<'_>),
    ) -> Result<(), ReadError> {
        let segments = "SELECT track, start, length, context, encoding, data FROM segment \
                        WHERE reel_key = $1 ORDER BY track, start";
        let rows = query(segments).bind(reel_key).fetch_all(connection).await?;
        let mut logs = Logs::default();
        for row in rows {
            let track: i64 = row.try_get("track")?;
            let log = if track == TEXTS { &mut logs.texts } else { &mut logs.tokens };
            if size(&row, "start")? != log.len() {
                return Err(DecodeError::Reel.into());
            }
            let context = size(&row, "context")?;
            let before = log.len().checked_sub(context).ok_or(DecodeError::Reel)?;
            let data: &[u8] = row.try_get("data")?;
            let stored = (row.try_get("encoding")?, data);
            let bytes = unpack(stored, size(&row, "length")?, &log[before..])?;
            log.extend_from_slice(&bytes);
            each(Fresh { track, context, bytes: &bytes });
        }
        self.logs.insert(reel_key, logs);
        Ok(())
    }

    /// Takes logs that were read elsewhere.
    pub(crate) fn put(&mut self, reel_key: i64, logs: Logs) {
        self.logs.insert(reel_key, logs);
    }

    /// Logs that were read before.
    pub(crate) fn held(&self, reel_key: i64) -> Option<&Logs> {
        self.logs.get(&reel_key)
    }

    /// Keeps the row of a body, whose columns have those names; its key.
    pub(crate) fn keep(&mut self, row: &Row, names: &Names) -> Result<Option<i64>, sqlx::Error> {
        let [key, encoding, length, data, base_key, reel_key, hash] = names;
        let Some(key) = row.try_get::<Option<i64>>(key)? else {
            return Ok(None);
        };
        let stored = Stored {
            encoding: row.try_get(encoding)?,
            length: size(row, length)?,
            data: row.try_get::<Vec<u8>>(data)?.into(),
            base_key: row.try_get(base_key)?,
            reel_key: row.try_get(reel_key)?,
            hash: row.try_get::<Option<Vec<u8>>>(hash)?.map(Into::into),
        };
        self.stored.insert(key, stored);
        Ok(Some(key))
    }

    /// A body, checked against its hash.
    pub(crate) async fn body(
        &mut self,
        connection: &mut Link,
        body_key: i64,
    ) -> Result<Bytes, ReadError> {
        let stored = self.stored(connection, body_key).await?;
        let (encoding, length) = (stored.encoding, stored.length);
        let body = match (encoding, stored.reel_key) {
            (PIECES | FOLDED, Some(reel_key)) => {
                let pieces = self.pieces(connection, body_key).await?;
                let reel = self.logs(connection, reel_key).await?;
                let bytes = gather(&pieces, &reel.texts).ok_or(DecodeError::Reel)?;
                match encoding {
                    FOLDED => unfold(&bytes, length).ok_or(DecodeError::Frame)?,
                    _ => bytes,
                }
            }
            _ => unpack((encoding, &stored.data), length, &[])?,
        };
        if body.len() != length {
            return Err(DecodeError::Length { expected: length, found: body.len() }.into());
        }
        if stored.hash.is_some_and(|known| known[..] != hash(&body)) {
            return Err(DecodeError::Hash.into());
        }
        Ok(Bytes::from(body))
    }

    /// The pieces of its reel that a body is.
    pub(crate) async fn pieces(
        &mut self,
        connection: &mut Link,
        body_key: i64,
    ) -> Result<Vec<Piece>, ReadError> {
        let (mut chain, mut next) = (Vec::new(), Some(body_key));
        while let Some(key) = next.filter(|key| !self.pieces.contains_key(key)) {
            let stored = self.stored(connection, key).await?;
            if chain.iter().any(|(seen, _)| *seen == key) {
                return Err(DecodeError::Reel.into());
            }
            next = stored.base_key;
            chain.push((key, stored));
        }
        let mut pieces = next.map_or_else(Vec::new, |base| self.pieces[&base].clone());
        for (key, stored) in chain.into_iter().rev() {
            pieces = decode(&stored.data, &pieces).ok_or(DecodeError::Reel)?;
            self.pieces.insert(key, pieces.clone());
        }
        Ok(pieces)
    }

    async fn stored(&mut self, connection: &mut Link, body_key: i64) -> Result<Stored, ReadError> {
        if !self.stored.contains_key(&body_key) {
            let row = query("SELECT * FROM body WHERE body_key = $1").bind(body_key);
            let row = row.fetch_optional(connection).await?.ok_or(DecodeError::Reel)?;
            self.keep(&row, &NAMES)?;
        }
        Ok(self.stored[&body_key].clone())
    }
}

/// A column that counts something in memory.
pub(crate) fn size(row: &Row, name: &str) -> Result<usize, sqlx::Error> {
    row.try_get(name)
}
