//! Sealing: from attempts of a store to a segment, in steps between which a process may die.
//!
//! 1. The attempts are copied to a file without its name.
//! 2. The file is synced and gets its name.
//! 3. It is entered in the catalog.
//! 4. The calls leave the store, a few attempts in one transaction.
//!
//! A sealing that died after step 3 is taken up by the next one, which looks for entries of the
//! store that the store does not know.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use episode::Micros;
use tokio::time::sleep;
use uuid::Uuid;

use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::offloaded::OffloadedConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::OpenError;
use crate::location::Location;
use crate::maintenance::extract::copy_attempts;
use crate::maintenance::prune::remove::remove_calls;
use crate::maintenance::segments::catalog::{CatalogEntry, EntryKind, SegmentFolder};
use crate::maintenance::segments::late::LATE;
use crate::maintenance::segments::plan::{PlannedSegment, plan};
use crate::maintenance::segments::{SealOptions, SegmentError};
use crate::snapshot::Snapshot;
use crate::snapshot::summary::{BY_ATTEMPT, COUNTS};
use crate::sqlite::checkpoint::PASSIVE;
use crate::sqlite::private::open_or_make;
use crate::sqlite::space::{can_shrink, file_bytes, free_pages, give_back_some};
use crate::{open, sqlite};

/// Attempts whose calls leave the store in one transaction.
const BATCH_ATTEMPTS: usize = 4;
/// Time between two transactions, for those of a recorder.
const PAUSE: Duration = Duration::from_millis(5);
/// Pages of a file that are given back at once.
const PAGES: i64 = 256;

/// 1 where the last sampling call of the attempt `counted` was ended by the infrastructure, or not
/// at all.
pub(super) const LAST_CALL_FAILED: &str = "coalesce((SELECT CASE WHEN c.outcome IS NULL \
    OR c.outcome IN ('upstream_failed', 'capped') THEN 1 ELSE 0 END FROM call c \
    WHERE c.episode_key = counted.episode_key \
    AND c.route IN ('chat', 'completions', 'responses', 'messages', 'generate') \
    ORDER BY c.started_at DESC, c.call_id DESC LIMIT 1), 0)";

/// The result of a sealing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealReport {
    /// The entries that were made.
    pub entries: Vec<CatalogEntry>,
    /// Attempts whose calls left the store.
    pub attempts: u64,
    /// Finished attempts that wait for others of their group.
    pub waiting: u64,
    /// Attempts that were changed meanwhile and stay in the store for the next sealing.
    pub changed: u64,
    /// Bytes of the store before, where it is a file.
    pub bytes_before: u64,
    /// Bytes of the store after.
    pub bytes_after: u64,
}

const STORE_ID: &str = "store_id";
const KEEP_ID: &str = "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";

const TAKEN_OUT: &str =
    "SELECT 1 FROM segment_file WHERE folder = $1 AND name = $2 AND is_taken_out = 1";
const JOINED: &str = "SELECT DISTINCT f.number FROM episode e JOIN sealed s USING (episode_key) \
    JOIN segment_file f USING (segment_file_key) WHERE e.group_id = $1";
const STALE: &str = "SELECT number FROM segment_file WHERE has_stale = 1";

pub(super) const ADD_FILE: &str = "INSERT INTO segment_file \
    (folder, name, number, hash, bytes, first_call_at, last_call_at, sealed_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
pub(super) const FILE_KEY: &str =
    "SELECT segment_file_key FROM segment_file WHERE folder = $1 AND name = $2";

const IN_SEGMENT: &str = "SELECT e.episode_id, e.attempt, \
    (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key) AS calls, \
    (SELECT count(*) FROM annotation a JOIN call c USING (call_key) \
        WHERE c.episode_key = e.episode_key) AS annotations, \
    (SELECT coalesce(max(r.reward_key), 0) FROM reward r \
        WHERE r.episode_key = e.episode_key) AS reward_key \
    FROM episode e ORDER BY e.episode_key";
/// The same of the store, of an attempt that is still whole there.
const IN_STORE: &str = "SELECT e.episode_key, \
    (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key) AS calls, \
    (SELECT count(*) FROM annotation a JOIN call c USING (call_key) \
        WHERE c.episode_key = e.episode_key) AS annotations \
    FROM episode e WHERE e.episode_id = $1 AND e.attempt = $2 \
    AND NOT EXISTS (SELECT 1 FROM sealed s WHERE s.episode_key = e.episode_key)";
/// Keeps a recorder of a database from giving rewards to the attempt until the transaction ends.
const LOCK: &str = "SELECT 1 FROM episode WHERE episode_key = $1 FOR NO KEY UPDATE";
/// Rewards that came while the segment was made are late.
const NOTE_LATE: &str = "UPDATE reward SET is_late = 1 WHERE episode_key = $1 AND reward_key > $2";
const CALL_TIMES: &str = "SELECT coalesce(min(started_at), 0) AS first, \
    coalesce(max(started_at), 0) AS last, \
    CAST(coalesce(sum(completion_tokens), 0) AS BIGINT) AS tokens FROM call";

/// Seals finished attempts of the store at a location.
///
/// The store may be recorded to meanwhile: attempts that are finished take no calls, and the
/// transactions are short.
///
/// # Errors
/// [`SegmentError`] when another process seals the store, or a step fails. What was sealed before
/// stays sealed.
pub async fn seal(
    at: impl Into<Location>,
    options: &SealOptions,
) -> Result<SealReport, SegmentError> {
    let at = at.into();
    let folder = SegmentFolder::at(absolute(&options.folder)?);
    folder.make()?;
    match &at {
        Location::Server(_) => {
            let mut connection = open::for_editing(&at).await?;
            let free = query("SELECT pg_try_advisory_lock(1383034988, -3)");
            if !free.scalar::<bool>(&mut connection).await? {
                return Err(SegmentError::InUse(at.to_string()));
            }
            Sealing { at: &at, folder, connection, options }.run().await
        }
        Location::File(path) => seal_file(&at, path, folder, options).await,
    }
}

async fn seal_file(
    at: &Location,
    path: &Path,
    folder: SegmentFolder,
    options: &SealOptions,
) -> Result<SealReport, SegmentError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.display().to_string()).into());
    }
    let _lock = lock(path)?;
    let bytes_before = file_bytes(path);
    let file = open::beside(path, sqlite::open::for_editing).await?;
    let file = OffloadedConnection::new(file);
    let mut connection = StoreConnection::Offloaded(file.clone());
    // References are not checked row by row: SQLite would read whole tables for each deleted row.
    query("PRAGMA foreign_keys = OFF").execute(&mut connection).await?;

    let report = Sealing { at, folder, connection, options }.run().await?;
    give_back_slowly(&file).await?;
    Ok(SealReport { bytes_before, bytes_after: file_bytes(path), ..report })
}

/// Keeps another process from sealing the same store until the file is closed.
fn lock(path: &Path) -> Result<File, SegmentError> {
    let of_store = PathBuf::from(format!("{}-sealing", path.display()));
    let file = open_or_make(&of_store).map_err(SegmentError::io(&of_store))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SegmentError::InUse(path.display().to_string())),
        Err(TryLockError::Error(error)) => Err(SegmentError::io(&of_store)(error)),
    }
}

/// Gives free pages back, a few at a time, so that a recorder's commits come between.
async fn give_back_slowly(file: &OffloadedConnection) -> Result<(), sqlx::Error> {
    if !file.run(can_shrink).await? {
        return Ok(());
    }
    let mut free = file.run(free_pages).await?;
    while free > 0 {
        file.run(|file| give_back_some(file, PAGES)).await?;
        let left = file.run(free_pages).await?;
        // A reader may keep SQLite from freeing anything.
        if left >= free {
            break;
        }
        free = left;
        sleep(PAUSE).await;
    }
    file.run(|file| file.number(PASSIVE).map(drop)).await
}

fn absolute(folder: &Path) -> Result<PathBuf, SegmentError> {
    std::path::absolute(folder).map_err(SegmentError::io(folder))
}

/// A sealing under way.
struct Sealing<'a> {
    at: &'a Location,
    folder: SegmentFolder,
    connection: StoreConnection,
    options: &'a SealOptions,
}

impl Sealing<'_> {
    async fn run(mut self) -> Result<SealReport, SegmentError> {
        let store = store_id(&mut self.connection).await?;
        let mut report = SealReport::default();

        // What an earlier sealing entered and did not take out of the store.
        let entries = self.folder.entries()?;
        for entry in entries.iter().filter(|entry| entry.store == store) {
            if entry.kind == EntryKind::Attempts && !self.has_taken_out(entry).await? {
                self.take_out(entry, &mut report).await?;
            }
        }
        let mut next = entries.last().map_or(1, |entry| entry.number + 1);

        for late in &LATE {
            let sealed = late.seal(&mut self.connection, &self.folder, &store, next).await?;
            if let Some(entry) = sealed {
                next = entry.number + 1;
                report.entries.push(entry);
            }
        }

        let plan = plan(&mut self.connection, self.options).await?;
        report.waiting = plan.waiting;
        for segment in &plan.segments {
            let entry = self.make(segment, &store, next).await?;
            next = entry.number + 1;
            self.take_out(&entry, &mut report).await?;
            report.entries.push(entry);
        }
        self.connection.close().await?;
        Ok(report)
    }

    /// Steps 1 to 3.
    async fn make(
        &mut self,
        segment: &PlannedSegment,
        store: &str,
        number: u64,
    ) -> Result<CatalogEntry, SegmentError> {
        let folder = self.folder.path();
        let file = tempfile::Builder::new().prefix(".segment-").suffix(".tmp").tempfile_in(folder);
        let file = file.map_err(SegmentError::io(folder))?;
        let keys: BTreeSet<i64> = segment.attempts.iter().map(|attempt| attempt.key).collect();
        let source = Snapshot::open(self.at).await?;
        let calls = copy_attempts(source, &keys, file.path().to_owned()).await?;

        let times = call_times(file.path()).await?;
        let kept = self.folder.keep(file, number, "db")?;
        let joins = self.joins(segment).await?;
        let positions = segment.attempts.iter().map(|attempt| attempt.position);
        self.folder.enter(CatalogEntry {
            number,
            kind: EntryKind::Attempts,
            store: store.to_owned(),
            file: kept.name,
            hash: kept.hash.to_hex().to_string(),
            bytes: kept.bytes,
            attempts: keys.len() as u64,
            calls,
            completion_tokens: times.tokens,
            positions: (positions.clone().min().unwrap_or(0), positions.max().unwrap_or(0)),
            joins,
        })
    }

    /// Numbers of the segments that hold attempts of the same groups, or may hold the same attempt.
    async fn joins(&mut self, segment: &PlannedSegment) -> Result<Vec<u64>, SegmentError> {
        let stale = query(STALE).scalars::<i64>(&mut self.connection).await?;
        let mut numbers: BTreeSet<i64> = stale.into_iter().collect();
        for group in &segment.groups {
            numbers.extend(query(JOINED).bind(group).scalars::<i64>(&mut self.connection).await?);
        }
        Ok(numbers.into_iter().map(i64::unsigned_abs).collect())
    }

    /// True if the store has taken out all that a segment holds.
    async fn has_taken_out(&mut self, entry: &CatalogEntry) -> Result<bool, SegmentError> {
        let known = query(TAKEN_OUT).bind(self.folder_name()).bind(&entry.file);
        Ok(known.fetch_optional(&mut self.connection).await?.is_some())
    }

    /// Step 4. An attempt that is no longer what the segment holds stays.
    async fn take_out(
        &mut self,
        entry: &CatalogEntry,
        report: &mut SealReport,
    ) -> Result<(), SegmentError> {
        let path = self.folder.file(entry);
        entry.check(&path)?;
        let times = call_times(&path).await?;
        let mut segment = open::for_segment(&path, false).await?;
        let held = query(IN_SEGMENT).fetch_all(&mut segment).await?;
        drop(segment);

        let file_key = self.add_file(entry, &times).await?;
        for batch in held.chunks(BATCH_ATTEMPTS) {
            self.connection.begin().await?;
            for held in batch {
                self.take_out_if_same(held, file_key, report).await?;
            }
            self.connection.commit().await?;
            sleep(PAUSE).await;
        }
        let done = "UPDATE segment_file SET is_taken_out = 1 WHERE segment_file_key = $1";
        Ok(query(done).bind(file_key).execute(&mut self.connection).await?)
    }

    async fn take_out_if_same(
        &mut self,
        held: &Row,
        file_key: i64,
        report: &mut SealReport,
    ) -> Result<(), sqlx::Error> {
        let (id, attempt): (String, i64) = (held.try_get("episode_id")?, held.try_get("attempt")?);
        let here = query(IN_STORE).bind(id).bind(attempt);
        // It may have been taken out before a crash, or pruned.
        let Some(own) = here.fetch_optional(&mut self.connection).await? else { return Ok(()) };
        if !self.connection.is_file() {
            query(LOCK)
                .bind(own.try_get::<i64>("episode_key")?)
                .execute(&mut self.connection)
                .await?;
        }

        let counts = |row: &Row| -> Result<(i64, i64), sqlx::Error> {
            Ok((row.try_get("calls")?, row.try_get("annotations")?))
        };
        if counts(held)? != counts(&own)? {
            report.changed += 1;
            let stale = "UPDATE segment_file SET has_stale = 1 WHERE segment_file_key = $1";
            return query(stale).bind(file_key).execute(&mut self.connection).await;
        }
        report.attempts += 1;
        let reward_key = held.try_get("reward_key")?;
        self.take_out_attempt(own.try_get("episode_key")?, file_key, reward_key).await
    }

    async fn take_out_attempt(
        &mut self,
        key: i64,
        file_key: i64,
        reward_key: i64,
    ) -> Result<(), sqlx::Error> {
        let chain = chain::head(&mut self.connection, key).await?;
        let insert = format!(
            "INSERT INTO sealed (episode_key, segment_file_key, reward_key, calls, generations, \
             with_ids, incomplete, refused, prompt_tokens, completion_tokens, last_call_at, model, \
             last_call_failed, chain_calls, chain) \
             SELECT counted.episode_key, CAST($2 AS BIGINT), CAST($3 AS BIGINT), calls, \
             generations, with_ids, incomplete, refused, prompt_tokens, completion_tokens, \
             last_call_at, model, {LAST_CALL_FAILED}, CAST($4 AS BIGINT), $5 \
             FROM ({COUNTS} e.episode_key = $1 {BY_ATTEMPT}) AS counted"
        );
        query(insert)
            .bind(key)
            .bind(file_key)
            .bind(reward_key)
            .bind(chain.calls as i64)
            .bind(chain.digest.to_vec())
            .execute(&mut self.connection)
            .await?;
        query(NOTE_LATE).bind(key).bind(reward_key).execute(&mut self.connection).await?;
        remove_calls(&mut self.connection, key).await
    }

    async fn add_file(
        &mut self,
        entry: &CatalogEntry,
        times: &CallTimes,
    ) -> Result<i64, SegmentError> {
        let hash = blake3::Hash::from_hex(&entry.hash).map_err(|why| SegmentError::Entry {
            path: self.folder.file(entry),
            why: why.to_string(),
        })?;
        query(ADD_FILE)
            .bind(self.folder_name())
            .bind(&entry.file)
            .bind(entry.number as i64)
            .bind(hash.as_bytes().to_vec())
            .bind(entry.bytes as i64)
            .bind(times.first)
            .bind(times.last)
            .bind(self.options.now)
            .execute(&mut self.connection)
            .await?;
        let key = query(FILE_KEY).bind(self.folder_name()).bind(&entry.file);
        Ok(key.scalar(&mut self.connection).await?)
    }

    fn folder_name(&self) -> String {
        self.folder.path().display().to_string()
    }
}

/// The name of a store among others that seal into one folder. A store gets one when it is needed.
async fn store_id(connection: &mut StoreConnection) -> Result<String, SegmentError> {
    let id = Uuid::new_v4().to_string().into_bytes();
    query(KEEP_ID).bind(STORE_ID).bind(id).execute(connection).await?;
    let select = query("SELECT value FROM setting WHERE name = $1").bind(STORE_ID);
    let kept: Vec<u8> = select.scalar(connection).await?;
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// The times of the first and the last call of a segment, and its sampled tokens.
pub(super) struct CallTimes {
    pub(super) first: Micros,
    pub(super) last: Micros,
    tokens: u64,
}

pub(super) async fn call_times(path: &Path) -> Result<CallTimes, SegmentError> {
    let mut segment = open::for_segment(path, false).await?;
    let row = query(CALL_TIMES).fetch_one(&mut segment).await?;
    Ok(CallTimes {
        first: row.try_get("first")?,
        last: row.try_get("last")?,
        tokens: row.try_get::<i64>("tokens")?.unsigned_abs(),
    })
}
