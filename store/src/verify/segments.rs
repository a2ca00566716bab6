//! The files of sealed attempts: each is what was sealed, holds what the store says, and is sound.

use std::path::Path;

use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::with_causes;
use crate::maintenance::segments::catalog::hash_of;
use crate::open;
use crate::snapshot::rows::annotation_of;
use crate::verify::check_store;
use crate::verify::report::VerifyReport;

const FILES: &str = "SELECT * FROM segment_file f WHERE EXISTS \
    (SELECT 1 FROM sealed s WHERE s.segment_file_key = f.segment_file_key) \
    ORDER BY segment_file_key";
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

    for row in &files {
        let name = name(row).unwrap_or_else(|error| error.to_string());
        match check_segment(connection, row, Path::new(&name)).await {
            Ok(found) => report.add_segment(&name, found),
            Err(why) => report.add_store_damage(format!("segment `{name}`: {why}")),
        }
    }
}

fn name(row: &Row) -> Result<String, sqlx::Error> {
    let (folder, name): (String, String) = (row.try_get("folder")?, row.try_get("name")?);
    Ok(Path::new(&folder).join(name).display().to_string())
}

/// Checks one segment. An error is the reason why it is of no use.
async fn check_segment(
    connection: &mut StoreConnection,
    row: &Row,
    path: &Path,
) -> Result<VerifyReport, String> {
    let (hash, _) = hash_of(path).map_err(|error| error.to_string())?;
    let sealed: Vec<u8> = row.try_get("hash").map_err(|error| error.to_string())?;
    if hash.as_bytes().as_slice() != sealed {
        return Err("it is not the file that was sealed: its hash differs".to_owned());
    }

    let mut segment = open::for_segment(path, true).await.map_err(|error| error.to_string())?;
    let mut found = check_store(&mut segment).await;
    let key: i64 = row.try_get("segment_file_key").map_err(|error| error.to_string())?;
    let lacking = lacking(connection, &mut segment, key).await;
    for what in lacking.map_err(|error| error.to_string())? {
        found.add_store_damage(what);
    }
    Ok(found)
}

/// Attempts that the segment should hold with so many calls, and calls that something is said of.
async fn lacking(
    connection: &mut StoreConnection,
    segment: &mut StoreConnection,
    key: i64,
) -> Result<Vec<String>, sqlx::Error> {
    let mut lacking = Vec::new();
    for row in query(HELD).bind(key).fetch_all(connection).await? {
        let (id, attempt): (String, i64) = (row.try_get("episode_id")?, row.try_get("attempt")?);
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
