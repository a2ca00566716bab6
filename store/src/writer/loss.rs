//! Marks on the episodes that may lack calls, for `--durability relaxed`.
//!
//! The first call of an episode in a process waits, as in the strict modes, and its commit marks
//! the episode: from then on calls of it may be lost. Calls of an episode with keys or a budget all
//! wait, because each may be refused, and so do calls that name another group, task or label. A
//! close removes the mark, because it is written after all calls before it; so does a clean stop. A
//! recorder that dies leaves its marks, and the next one makes them final. A call that was dropped
//! is final at once.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use episode::{AttemptId, EpisodeId, Tag};

use crate::commit::gate::words_of;
use crate::commit::marks::{remove_marks, set_may_lack_calls};
use crate::database::connection::StoreConnection;

/// Attempts that are remembered. Beyond it all are forgotten, and their next calls wait again.
const ATTEMPTS_MAX: usize = 100_000;

/// The marked attempts and the losses of this process.
#[derive(Debug, Default)]
pub(crate) struct LossTracker(Mutex<LossSets>);

#[derive(Debug, Default)]
struct LossSets {
    /// The words of the call that marked each attempt.
    marked: HashMap<AttemptId, u64>,
    /// Attempts that lost a call whose request is not on disk either.
    lost: HashSet<AttemptId>,
    /// True where more attempts lost calls than are remembered: no mark may be removed.
    is_overrun: bool,
}

impl LossTracker {
    /// True where the mark of the tag's attempt is on disk, and its words were let in.
    pub(crate) fn is_marked(&self, tag: &Tag) -> bool {
        self.sets().marked.get(&AttemptId::from(tag)) == Some(&words_of(tag))
    }

    /// Notes that the mark of the tag's attempt is on disk.
    pub(crate) fn set_marked(&self, tag: &Tag) {
        let mut sets = self.sets();
        if sets.marked.len() >= ATTEMPTS_MAX {
            sets.marked.clear();
        }
        sets.marked.insert(AttemptId::from(tag), words_of(tag));
    }

    /// Forgets the mark of an attempt: its next call waits, and may be refused.
    pub(crate) fn forget_mark(&self, attempt: &AttemptId) {
        self.sets().marked.remove(attempt);
    }

    /// Forgets the marks of all attempts at an episode.
    pub(crate) fn forget_marks(&self, episode: &EpisodeId) {
        self.sets().marked.retain(|attempt, _| attempt.episode != *episode);
    }

    /// Forgets all marks.
    pub(crate) fn forget_all_marks(&self) {
        self.sets().marked.clear();
    }

    /// Notes that a call of the attempt is lost.
    pub(crate) fn add_lost(&self, attempt: AttemptId) {
        let mut sets = self.sets();
        if sets.lost.len() < ATTEMPTS_MAX {
            sets.lost.insert(attempt);
        } else {
            sets.is_overrun = true;
        }
    }

    /// True where there are losses to write.
    pub(crate) fn has_lost(&self) -> bool {
        !self.sets().lost.is_empty()
    }

    /// Writes which attempts lost a call.
    pub(crate) async fn write_losses(
        &self,
        connection: &mut StoreConnection,
    ) -> Result<(), sqlx::Error> {
        let lost: Vec<AttemptId> = self.sets().lost.iter().cloned().collect();
        for attempt in lost {
            set_may_lack_calls(connection, &attempt).await?;
            // Only now: if the statement fails, the loss is written later.
            self.sets().lost.remove(&attempt);
        }
        Ok(())
    }

    /// Removes the marks of `writer` at a clean stop.
    pub(crate) async fn remove_marks(
        &self,
        connection: &mut StoreConnection,
        writer: i64,
    ) -> Result<(), sqlx::Error> {
        self.write_losses(connection).await?;
        if self.sets().is_overrun {
            return Ok(());
        }
        remove_marks(connection, writer).await
    }

    fn sets(&self) -> MutexGuard<'_, LossSets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
