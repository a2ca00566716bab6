//! Deleting episodes from a store: a plan first, then the deletion, then the free space.
//!
//! Whole episodes are deleted, with all that belongs to them, each in one transaction. Bodies and
//! prompts are based on those of the same episode only, so nothing that is kept loses its base.
//! `plan` says what goes, `remove` deletes it. The recorder of a file deletes from it by itself
//! (`writer/prune.rs`); what stands here is for a file that nobody records to, and for a database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use episode::{AttemptId, EpisodeId, Micros};
use thiserror::Error;

use crate::database::connection::StoreConnection;
use crate::database::offloaded::OffloadedConnection;
use crate::database::query::query;
use crate::error::{CommitError, OpenError, SnapshotError};
use crate::location::Location;
use crate::maintenance::prune::plan::{note_self_contained, plan};
use crate::maintenance::prune::remove::{Removal, remove};
use crate::snapshot::Snapshot;
use crate::sqlite::space::{FreeSpace, file_bytes, give_back};
use crate::unavailable::StoreUnavailable;
use crate::{open, sqlite};

pub(crate) mod plan;
pub(crate) mod remove;

/// Episodes that are deleted in one transaction of a file that nobody records to.
const BATCH_EPISODES: usize = 32;
/// Attempts that a plan names of those that it keeps.
const KEPT_NAMED_MAX: usize = 100;

/// The reason for which a file keeps its free space while a reader holds an older snapshot.
pub(crate) const HELD_BY_READER: &str = "another process reads the file; it shrinks later";

/// A filter of the episodes to delete: those that fit every condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneFilter {
    /// Only this episode. By its name it also goes if it is open or leased.
    pub episode: Option<EpisodeId>,
    /// Only this run of it.
    pub attempt: Option<u32>,
    /// Only episodes without a call, reward or closing since this time.
    pub silent_since: Option<Micros>,
    /// Attempts that are kept.
    pub keep: BTreeSet<AttemptId>,
    /// The present time. An open episode with a call in the hour before it is kept.
    pub now: Micros,
    /// True while calls are recorded: then what is open or leased is kept even if it is named, and
    /// so is what has a call under way.
    pub keeps_open: bool,
}

/// An attempt that is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneCandidate {
    pub(crate) key: i64,
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
    /// A call of it is under way.
    Running,
    /// A consumer of the feed holds it in a lease.
    Leased,
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
    /// The first 100 of those, but for the ones that the filter lists as kept.
    pub kept_attempts: Vec<(AttemptId, KeepReason)>,
}

/// The result of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// The plan, as it was carried out.
    pub plan: PrunePlan,
    /// Bytes of the store before.
    pub bytes_before: u64,
    /// Bytes of the store after.
    pub bytes_after: u64,
    /// The reason for which the space, or a part of it, was not given back.
    pub withheld: Option<String>,
    /// Files of segments that were replaced by others without these attempts.
    pub segments_replaced: u64,
    /// The reason for which segments still hold some of them, or replaced files are still there.
    pub segments_left: Option<String>,
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
    /// The recorder cannot write at the moment. Episodes that were deleted before are gone.
    #[error(transparent)]
    Commit(#[from] CommitError),
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
            Self::Commit(CommitError::Unavailable(reason)) => {
                return *reason == StoreUnavailable::Full;
            }
            _ => return false,
        };
        StoreUnavailable::of(database) == Some(StoreUnavailable::Full)
    }
}

impl PrunePlan {
    /// Notes an attempt that is kept.
    pub(crate) fn keep(&mut self, attempt: AttemptId, reason: KeepReason) {
        *self.kept.entry(reason).or_default() += 1;
        if reason != KeepReason::Named && self.kept_attempts.len() < KEPT_NAMED_MAX {
            self.kept_attempts.push((attempt, reason));
        }
    }

    /// Takes the candidates that turned out to be kept, or to be gone, out of the plan.
    pub(crate) fn note(&mut self, candidate: PruneCandidate, removal: Removal) {
        match removal {
            Removal::Removed => self.candidates.push(candidate),
            Removal::Kept(reason) => self.keep(candidate.attempt, reason),
            Removal::NotMeant => {}
        }
    }
}

/// Bytes of the tables of a store on a server, with their indexes.
const SERVER_BYTES: &str = "SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS BIGINT) \
    FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'";

/// Plans what [`prune`](crate::prune()) would delete now from the store at a location.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read.
pub async fn plan_prune(
    at: impl Into<Location>,
    filter: &PruneFilter,
) -> Result<PrunePlan, SnapshotError> {
    Ok(plan(Snapshot::open(at).await?.connection(), filter).await?.0)
}

/// Deletes episodes from the store at a location and gives the space back. Segments are left.
///
/// A file must not be recorded to meanwhile: its writer holds in memory what later calls of an
/// episode refer to, and deletes by itself ([`Store::prune`](crate::Store::prune)). A database may
/// be recorded to: its writers learn from the database that an episode is gone, and begin it anew.
///
/// # Errors
/// [`PruneError`] when another process records to the file, or the database refuses.
pub(crate) async fn prune(
    at: impl Into<Location>,
    filter: &PruneFilter,
) -> Result<PruneReport, PruneError> {
    match at.into() {
        Location::File(path) => prune_file(&path, filter).await,
        server @ Location::Server(_) => prune_server(&server, filter, |_| {}).await,
    }
}

async fn prune_file(path: &Path, filter: &PruneFilter) -> Result<PruneReport, PruneError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.display().to_string()).into());
    }
    let (local, lock) = open::beside(path, sqlite::open::for_maintenance).await?;
    lock.note_prune();
    let file = OffloadedConnection::new(local);
    let mut connection = StoreConnection::Offloaded(file.clone());
    let bytes_before = file_bytes(path);
    let (planned, is_self_contained) = plan(&mut connection, filter).await?;

    // References are not checked row by row: see `remove`.
    query("PRAGMA foreign_keys = OFF").execute(&mut connection).await?;
    // No checkpointer runs here.
    query("PRAGMA wal_autocheckpoint = 4000").execute(&mut connection).await?;
    if is_self_contained {
        note_self_contained(&mut connection).await?;
    }
    let done = delete(&mut connection, planned, filter, BATCH_EPISODES, |_| {}).await?;

    // The episodes are gone; an error from here on only keeps the space.
    let withheld = match file.run(give_back).await {
        Ok(FreeSpace::Returned) => None,
        Ok(FreeSpace::HeldByReader) => Some(HELD_BY_READER.to_owned()),
        Err(error) => Some(error.to_string()),
    };
    drop((connection, file));
    let bytes_after = file_bytes(path);
    Ok(PruneReport { plan: done, bytes_before, bytes_after, withheld, ..PruneReport::default() })
}

/// Deletes from a database, beside its recorders. Each attempt that is gone is told.
pub(crate) async fn prune_server(
    at: &Location,
    filter: &PruneFilter,
    gone: impl FnMut(&AttemptId),
) -> Result<PruneReport, PruneError> {
    let mut connection = open::for_editing(at).await?;
    let bytes_before = server_bytes(&mut connection).await?;
    let (planned, is_self_contained) = plan(&mut connection, filter).await?;
    if is_self_contained {
        note_self_contained(&mut connection).await?;
    }
    // One by one: an episode is locked while it is deleted.
    let done = delete(&mut connection, planned, filter, 1, gone).await?;
    let bytes_after = server_bytes(&mut connection).await?;
    connection.close().await?;

    let reason = "PostgreSQL keeps it for new rows once autovacuum has run; `VACUUM FULL` \
                  gives it to the system";
    let withheld = (!done.candidates.is_empty()).then(|| reason.to_owned());
    Ok(PruneReport { plan: done, bytes_before, bytes_after, withheld, ..PruneReport::default() })
}

async fn server_bytes(connection: &mut StoreConnection) -> Result<u64, sqlx::Error> {
    Ok(query(SERVER_BYTES).scalar::<i64>(connection).await?.unsigned_abs())
}

/// Deletes the attempts of a plan, each as a whole, so many in one transaction. Returns the plan as
/// it was carried out.
async fn delete(
    connection: &mut StoreConnection,
    mut plan: PrunePlan,
    filter: &PruneFilter,
    batch: usize,
    mut gone: impl FnMut(&AttemptId),
) -> Result<PrunePlan, sqlx::Error> {
    let mut left = std::mem::take(&mut plan.candidates).into_iter().peekable();
    while left.peek().is_some() {
        connection.begin().await?;
        let mut removed = Vec::with_capacity(batch);
        for candidate in left.by_ref().take(batch) {
            let removal = remove(connection, &candidate, filter).await?;
            removed.push((candidate, removal));
        }
        connection.commit().await?;

        for (candidate, removal) in removed {
            if removal == Removal::Removed {
                gone(&candidate.attempt);
            }
            plan.note(candidate, removal);
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::plan::OPEN_IDLE_US;
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
        let forget = "DELETE FROM setting WHERE name = 'self_contained'";
        query(forget).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let (since, now) = (Some(3 * HOUR), 20 * HOUR);
        let mut which = PruneFilter { silent_since: since, now, ..PruneFilter::default() };
        let plan = plan_prune(&site.at, &which).await.unwrap();
        let needed = BTreeMap::from([(KeepReason::Needed, 2)]);
        assert_eq!((plan.candidates.len(), &plan.kept), (0, &needed));
        which.silent_since = Some(4 * HOUR);
        let plan = plan_prune(&site.at, &which).await.unwrap();
        assert_eq!(plan.candidates.len(), 3, "all go together");
        assert!(prune(&site.at, &which).await.unwrap().plan.candidates.len() == 3);
        let settings = "SELECT count(*) FROM setting WHERE name = 'self_contained'";
        let mut connection = open::for_editing(&site.at).await.unwrap();
        let known = query(settings).scalar::<i64>(&mut connection).await.unwrap();
        assert_eq!(known, 0, "it was not so");
}).await;
    }
}
