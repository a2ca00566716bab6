//! All that a writer knows of the episodes in use, in step with its transactions.

use std::collections::HashSet;

use episode::{AttemptId, CallEnd, CallId, CallStart};

use crate::attempts::attempt_of;
use crate::commit::gates::Gates;
use crate::commit::open_calls::{OpenCall, OpenCalls};
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::CommitError;
use crate::log::cache::LogCache;
use crate::log::episode::EpisodeLog;
use crate::log::restore::open_log;
use crate::types::Limits;

/// The logs and gates in use, and the calls that have not ended.
#[derive(Debug, Default)]
pub(crate) struct CommitState {
    /// The number of the writer: of several that share a database, each has logs of its own.
    writer: i64,
    pub(crate) gates: Gates,
    attempt_bytes_max: Option<u64>,
    logs: LogCache,
    open_calls: OpenCalls,
    /// Attempts that the current transaction has touched.
    touched: Vec<AttemptId>,
    /// Calls that the current transaction has begun.
    begun: Vec<CallId>,
}

/// An episode in which a call begins. Its log is taken out: [`CommitState::put`] puts it back.
#[derive(Debug)]
pub(crate) struct OpenEpisode {
    pub(crate) attempt: AttemptId,
    pub(crate) key: i64,
    pub(crate) log: EpisodeLog,
}

impl CommitState {
    /// The state of a writer of that number that knows nothing.
    pub(crate) fn new(writer: i64) -> Self {
        Self { writer, ..Self::default() }
    }

    /// The state of a writer of another number that knows nothing, with the same settings.
    pub(crate) fn restarted(&self, writer: i64) -> Self {
        let (gates, attempt_bytes_max) = (self.gates.emptied(), self.attempt_bytes_max);
        Self { writer, gates, attempt_bytes_max, ..Self::default() }
    }

    /// Sets the limits of attempts.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.gates.set_default_budget(limits.budget);
        self.attempt_bytes_max = limits.attempt_bytes_max;
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
        let key = self.gates.enter(connection, &attempt, begun, api_key).await?;
        let log = match self.logs.take(&attempt) {
            Some(log) => log,
            None => open_log(connection, key, self.writer).await?,
        };
        if let Some(bytes_max) = self.attempt_bytes_max
            && log.bytes_with(&begun.request.read(), bytes_max) > bytes_max
        {
            self.put(attempt, log);
            return Err(CommitError::Full(bytes_max));
        }
        Ok(OpenEpisode { attempt, key, log })
    }

    /// Finds a call that has not ended, and takes out the log of its episode.
    ///
    /// # Errors
    /// [`CommitError::NotBegun`] where there is no such call.
    pub(crate) async fn open_call(
        &mut self,
        connection: &mut StoreConnection,
        call_id: CallId,
    ) -> Result<(OpenCall, EpisodeLog), CommitError> {
        if let Some(call) = self.open_calls.get(call_id).cloned() {
            self.touched.push(call.attempt.clone());
            if let Some(log) = self.logs.take(&call.attempt) {
                return Ok((call, log));
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
        let (key, api_key) = (row.try_get("call_key")?, row.try_get("key_id")?);
        let call = OpenCall { key, attempt: attempt_of(&row)?, api_key };
        self.touched.push(call.attempt.clone());
        let log = match self.logs.take(&call.attempt) {
            Some(log) => log,
            None => open_log(connection, row.try_get("episode_key")?, self.writer).await?,
        };
        Ok((call, log))
    }

    /// Puts the log of an attempt back.
    pub(crate) fn put(&mut self, attempt: AttemptId, log: EpisodeLog) {
        self.logs.put(attempt, log);
    }

    /// Notes a call of an attempt, which was begun.
    pub(crate) fn call_begun(
        &mut self,
        call_id: CallId,
        call_key: i64,
        attempt: &AttemptId,
        api_key: Option<&str>,
    ) {
        let api_key = api_key.map(str::to_owned);
        let call = OpenCall { key: call_key, attempt: attempt.clone(), api_key };
        if self.open_calls.add(call_id, call) {
            self.begun.push(call_id);
        }
    }

    /// Forgets a call that has ended.
    pub(crate) fn call_ended(&mut self, call_id: CallId) {
        self.open_calls.remove(call_id);
    }

    /// The attempts with calls that have not ended.
    pub(crate) fn attempts_under_way(&self) -> HashSet<&AttemptId> {
        self.open_calls.attempts()
    }

    /// Counts the sampled tokens of a call that has ended.
    pub(crate) fn count_tokens(
        &mut self,
        attempt: &AttemptId,
        api_key: Option<&str>,
        ended: &CallEnd,
    ) {
        if let Some(tokens) = ended.usage.completion {
            self.gates.add_tokens(attempt, api_key, tokens);
        }
    }

    /// Drops what is known of an attempt that takes no more calls. A call that is under way reads
    /// it back.
    pub(crate) fn drop_attempt(&mut self, attempt: &AttemptId) {
        self.gates.forget(attempt);
        self.logs.take(attempt);
    }

    /// Accepts the current transaction, which is on disk.
    pub(crate) fn committed(&mut self) {
        self.touched.clear();
        self.begun.clear();
        if self.logs.trim() {
            self.gates.retain(|attempt| self.logs.contains(attempt));
        }
    }

    /// Drops everything that the current transaction has touched: it is not on disk, so the logs
    /// claim bytes that are not there.
    pub(crate) fn rolled_back(&mut self) {
        for attempt in std::mem::take(&mut self.touched) {
            self.drop_attempt(&attempt);
        }
        for call_id in self.begun.drain(..) {
            self.open_calls.remove(call_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::{Record, commit};
    use crate::site::on_both;
    use crate::tests::{begun, ended};
    use crate::types::Durability;
    use crate::writer::session::WriterSession;

    #[tokio::test]
    async fn a_closed_episode_is_dropped_and_its_open_call_still_ends() {
        on_both(async |site| {
            let (mut connection, session) =
                WriterSession::open(&site.at, Durability::Power).await.unwrap();
            let mut state = CommitState::new(session.writer());
            let mut write = async |state: &mut CommitState, record: Record| {
                connection.begin().await.unwrap();
                let results = commit(&mut connection, state, &[&record]).await.unwrap();
                results.into_iter().for_each(Result::unwrap);
            };
            let call = begun("a", 1);
            let (call_id, attempt) = (call.call_id, AttemptId::from(&call.tag));

            write(&mut state, Record::CallStart(call, None)).await;
            assert!(state.logs.contains(&attempt) && state.gates.is_open(&attempt));
            let close = Record::Close { attempt: attempt.clone(), at: 2, status: None };
            write(&mut state, close).await;
            assert!(!state.logs.contains(&attempt) && !state.gates.is_open(&attempt));
            write(&mut state, Record::CallEnd(ended(call_id))).await;
            assert!(state.open_calls.is_empty() && state.logs.contains(&attempt));
            session.close(Some(connection)).await;
        })
        .await;
    }
}
