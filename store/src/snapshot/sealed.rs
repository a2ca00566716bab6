//! Finding the calls of attempts that were sealed: they are in a segment, a file beside the store.
//!
//! A segment is a store of its own, and its keys are its own. What is counted of its calls, and the
//! rewards of their attempts, are in the store.

use std::fs::File;
use std::path::{Path, PathBuf};

use episode::CallId;

use crate::database::connection::StoreConnection;
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::{OpenError, SnapshotError};
use crate::snapshot::Snapshot;
use crate::snapshot::away;
use crate::snapshot::catalog::SegmentFolder;

/// Segments that one reader keeps open.
const OPEN_MAX: usize = 8;

const OF_ATTEMPT: &str = "SELECT f.segment_file_key, f.folder, f.name, e.episode_id, e.attempt \
    FROM sealed s JOIN segment_file f USING (segment_file_key) JOIN episode e USING (episode_key) \
    WHERE s.episode_key = $1";
/// The segments in which a call of a time may be.
const OF_TIME: &str = "SELECT segment_file_key, folder, name FROM segment_file \
    WHERE first_call_at <= $1 AND last_call_at >= $2 AND bytes > 0 ORDER BY segment_file_key DESC";
const KEY_THERE: &str = "SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2";

/// A difference that the time in the id of a call may have to that of its start, in microseconds.
const CLOCKS_DIFFER_US: i64 = 60_000_000;

/// A store or a segment that is read.
#[derive(Debug)]
pub(crate) struct StorePart {
    pub(crate) connection: StoreConnection,
    /// True where any choice has arrays beside its ids; `None` until it is asked.
    has_sides: Option<bool>,
    /// True where any choice has annotations; `None` until it is asked.
    has_annotations: Option<bool>,
    /// The lock of a segment that is read: nobody removes its file.
    _lock: Option<File>,
}

/// The part that has the calls of an attempt, and the key of the attempt there.
#[derive(Debug)]
pub(crate) struct CallsHolder<'a> {
    pub(crate) part: &'a mut StorePart,
    pub(crate) key: i64,
    /// True if it is a segment, and not the store itself.
    pub(crate) is_segment: bool,
}

/// The segments that a reader has opened, the last used last.
#[derive(Debug, Default)]
pub(crate) struct OpenSegments {
    /// True where any attempt is sealed; `None` until the store is asked.
    any: Option<bool>,
    open: Vec<(i64, StorePart)>,
}

/// A segment by its key and its path.
#[derive(Debug)]
pub(crate) struct SegmentPath {
    pub(crate) key: i64,
    path: PathBuf,
}

impl StorePart {
    pub(crate) fn new(connection: StoreConnection) -> Self {
        Self { connection, has_sides: None, has_annotations: None, _lock: None }
    }

    /// A segment whose file is not removed while it is read.
    async fn of_segment(path: &Path, is_local: bool) -> Result<Self, OpenError> {
        // Locked first: a file that is removed meanwhile is missed below, or brought back.
        let lock = || File::open(path).ok().filter(|file| file.try_lock_shared().is_ok());
        let before = lock();
        let connection = away::open_segment(path, is_local).await?;
        Ok(Self { _lock: before.or_else(lock), ..Self::new(connection) })
    }

    /// True where any choice has arrays beside its ids. Few stores have, and asking once is faster
    /// than looking for them at each choice.
    pub(crate) async fn has_sides(&mut self) -> Result<bool, sqlx::Error> {
        if self.has_sides.is_none() {
            self.has_sides = Some(self.has_any("SELECT 1 FROM side LIMIT 1").await?);
        }
        Ok(self.has_sides == Some(true))
    }

    /// True where any choice has annotations, which few stores have.
    pub(crate) async fn has_annotations(&mut self) -> Result<bool, sqlx::Error> {
        if self.has_annotations.is_none() {
            self.has_annotations = Some(self.has_any("SELECT 1 FROM annotation LIMIT 1").await?);
        }
        Ok(self.has_annotations == Some(true))
    }

    async fn has_any(&mut self, select: &'static str) -> Result<bool, sqlx::Error> {
        Ok(query(select).fetch_optional(&mut self.connection).await?.is_some())
    }
}

impl Snapshot {
    /// The part that has the calls of an attempt.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read, or the segment is not there.
    pub(crate) async fn holder(&mut self, key: i64) -> Result<CallsHolder<'_>, SnapshotError> {
        if !self.has_sealed().await? {
            return Ok(CallsHolder { part: &mut self.own, key, is_segment: false });
        }
        let found = query(OF_ATTEMPT).bind(key).fetch_optional(self.connection()).await?;
        let Some(row) = found else {
            return Ok(CallsHolder { part: &mut self.own, key, is_segment: false });
        };

        let (id, attempt): (String, i64) = (row.try_get("episode_id")?, row.try_get("attempt")?);
        let part = self.segment(&SegmentPath::of(&row)?).await?;
        let there = query(KEY_THERE).bind(&id).bind(attempt);
        match there.fetch_optional(&mut part.connection).await? {
            Some(row) => Ok(CallsHolder { key: row.first()?, part, is_segment: true }),
            None => Err(SnapshotError::NotInSegment(id, attempt)),
        }
    }

    /// The part that has a call; the store itself where none has it.
    ///
    /// # Errors
    /// As [`Snapshot::holder`].
    pub(crate) async fn part_with(
        &mut self,
        call: CallId,
    ) -> Result<&mut StorePart, SnapshotError> {
        if !self.has_sealed().await? || has_call(&mut self.own, call).await? {
            return Ok(&mut self.own);
        }

        // The id of a call begins with its time. One of another kind may be anywhere.
        let at = call.0.get_timestamp().map(|time| {
            let (seconds, nanos) = time.to_unix();
            i64::try_from(seconds).unwrap_or(i64::MAX / 2_000_000) * 1_000_000
                + i64::from(nanos) / 1_000
        });
        let (until, from) =
            at.map_or((i64::MAX, i64::MIN), |at| (at + CLOCKS_DIFFER_US, at - CLOCKS_DIFFER_US));
        let rows = query(OF_TIME).bind(until).bind(from).fetch_all(self.connection()).await?;

        for row in &rows {
            let segment = SegmentPath::of(row)?;
            let key = segment.key;
            if has_call(self.segment(&segment).await?, call).await? {
                return Ok(self.segments.used(key).expect("it was opened above"));
            }
        }
        Ok(&mut self.own)
    }

    /// True where any attempt is sealed.
    pub(crate) async fn has_sealed(&mut self) -> Result<bool, sqlx::Error> {
        if self.segments.any.is_none() {
            self.segments.any = Some(self.own.has_any("SELECT 1 FROM sealed LIMIT 1").await?);
        }
        Ok(self.segments.any == Some(true))
    }

    /// A segment, which is opened if it is not open.
    pub(crate) async fn segment(
        &mut self,
        segment: &SegmentPath,
    ) -> Result<&mut StorePart, SnapshotError> {
        if self.segments.used(segment.key).is_none() {
            let is_local = matches!(self.own.connection, StoreConnection::Local(_));
            let part = match StorePart::of_segment(&segment.path, is_local).await {
                Err(OpenError::Missing(missing)) => match segment.replaced_by() {
                    Some(path) => StorePart::of_segment(&path, is_local).await?,
                    None => return Err(OpenError::Missing(missing).into()),
                },
                opened => opened?,
            };
            if self.segments.open.len() == OPEN_MAX {
                self.segments.open.remove(0);
            }
            self.segments.open.push((segment.key, part));
        }
        Ok(self.segments.used(segment.key).expect("it was opened above"))
    }
}

impl OpenSegments {
    /// An open segment, which becomes the last used.
    fn used(&mut self, key: i64) -> Option<&mut StorePart> {
        let at = self.open.iter().position(|(open, _)| *open == key)?;
        let used = self.open.remove(at);
        self.open.push(used);
        self.open.last_mut().map(|(_, part)| part)
    }
}

impl SegmentPath {
    pub(crate) fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let (folder, name): (String, String) = (row.try_get("folder")?, row.try_get("name")?);
        Ok(Self { key: row.try_get("segment_file_key")?, path: Path::new(&folder).join(name) })
    }

    /// The file that took its place after an attempt was removed from it.
    fn replaced_by(&self) -> Option<PathBuf> {
        let (folder, name) = (self.path.parent()?, self.path.file_name()?.to_str()?);
        let folder = SegmentFolder::at(folder);
        let entries = folder.entries().ok()?;
        let last = SegmentFolder::in_place_of(&entries, name).filter(|last| !last.is_empty())?;
        Some(folder.file(last))
    }
}

async fn has_call(part: &mut StorePart, call: CallId) -> Result<bool, sqlx::Error> {
    let select: Query = query("SELECT 1 FROM call WHERE call_id = $1").bind(call.to_string());
    Ok(select.fetch_optional(&mut part.connection).await?.is_some())
}
