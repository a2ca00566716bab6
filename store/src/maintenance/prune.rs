//! Deleting episodes from a store: a plan first, then the deletion, then the free space.
//!
//! Whole episodes are deleted, with all that belongs to them. Bodies and prompts are based on those
//! of the same episode only, so nothing that is kept loses its base. The plan checks that this
//! holds for the store at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use episode::{AttemptId, EpisodeId, Micros};
use thiserror::Error;

use crate::database::connection::StoreConnection;
use crate::database::offloaded::OffloadedConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::{OpenError, SnapshotError};
use crate::feed::unsettled::forget;
use crate::location::Location;
use crate::snapshot::Snapshot;
use crate::sqlite::space::{FreeSpace, file_bytes, give_back};
use crate::unavailable::StoreUnavailable;
use crate::{open, sqlite};

/// Episodes that are deleted in one transaction.
const BATCH_EPISODES: usize = 32;
/// Time after its last call during which an episode that is not closed may go on.
const OPEN_IDLE_US: Micros = 3_600_000_000;

/// A filter of the episodes to delete: those that fit every condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneFilter {
    /// Only this episode, open or not.
    pub episode: Option<EpisodeId>,
    /// Only this run of it.
    pub attempt: Option<u32>,
    /// Only episodes without a call, reward or closing since this time.
    pub silent_since: Option<Micros>,
    /// Attempts that are kept.
    pub keep: BTreeSet<AttemptId>,
    /// The present time. An open episode with a call in the hour before it is kept.
    pub now: Micros,
}

/// An attempt that is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneCandidate {
    key: i64,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its calls.
    pub calls: u64,
    /// The size of its rows in bytes, roughly.
    pub bytes: u64,
    /// The time of its last call, reward or closing.
    pub last_at: Micros,
}

/// The reasons for which an attempt that fits the filter is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeepReason {
    /// The filter lists it as kept.
    Named,
    /// It is not closed and had a call within the last hour.
    Open,
    /// An episode that is kept is based on it.
    Needed,
}

/// The attempts to delete and those to keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// The attempts to delete, the longest silent first.
    pub candidates: Vec<PruneCandidate>,
    /// The number of attempts that fit the filter and are kept, by reason.
    pub kept: BTreeMap<KeepReason, u64>,
}

/// The result of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// The plan that was carried out.
    pub plan: PrunePlan,
    /// Bytes of the store before.
    pub bytes_before: u64,
    /// Bytes of the store after.
    pub bytes_after: u64,
    /// The reason for which the space, or a part of it, was not given back.
    pub withheld: Option<String>,
}

/// The reasons for which nothing was deleted, or not everything.
#[derive(Debug, Error)]
pub enum PruneError {
    /// The store could not be opened for writing.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] SnapshotError),
    /// The database refused. Episodes that were deleted before are gone, each as a whole.
    #[error("cannot prune the store")]
    Database(#[from] sqlx::Error),
}

impl PruneError {
    /// True if the disk of the store has no room for what deleting writes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let database = match self {
            Self::Open(OpenError::Database(_, error)) | Self::Database(error) => error,
            Self::Read(SnapshotError::Open(OpenError::Database(_, error))) => error,
            _ => return false,
        };
        StoreUnavailable::of(database) == Some(StoreUnavailable::Full)
    }
}

const EPISODES: &str = "SELECT e.episode_key, e.episode_id, e.attempt, e.closed_at, \
    (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key) AS calls, \
    (SELECT max(at) FROM (SELECT e.opened_at AS at UNION ALL SELECT e.closed_at \
        UNION ALL SELECT max(c.started_at) FROM call c WHERE c.episode_key = e.episode_key \
        UNION ALL SELECT max(c.ended_at) FROM call c WHERE c.episode_key = e.episode_key \
        UNION ALL SELECT max(r.given_at) FROM reward r WHERE r.episode_key = e.episode_key) \
        AS times) AS last_at \
    FROM episode e WHERE ($1 IS NULL OR e.episode_id = $1) AND ($2 IS NULL OR e.attempt = $2) \
    ORDER BY last_at, e.episode_key";

/// Bytes of an episode's rows, without small columns.
const BYTES: &str = "SELECT CAST( \
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

/// Episodes that are based on another one. A sound store has no such row.
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

/// Deletions of one episode's rows, children first. References are not checked row by row: for each
/// deleted row, SQLite would read whole tables whose references have no index.
const DELETIONS: [&str; 16] = [
    "DELETE FROM annotation WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM side WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM choice WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM prompt WHERE call_key IN (SELECT call_key FROM call WHERE episode_key = $1)",
    "DELETE FROM body WHERE body_key IN (SELECT request_body FROM call WHERE episode_key = $1 \
     UNION ALL SELECT reply_body FROM call WHERE episode_key = $1 AND reply_body IS NOT NULL)",
    "DELETE FROM call WHERE episode_key = $1",
    "DELETE FROM segment WHERE reel_key IN (SELECT reel_key FROM reel WHERE episode_key = $1)",
    "DELETE FROM reel WHERE episode_key = $1",
    "DELETE FROM reward WHERE episode_key = $1",
    "DELETE FROM label WHERE episode_key = $1",
    "DELETE FROM mark WHERE episode_key = $1",
    "DELETE FROM api_key WHERE episode_key = $1",
    "DELETE FROM delivery WHERE episode_key = $1",
    "DELETE FROM finished WHERE episode_key = $1",
    "DELETE FROM waiting WHERE episode_key = $1",
    "DELETE FROM episode WHERE episode_key = $1",
];

/// Bytes of the tables of a store on a server, with their indexes.
const SERVER_BYTES: &str = "SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS BIGINT) \
    FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'";

/// Plans what [`prune`] would delete now from the store at a location.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read.
pub async fn plan_prune(
    at: impl Into<Location>,
    filter: &PruneFilter,
) -> Result<PrunePlan, SnapshotError> {
    plan(Snapshot::open(at).await?.connection(), filter).await
}

/// Deletes episodes from the store at a location and gives the space back.
///
/// A file must not be recorded to meanwhile: its writer holds in memory what later calls of an
/// episode refer to. A database may be recorded to: its writers learn from the database that an
/// episode is gone, and begin it anew.
///
/// # Errors
/// [`PruneError`] when another process records to the file, or the database refuses.
pub async fn prune(
    at: impl Into<Location>,
    filter: &PruneFilter,
) -> Result<PruneReport, PruneError> {
    match at.into() {
        Location::File(path) => prune_file(&path, filter).await,
        server @ Location::Server(_) => prune_server(&server, filter).await,
    }
}

async fn prune_file(path: &Path, filter: &PruneFilter) -> Result<PruneReport, PruneError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.display().to_string()).into());
    }
    let (local, _lock) = open::beside(path, sqlite::open::for_maintenance).await?;
    let file = OffloadedConnection::new(local);
    let mut connection = StoreConnection::Offloaded(file.clone());
    let bytes_before = file_bytes(path);
    let plan = plan_prune(path, filter).await?;

    query("PRAGMA foreign_keys = OFF").execute(&mut connection).await?;
    // No checkpointer runs here.
    query("PRAGMA wal_autocheckpoint = 1000").execute(&mut connection).await?;
    delete(&mut connection, &plan).await?;

    // The episodes are gone; an error from here on only keeps the space.
    let withheld = match file.run(give_back).await {
        Ok(FreeSpace::Returned) => None,
        Ok(FreeSpace::HeldByReader) => {
            Some("another process reads the file; it shrinks later".to_owned())
        }
        Err(error) => Some(error.to_string()),
    };
    drop((connection, file));
    Ok(PruneReport { plan, bytes_before, bytes_after: file_bytes(path), withheld })
}

async fn prune_server(at: &Location, filter: &PruneFilter) -> Result<PruneReport, PruneError> {
    let mut connection = open::for_editing(at).await?;
    let bytes_before = server_bytes(&mut connection).await?;
    let plan = plan(&mut connection, filter).await?;
    delete(&mut connection, &plan).await?;
    let bytes_after = server_bytes(&mut connection).await?;
    connection.close().await?;

    let reason = "PostgreSQL keeps it for new rows once autovacuum has run; `VACUUM FULL` \
                  gives it to the system";
    let withheld = (!plan.candidates.is_empty()).then(|| reason.to_owned());
    Ok(PruneReport { plan, bytes_before, bytes_after, withheld })
}

async fn server_bytes(connection: &mut StoreConnection) -> Result<u64, sqlx::Error> {
    Ok(query(SERVER_BYTES).scalar::<i64>(connection).await?.unsigned_abs())
}

/// Deletes the attempts of a plan, each as a whole.
async fn delete(connection: &mut StoreConnection, plan: &PrunePlan) -> Result<(), sqlx::Error> {
    for batch in plan.candidates.chunks(BATCH_EPISODES) {
        connection.begin().await?;
        for candidate in batch {
            forget(connection, candidate.key).await?;
            for deletion in DELETIONS {
                query(deletion).bind(candidate.key).execute(connection).await?;
            }
        }
        connection.commit().await?;
    }
    Ok(())
}

async fn plan(
    connection: &mut StoreConnection,
    filter: &PruneFilter,
) -> Result<PrunePlan, SnapshotError> {
    let rows = query(EPISODES)
        .bind(filter.episode.as_ref().map(EpisodeId::as_str))
        .bind(filter.attempt)
        .fetch_all(&mut *connection)
        .await?;

    let mut plan = PrunePlan::default();
    for row in &rows {
        let candidate = PruneCandidate::of(row)?;
        if filter.silent_since.is_some_and(|since| candidate.last_at >= since) {
            continue;
        }
        let is_open = row.try_get::<Option<Micros>>("closed_at")?.is_none();
        match filter.keep_reason(&candidate, is_open) {
            Some(reason) => *plan.kept.entry(reason).or_default() += 1,
            None => plan.candidates.push(candidate),
        }
    }
    keep_needed(connection, &mut plan).await?;

    // Only now, because sizes take long to add up.
    for candidate in &mut plan.candidates {
        let bytes = query(BYTES).bind(candidate.key).scalar::<i64>(connection).await?;
        candidate.bytes = bytes.unsigned_abs();
    }
    Ok(plan)
}

impl PruneCandidate {
    /// A candidate whose bytes are not known yet.
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let episode: String = row.try_get("episode_id")?;
        let episode = episode.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
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
    fn keep_reason(&self, candidate: &PruneCandidate, is_open: bool) -> Option<KeepReason> {
        if self.keep.contains(&candidate.attempt) {
            return Some(KeepReason::Named);
        }
        let is_recent = candidate.last_at > self.now.saturating_sub(OPEN_IDLE_US);
        (is_open && is_recent && self.episode.is_none()).then_some(KeepReason::Open)
    }
}

/// A reference between two episodes.
struct Need {
    of: i64,
    needed: i64,
}

/// Keeps the attempts that a kept one is based on, and those that these are based on.
async fn keep_needed(
    connection: &mut StoreConnection,
    plan: &mut PrunePlan,
) -> Result<(), sqlx::Error> {
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
        plan.candidates.retain(|candidate| !kept_needs.contains(&candidate.key));
        let spared = doomed.len() - plan.candidates.len();
        if spared == 0 {
            return Ok(());
        }
        *plan.kept.entry(KeepReason::Needed).or_default() += spared as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::{Site, on_both};
    use crate::tests::{begun, ended};
    use crate::{Selection, verify};

    /// Episodes of `calls` calls each, the first one at the time that is given with it.
    async fn filled(site: &Site, episodes: &[(&str, i64)], bytes: usize) {
        let (store, writer) = site.open().await;
        for (name, at) in episodes {
            for turn in 0..4 {
                let mut begun = begun(name, at + turn);
                let mut state = (at + turn) as u64;
                let mut noise = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                };
                begun.request = (0..bytes).map(|_| noise()).collect::<Vec<u8>>().into();
                let mut end = ended(begun.call_id);
                end.ended_at = at + turn;
                store.begin(begun).await.done().await.unwrap();
                store.end(end).await.done().await.unwrap();
            }
        }
        drop(store);
        writer.finish().await;
    }

    async fn left(site: &Site) -> Vec<String> {
        let mut snapshot = site.snapshot().await;
        let all = snapshot.episodes(&Selection::default()).await.unwrap();
        for episode in &all {
            assert_eq!(snapshot.calls(episode).await.unwrap().len(), 4);
        }
        all.iter().map(|episode| episode.id.to_string()).collect()
    }

    const HOUR: Micros = OPEN_IDLE_US;

    #[tokio::test]
    async fn what_is_old_goes_and_a_file_shrinks() {
        on_both(async |site| {
            filled(&site, &[("old", HOUR), ("new", 9 * HOUR)], 900_000).await;
            let which = PruneFilter {
                silent_since: Some(8 * HOUR),
                now: 20 * HOUR,
                ..PruneFilter::default()
            };
            let plan = plan_prune(&site.at, &which).await.unwrap();
            assert_eq!((plan.candidates.len(), plan.candidates[0].calls), (1, 4));
            assert!(plan.candidates[0].bytes > 500_000, "{plan:?}");
            let pruned = prune(&site.at, &which).await.unwrap();
            assert_eq!((&pruned.plan, pruned.withheld.is_none()), (&plan, site.is_file()));
            let shrank = pruned.bytes_after + 500_000 < pruned.bytes_before;
            assert_eq!(shrank, site.is_file(), "{pruned:?}");
            assert_eq!(left(&site).await, ["new"]);
            assert!(verify(&site.at).await.unwrap().is_clean());
            let again = prune(&site.at, &which).await.unwrap();
            assert_eq!(again.plan, PrunePlan::default());
        })
        .await;
    }

    #[tokio::test]
    async fn a_store_that_was_made_without_the_means_to_shrink_does_too() {
        let site = Site::file();
        filled(&site, &[("old", HOUR), ("new", 9 * HOUR)], 900_000).await;
        let Location::File(path) = &site.at else { unreachable!() };
        let connection = sqlite::open::reopen(path, crate::Durability::Power).unwrap();
        for statement in ["PRAGMA auto_vacuum = NONE", "VACUUM"] {
            connection.run(statement).unwrap();
        }
        drop(connection);
        let which =
            PruneFilter { silent_since: Some(8 * HOUR), now: 20 * HOUR, ..PruneFilter::default() };
        let pruned = prune(&site.at, &which).await.unwrap();
        assert!(pruned.bytes_after + 500_000 < pruned.bytes_before, "{pruned:?}");
        assert_eq!(left(&site).await, ["new"]);
        assert!(verify(&site.at).await.unwrap().is_clean());
    }

    #[tokio::test]
    async fn what_is_kept_is_told_and_why() {
        on_both(async |site| {
            filled(&site, &[("a", HOUR), ("b", HOUR), ("open", 9 * HOUR)], 10).await;
            let keep = BTreeSet::from(["b/0".parse().unwrap()]);
            let which = PruneFilter { keep, now: 9 * HOUR + 10, ..PruneFilter::default() };
            let plan = plan_prune(&site.at, &which).await.unwrap();
            assert_eq!(plan.candidates.len(), 1);
            assert_eq!(plan.kept, BTreeMap::from([(KeepReason::Named, 1), (KeepReason::Open, 1)]));
            let which = PruneFilter { episode: Some("open".parse().unwrap()), ..which };
            assert_eq!(
                plan_prune(&site.at, &which).await.unwrap().candidates.len(),
                1,
                "it was named"
            );
            let which = PruneFilter { attempt: Some(1), ..which };
            assert_eq!(plan_prune(&site.at, &which).await.unwrap().candidates.len(), 0);
        })
        .await;
    }

    #[tokio::test]
    async fn what_something_kept_stands_on_is_kept() {
        on_both(async |site| {
        filled(&site, &[("a", HOUR), ("b", 2 * HOUR), ("c", 3 * HOUR)], 10).await;
        let mut connection = open::for_editing(&site.at).await.unwrap();
        let leans = "UPDATE prompt SET parent_key = (SELECT min(call_key) FROM call c JOIN episode \
                     USING (episode_key) WHERE episode_id = $1), parent_choice = 0 \
                     WHERE call_key = (SELECT max(call_key) FROM call c JOIN episode \
                     USING (episode_key) WHERE episode_id = $2) AND prompt_index = 0";
        for (whom, who) in [("a", "b"), ("b", "c")] {
            query(leans).bind(whom).bind(who).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
        let (since, now) = (Some(3 * HOUR), 20 * HOUR);
        let mut which = PruneFilter { silent_since: since, now, ..PruneFilter::default() };
        let plan = plan_prune(&site.at, &which).await.unwrap();
        let needed = BTreeMap::from([(KeepReason::Needed, 2)]);
        assert_eq!((plan.candidates.len(), &plan.kept), (0, &needed));
        which.silent_since = Some(4 * HOUR);
        let plan = plan_prune(&site.at, &which).await.unwrap();
        assert_eq!(plan.candidates.len(), 3, "all go together");
}).await;
    }
}
