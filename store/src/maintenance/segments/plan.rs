//! The attempts of the next segments: those that are finished, a group as a whole.

use std::collections::BTreeMap;

use episode::Micros;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::maintenance::prune::plan::BYTES;
use crate::maintenance::segments::SealOptions;

/// Attempts that have a position and calls in the store. The attempt of the newest call stays: the
/// keys of later calls must be larger than all that were given out.
const FINISHED: &str = "SELECT e.episode_key, e.group_id, f.position, f.finished_at \
    FROM episode e JOIN finished f USING (episode_key) \
    WHERE e.episode_key IN (SELECT DISTINCT episode_key FROM call) AND f.finished_at < $1 \
    AND e.episode_key <> (SELECT episode_key FROM call ORDER BY call_key DESC LIMIT 1) \
    AND NOT EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key) \
    ORDER BY f.position";

/// True where a group may still get finished attempts: one is not finished, or some never began.
const GROUP_IS_OPEN: &str = "SELECT EXISTS (SELECT 1 FROM episode e \
        WHERE e.group_id = $1 AND NOT EXISTS \
            (SELECT 1 FROM finished f WHERE f.episode_key = e.episode_key)) \
    OR coalesce((SELECT size FROM group_size WHERE group_id = $1), 0) > \
        (SELECT count(*) FROM episode e WHERE e.group_id = $1)";

/// An attempt that can be sealed.
#[derive(Debug, Clone)]
pub(super) struct SealCandidate {
    pub(super) key: i64,
    pub(super) position: i64,
    finished_at: Micros,
}

/// Attempts that are compared with each other: those of a group, or one without a group.
#[derive(Debug)]
struct Together {
    group: Option<String>,
    attempts: Vec<SealCandidate>,
}

/// The attempts of one segment, and their groups.
#[derive(Debug, Default)]
pub(super) struct PlannedSegment {
    pub(super) attempts: Vec<SealCandidate>,
    pub(super) groups: Vec<String>,
    bytes: u64,
}

/// The next segments.
#[derive(Debug, Default)]
pub(super) struct SealPlan {
    pub(super) segments: Vec<PlannedSegment>,
    /// Finished attempts that wait for others of their group.
    pub(super) waiting: u64,
}

/// Plans which attempts of the store go to which segment, in the order in which they were finished.
pub(super) async fn plan(
    connection: &mut StoreConnection,
    options: &SealOptions,
) -> Result<SealPlan, sqlx::Error> {
    let rows = query(FINISHED).bind(options.finished_before).fetch_all(connection).await?;
    let mut plan = SealPlan::default();
    let mut next = PlannedSegment::default();
    for together in grouped(&rows)? {
        if together.waits(connection, options).await? {
            plan.waiting += together.attempts.len() as u64;
            continue;
        }

        for attempt in &together.attempts {
            let bytes = query(BYTES).bind(attempt.key).scalar::<i64>(connection).await?;
            next.bytes += bytes.unsigned_abs();
        }
        next.attempts.extend(together.attempts);
        next.groups.extend(together.group);
        if next.bytes >= options.segment_bytes {
            plan.segments.push(std::mem::take(&mut next));
        }
    }

    let is_old = next.attempts.iter().any(|one| one.finished_at < options.short_before);
    if !next.attempts.is_empty() && (is_old || next.bytes >= options.segment_bytes_min) {
        plan.segments.push(next);
    }
    Ok(plan)
}

/// The attempts by group, in the order of the first of each.
fn grouped(rows: &[Row]) -> Result<Vec<Together>, sqlx::Error> {
    let mut all: Vec<Together> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows {
        let candidate = SealCandidate {
            key: row.try_get("episode_key")?,
            position: row.try_get("position")?,
            finished_at: row.try_get("finished_at")?,
        };

        let group: Option<String> = row.try_get("group_id")?;
        let known = group.as_ref().and_then(|group| places.get(group).copied());
        match known {
            Some(at) => all[at].attempts.push(candidate),
            None => {
                if let Some(group) = &group {
                    places.insert(group.clone(), all.len());
                }
                all.push(Together { group, attempts: vec![candidate] });
            }
        }
    }
    Ok(all)
}

impl Together {
    /// True if others of the group may be finished soon.
    async fn waits(
        &self,
        connection: &mut StoreConnection,
        options: &SealOptions,
    ) -> Result<bool, sqlx::Error> {
        let Some(group) = &self.group else { return Ok(false) };
        let last = self.attempts.iter().map(|attempt| attempt.finished_at).max().unwrap_or(0);
        if last < options.now.saturating_sub(options.group_wait) {
            return Ok(false);
        }
        query(GROUP_IS_OPEN).bind(group).scalar::<bool>(connection).await
    }
}
