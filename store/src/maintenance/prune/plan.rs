//! The plan of a prune: what fits the filter, and what of it is kept. It reads what fits, and no
//! more.

use std::collections::BTreeSet;

use episode::{AttemptId, EpisodeId, Micros};

use crate::database::connection::StoreConnection;
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::maintenance::prune::{KeepReason, PruneCandidate, PruneFilter, PrunePlan};

/// Time after its last call during which an episode that is not closed may go on.
pub(super) const OPEN_IDLE_US: Micros = 3_600_000_000;

/// Attempts with what decides whether they go. `$1` is the present time, `$2` an hour before it.
const ATTEMPTS: &str = "SELECT e.episode_key, e.episode_id, e.attempt, e.closed_at, \
    coalesce((SELECT s.calls FROM sealed s WHERE s.episode_key = e.episode_key), \
        (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key)) AS calls, \
    (SELECT max(at) FROM (SELECT e.opened_at AS at UNION ALL SELECT e.closed_at \
        UNION ALL SELECT max(c.started_at) FROM call c WHERE c.episode_key = e.episode_key \
        UNION ALL SELECT max(c.ended_at) FROM call c WHERE c.episode_key = e.episode_key \
        UNION ALL SELECT max(r.given_at) FROM reward r WHERE r.episode_key = e.episode_key) \
        AS times) AS last_at, \
    EXISTS (SELECT 1 FROM delivery d WHERE d.episode_key = e.episode_key \
        AND d.state = 'leased' AND d.free_at > $1) AS is_leased, \
    EXISTS (SELECT 1 FROM call c WHERE c.episode_key = e.episode_key \
        AND c.started_at > $2 AND c.ended_at IS NULL) AS is_running \
    FROM episode e WHERE ";
const ORDER: &str = " ORDER BY last_at, e.episode_key";

/// Bytes of an episode's rows, without small columns.
pub(crate) const BYTES: &str = "SELECT CAST( \
    (SELECT coalesce(sum(length(s.data)), 0) FROM reel r JOIN segment s USING (reel_key) \
        WHERE r.episode_key = $1) + \
    (SELECT coalesce(sum(length(b.data)), 0) FROM call c \
        JOIN body b ON b.body_key IN (c.request_body, c.reply_body) WHERE c.episode_key = $1) + \
    (SELECT coalesce(sum(length(p.token_ids)), 0) FROM call c JOIN prompt p USING (call_key) \
        WHERE c.episode_key = $1) + \
    (SELECT coalesce(sum(coalesce(length(k.token_ids), 0) + length(k.logprobs)), 0) \
        FROM call c JOIN choice k USING (call_key) WHERE c.episode_key = $1) + \
    (SELECT coalesce(sum(length(s.data)), 0) FROM call c JOIN side s USING (call_key) \
        WHERE c.episode_key = $1) + \
    (SELECT coalesce(sum(length(a.data)), 0) FROM call c JOIN annotation a USING (call_key) \
        WHERE c.episode_key = $1) AS BIGINT)";

/// Episodes that are based on another one. A sound store has no such row, and finding that out
/// reads all of it: it is done once.
const NEEDS: &str = "SELECT c.episode_key AS who, q.episode_key AS whom \
    FROM prompt p JOIN call c USING (call_key) JOIN call q ON q.call_key = p.parent_key \
    WHERE q.episode_key <> c.episode_key \
    UNION SELECT r.episode_key, q.episode_key FROM body b JOIN body a ON a.body_key = b.base_key \
    JOIN reel r ON r.reel_key = b.reel_key JOIN reel q ON q.reel_key = a.reel_key \
    WHERE q.episode_key <> r.episode_key \
    UNION SELECT c.episode_key, r.episode_key FROM call c JOIN reel r USING (reel_key) \
    WHERE r.episode_key <> c.episode_key \
    UNION SELECT c.episode_key, r.episode_key FROM call c \
    JOIN body b ON b.body_key IN (c.request_body, c.reply_body) \
    JOIN reel r ON r.reel_key = b.reel_key WHERE r.episode_key <> c.episode_key";

/// The setting of a store whose episodes are all known to stand by themselves. No writer of a
/// format that has it bases an episode on another.
const SELF_CONTAINED: &str = "SELECT count(*) FROM setting WHERE name = 'self_contained'";
const NOTE_SELF_CONTAINED: &str = "INSERT INTO setting (name, value) \
    VALUES ('self_contained', $1) ON CONFLICT DO NOTHING";

/// The decision about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes.
    Goes,
    /// It fits the filter and is kept.
    Kept(KeepReason),
    /// It does not fit.
    NotMeant,
}

/// Plans what goes. True beside it if every episode of the store stands by itself, which was not
/// known before.
pub(crate) async fn plan(
    connection: &mut StoreConnection,
    filter: &PruneFilter,
) -> Result<(PrunePlan, bool), SnapshotError> {
    let rows = candidates(filter).fetch_all(&mut *connection).await?;

    let mut plan = PrunePlan::default();
    for row in &rows {
        let candidate = PruneCandidate::of(row)?;
        match filter.fate(row, &candidate)? {
            Fate::Goes => plan.candidates.push(candidate),
            Fate::Kept(reason) => plan.keep(candidate.attempt, reason),
            Fate::NotMeant => {}
        }
    }
    let is_new = keep_needed(connection, &mut plan).await?;

    // Only now, because sizes take long to add up.
    for candidate in &mut plan.candidates {
        let bytes = query(BYTES).bind(candidate.key).scalar::<i64>(connection).await?;
        candidate.bytes = bytes.unsigned_abs();
    }
    Ok((plan, is_new))
}

/// The decision about an attempt as it is now; `None` if it is gone.
pub(super) async fn fate_now(
    connection: &mut StoreConnection,
    key: i64,
    filter: &PruneFilter,
) -> Result<Option<Fate>, sqlx::Error> {
    let attempt = attempts("e.episode_key = $3", filter).bind(key);
    let Some(row) = attempt.fetch_optional(connection).await? else { return Ok(None) };
    let candidate = PruneCandidate::of(&row)?;
    filter.fate(&row, &candidate).map(Some)
}

/// Notes that every episode of the store stands by itself.
pub(crate) async fn note_self_contained(
    connection: &mut StoreConnection,
) -> Result<(), sqlx::Error> {
    query(NOTE_SELF_CONTAINED).bind(vec![1]).execute(connection).await
}

/// The attempts that a filter may take, by the index that finds the fewest.
fn candidates(filter: &PruneFilter) -> Query {
    match (&filter.episode, filter.attempt, filter.silent_since) {
        (Some(episode), Some(attempt), _) => {
            let statement = attempts("e.episode_id = $3 AND e.attempt = $4", filter);
            statement.bind(episode.as_str()).bind(attempt)
        }
        (Some(episode), None, _) => attempts("e.episode_id = $3", filter).bind(episode.as_str()),
        // What was opened later was not silent since then.
        (None, _, Some(since)) => attempts("e.opened_at < $3", filter).bind(since),
        (None, _, None) => attempts("1 = 1", filter),
    }
}

/// The attempts under a condition, whose values begin with `$3`.
fn attempts(condition: &str, filter: &PruneFilter) -> Query {
    let hour_ago = filter.now.saturating_sub(OPEN_IDLE_US);
    query(format!("{ATTEMPTS}{condition}{ORDER}")).bind(filter.now).bind(hour_ago)
}

impl PruneCandidate {
    /// A candidate whose bytes are not known yet.
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let episode: String = row.try_get("episode_id")?;
        let episode: EpisodeId =
            episode.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Self {
            key: row.try_get("episode_key")?,
            attempt: AttemptId { episode, attempt: row.try_get("attempt")? },
            calls: row.try_get::<i64>("calls")?.unsigned_abs(),
            bytes: 0,
            last_at: row.try_get("last_at")?,
        })
    }
}

impl PruneFilter {
    fn fate(&self, row: &Row, candidate: &PruneCandidate) -> Result<Fate, sqlx::Error> {
        if self.silent_since.is_some_and(|since| candidate.last_at >= since) {
            return Ok(Fate::NotMeant);
        }
        if self.keep.contains(&candidate.attempt) {
            return Ok(Fate::Kept(KeepReason::Named));
        }
        let is_open = row.try_get::<Option<Micros>>("closed_at")?.is_none();
        let is_recent = candidate.last_at > self.now.saturating_sub(OPEN_IDLE_US);
        let goes_by_name = self.episode.is_some() && !self.keeps_open;
        Ok(match () {
            () if goes_by_name => Fate::Goes,
            () if self.keeps_open && row.try_get("is_running")? => Fate::Kept(KeepReason::Running),
            () if is_open && is_recent => Fate::Kept(KeepReason::Open),
            () if row.try_get("is_leased")? => Fate::Kept(KeepReason::Leased),
            () => Fate::Goes,
        })
    }
}

/// A reference between two episodes.
struct Need {
    of: i64,
    needed: i64,
}

/// Keeps the attempts that a kept one is based on, and those that these are based on. Returns true
/// if it was found that the store has none.
async fn keep_needed(
    connection: &mut StoreConnection,
    plan: &mut PrunePlan,
) -> Result<bool, sqlx::Error> {
    let is_known = query(SELF_CONTAINED).scalar::<i64>(connection).await? > 0;
    if is_known || plan.candidates.is_empty() {
        return Ok(false);
    }
    let rows = query(NEEDS).fetch_all(connection).await?;
    let mut needs = Vec::with_capacity(rows.len());
    for row in &rows {
        needs.push(Need { of: row.try_get("who")?, needed: row.try_get("whom")? });
    }

    // Each round may keep attempts that need others, until a round keeps none.
    loop {
        let doomed: BTreeSet<i64> = plan.candidates.iter().map(|candidate| candidate.key).collect();
        let kept_needs: BTreeSet<i64> = needs
            .iter()
            .filter(|need| !doomed.contains(&need.of))
            .map(|need| need.needed)
            .collect();
        let spared = plan.candidates.extract_if(.., |one| kept_needs.contains(&one.key));
        let spared: Vec<AttemptId> = spared.map(|one| one.attempt).collect();
        if spared.is_empty() {
            return Ok(needs.is_empty());
        }
        spared.into_iter().for_each(|attempt| plan.keep(attempt, KeepReason::Needed));
    }
}
