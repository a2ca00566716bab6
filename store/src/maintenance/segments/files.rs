//! The files of segments that a store knows.

use std::path::{Path, PathBuf};

use episode::Micros;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::maintenance::segments::SegmentError;
use crate::snapshot::away;
use crate::snapshot::catalog::{CatalogEntry, SegmentFolder};

const ADD_FILE: &str = "INSERT INTO segment_file \
    (folder, name, number, hash, bytes, first_call_at, last_call_at, sealed_at, removed) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
    ON CONFLICT (folder, name) DO UPDATE SET number = excluded.number";
const FILE_KEY: &str = "SELECT segment_file_key FROM segment_file WHERE folder = $1 AND name = $2";
const CALL_TIMES: &str = "SELECT coalesce(min(started_at), 0) AS first, \
    coalesce(max(started_at), 0) AS last, \
    CAST(coalesce(sum(completion_tokens), 0) AS BIGINT) AS tokens FROM call";

impl SegmentFolder {
    /// The file of an entry, which is brought back if it is away, and compared with the entry.
    pub(super) async fn checked(&self, entry: &CatalogEntry) -> Result<PathBuf, SegmentError> {
        let path = self.at_hand(entry).await?;
        entry.check(&path)?;
        Ok(path)
    }
}

/// The times of the first and the last call of a segment, and its sampled tokens.
pub(super) struct CallTimes {
    first: Micros,
    last: Micros,
    pub(super) tokens: u64,
}

pub(super) async fn call_times(path: &Path) -> Result<CallTimes, SegmentError> {
    let mut segment = away::open_segment(path, false).await?;
    let row = query(CALL_TIMES).fetch_one(&mut segment).await?;
    Ok(CallTimes {
        first: row.try_get("first")?,
        last: row.try_get("last")?,
        tokens: row.try_get::<i64>("tokens")?.unsigned_abs(),
    })
}

/// Makes a store know a segment, and returns its key there.
pub(super) async fn add_file(
    connection: &mut StoreConnection,
    folder: &SegmentFolder,
    entry: &CatalogEntry,
    sealed_at: Micros,
) -> Result<i64, SegmentError> {
    let name = folder.path().display().to_string();
    if entry.is_empty() {
        // It says how many attempts were removed, and is never opened.
        let file = SegmentFolder::entry_name(entry.number);
        let add = query(ADD_FILE).bind(&name).bind(&file).bind(entry.number as i64);
        let add = add.bind(Vec::new()).bind(0_i64).bind(0_i64).bind(0_i64).bind(sealed_at);
        add.bind(entry.removed.len() as i64).execute(&mut *connection).await?;
        let key = query(FILE_KEY).bind(name).bind(file);
        return Ok(key.scalar(connection).await?);
    }

    let path = folder.file(entry);
    let hash = blake3::Hash::from_hex(&entry.hash)
        .map_err(|why| SegmentError::entry(&path, why.to_string()))?;
    let times = call_times(&path).await?;
    query(ADD_FILE)
        .bind(&name)
        .bind(&entry.file)
        .bind(entry.number as i64)
        .bind(hash.as_bytes().to_vec())
        .bind(entry.bytes as i64)
        .bind(times.first)
        .bind(times.last)
        .bind(sealed_at)
        .bind(entry.removed.len() as i64)
        .execute(&mut *connection)
        .await?;
    let key = query(FILE_KEY).bind(name).bind(&entry.file);
    Ok(key.scalar(connection).await?)
}
