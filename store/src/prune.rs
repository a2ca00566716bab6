//! Taking episodes out of a store: a plan first, then the deed, then the space given back.
//!
//! Whole episodes go, with all that is theirs. Bodies go on from bodies and prompts from prompts
//! of the same episode only, so nothing that is kept loses what it stands on; that this holds for
//! the file at hand is looked at, not believed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use episode::{EpisodeId, Micros};
use thiserror::Error;

use crate::fields::Row;
use crate::file;
use crate::link::Link;
use crate::location::Location;
use crate::open::{self, Durability, OpenError};
use crate::query::query;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::space::{Space, file_bytes, give_back, server_bytes};

/// Episodes that go in one transaction.
const BATCH_EPISODES: usize = 32;
/// An episode that is not closed and had a call within this time may go on.
const OPEN_IDLE_US: Micros = 3_600_000_000;

/// Which episodes are to go: all that fit every one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prune {
    /// This episode, open or not.
    pub episode: Option<EpisodeId>,
    /// This run of it; all of them if not given.
    pub attempt: Option<u32>,
    /// Nothing was heard of it since.
    pub silent_since: Option<Micros>,
    /// These are kept.
    pub keep: BTreeSet<(String, u32)>,
    /// The time, by which it is told which episodes may still go on.
    pub now: Micros,
}

/// An attempt at an episode that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    key: i64,
    /// The episode.
    pub episode: String,
    /// Which run of it.
    pub attempt: u32,
    /// Its calls.
    pub calls: u64,
    /// What its rows hold, about, in bytes.
    pub bytes: u64,
    /// When something was last heard of it: a call, a reward, its closing.
    pub last_at: Micros,
}

/// Why an episode is kept that would go otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// It was to be kept.
    Named,
    /// It is not closed and had a call within the last hour.
    Open,
    /// Something that is kept goes on from it.
    Needed,
}

/// What is to go and what is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// What goes, the longest silent first.
    pub doomed: Vec<Doomed>,
    /// How many attempts are kept that would go otherwise, and why.
    pub kept: BTreeMap<Kept, u64>,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// What is gone.
    pub plan: PrunePlan,
    /// Bytes of the file before.
    pub bytes_before: u64,
    /// Bytes of the file after.
    pub bytes_after: u64,
    /// Why the space was not given back, or not all of it.
    pub withheld: Option<String>,
}

/// Why nothing was pruned, or not all.
#[derive(Debug, Error)]
pub enum PruneError {
    /// The store could not be opened for writing.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] SnapshotError),
    /// The database refused. What was pruned before is gone, whole episodes each.
    #[error("cannot prune the store")]
    Database(#[from] sqlx::Error),
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

/// Bytes of an episode's rows, but for small columns.
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
        WHERE c.episode_key = $1) AS BIGINT)";

/// Which episode stands on which other one. There is no such row in a sound store.
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

/// Children first. References are not checked row by row: for each row that goes, SQLite would
/// read whole tables whose references have no index.
const DEEDS: [&str; 14] = [
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
    "DELETE FROM delivery WHERE episode_key = $1",
    "DELETE FROM finished WHERE episode_key = $1",
    "DELETE FROM waiting WHERE episode_key = $1",
    "DELETE FROM episode WHERE episode_key = $1",
];

/// Says what [`prune`] would do now to the store that is `at` a place.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read.
pub async fn plan_prune(
    at: impl Into<Location>,
    which: &Prune,
) -> Result<PrunePlan, SnapshotError> {
    plan(Snapshot::open(at).await?.connection(), which).await
}

/// Takes episodes out of the store that is `at` a place and gives the space back.
///
/// It takes the place of a file's one writer meanwhile: that one holds in memory what later calls
/// of an episode refer to. A database may be written to: whoever finds gone what it refers to is
/// told by the database, and begins the episode anew.
///
/// # Errors
/// [`PruneError`] when something else records to the file, or the database refuses.
pub async fn prune(at: impl Into<Location>, which: &Prune) -> Result<Pruned, PruneError> {
    match at.into() {
        Location::File(path) => prune_file(&path, which).await,
        server @ Location::Server(_) => prune_server(&server, which).await,
    }
}

async fn prune_file(path: &Path, which: &Prune) -> Result<Pruned, PruneError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.display().to_string()).into());
    }
    let (sqlite, _lock) = file::for_recording(path, Durability::Power).await?;
    let mut link = Link::File(sqlite);
    let bytes_before = file_bytes(path);
    let plan = plan_prune(path, which).await?;
    query("PRAGMA foreign_keys = OFF").execute(&mut link).await?;
    // Nobody else does checkpoints here.
    query("PRAGMA wal_autocheckpoint = 1000").execute(&mut link).await?;
    remove(&mut link, &plan).await?;
    let withheld = match give_back(link.file()?).await {
        Ok(Space::Returned) => None,
        Ok(Space::Held) => Some("something else reads the file; it shrinks later".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    link.close().await?;
    Ok(Pruned { plan, bytes_before, bytes_after: file_bytes(path), withheld })
}

async fn prune_server(at: &Location, which: &Prune) -> Result<Pruned, PruneError> {
    let mut link = open::for_amending(at).await?;
    let bytes_before = server_bytes(&mut link).await?;
    let plan = plan(&mut link, which).await?;
    remove(&mut link, &plan).await?;
    let bytes_after = server_bytes(&mut link).await?;
    link.close().await?;
    let withheld = "PostgreSQL keeps it for new rows once autovacuum has run; `VACUUM FULL` \
                    gives it to the system";
    let withheld = (!plan.doomed.is_empty()).then(|| withheld.to_owned());
    Ok(Pruned { plan, bytes_before, bytes_after, withheld })
}

/// Takes what is doomed out, whole episodes at a time.
async fn remove(link: &mut Link, plan: &PrunePlan) -> Result<(), sqlx::Error> {
    for batch in plan.doomed.chunks(BATCH_EPISODES) {
        link.begin().await?;
        for doomed in batch {
            for deed in DEEDS {
                query(deed).bind(doomed.key).execute(link).await?;
            }
        }
        link.commit().await?;
    }
    Ok(())
}

async fn plan(connection: &mut Link, which: &Prune) -> Result<PrunePlan, SnapshotError> {
    let rows = query(EPISODES)
        .bind(which.episode.as_ref().map(EpisodeId::as_str))
        .bind(which.attempt)
        .fetch_all(&mut *connection)
        .await?;
    let mut plan = PrunePlan::default();
    for row in &rows {
        let doomed = Doomed {
            key: row.try_get("episode_key")?,
            episode: row.try_get("episode_id")?,
            attempt: row.try_get("attempt")?,
            calls: row.try_get::<i64>("calls")?.unsigned_abs(),
            bytes: 0,
            last_at: row.try_get("last_at")?,
        };
        if which.silent_since.is_some_and(|since| doomed.last_at >= since) {
            continue;
        }
        let open = row.try_get::<Option<Micros>>("closed_at")?.is_none();
        match which.kept(&doomed, open) {
            Some(kept) => *plan.kept.entry(kept).or_default() += 1,
            None => plan.doomed.push(doomed),
        }
    }
    keep_needed(connection, &mut plan).await?;
    for doomed in &mut plan.doomed {
        let bytes = query(BYTES).bind(doomed.key).scalar::<i64>(connection).await?;
        doomed.bytes = bytes.unsigned_abs();
    }
    Ok(plan)
}

impl Prune {
    fn kept(&self, doomed: &Doomed, open: bool) -> Option<Kept> {
        if self.keep.contains(&(doomed.episode.clone(), doomed.attempt)) {
            return Some(Kept::Named);
        }
        let fresh = doomed.last_at > self.now.saturating_sub(OPEN_IDLE_US);
        (open && fresh && self.episode.is_none()).then_some(Kept::Open)
    }
}

/// Keeps what something that is kept stands on, and what that stands on.
async fn keep_needed(connection: &mut Link, plan: &mut PrunePlan) -> Result<(), sqlx::Error> {
    let rows = query(NEEDS).fetch_all(connection).await?;
    let need = |row: &Row| Ok((row.try_get("who")?, row.try_get("whom")?));
    let needs = rows.iter().map(need).collect::<Result<Vec<(i64, i64)>, sqlx::Error>>()?;
    loop {
        let doomed: BTreeSet<i64> = plan.doomed.iter().map(|doomed| doomed.key).collect();
        let needed = |key| needs.iter().any(|(who, whom)| *whom == key && !doomed.contains(who));
        plan.doomed.retain(|doomed| !needed(doomed.key));
        let spared = doomed.len() - plan.doomed.len();
        if spared == 0 {
            return Ok(());
        }
        *plan.kept.entry(Kept::Needed).or_default() += spared as u64;
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
            let which = Prune { silent_since: Some(8 * HOUR), now: 20 * HOUR, ..Prune::default() };
            let plan = plan_prune(&site.at, &which).await.unwrap();
            assert_eq!((plan.doomed.len(), plan.doomed[0].calls), (1, 4));
            assert!(plan.doomed[0].bytes > 500_000, "{plan:?}");
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
        let mut connection = file::again(path, Durability::Power).await.unwrap();
        for statement in ["PRAGMA auto_vacuum = NONE", "VACUUM"] {
            sqlx::query(statement).execute(&mut connection).await.unwrap();
        }
        sqlx::Connection::close(connection).await.unwrap();
        let which = Prune { silent_since: Some(8 * HOUR), now: 20 * HOUR, ..Prune::default() };
        let pruned = prune(&site.at, &which).await.unwrap();
        assert!(pruned.bytes_after + 500_000 < pruned.bytes_before, "{pruned:?}");
        assert_eq!(left(&site).await, ["new"]);
        assert!(verify(&site.at).await.unwrap().is_clean());
    }

    #[tokio::test]
    async fn what_is_kept_is_told_and_why() {
        on_both(async |site| {
            filled(&site, &[("a", HOUR), ("b", HOUR), ("open", 9 * HOUR)], 10).await;
            let keep = BTreeSet::from([("b".to_owned(), 0)]);
            let which = Prune { keep, now: 9 * HOUR + 10, ..Prune::default() };
            let plan = plan_prune(&site.at, &which).await.unwrap();
            assert_eq!(plan.doomed.len(), 1);
            assert_eq!(plan.kept, BTreeMap::from([(Kept::Named, 1), (Kept::Open, 1)]));
            let which = Prune { episode: Some("open".parse().unwrap()), ..which };
            assert_eq!(plan_prune(&site.at, &which).await.unwrap().doomed.len(), 1, "it was named");
            let which = Prune { attempt: Some(1), ..which };
            assert_eq!(plan_prune(&site.at, &which).await.unwrap().doomed.len(), 0);
        })
        .await;
    }

    #[tokio::test]
    async fn what_something_kept_stands_on_is_kept() {
        on_both(async |site| {
        filled(&site, &[("a", HOUR), ("b", 2 * HOUR), ("c", 3 * HOUR)], 10).await;
        let mut link = open::for_amending(&site.at).await.unwrap();
        let leans = "UPDATE prompt SET parent_key = (SELECT min(call_key) FROM call c JOIN episode \
                     USING (episode_key) WHERE episode_id = $1), parent_choice = 0 \
                     WHERE call_key = (SELECT max(call_key) FROM call c JOIN episode \
                     USING (episode_key) WHERE episode_id = $2) AND prompt_index = 0";
        for (whom, who) in [("a", "b"), ("b", "c")] {
            query(leans).bind(whom).bind(who).execute(&mut link).await.unwrap();
        }
        link.close().await.unwrap();
        let mut which = Prune { silent_since: Some(3 * HOUR), now: 20 * HOUR, ..Prune::default() };
        let plan = plan_prune(&site.at, &which).await.unwrap();
        assert_eq!((plan.doomed.len(), &plan.kept), (0, &BTreeMap::from([(Kept::Needed, 2)])));
        which.silent_since = Some(4 * HOUR);
        assert_eq!(plan_prune(&site.at, &which).await.unwrap().doomed.len(), 3, "all go together");
}).await;
    }
}
