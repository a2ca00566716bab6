//! Calls of many attempts, from the newest back: those of the store itself, then those of its
//! segments.

use std::collections::HashMap;

use episode::AttemptId;

use crate::browse::calls::{CallRow, ROW, row_of};
use crate::browse::filter::{Conditions, EpisodeFilter};
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::parse;
use crate::snapshot::sealed::SegmentPath;

const NEXT_SEGMENT: &str = "SELECT segment_file_key, folder, name FROM segment_file f \
    WHERE segment_file_key < $1 AND EXISTS (SELECT 1 FROM sealed s \
        WHERE s.segment_file_key = f.segment_file_key) ORDER BY segment_file_key DESC LIMIT 1";

/// The place from which calls are read back.
#[derive(Debug)]
pub struct PastCalls {
    /// The attempts, whose times are those of the calls.
    filter: EpisodeFilter,
    /// The segment that is read; `None` while the store itself is.
    segment: Option<SegmentOfCalls>,
    /// The key before which the next call is.
    before: i64,
}

#[derive(Debug)]
struct SegmentOfCalls {
    path: SegmentPath,
    /// The store's own keys of the attempts that are wanted.
    wanted: HashMap<AttemptId, i64>,
}

impl PastCalls {
    /// All calls of the attempts that a filter takes. The times of the filter are those of the
    /// calls.
    pub fn of(filter: EpisodeFilter) -> Self {
        Self { filter, segment: None, before: i64::MAX }
    }

    /// The conditions on calls `c` of attempts `e`: those of a segment are chosen by name.
    fn conditions(&self) -> Conditions {
        let EpisodeFilter { since, until, .. } = self.filter;
        let of_attempts = match self.segment {
            None => EpisodeFilter { since: None, until: None, ..self.filter.clone() },
            Some(_) => EpisodeFilter::default(),
        };
        let mut conditions = Conditions::of(&of_attempts);
        if let Some(since) = since {
            conditions.add("c.started_at >= $", since);
        }
        if let Some(until) = until {
            conditions.add("c.started_at < $", until);
        }
        conditions.add("c.call_key < $", self.before);
        conditions
    }
}

impl Snapshot {
    /// The next calls back, at most so many; none where there are no more.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store or a segment cannot be read.
    pub async fn calls_before(
        &mut self,
        past: &mut PastCalls,
        limit: u32,
    ) -> Result<Vec<CallRow>, SnapshotError> {
        loop {
            let conditions = past.conditions();
            let limit_at = conditions.len() + 1;
            let select = conditions.query(format!(
                "{ROW} WHERE {} ORDER BY c.call_key DESC LIMIT ${limit_at}",
                conditions.sql()
            ));
            let select = select.bind(limit);
            let rows = match &past.segment {
                None => select.fetch_all(self.connection()).await?,
                Some(segment) => {
                    let part = self.segment(&segment.path).await?;
                    select.fetch_all(&mut part.connection).await?
                }
            };

            let Some(last) = rows.last() else {
                if !self.turn_to_next_segment(past).await? {
                    return Ok(Vec::new());
                }
                continue;
            };
            past.before = last.try_get("call_key")?;
            let calls = rows.iter().map(row_of).collect::<Result<Vec<_>, _>>()?;
            let calls = past.wanted(calls);
            if !calls.is_empty() {
                return Ok(calls);
            }
        }
    }

    /// Turns to the segment before; false where there is none.
    async fn turn_to_next_segment(&mut self, past: &mut PastCalls) -> Result<bool, SnapshotError> {
        let last = past.segment.as_ref().map_or(i64::MAX, |segment| segment.path.key);
        let next = query(NEXT_SEGMENT).bind(last).fetch_optional(self.connection()).await?;
        let Some(row) = next else { return Ok(false) };
        let path = SegmentPath::of(&row)?;

        let of_attempts = EpisodeFilter { since: None, until: None, ..past.filter.clone() };
        let mut conditions = Conditions::of(&of_attempts);
        conditions.add("s.segment_file_key = $", path.key);
        let select = conditions.query(format!(
            "SELECT e.episode_key, e.episode_id, e.attempt FROM sealed s \
             JOIN episode e ON e.episode_key = s.episode_key WHERE {}",
            conditions.sql()
        ));
        let mut wanted = HashMap::new();
        for row in select.fetch_all(self.connection()).await? {
            wanted.insert(attempt_of(&row)?, row.try_get("episode_key")?);
        }
        past.segment = Some(SegmentOfCalls { path, wanted });
        past.before = i64::MAX;
        Ok(true)
    }
}

impl PastCalls {
    /// Those calls whose attempts are wanted, under the store's own keys of these.
    fn wanted(&self, calls: Vec<CallRow>) -> Vec<CallRow> {
        let Some(segment) = &self.segment else { return calls };
        let own = |call: CallRow| {
            let episode_key = *segment.wanted.get(&call.attempt)?;
            Some(CallRow { episode_key, ..call })
        };
        calls.into_iter().filter_map(own).collect()
    }
}

fn attempt_of(row: &Row) -> Result<AttemptId, SnapshotError> {
    let episode = parse(row.try_get("episode_id")?, "episode id")?;
    Ok(AttemptId { episode, attempt: row.try_get("attempt")? })
}
