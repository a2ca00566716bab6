//! The logs of the episodes that had calls lately, within a bound of bytes and one of time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use episode::{AttemptId, CallId, CallStart, EpisodeId, InvalidId};

use crate::commit::episode_row::{NamedBy, upsert_episode};
use crate::commit::gate::Gate;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::{CommitError, ReadError};
use crate::log::episode::EpisodeLog;
use crate::log::reader::LogReader;
use crate::log::tokens::{LogSource, TokenReader};
use crate::types::Budget;

/// Bytes that an episode occupies here beside its log: its entry, in a table that may be half
/// empty, and what the allocator adds.
const ENTRY_BYTES: usize = 2 * size_of::<(AttemptId, CachedLog)>() + 512;
/// Bytes that all logs may occupy. A log that is evicted is read back when its episode goes on.
const BYTES_MAX: usize = 384 << 20;
/// Time after which a log that nothing uses is dropped.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Time between two looks for such logs.
const LOOK_EVERY: Duration = Duration::from_secs(10);
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
    /// The budget of attempts that were announced without one.
    default_budget: Budget,
    bytes: usize,
    /// The time of the last look for logs that nothing uses.
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct CachedLog {
    episode_key: i64,
    gate: Option<Gate>,
    log: EpisodeLog,
    used_at: Instant,
    weight: usize,
}

#[derive(Debug, Clone)]
struct OpenCall {
    key: i64,
    attempt: AttemptId,
    /// The id of the API key that it came with.
    api_key: Option<String>,
}

/// An episode that is written to, taken out of the cache. [`LogCache::put`] puts it back.
#[derive(Debug)]
pub(crate) struct OpenEpisode {
    attempt: AttemptId,
    pub(crate) key: i64,
    /// `None` if it must be read again.
    pub(crate) gate: Option<Gate>,
    pub(crate) log: EpisodeLog,
}

impl LogCache {
    /// An empty cache for the writer of that number.
    pub(crate) fn of(writer: i64) -> Self {
        Self { writer, ..Self::default() }
    }

    /// An empty cache for the writer of another number, with the same settings.
    pub(crate) fn anew(&self, writer: i64) -> Self {
        Self { writer, default_budget: self.default_budget, ..Self::default() }
    }

    /// Sets the budget of attempts that were announced without one.
    pub(crate) fn set_default_budget(&mut self, budget: Budget) {
        self.default_budget = budget;
        self.logs.values_mut().for_each(|cached| cached.gate = None);
    }

    /// True if calls of an attempt may begin without being looked at: it has neither budget nor
    /// keys.
    pub(crate) fn is_ungated(&self, attempt: &AttemptId) -> bool {
        let gate = self.logs.get(attempt).and_then(|cached| cached.gate.as_ref());
        gate.is_some_and(Gate::is_open)
    }

    /// Lets the gate of an attempt be read again.
    pub(crate) fn forget_gate(&mut self, attempt: &AttemptId) {
        if let Some(cached) = self.logs.get_mut(attempt) {
            cached.gate = None;
        }
    }

    /// Lets the gates of all attempts of an episode be read again.
    pub(crate) async fn forget_gates(
        &mut self,
        connection: &mut StoreConnection,
        episode: &EpisodeId,
    ) -> Result<(), sqlx::Error> {
        let attempts = query("SELECT attempt FROM episode WHERE episode_id = $1");
        let attempts = attempts.bind(episode.as_str()).fetch_all(connection).await?;
        for row in attempts {
            let attempt = AttemptId { episode: episode.clone(), attempt: row.first()? };
            self.forget_gate(&attempt);
        }
        Ok(())
    }

    /// Drops the log of an attempt that takes no more calls. One that is under way reads it back.
    pub(crate) fn drop_log(&mut self, attempt: &AttemptId) {
        if let Some(cached) = self.logs.remove(attempt) {
            self.bytes -= cached.weight;
        }
    }

    /// The number of the writer.
    pub(crate) fn writer(&self) -> i64 {
        self.writer
    }

    /// Takes out the episode of a call that begins with this key, or without one. It is made, or
    /// read back, if need be.
    ///
    /// # Errors
    /// [`CommitError`] where the gate keeps the call out. Then it leaves no trace.
    pub(crate) async fn open_episode(
        &mut self,
        connection: &mut StoreConnection,
        begun: &CallStart,
        api_key: Option<&str>,
    ) -> Result<OpenEpisode, CommitError> {
        let attempt = AttemptId::from(&begun.tag);
        self.touched.push(attempt.clone());
        if let Some(CachedLog { episode_key, gate: Some(gate), .. }) = self.logs.get_mut(&attempt)
            && gate.knows(&begun.tag)
        {
            gate.enter(connection, *episode_key, begun, api_key).await?;
            if let Some(episode) = self.take(&attempt) {
                return Ok(episode);
            }
        }

        // The log stays in the cache until the call is let in.
        connection.begin_part().await?;
        let (key, gate) = match self.enter(connection, begun, api_key).await {
            Ok(entered) => entered,
            Err(error @ CommitError::Database(_)) => return Err(error),
            Err(refused) => {
                connection.undo_part().await?;
                return Err(refused);
            }
        };
        connection.keep_part().await?;
        match self.take(&attempt) {
            Some(episode) => Ok(OpenEpisode { gate: Some(gate), ..episode }),
            None => {
                let log = open_log(connection, key, self.writer).await?;
                Ok(OpenEpisode { attempt, key, gate: Some(gate), log })
            }
        }
    }

    /// Lets a call in whose words are new. Returns the key of its attempt, and the gate.
    async fn enter(
        &self,
        connection: &mut StoreConnection,
        begun: &CallStart,
        api_key: Option<&str>,
    ) -> Result<(i64, Gate), CommitError> {
        let named_by = NamedBy::Call { has_key: api_key.is_some() };
        let row = upsert_episode(connection, &begun.tag, begun.started_at, named_by).await?;
        let mut gate = Gate::read(connection, &begun.tag, &row, self.default_budget).await?;
        gate.enter(connection, row.key, begun, api_key).await?;
        Ok((row.key, gate))
    }

    /// Takes out the episode of a call that has not ended. Returns the key of the call, too, and
    /// the id of the API key that it came with.
    ///
    /// # Errors
    /// [`CommitError::NotBegun`] where there is no such call.
    pub(crate) async fn open_episode_of(
        &mut self,
        connection: &mut StoreConnection,
        call_id: CallId,
    ) -> Result<(i64, Option<String>, OpenEpisode), CommitError> {
        if let Some(call) = self.open_calls.get(&call_id).cloned() {
            self.touched.push(call.attempt.clone());
            if let Some(episode) = self.take(&call.attempt) {
                return Ok((call.key, call.api_key, episode));
            }
        }

        // The call was begun by an earlier process, or its log was evicted.
        let row = query(
            "SELECT c.call_key, c.key_id, e.episode_key, e.episode_id, e.attempt \
             FROM call c JOIN episode e USING (episode_key) \
             WHERE c.call_id = $1 AND c.ended_at IS NULL",
        )
        .bind(call_id.to_string())
        .fetch_optional(&mut *connection)
        .await?
        .ok_or(CommitError::NotBegun(call_id))?;
        let (call_key, api_key) = (row.try_get("call_key")?, row.try_get("key_id")?);
        let episode = parse_id(&row.try_get::<String>("episode_id")?)?;
        let attempt = AttemptId { episode, attempt: row.try_get("attempt")? };
        self.touched.push(attempt.clone());
        if let Some(episode) = self.take(&attempt) {
            return Ok((call_key, api_key, episode));
        }

        let key = row.try_get("episode_key")?;
        let log = open_log(connection, key, self.writer).await?;
        Ok((call_key, api_key, OpenEpisode { attempt, key, gate: None, log }))
    }

    fn take(&mut self, attempt: &AttemptId) -> Option<OpenEpisode> {
        let cached = self.logs.remove(attempt)?;
        self.bytes -= cached.weight;
        let CachedLog { episode_key: key, gate, log, .. } = cached;
        Some(OpenEpisode { attempt: attempt.clone(), key, gate, log })
    }

    /// Puts an episode back.
    pub(crate) fn put(&mut self, episode: OpenEpisode) {
        let OpenEpisode { attempt, key: episode_key, gate, log } = episode;
        let (used_at, weight) = (Instant::now(), ENTRY_BYTES + log.weight());
        self.bytes += weight;
        self.logs.insert(attempt, CachedLog { episode_key, gate, log, used_at, weight });
    }

    /// Notes a call of this episode, which was begun.
    pub(crate) fn call_begun(
        &mut self,
        call_id: CallId,
        call_key: i64,
        episode: &OpenEpisode,
        api_key: Option<&str>,
    ) {
        if self.open_calls.len() < OPEN_CALLS_MAX {
            let attempt = episode.attempt.clone();
            let call = OpenCall { key: call_key, attempt, api_key: api_key.map(str::to_owned) };
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
        let now = Instant::now();
        if self.looked_at.is_none_or(|looked_at| now >= looked_at + LOOK_EVERY) {
            self.looked_at = Some(now);
            self.drop_idle(now);
        }
    }

    /// Drops the logs that nothing has used for long.
    fn drop_idle(&mut self, now: Instant) {
        let bytes = &mut self.bytes;
        self.logs.retain(|_, cached| {
            let is_used = now.saturating_duration_since(cached.used_at) < IDLE_MAX;
            *bytes -= if is_used { 0 } else { cached.weight };
            is_used
        });
        // An empty table is as large as it ever was.
        if self.logs.capacity() > 4 * self.logs.len() {
            self.logs.shrink_to(2 * self.logs.len());
        }
    }

    /// Drops every log that the current transaction has touched: it is not on disk, so they claim
    /// bytes that are not there.
    pub(crate) fn rolled_back(&mut self) {
        for attempt in std::mem::take(&mut self.touched) {
            self.drop_log(&attempt);
        }
        for call_id in self.begun.drain(..) {
            self.open_calls.remove(&call_id);
        }
    }

    /// Shrinks the least recently used logs, then drops them, until all occupy `bytes` at most.
    fn evict(&mut self, bytes: usize) {
        let mut oldest: Vec<(Instant, AttemptId)> =
            self.logs.iter().map(|(attempt, cached)| (cached.used_at, attempt.clone())).collect();
        oldest.sort_unstable();

        // Shrinking costs some compression; dropping costs reading the log back.
        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(cached) = self.logs.get_mut(attempt) {
                cached.log.shrink();
                let weight = ENTRY_BYTES + cached.log.weight();
                self.bytes = self.bytes + weight - cached.weight;
                cached.weight = weight;
            }
        }

        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            self.drop_log(attempt);
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
        log.restore_request(body_key, row.try_get("depth")?, extents.to_vec());

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::{Record, commit};
    use crate::open;
    use crate::site::on_both;
    use crate::tests::{begun, ended};
    use crate::types::Durability;

    #[tokio::test]
    async fn a_closed_or_idle_episode_occupies_nothing_and_a_call_under_way_still_ends() {
        on_both(async |site| {
            let (mut connection, session) =
                open::for_recording(&site.at, Durability::Power).await.unwrap();
            let mut logs = LogCache::of(session.writer());
            let mut write = async |logs: &mut LogCache, record: Record| {
                connection.begin().await.unwrap();
                let results = commit(&mut connection, logs, &[&record]).await.unwrap();
                results.into_iter().for_each(Result::unwrap);
            };
            let call = begun("a", 1);
            let (call_id, attempt) = (call.call_id, AttemptId::from(&call.tag));
            write(&mut logs, Record::CallStart(call, None)).await;
            assert!(logs.bytes > ENTRY_BYTES && logs.logs.len() == 1);
            logs.drop_idle(Instant::now() + IDLE_MAX / 2);
            assert_eq!(logs.logs.len(), 1);
            write(&mut logs, Record::Close { attempt, at: 2, status: None }).await;
            assert_eq!((logs.bytes, logs.logs.len()), (0, 0));
            write(&mut logs, Record::CallEnd(ended(call_id))).await;
            assert!(logs.open_calls.is_empty() && logs.logs.len() == 1);
            logs.drop_idle(Instant::now() + IDLE_MAX);
            assert_eq!((logs.bytes, logs.logs.len()), (0, 0));
            session.close(Some(connection)).await;
        })
        .await;
    }
}
