//! The files of sealed attempts: each is what was sealed, holds what the store says, and is sound.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use episode::AttemptId;

use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::with_causes;
use crate::snapshot::away;
use crate::snapshot::catalog::{CatalogEntry, SegmentFolder, hash_of};
use crate::snapshot::rows::annotation_of;
use crate::verify::check_store;
use crate::verify::report::{RecordRef, VerifyReport};

const FILES: &str = "SELECT * FROM segment_file f WHERE EXISTS \
    (SELECT 1 FROM sealed s WHERE s.segment_file_key = f.segment_file_key) \
    ORDER BY segment_file_key";
const REMOVED: &str = "SELECT CAST(coalesce(sum(removed), 0) AS BIGINT) FROM segment_file";
const HELD: &str = "SELECT e.episode_key, e.episode_id, e.attempt, s.calls FROM sealed s \
    JOIN episode e USING (episode_key) WHERE s.segment_file_key = $1";
const KEY_THERE: &str = "SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2";
const CALLS: &str = "SELECT count(*) FROM call c JOIN episode e USING (episode_key) \
    WHERE e.episode_id = $1 AND e.attempt = $2";

/// What the store says of calls of an attempt that are in a segment.
const SPOKEN_OF: &str = "SELECT call_id, 'reward' AS what FROM reward \
    WHERE episode_key = $1 AND call_id IS NOT NULL \
    UNION SELECT call_id, 'annotation' FROM late_annotation WHERE episode_key = $1";
const LATE: &str = "SELECT * FROM late_annotation WHERE episode_key = $1";
/// Annotations of attempts whose calls are in no segment.
const ASTRAY: &str = "SELECT late_annotation_key FROM late_annotation a WHERE NOT EXISTS \
    (SELECT 1 FROM sealed s WHERE s.episode_key = a.episode_key) ORDER BY 1 LIMIT 100";

/// Checks the segments of a store. The calls in them are counted as those of the store.
pub(super) async fn check_segments(connection: &mut StoreConnection, report: &mut VerifyReport) {
    let files = match query(FILES).fetch_all(connection).await {
        Ok(files) => files,
        Err(error) => {
            report.add_store_damage(format!("its segments cannot be listed: {error}"));
            return;
        }
    };
    match query(ASTRAY).scalars::<i64>(connection).await {
        Ok(astray) => astray.iter().for_each(|key| {
            report.add_store_damage(format!("`late_annotation` {key} is of no sealed attempt"));
        }),
        Err(error) => {
            report.add_store_damage(format!("its late annotations cannot be listed: {error}"));
        }
    }

    match query(REMOVED).scalar::<i64>(connection).await {
        Ok(removed) => report.removed += removed.unsigned_abs(),
        Err(error) => report.add_store_damage(format!("its segments cannot be counted: {error}")),
    }

    let mut catalogs = HashMap::new();
    for row in &files {
        let found = match FileToCheck::of(row, &mut catalogs) {
            Ok(file) => check_segment(connection, file, report).await,
            Err(why) => Err(why),
        };
        if let Err(why) = found {
            let name = name(row).unwrap_or_else(|error| error.to_string());
            report.add_store_damage(format!("segment `{name}`: {why}"));
        }
    }
}

/// A file of sealed attempts, which may have been replaced by another one.
struct FileToCheck {
    key: i64,
    path: PathBuf,
    hash: Vec<u8>,
    /// The entry in its place, which the store does not know yet.
    in_place: Option<CatalogEntry>,
}

impl FileToCheck {
    fn of(row: &Row, catalogs: &mut HashMap<String, Vec<CatalogEntry>>) -> Result<Self, String> {
        let of_row = || -> Result<_, sqlx::Error> {
            let names = (row.try_get::<String>("folder")?, row.try_get::<String>("name")?);
            Ok((names, row.try_get("segment_file_key")?, row.try_get("hash")?))
        };
        let ((path, name), key, hash) = of_row().map_err(|error| error.to_string())?;
        let folder = SegmentFolder::at(&path);
        let entries = match catalogs.entry(path) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(folder.entries().map_err(|error| with_causes(&error))?)
            }
        };

        let in_place = SegmentFolder::in_place_of(entries, &name).cloned();
        let (path, hash) = match &in_place {
            None => (folder.path().join(name), hash),
            Some(entry) => {
                let hash = blake3::Hash::from_hex(&entry.hash);
                (
                    folder.file(entry),
                    hash.map_or_else(|_| Vec::new(), |hash| hash.as_bytes().to_vec()),
                )
            }
        };
        Ok(Self { key, path, hash, in_place })
    }

    /// True where an attempt was removed from it.
    fn has_removed(&self, id: &str, attempt: i64) -> bool {
        let named = id.parse().ok().zip(attempt.try_into().ok());
        let named = named.map(|(episode, attempt)| AttemptId { episode, attempt });
        let entry = self.in_place.as_ref();
        entry.zip(named).is_some_and(|(entry, named)| entry.has_removed(&named))
    }
}

fn name(row: &Row) -> Result<String, sqlx::Error> {
    let (folder, name): (String, String) = (row.try_get("folder")?, row.try_get("name")?);
    Ok(Path::new(&folder).join(name).display().to_string())
}

/// Checks one segment. An error is the reason why it is of no use.
async fn check_segment(
    connection: &mut StoreConnection,
    file: FileToCheck,
    report: &mut VerifyReport,
) -> Result<(), String> {
    let mut found = VerifyReport::default();
    let is_empty = file.in_place.as_ref().is_some_and(CatalogEntry::is_empty);
    let mut segment = None;
    if !is_empty {
        away::bring_back(&file.path).await.map_err(|error| with_causes(&error))?;
        let (hash, _) = hash_of(&file.path).map_err(|error| error.to_string())?;
        if hash.as_bytes().as_slice() != file.hash {
            return Err("it is not the file that was sealed: its hash differs".to_owned());
        }
        let opened = away::open_segment(&file.path, true).await;
        let mut opened = opened.map_err(|error| error.to_string())?;
        found = check_store(&mut opened).await;
        segment = Some(opened);
    }

    let lacking = lacking(connection, segment.as_mut(), &file, report).await;
    for what in lacking.map_err(|error| error.to_string())? {
        found.add_store_damage(what);
    }
    report.add_segment(&file.path.display().to_string(), found);
    Ok(())
}

/// Attempts that the segment should hold with so many calls, and calls that something is said of.
async fn lacking(
    connection: &mut StoreConnection,
    mut segment: Option<&mut StoreConnection>,
    file: &FileToCheck,
    report: &mut VerifyReport,
) -> Result<Vec<String>, sqlx::Error> {
    let mut lacking = Vec::new();
    for row in query(HELD).bind(file.key).fetch_all(connection).await? {
        let (id, attempt): (String, i64) = (row.try_get("episode_id")?, row.try_get("attempt")?);
        if file.has_removed(&id, attempt) {
            report.removed += 1;
            report.removed_here.push(RecordRef { episode: Some((id, attempt)), call: None });
            continue;
        }
        let Some(segment) = segment.as_deref_mut() else {
            lacking.push(format!("episode `{id}` attempt {attempt} is not there"));
            continue;
        };
        let (wanted, calls) = (row.try_get::<i64>("calls")?, query(CALLS).bind(&id).bind(attempt));
        let found: i64 = calls.scalar(segment).await?;

        let kept = chain::sealed(connection, row.try_get("episode_key")?).await?.flatten();
        let there = query(KEY_THERE).bind(&id).bind(attempt).fetch_optional(segment).await?;
        if let (Some(kept), Some(there)) = (kept, there)
            && chain::head(segment, there.first()?).await? != kept
        {
            lacking.push(format!(
                "episode `{id}` attempt {attempt} has another chain there than it had"
            ));
        }
        spoken_of(connection, segment, row.try_get("episode_key")?, &mut lacking).await?;
        if found != wanted {
            lacking.push(format!(
                "episode `{id}` attempt {attempt} has {found} calls there, and had {wanted}"
            ));
        }
    }
    Ok(lacking)
}

/// Looks for calls that the store says something of and the segment does not have.
async fn spoken_of(
    connection: &mut StoreConnection,
    segment: &mut StoreConnection,
    key: i64,
    lacking: &mut Vec<String>,
) -> Result<(), sqlx::Error> {
    for row in query(SPOKEN_OF).bind(key).fetch_all(connection).await? {
        let (call, what): (String, String) = (row.try_get("call_id")?, row.try_get("what")?);
        let there = query("SELECT 1 FROM call WHERE call_id = $1").bind(&call);
        if there.fetch_optional(segment).await?.is_none() {
            lacking.push(format!("`{what}` is about call `{call}`, which is not there"));
        }
    }

    for row in query(LATE).bind(key).fetch_all(connection).await? {
        if let Err(error) = annotation_of(&row) {
            let key: i64 = row.try_get("late_annotation_key")?;
            lacking.push(format!("`late_annotation` {key}: {}", with_causes(&error)));
        }
    }
    Ok(())
}

impl VerifyReport {
    /// Adds what was found in a segment. Its attempts were counted in the store.
    fn add_segment(&mut self, name: &str, found: Self) {
        self.calls += found.calls;
        self.bodies += found.bodies;
        self.prompts += found.prompts;
        self.choices += found.choices;
        self.segments += found.segments;

        self.holes_found += found.holes_found.saturating_sub(found.holes.len() as u64);
        for hole in found.holes {
            self.add_hole(hole);
        }
        self.damage_found += found.damage_found.saturating_sub(found.damage.len() as u64);
        for damage in found.damage {
            self.add_damage(damage.place, format!("in segment `{name}`: {}", damage.what));
        }
    }
}
