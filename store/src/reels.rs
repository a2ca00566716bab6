//! The reels of the episodes that had calls lately, within a bound of bytes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use episode::{CallId, EpisodeId, InvalidId, Micros, Tag};

use crate::commit::{CommitError, open_episode};
use crate::link::Link;
use crate::query::query;
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
    /// Who writes: of several that share a database, each has reels of its own.
    writer: i64,
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
    /// None yet, for the writer of that number.
    pub(crate) fn of(writer: i64) -> Self {
        Self { writer, ..Self::default() }
    }

    /// Who writes.
    pub(crate) fn writer(&self) -> i64 {
        self.writer
    }

    /// The episode of a tag, made or read back if need be.
    pub(crate) async fn open(
        &mut self,
        connection: &mut Link,
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
                let reel = reel_of(connection, episode_key, self.writer).await?;
                Ok(Open { attempt, episode_key, told, reel })
            }
        }
    }

    /// A call that has not ended: its key and its episode.
    pub(crate) async fn open_of(
        &mut self,
        connection: &mut Link,
        call_id: CallId,
    ) -> Result<(i64, Open), CommitError> {
        if let Some((call_key, attempt)) = self.calls.get(&call_id).cloned()
            && let Some(open) = self.take(&attempt)
        {
            return Ok((call_key, open));
        }
        let row = query(
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
        let reel = reel_of(connection, episode_key, self.writer).await?;
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

/// The reel that `writer` has of an episode, made or read back.
async fn reel_of(link: &mut Link, episode_key: i64, writer: i64) -> Result<Reel, sqlx::Error> {
    let first = "INSERT INTO reel (episode_key, writer) SELECT $1, $2 WHERE NOT EXISTS \
                 (SELECT 1 FROM reel WHERE episode_key = $1 AND writer = $2) RETURNING reel_key";
    let made = query(first).bind(episode_key).bind(writer).fetch_optional(link).await?;
    if let Some(row) = made {
        return Ok(Reel::new(row.first()?));
    }
    let newest = "SELECT reel_key FROM reel WHERE episode_key = $1 AND writer = $2 \
                  ORDER BY reel_key DESC LIMIT 1";
    let key = query(newest).bind(episode_key).bind(writer).scalar(link).await?;
    match restored(link, key).await {
        Ok(reel) => Ok(reel),
        Err(error) => {
            tracing::error!(%error, episode_key, "a reel cannot be read back; a new one begins");
            let another = "INSERT INTO reel (episode_key, writer) VALUES ($1, $2) \
                           RETURNING reel_key";
            Ok(Reel::new(query(another).bind(episode_key).bind(writer).scalar(link).await?))
        }
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A reel as it is on disk.
async fn restored(connection: &mut Link, key: i64) -> Result<Reel, ReadError> {
    let mut reel = Reel::new(key);
    let mut reader = Reader::default();
    let back = |fresh: Fresh<'_>| reel.restore(fresh.track, fresh.bytes, fresh.context);
    reader.load(connection, key, back).await?;
    let newest = "SELECT c.call_key, b.body_key, b.depth FROM call c \
                  JOIN body b ON b.body_key = c.request_body \
                  WHERE c.episode_key = (SELECT episode_key FROM reel WHERE reel_key = $1) \
                  AND b.reel_key = $1 ORDER BY c.started_at DESC LIMIT $2";
    let rows = query(newest).bind(key).bind(CALLS_RESTORED);
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
