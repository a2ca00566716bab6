//! Deleting episodes while calls are recorded: the writer of a file does it itself, in pieces
//! between its groups of records.
//!
//! A piece takes as many attempts as it can in a short time, each as a whole, in one transaction on
//! a connection of its own. So records wait for one piece at most, and a process that dies leaves
//! whole attempts.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use episode::AttemptId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::commit::state::CommitState;
use crate::database::connection::StoreConnection;
use crate::database::local::LocalConnection;
use crate::database::offloaded::{OffloadedConnection, offload};
use crate::error::CommitError;
use crate::location::Location;
use crate::maintenance::prune::plan::{note_self_contained, plan};
use crate::maintenance::prune::remove::{Removal, remove};
use crate::maintenance::prune::{
    HELD_BY_READER, KeepReason, PruneCandidate, PruneError, PruneFilter, PrunePlan, PruneReport,
    prune_server,
};
use crate::maintenance::removal::with_segments;
use crate::sqlite::checkpoint::PASSIVE;
use crate::sqlite::open::reopen;
use crate::sqlite::space::{can_shrink, file_bytes, free_pages, give_back_some};
use crate::types::Durability;
use crate::writer::Store;
use crate::writer::session::WriterSession;

/// Pieces that may wait for the writer.
pub(super) const PIECES_MAX: usize = 1;
/// Attempts that are handed to the writer at once.
const PIECE_ATTEMPTS_MAX: usize = 64;
/// Time after which a piece begins no further attempt.
const PIECE_TIME: Duration = Duration::from_millis(10);
/// Time between two pieces, for the records that wait.
const PIECE_PAUSE: Duration = Duration::from_millis(10);
/// Pages that are given back in the first step; later ones take what fits into [`PIECE_TIME`].
const FIRST_PAGES: i64 = 32;
/// Most pages that are given back in one step.
const PAGES_MAX: i64 = 1024;

/// Something that the writer does between two groups of records.
#[derive(Debug)]
pub(super) struct PrunePiece {
    /// The connection that it is done on. References are not checked on it.
    file: LocalConnection,
    work: PieceWork,
    done: oneshot::Sender<Result<PieceResult, PruneError>>,
}

#[derive(Debug)]
enum PieceWork {
    /// Removes attempts, as many as there is time for.
    Remove {
        candidates: Vec<PruneCandidate>,
        filter: Arc<PruneFilter>,
        /// True if it is to be noted that all episodes stand by themselves.
        is_self_contained: bool,
    },
    /// Gives free pages back, so many.
    GiveBack(i64),
}

/// The result of a piece, and its connection for the next one.
#[derive(Debug)]
struct PieceResult {
    file: LocalConnection,
    /// The fates of the attempts, in their order.
    removals: Vec<Removal>,
    /// Time that the piece took.
    took: Duration,
}

impl Store {
    /// Deletes episodes while calls are recorded, and gives the space back. Each attempt that is
    /// gone is told. A file is pruned by its own writer, between two groups of records; dropping
    /// the future ends it after whole attempts. An open episode with a call within the last hour
    /// is kept, and so is one with a call under way.
    ///
    /// # Errors
    /// [`PruneError`] when the store cannot be read or written. What was deleted before is gone.
    pub async fn prune(
        &self,
        filter: &PruneFilter,
        mut gone: impl FnMut(&AttemptId) + Send,
    ) -> Result<PruneReport, PruneError> {
        let filter = Arc::new(PruneFilter { keeps_open: true, ..filter.clone() });
        let gone = |attempt: &AttemptId| {
            self.forget_marks(|losses| losses.forget_mark(attempt));
            gone(attempt);
        };
        let Location::File(path) = &*self.at else {
            let report = prune_server(&self.at, &filter, gone).await?;
            return Ok(with_segments(&self.at, report).await);
        };
        let bytes_before = file_bytes(path);
        let (planned, is_self_contained) =
            plan(self.snapshot().await?.connection(), &filter).await?;
        let file = Remover::open(path, self.pieces.clone()).await?;

        let (done, file) = file.remove(planned, filter, is_self_contained, gone).await?;
        let withheld = file.give_back().await?;
        let bytes_after = file_bytes(path);
        let report = PruneReport {
            plan: done,
            bytes_before,
            bytes_after,
            withheld,
            ..PruneReport::default()
        };
        Ok(with_segments(&self.at, report).await)
    }
}

/// The one who hands pieces to the writer, with the connection for them.
struct Remover {
    file: LocalConnection,
    pieces: mpsc::Sender<PrunePiece>,
}

impl Remover {
    async fn open(path: &Path, pieces: mpsc::Sender<PrunePiece>) -> Result<Self, PruneError> {
        let path = path.to_owned();
        let file = offload(move || {
            let file = reopen(&path, Durability::Power)?;
            // See `maintenance/prune/remove.rs`.
            file.set("foreign_keys", false)?;
            Ok::<_, sqlx::Error>(file)
        });
        Ok(Self { file: file.await??, pieces })
    }

    /// Lets the writer do a piece.
    async fn piece(self, work: PieceWork) -> Result<(Self, Vec<Removal>, Duration), PruneError> {
        let (done, result) = oneshot::channel();
        let piece = PrunePiece { file: self.file, work, done };
        self.pieces.send(piece).await.map_err(|_| CommitError::Stopped)?;
        let PieceResult { file, removals, took } =
            result.await.map_err(|_| CommitError::Stopped)??;
        Ok((Self { file, pieces: self.pieces }, removals, took))
    }

    /// Removes the attempts of a plan. Returns the plan as it was carried out.
    async fn remove(
        mut self,
        mut plan: PrunePlan,
        filter: Arc<PruneFilter>,
        mut is_self_contained: bool,
        mut gone: impl FnMut(&AttemptId) + Send,
    ) -> Result<(PrunePlan, Self), PruneError> {
        let mut left = std::mem::take(&mut plan.candidates);
        while !left.is_empty() {
            let candidates = left.iter().take(PIECE_ATTEMPTS_MAX).cloned().collect();
            let filter = Arc::clone(&filter);
            let work = PieceWork::Remove { candidates, filter, is_self_contained };
            let (remover, removals, _) = self.piece(work).await?;
            (self, is_self_contained) = (remover, false);

            let count = removals.len();
            for (candidate, removal) in left.drain(..count).zip(removals) {
                if removal == Removal::Removed {
                    gone(&candidate.attempt);
                }
                plan.note(candidate, removal);
            }
            if !left.is_empty() {
                sleep(PIECE_PAUSE).await;
            }
        }
        Ok((plan, self))
    }

    /// Gives all free pages back, a few at a time. Returns why some were kept.
    async fn give_back(mut self) -> Result<Option<String>, PruneError> {
        if !can_shrink(&self.file)? {
            let reason = "the file is of a version whose files cannot shrink by parts; a prune \
                          while nobody records to it rewrites it once";
            return Ok(Some(reason.to_owned()));
        }
        let (mut free, mut pages) = (free_pages(&self.file)?, FIRST_PAGES);
        while free > 0 {
            let (remover, _, took) = self.piece(PieceWork::GiveBack(pages)).await?;
            self = remover;
            let left = free_pages(&self.file)?;
            if left >= free {
                return Ok(Some(HELD_BY_READER.to_owned()));
            }
            free = left;
            pages = if took > PIECE_TIME { (pages / 2).max(1) } else { (pages * 2).min(PAGES_MAX) };
            sleep(PIECE_PAUSE).await;
        }

        // The file is as short as its contents once the WAL is in it. No commit waits for this.
        let file = OffloadedConnection::new(self.file);
        file.run(|file| file.run(PASSIVE)).await?;
        Ok(None)
    }
}

impl PrunePiece {
    /// Does the piece in the writer's thread, and tells the result.
    pub(super) async fn run(self, state: &mut CommitState, session: &mut WriterSession) {
        let Self { file, work, done } = self;
        // Whoever asked has left.
        if done.is_closed() {
            return;
        }
        let result = run(file, work, state, session).await;
        let _ = done.send(result);
    }
}

async fn run(
    file: LocalConnection,
    work: PieceWork,
    state: &mut CommitState,
    session: &mut WriterSession,
) -> Result<PieceResult, PruneError> {
    let began = Instant::now();
    let mut removals = Vec::new();
    let mut connection = StoreConnection::Local(file);
    match work {
        PieceWork::Remove { candidates, filter, is_self_contained } => {
            let running = state.attempts_under_way();
            connection.begin().await?;
            if is_self_contained {
                note_self_contained(&mut connection).await?;
            }
            for candidate in &candidates {
                let removal = match running.contains(&candidate.attempt) {
                    true => Removal::Kept(KeepReason::Running),
                    false => remove(&mut connection, candidate, &filter).await?,
                };
                removals.push(removal);
                if began.elapsed() >= PIECE_TIME {
                    break;
                }
            }
            connection.commit().await?;
            forget(state, &candidates, &removals);
        }
        PieceWork::GiveBack(pages) => {
            if let StoreConnection::Local(file) = &connection {
                give_back_some(file, pages)?;
            }
        }
    }
    session.committed().map_err(CommitError::from)?;

    let StoreConnection::Local(file) = connection else { return Err(CommitError::Stopped.into()) };
    Ok(PieceResult { file, removals, took: began.elapsed() })
}

/// Drops what the writer knows of the attempts that are gone: a call under their names begins them
/// anew.
fn forget(state: &mut CommitState, candidates: &[PruneCandidate], removals: &[Removal]) {
    let removed = candidates.iter().zip(removals).filter(|(_, one)| **one == Removal::Removed);
    removed.for_each(|(candidate, _)| state.drop_attempt(&candidate.attempt));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, Ordering};

    use episode::{CallStart, Micros};

    use super::*;
    use crate::feed::types::{FeedQuery, Lease};
    use crate::site::on_both;
    use crate::tests::{begun, ended};
    use crate::{Selection, verify};

    const HOUR: Micros = 3_600_000_000;

    fn named(episode: &str) -> AttemptId {
        AttemptId { episode: episode.parse().unwrap(), attempt: 0 }
    }

    /// A turn that has `bytes` that are like no other.
    fn turn(episode: &str, at: Micros, bytes: usize) -> CallStart {
        let mut call = begun(episode, at);
        let mut state = at as u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        call.request = (0..bytes).map(|_| noise()).collect::<Vec<u8>>().into();
        call
    }

    async fn record(store: &Store, call: CallStart) {
        let mut end = ended(call.call_id);
        end.ended_at = call.started_at + 1;
        store.begin(call).await.done().await.unwrap();
        store.end(end).await.done().await.unwrap();
    }

    /// Leases the n-th of the finished episodes.
    async fn lease(store: &Store, nth: usize, until: Micros) {
        let consumer = "trainer".to_owned();
        store.begin_consumer(&consumer, 0).await.unwrap();
        while store.snapshot().await.unwrap().is_behind(&consumer).await.unwrap() {
            store.fill_consumer(&consumer).await.unwrap();
        }
        let (now, limit) = (9 * HOUR, 10);
        let query =
            FeedQuery { consumer: Some(consumer.clone()), now, limit, ..FeedQuery::default() };
        let mut items = store.snapshot().await.unwrap().ready(&query).await.unwrap();
        let items = vec![items.swap_remove(nth)];
        let lease = Lease { id: "lease".to_owned(), consumer, items, until, at: now };
        store.lease(lease).await.unwrap();
    }

    async fn left(store: &Store) -> Vec<String> {
        let all = store.snapshot().await.unwrap().episodes(&Selection::default()).await.unwrap();
        all.iter().map(|episode| episode.id.to_string()).collect()
    }

    #[tokio::test]
    async fn what_is_under_way_open_or_leased_is_kept_and_named() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            for episode in ["closed", "leased", "open", "idle", "done"] {
                let at = if episode == "idle" { HOUR } else { 9 * HOUR };
                record(&store, turn(episode, at, 10)).await;
            }
            for episode in ["closed", "leased", "done"] {
                store.close(named(episode), 9 * HOUR + 5, None).await.unwrap();
            }
            let late = begun("idle", 9 * HOUR);
            store.begin(late.clone()).await.done().await.unwrap();
            lease(&store, 1, 10 * HOUR).await;

            let filter = PruneFilter { now: 9 * HOUR + 10, ..PruneFilter::default() };
            let mut gone = Vec::new();
            let report = store.prune(&filter, |one| gone.push(one.to_string())).await.unwrap();
            assert_eq!(gone, ["closed/0", "done/0"]);
            let kept = [
                (named("idle"), KeepReason::Running),
                (named("leased"), KeepReason::Leased),
                (named("open"), KeepReason::Open),
            ];
            let mut told = report.plan.kept_attempts.clone();
            told.sort();
            assert_eq!(told, kept);
            assert_eq!(report.plan.kept, BTreeMap::from(kept.map(|(_, reason)| (reason, 1))));

            // A name does not open what is recorded to.
            let filter = PruneFilter { episode: Some("open".parse().unwrap()), ..filter };
            let report = store.prune(&filter, |_| {}).await.unwrap();
            assert_eq!(report.plan.candidates, []);
            assert_eq!(left(&store).await, ["idle", "leased", "open"]);
            store.end(ended(late.call_id)).await.done().await.unwrap();
            drop(store);
            writer.finish().await;
            assert!(verify(&site.at).await.unwrap().is_clean());
        })
        .await;
    }

    #[tokio::test]
    async fn calls_are_recorded_while_episodes_go_and_a_file_shrinks() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            for n in 0..40 {
                let episode = format!("old-{n}");
                for turn_of in 0..3 {
                    record(&store, turn(&episode, n * 10 + turn_of, 100_000)).await;
                }
                store.close(named(&episode), n * 10 + 9, None).await.unwrap();
            }

            let is_done = AtomicBool::new(false);
            let agent = async {
                let mut calls = 0;
                while !is_done.load(Ordering::Relaxed) || calls < 5 {
                    record(&store, turn("new", 9 * HOUR + calls, 100)).await;
                    calls += 1;
                }
                calls
            };
            let prune = async {
                let filter = PruneFilter {
                    silent_since: Some(8 * HOUR),
                    now: 9 * HOUR,
                    ..PruneFilter::default()
                };
                let report = store.prune(&filter, |_| {}).await.unwrap();
                is_done.store(true, Ordering::Relaxed);
                report
            };
            let (calls, report) = tokio::join!(agent, prune);
            assert_eq!(report.plan.candidates.len(), 40);
            assert_eq!(report.withheld.is_none(), site.is_file(), "{:?}", report.withheld);
            assert_eq!(left(&store).await, ["new"]);

            // A call under a name that is gone begins it anew.
            record(&store, turn("old-1", 9 * HOUR, 10)).await;
            drop(store);
            writer.finish().await;
            let mut snapshot = site.snapshot().await;
            let all = snapshot.episodes(&Selection::default()).await.unwrap();
            let counts = [calls as usize, 1];
            for (episode, count) in all.iter().zip(counts) {
                assert_eq!(snapshot.calls(episode).await.unwrap().len(), count);
            }
            assert!(verify(&site.at).await.unwrap().is_clean());
            if let Location::File(path) = &site.at {
                let bytes = file_bytes(path);
                assert!(bytes < report.bytes_before.max(12_000_000) / 2, "{bytes} {report:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_prune_that_is_left_leaves_whole_episodes() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            for n in 0..30 {
                let episode = format!("old-{n}");
                for turn_of in 0..2 {
                    record(&store, turn(&episode, n * 10 + turn_of, 200_000)).await;
                }
                store.close(named(&episode), n * 10 + 9, None).await.unwrap();
            }
            let filter = PruneFilter { now: 9 * HOUR, ..PruneFilter::default() };
            let (told, first_gone) = oneshot::channel();
            let mut told = Some(told);
            let prune = store.prune(&filter, |_| {
                told.take().map(|told| told.send(()));
            });
            tokio::select! {
                _ = prune => {}
                _ = first_gone => {}
            }
            record(&store, turn("new", 9 * HOUR, 10)).await;
            drop(store);
            writer.finish().await;

            let mut snapshot = site.snapshot().await;
            let all = snapshot.episodes(&Selection::default()).await.unwrap();
            assert!(all.len() < 31, "some went");
            for episode in all.iter().filter(|episode| episode.id.as_str() != "new") {
                assert_eq!(snapshot.calls(episode).await.unwrap().len(), 2);
            }
            drop(snapshot);
            assert!(verify(&site.at).await.unwrap().is_clean());
        })
        .await;
    }
}
