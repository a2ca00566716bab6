//! The reels of the episodes that had calls lately, within a bound of bytes.

use std::collections::HashMap;

use sqlx::{Row, SqliteConnection};

use crate::read::{Fresh, ReadError, Reader};
use crate::reel::Reel;
use crate::trace::Trace;

/// Bytes that all reels may occupy. One that is put out is read back when its episode goes on.
const BYTES_MAX: usize = 384 << 20;
/// Calls of an episode that later ones may go on from when its reel is read back.
const CALLS_RESTORED: i64 = 8;

/// The reels that are held.
#[derive(Debug, Default)]
pub(crate) struct Reels {
    held: HashMap<i64, Held>,
    /// Episodes that the transaction under way has touched.
    touched: Vec<i64>,
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    reel: Reel,
    used: u64,
    weight: usize,
}

impl Reels {
    /// The reel of an episode, made or read back if need be. It is taken out, to be put back.
    pub(crate) async fn take(
        &mut self,
        connection: &mut SqliteConnection,
        episode_key: i64,
    ) -> Result<Reel, sqlx::Error> {
        self.touched.push(episode_key);
        if let Some(held) = self.held.remove(&episode_key) {
            self.bytes -= held.weight;
            return Ok(held.reel);
        }
        let newest = "SELECT max(reel_key) FROM reel WHERE episode_key = $1";
        let found: Option<i64> =
            sqlx::query_scalar(newest).bind(episode_key).fetch_one(&mut *connection).await?;
        if let Some(key) = found {
            match restored(connection, key).await {
                Ok(reel) => return Ok(reel),
                Err(error) => tracing::error!(%error, episode_key, "a reel cannot be read back"),
            }
        }
        let made = "INSERT INTO reel (episode_key) VALUES ($1) RETURNING reel_key";
        Ok(Reel::new(sqlx::query_scalar(made).bind(episode_key).fetch_one(connection).await?))
    }

    /// Puts a reel back.
    pub(crate) fn put(&mut self, episode_key: i64, reel: Reel) {
        self.clock += 1;
        let weight = reel.weight();
        self.bytes += weight;
        self.held.insert(episode_key, Held { reel, used: self.clock, weight });
    }

    /// The transaction is on disk.
    pub(crate) fn committed(&mut self) {
        self.touched.clear();
        if self.bytes > BYTES_MAX {
            self.make_room(BYTES_MAX / 8 * 7);
        }
    }

    /// The transaction is not on disk: what its reels say is not so.
    pub(crate) fn rolled_back(&mut self) {
        for episode_key in self.touched.drain(..) {
            if let Some(held) = self.held.remove(&episode_key) {
                self.bytes -= held.weight;
            }
        }
    }

    /// Lets all reels shrink whose episodes had no call for longest, then lets them go.
    fn make_room(&mut self, bytes: usize) {
        let mut oldest: Vec<(u64, i64)> = self.held.iter().map(|(k, h)| (h.used, *k)).collect();
        oldest.sort_unstable();
        for (_, key) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(held) = self.held.get_mut(key) {
                held.reel.shrink();
                let weight = held.reel.weight();
                self.bytes = self.bytes + weight - held.weight;
                held.weight = weight;
            }
        }
        for (_, key) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(held) = self.held.remove(key) {
                self.bytes -= held.weight;
            }
        }
    }
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
