//! The logs of the episodes that had calls lately, within a bound of bytes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use episode::{CallId, EpisodeId, InvalidId, Micros, Tag};

use crate::commit::episode_row::upsert_episode;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, ReadError};
use crate::log::episode::EpisodeLog;
use crate::log::reader::LogReader;
use crate::log::tokens::{LogSource, TokenReader};
use crate::types::AttemptId;

/// Bytes that all logs may occupy. A log that is evicted is read back when its episode goes on.
const BYTES_MAX: usize = 384 << 20;
/// Calls of an episode that later ones may continue when its log is read back.
const CALLS_RESTORED: i64 = 8;
/// Calls without an end that the writer knows without asking the database.
const OPEN_CALLS_MAX: usize = 1 << 16;

/// The logs in use, and the calls that have not ended.
#[derive(Debug, Default)]
pub(crate) struct LogCache {
    /// The number of the writer: of several that share a database, each has logs of its own.
    writer: i64,
    logs: HashMap<AttemptId, CachedLog>,
    open_calls: HashMap<CallId, OpenCall>,
    /// Attempts that the current transaction has touched.
    touched: Vec<AttemptId>,
    /// Calls that the current transaction has begun.
    begun: Vec<CallId>,
    /// Counts uses, to find the log that was used least recently.
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct CachedLog {
    episode_key: i64,
    tag_hash: u64,
    log: EpisodeLog,
    used_at: u64,
    weight: usize,
}

#[derive(Debug, Clone)]
struct OpenCall {
    key: i64,
    attempt: AttemptId,
}

/// An episode that is written to, taken out of the cache. [`LogCache::put`] puts it back.
#[derive(Debug)]
pub(crate) struct OpenEpisode {
    attempt: AttemptId,
    pub(crate) key: i64,
    /// The hash of the group, task and labels that its calls gave last.
    tag_hash: u64,
    pub(crate) log: EpisodeLog,
}

impl LogCache {
    /// An empty cache for the writer of that number.
    pub(crate) fn of(writer: i64) -> Self {
        Self { writer, ..Self::default() }
    }

    /// The number of the writer.
    pub(crate) fn writer(&self) -> i64 {
        self.writer
    }

    /// Takes out the episode of a tag. It is made, or read back, if need be.
    pub(crate) async fn open_episode(
        &mut self,
        connection: &mut StoreConnection,
        tag: &Tag,
        at: Micros,
    ) -> Result<OpenEpisode, sqlx::Error> {
        let attempt = AttemptId::from(tag);
        let tag_hash = hash_of(&(&tag.group, &tag.task, &tag.labels));
        match self.take(&attempt) {
            Some(episode) if episode.tag_hash == tag_hash => Ok(episode),
            Some(episode) => {
                upsert_episode(connection, tag, at).await?;
                Ok(OpenEpisode { tag_hash, ..episode })
            }
            None => {
                let key = upsert_episode(connection, tag, at).await?.key;
                let log = open_log(connection, key, self.writer).await?;
                Ok(OpenEpisode { attempt, key, tag_hash, log })
            }
        }
    }

    /// Takes out the episode of a call that has not ended. Returns the key of the call, too.
    ///
    /// # Errors
    /// [`CommitError::NotBegun`] where there is no such call.
    pub(crate) async fn open_episode_of(
        &mut self,
        connection: &mut StoreConnection,
        call_id: CallId,
    ) -> Result<(i64, OpenEpisode), CommitError> {
        if let Some(call) = self.open_calls.get(&call_id).cloned()
            && let Some(episode) = self.take(&call.attempt)
        {
            return Ok((call.key, episode));
        }

        // The call was begun by an earlier process, or its log was evicted.
        let row = query(
            "SELECT c.call_key, e.episode_key, e.episode_id, e.attempt \
             FROM call c JOIN episode e USING (episode_key) \
             WHERE c.call_id = $1 AND c.ended_at IS NULL",
        )
        .bind(call_id.to_string())
        .fetch_optional(&mut *connection)
        .await?
        .ok_or(CommitError::NotBegun(call_id))?;
        let call_key = row.try_get("call_key")?;
        let episode = parse_id(&row.try_get::<String>("episode_id")?)?;
        let attempt = AttemptId { episode, attempt: row.try_get("attempt")? };
        if let Some(episode) = self.take(&attempt) {
            return Ok((call_key, episode));
        }

        let key = row.try_get("episode_key")?;
        let log = open_log(connection, key, self.writer).await?;
        Ok((call_key, OpenEpisode { attempt, key, tag_hash: 0, log }))
    }

    fn take(&mut self, attempt: &AttemptId) -> Option<OpenEpisode> {
        self.touched.push(attempt.clone());
        let cached = self.logs.remove(attempt)?;
        self.bytes -= cached.weight;
        let CachedLog { episode_key: key, tag_hash, log, .. } = cached;
        Some(OpenEpisode { attempt: attempt.clone(), key, tag_hash, log })
    }

    /// Puts an episode back.
    pub(crate) fn put(&mut self, episode: OpenEpisode) {
        self.clock += 1;
        let OpenEpisode { attempt, key: episode_key, tag_hash, log } = episode;
        let (used_at, weight) = (self.clock, log.weight());
        self.bytes += weight;
        self.logs.insert(attempt, CachedLog { episode_key, tag_hash, log, used_at, weight });
    }

    /// Notes a call of this episode, which was begun.
    pub(crate) fn call_begun(&mut self, call_id: CallId, call_key: i64, episode: &OpenEpisode) {
        if self.open_calls.len() < OPEN_CALLS_MAX {
            let call = OpenCall { key: call_key, attempt: episode.attempt.clone() };
            self.open_calls.insert(call_id, call);
            self.begun.push(call_id);
        }
    }

    /// Forgets a call that has ended.
    pub(crate) fn call_ended(&mut self, call_id: CallId) {
        self.open_calls.remove(&call_id);
    }

    /// Accepts the current transaction, which is on disk.
    pub(crate) fn committed(&mut self) {
        self.touched.clear();
        self.begun.clear();
        if self.bytes > BYTES_MAX {
            self.evict(BYTES_MAX / 8 * 7);
        }
    }

    /// Drops every log that the current transaction has touched: it is not on disk, so they claim
    /// bytes that are not there.
    pub(crate) fn rolled_back(&mut self) {
        for attempt in self.touched.drain(..) {
            if let Some(cached) = self.logs.remove(&attempt) {
                self.bytes -= cached.weight;
            }
        }
        for call_id in self.begun.drain(..) {
            self.open_calls.remove(&call_id);
        }
    }

    /// Shrinks the least recently used logs, then drops them, until all occupy `bytes` at most.
    fn evict(&mut self, bytes: usize) {
        let mut oldest: Vec<(u64, AttemptId)> =
            self.logs.iter().map(|(attempt, cached)| (cached.used_at, attempt.clone())).collect();
        oldest.sort_unstable();

        // Shrinking costs some compression; dropping costs reading the log back.
        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(cached) = self.logs.get_mut(attempt) {
                cached.log.shrink();
                let weight = cached.log.weight();
                self.bytes = self.bytes + weight - cached.weight;
                cached.weight = weight;
            }
        }

        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(cached) = self.logs.remove(attempt) {
                self.bytes -= cached.weight;
            }
        }
    }
}

/// The log that `writer` has of an episode, made or read back. A log that cannot be read back is
/// left as it is, and a new one begins.
async fn open_log(
    connection: &mut StoreConnection,
    episode_key: i64,
    writer: i64,
) -> Result<EpisodeLog, sqlx::Error> {
    let insert_first = "INSERT INTO reel (episode_key, writer) SELECT $1, $2 WHERE NOT EXISTS \
                        (SELECT 1 FROM reel WHERE episode_key = $1 AND writer = $2) \
                        RETURNING reel_key";
    let inserted =
        query(insert_first).bind(episode_key).bind(writer).fetch_optional(connection).await?;
    if let Some(row) = inserted {
        return Ok(EpisodeLog::new(row.first()?));
    }

    // There are several where an earlier one could not be read back.
    let newest = "SELECT reel_key FROM reel WHERE episode_key = $1 AND writer = $2 \
                  ORDER BY reel_key DESC LIMIT 1";
    let key = query(newest).bind(episode_key).bind(writer).scalar(connection).await?;
    match read_back(connection, key).await {
        Ok(log) => Ok(log),
        Err(error) => {
            tracing::error!(%error, episode_key, "a log cannot be read back; a new one begins");
            let insert = "INSERT INTO reel (episode_key, writer) VALUES ($1, $2) \
                          RETURNING reel_key";
            let key = query(insert).bind(episode_key).bind(writer).scalar(connection).await?;
            Ok(EpisodeLog::new(key))
        }
    }
}

/// Reads a log back, with the newest calls that later ones may continue.
async fn read_back(connection: &mut StoreConnection, key: i64) -> Result<EpisodeLog, ReadError> {
    let mut log = EpisodeLog::new(key);
    let mut reader = LogReader::default();
    reader.load(connection, key, |segment| log.restore_segment(&segment)).await?;

    let newest = "SELECT c.call_key, b.body_key, b.depth FROM call c \
                  JOIN body b ON b.body_key = c.request_body \
                  WHERE c.episode_key = (SELECT episode_key FROM reel WHERE reel_key = $1) \
                  AND b.reel_key = $1 ORDER BY c.started_at DESC LIMIT $2";
    let rows = query(newest).bind(key).bind(CALLS_RESTORED).fetch_all(&mut *connection).await?;
    // The oldest first: the newest request must come to lie in front.
    for row in rows.iter().rev() {
        let (call_key, body_key) = (row.try_get("call_key")?, row.try_get("body_key")?);
        let extents = reader.extents(connection, body_key).await?;
        log.restore_request(body_key, row.try_get("depth")?, extents);

        let mut tokens = TokenReader::default();
        tokens.load_call(connection, call_key).await?;
        let mut source = LogSource { connection: &mut *connection, reader: &mut reader };
        for path in tokens.paths(&mut source, call_key).await? {
            log.restore_path(call_key, &path);
        }
    }
    Ok(log)
}

fn parse_id(name: &str) -> Result<EpisodeId, sqlx::Error> {
    name.parse().map_err(|error: InvalidId| sqlx::Error::Decode(Box::new(error)))
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
