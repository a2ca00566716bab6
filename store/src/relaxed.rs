//! Calls that nobody waits for, and the mark on each episode that may lack some.
//!
//! The first call of an episode in a process waits, as in the strict modes, and its commit marks
//! the episode: from then on calls of it may be lost. Whoever ends well takes the mark off again:
//! a close, which is written after all calls before it, or a clean stop. A recorder that died
//! leaves it, and the next one makes it final. So does a call that was dropped.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use episode::EpisodeId;

use crate::link::Link;
use crate::query::query;

/// Episodes that are remembered. Beyond it all are forgotten, and their next calls wait again.
const EPISODES_MAX: usize = 100_000;

/// An attempt at an episode.
pub(crate) type Key = (EpisodeId, u32);

/// What is known of the episodes that this process records.
#[derive(Debug, Default)]
pub(crate) struct Relaxed(Mutex<Sets>);

#[derive(Debug, Default)]
struct Sets {
    marked: HashSet<Key>,
    /// Episodes that lost a call whose request is not on disk either.
    lost: HashSet<Key>,
    /// There were more of those than are remembered: no mark may be taken off.
    is_overrun: bool,
}

impl Relaxed {
    /// Whether the episode's mark is on disk.
    pub(crate) fn is_marked(&self, key: &Key) -> bool {
        self.sets().marked.contains(key)
    }

    /// The mark is on disk.
    pub(crate) fn marked(&self, key: Key) {
        let mut sets = self.sets();
        if sets.marked.len() >= EPISODES_MAX {
            sets.marked.clear();
        }
        sets.marked.insert(key);
    }

    /// The episode is being closed: its next call is to wait and be refused.
    pub(crate) fn unmarked(&self, key: &Key) {
        self.sets().marked.remove(key);
    }

    /// A call of the episode is lost.
    pub(crate) fn lost(&self, key: Key) {
        let mut sets = self.sets();
        if sets.lost.len() < EPISODES_MAX {
            sets.lost.insert(key);
        } else {
            sets.is_overrun = true;
        }
    }

    /// Whether there is something to tell.
    pub(crate) fn has_lost(&self) -> bool {
        !self.sets().lost.is_empty()
    }

    /// Writes down which episodes lost a call.
    pub(crate) async fn tell(&self, connection: &mut Link) -> Result<(), sqlx::Error> {
        let lost: Vec<Key> = self.sets().lost.iter().cloned().collect();
        for key in lost {
            lose(connection, &key).await?;
            self.sets().lost.remove(&key);
        }
        Ok(())
    }

    /// Takes the marks off at a clean stop.
    pub(crate) async fn settle(&self, link: &mut Link, writer: i64) -> Result<(), sqlx::Error> {
        self.tell(link).await?;
        if !self.sets().is_overrun {
            query("DELETE FROM mark WHERE writer = $1").bind(writer).execute(link).await?;
        }
        Ok(())
    }

    fn sets(&self) -> MutexGuard<'_, Sets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks an episode for `writer`, in the transaction of its first call.
pub(crate) async fn mark(link: &mut Link, key: &Key, writer: i64) -> Result<(), sqlx::Error> {
    let one = "INSERT INTO mark (writer, episode_key) SELECT $3, episode_key FROM episode \
               WHERE episode_id = $1 AND attempt = $2 ON CONFLICT DO NOTHING";
    query(one).bind(key.0.as_str()).bind(key.1).bind(writer).execute(link).await
}

/// Takes an episode's mark off.
pub(crate) async fn unmark(link: &mut Link, key: &Key, writer: i64) -> Result<(), sqlx::Error> {
    let one = "DELETE FROM mark WHERE writer = $3 AND episode_key = \
               (SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2)";
    query(one).bind(key.0.as_str()).bind(key.1).bind(writer).execute(link).await
}

/// Makes the marks final that a recorder left when it died.
pub(crate) async fn adopt(link: &mut Link, writer: i64) -> Result<(), sqlx::Error> {
    let left = "UPDATE episode SET may_lack_calls = 1 \
                WHERE episode_key IN (SELECT episode_key FROM mark WHERE writer = $1)";
    query(left).bind(writer).execute(link).await?;
    query("DELETE FROM mark WHERE writer = $1").bind(writer).execute(link).await
}

/// Says of an episode that it lost a call.
async fn lose(link: &mut Link, key: &Key) -> Result<(), sqlx::Error> {
    let one = "UPDATE episode SET may_lack_calls = 1 WHERE episode_id = $1 AND attempt = $2";
    query(one).bind(key.0.as_str()).bind(key.1).execute(link).await
}
