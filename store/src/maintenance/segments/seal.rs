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
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::offloaded::OffloadedConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::location::Location;
use crate::maintenance::extract::copy_attempts;
use crate::maintenance::prune::remove::remove_calls;
use crate::maintenance::segments::files::{add_file, call_times};
use crate::maintenance::segments::forget::{catch_up_all, forget};
use crate::maintenance::segments::late::LATE;
use crate::maintenance::segments::lock::{lock_file, lock_server};
use crate::maintenance::segments::plan::{PlannedSegment, plan};
use crate::maintenance::segments::remove::SegmentRemoval;
use crate::maintenance::segments::{SealOptions, SegmentError, between_steps};
use crate::snapshot::Snapshot;
use crate::snapshot::away;
use crate::snapshot::catalog::{CatalogEntry, EntryKind, SegmentFolder};
use crate::snapshot::summary::{BY_ATTEMPT, COUNTS};
use crate::sqlite::checkpoint::PASSIVE;
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
            lock_server(&at, &mut connection).await?;
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
    let _lock = lock_file(path)?;
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

        // What was removed from segments, here or from the folder alone.
        let mut removal = SegmentRemoval::default();
        forget(&mut self.connection, &mut removal).await?;
        catch_up_all(&mut self.connection, &self.folder).await?;
        self.folder.sweep(&mut removal)?;

        // What an earlier sealing entered and did not take out of the store.
        let entries = self.folder.entries()?;
        let live = SegmentFolder::live(&entries).into_iter();
        for entry in live.filter(|entry| entry.store == store && !entry.is_empty()) {
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
        let file = self.folder.making()?;
        let keys: BTreeSet<i64> = segment.attempts.iter().map(|attempt| attempt.key).collect();
        let source = Snapshot::open(self.at).await?;
        let calls = copy_attempts(source, &keys, file.path().to_owned()).await?;
        between_steps()?;

        let times = call_times(file.path()).await?;
        let kept = self.folder.keep(file, number, "db")?;
        between_steps()?;
        let joins = self.joins(segment).await?;
        let positions = segment.attempts.iter().map(|attempt| attempt.position);
        let entry = CatalogEntry {
            number,
            kind: EntryKind::Attempts,
            store: store.to_owned(),
            file: kept.name,
            hash: kept.hash,
            bytes: kept.bytes,
            attempts: keys.len() as u64,
            calls,
            completion_tokens: times.tokens,
            positions: (positions.clone().min().unwrap_or(0), positions.max().unwrap_or(0)),
            joins,
            replaces: None,
            removed: Vec::new(),
        };
        // A prune that comes before the next step finds it by this.
        add_file(&mut self.connection, &self.folder, &entry, self.options.now).await?;
        between_steps()?;
        let entry = self.folder.enter(entry)?;
        between_steps()?;
        Ok(entry)
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
        let path = self.folder.checked(entry).await?;
        let mut segment = away::open_segment(&path, false).await?;
        let held = query(IN_SEGMENT).fetch_all(&mut segment).await?;
        drop(segment);

        let now = self.options.now;
        let file_key = add_file(&mut self.connection, &self.folder, entry, now).await?;
        for batch in held.chunks(BATCH_ATTEMPTS) {
            self.connection.begin().await?;
            for held in batch {
                self.take_out_if_same(held, file_key, report).await?;
            }
            self.connection.commit().await?;
            between_steps()?;
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
