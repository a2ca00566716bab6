//! The reels of the episodes that had calls lately, within a bound of bytes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use episode::{CallId, EpisodeId, InvalidId, Micros, Tag};
use sqlx::{Row, SqliteConnection};

use crate::batch::Batch;
use crate::commit::{CommitError, open_episode};
use crate::read::{Fresh, ReadError, Reader};
use crate::reel::Reel;
use crate::trace::Trace;

/// Bytes that all reels may occupy. One that is put out is read back when its episode goes on.
const BYTES_MAX: usize = 384 << 20;
/// Calls of an episode that later ones may go on from when its reel is read back.
const CALLS_RESTORED: i64 = 8;

/// Calls that were begun and have not ended, of which the writer knows without asking.
const CALLS_MAX: usize = 1 << 16;

/// An attempt at an episode.
type Attempt = (EpisodeId, u32);

/// The reels that are held.
#[derive(Debug, Default)]
pub(crate) struct Reels {
    held: HashMap<Attempt, Held>,
    calls: HashMap<CallId, (i64, Attempt)>,
    /// What the transaction under way has touched.
    touched: Vec<Attempt>,
    began: Vec<CallId>,
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    episode_key: i64,
    told: u64,
    reel: Reel,
    used: u64,
    weight: usize,
}

/// An episode that is written to. It is taken out, to be put back.
#[derive(Debug)]
pub(crate) struct Open {
    attempt: Attempt,
    pub(crate) episode_key: i64,
    /// What its calls said of it last, as a hash.
    told: u64,
    pub(crate) reel: Reel,
}

impl Reels {
    /// The episode of a tag, made or read back if need be.
    pub(crate) async fn open(
        &mut self,
        connection: &mut SqliteConnection,
        tag: &Tag,
        at: Micros,
    ) -> Result<Open, sqlx::Error> {
        let attempt = (tag.episode.clone(), tag.attempt);
        let told = hash_of(&(&tag.group, &tag.task, &tag.labels));
        match self.take(&attempt) {
            Some(open) if open.told == told => Ok(open),
            Some(open) => {
                open_episode(connection, tag, at).await?;
                Ok(Open { told, ..open })
            }
            None => {
                let (episode_key, _) = open_episode(connection, tag, at).await?;
                let reel = reel_of(connection, episode_key).await?;
                Ok(Open { attempt, episode_key, told, reel })
            }
        }
    }

    /// A call that has not ended: its key and its episode.
    pub(crate) async fn open_of(
        &mut self,
        connection: &mut SqliteConnection,
        call_id: CallId,
    ) -> Result<(i64, Open), CommitError> {
        if let Some((call_key, attempt)) = self.calls.get(&call_id).cloned()
            && let Some(open) = self.take(&attempt)
        {
            return Ok((call_key, open));
        }
        let row = sqlx::query(
            "SELECT c.call_key, e.episode_key, e.episode_id, e.attempt \
             FROM call c JOIN episode e USING (episode_key) \
             WHERE c.call_id = $1 AND c.ended_at IS NULL",
        )
        .bind(call_id.to_string())
        .fetch_optional(&mut *connection)
        .await?;
        let row = row.ok_or(CommitError::NotBegun(call_id))?;
        let name: String = row.try_get("episode_id")?;
        let bad = |error: InvalidId| sqlx::Error::Decode(Box::new(error));
        let attempt = (name.parse().map_err(bad)?, row.try_get("attempt")?);
        let call_key = row.try_get("call_key")?;
        if let Some(open) = self.take(&attempt) {
            return Ok((call_key, open));
        }
        let episode_key = row.try_get("episode_key")?;
        let reel = reel_of(connection, episode_key).await?;
        Ok((call_key, Open { attempt, episode_key, told: 0, reel }))
    }

    fn take(&mut self, attempt: &Attempt) -> Option<Open> {
        self.touched.push(attempt.clone());
        let held = self.held.remove(attempt)?;
        self.bytes -= held.weight;
        let Held { episode_key, told, reel, .. } = held;
        Some(Open { attempt: attempt.clone(), episode_key, told, reel })
    }

    /// Puts an episode back.
    pub(crate) fn put(&mut self, open: Open) {
        self.clock += 1;
        let Open { attempt, episode_key, told, reel } = open;
        let (used, weight) = (self.clock, reel.weight());
        self.bytes += weight;
        self.held.insert(attempt, Held { episode_key, told, reel, used, weight });
    }

    /// A call of this episode was begun.
    pub(crate) fn began(&mut self, call_id: CallId, call_key: i64, open: &Open) {
        if self.calls.len() < CALLS_MAX {
            self.calls.insert(call_id, (call_key, open.attempt.clone()));
            self.began.push(call_id);
        }
    }

    /// The call was ended.
    pub(crate) fn ended(&mut self, call_id: CallId) {
        self.calls.remove(&call_id);
    }

    /// The transaction is on disk.
    pub(crate) fn committed(&mut self) {
        self.touched.clear();
        self.began.clear();
        if self.bytes > BYTES_MAX {
            self.make_room(BYTES_MAX / 8 * 7);
        }
    }

    /// The transaction is not on disk: what its reels say is not so.
    pub(crate) fn rolled_back(&mut self) {
        for attempt in self.touched.drain(..) {
            if let Some(held) = self.held.remove(&attempt) {
                self.bytes -= held.weight;
            }
        }
        for call_id in self.began.drain(..) {
            self.calls.remove(&call_id);
        }
    }

    /// Lets all reels shrink whose episodes had no call for longest, then lets them go.
    fn make_room(&mut self, bytes: usize) {
        let mut oldest: Vec<(u64, Attempt)> =
            self.held.iter().map(|(attempt, held)| (held.used, attempt.clone())).collect();
        oldest.sort_unstable();
        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(held) = self.held.get_mut(attempt) {
                held.reel.shrink();
                let weight = held.reel.weight();
                self.bytes = self.bytes + weight - held.weight;
                held.weight = weight;
            }
        }
        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(held) = self.held.remove(attempt) {
                self.bytes -= held.weight;
            }
        }
    }
}

/// The reel of an episode, made or read back.
async fn reel_of(connection: &mut SqliteConnection, episode_key: i64) -> Result<Reel, sqlx::Error> {
    let mut batch = Batch::default();
    batch
        .then(
            "INSERT INTO reel (episode_key) SELECT ? \
             WHERE NOT EXISTS (SELECT 1 FROM reel WHERE episode_key = ?)",
        )
        .bind(episode_key)
        .bind(episode_key)
        .then(
            "SELECT reel_key, EXISTS (SELECT 1 FROM segment s WHERE s.reel_key = r.reel_key) \
             AS used FROM reel r WHERE episode_key = ? ORDER BY reel_key DESC LIMIT 1",
        )
        .bind(episode_key);
    let row = batch.run_to_row(connection).await?;
    let key = row.try_get("reel_key")?;
    if !row.try_get::<bool, _>("used")? {
        return Ok(Reel::new(key));
    }
    match restored(connection, key).await {
        Ok(reel) => Ok(reel),
        Err(error) => {
            tracing::error!(%error, episode_key, "a reel cannot be read back; a new one begins");
            let made = "INSERT INTO reel (episode_key) VALUES (?) RETURNING reel_key";
            Ok(Reel::new(sqlx::query_scalar(made).bind(episode_key).fetch_one(connection).await?))
        }
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A reel as it is on disk.
async fn restored(connection: &mut SqliteConnection, key: i64) -> Result<Reel, ReadError> {
    let mut reel = Reel::new(key);
    let mut reader = Reader::default();
    let back = |fresh: Fresh<'_>| reel.restore(fresh.track, fresh.bytes, fresh.context);
    reader.load(connection, key, back).await?;
    let newest = "SELECT c.call_key, b.body_key, b.depth FROM call c \
                  JOIN body b ON b.body_key = c.request_body \
                  WHERE c.episode_key = (SELECT episode_key FROM reel WHERE reel_key = $1) \
                  AND b.reel_key = $1 ORDER BY c.started_at DESC LIMIT $2";
    let rows = sqlx::query(newest).bind(key).bind(CALLS_RESTORED);
    for row in rows.fetch_all(&mut *connection).await?.iter().rev() {
        let (call_key, body_key) = (row.try_get("call_key")?, row.try_get("body_key")?);
        let pieces = reader.pieces(connection, body_key).await?;
        reel.restore_request(body_key, row.try_get("depth")?, pieces);
        let mut trace = Trace::default();
        trace.of_call(connection, call_key).await?;
        for path in trace.paths((&mut *connection, &mut reader), call_key).await? {
            reel.restore_path(call_key, &path);
        }
    }
    Ok(reel)
}
