//! What the first and the last calls of an attempt said, read without the calls between them.

use bytes::Bytes;
use episode::Route;

use crate::browse::calls::{CallRow, ROW, row_of};
use crate::database::query::{Query, query};
use crate::error::SnapshotError;
use crate::log::reader::LogReader;
use crate::snapshot::Snapshot;

/// A body, and the endpoint that says how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenBody {
    /// The endpoint.
    pub route: Route,
    /// The bytes.
    pub bytes: Bytes,
}

/// The calls of an attempt that sample. A condition and an order follow.
const SAMPLING: &str = "c.episode_key = $1 \
    AND c.route IN ('chat', 'completions', 'responses', 'messages', 'generate')";
const FIRST: &str = "ORDER BY c.started_at, c.call_key LIMIT 1";
const LAST: &str = "ORDER BY c.started_at DESC, c.call_key DESC LIMIT 1";
/// Turns of the main thread. An attempt may have none.
const MAIN: &str = "c.kind = 'main'";

impl Snapshot {
    /// The request of the first sampling call of an attempt, of its main thread if that has one;
    /// `None` if there is no such call, or reading it takes more than `bytes_max`.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or the body does not decode.
    pub async fn first_request(
        &mut self,
        episode_key: i64,
        bytes_max: u64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        for condition in [MAIN, "true"] {
            let select = format!(
                "SELECT c.call_id, c.route, c.request_body AS body_key FROM call c \
                 WHERE {SAMPLING} AND {condition} {FIRST}"
            );
            if let Some(found) = self.spoken(query(select).bind(episode_key), bytes_max).await? {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The reply of the last sampling call of an attempt that was answered, as
    /// [`Snapshot::first_request`] chooses it.
    ///
    /// # Errors
    /// As [`Snapshot::first_request`].
    pub async fn last_reply(
        &mut self,
        episode_key: i64,
        bytes_max: u64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        for condition in [MAIN, "true"] {
            let select = format!(
                "SELECT c.call_id, c.route, c.reply_body AS body_key FROM call c \
                 WHERE {SAMPLING} AND {condition} AND c.outcome = 'complete' {LAST}"
            );
            if let Some(found) = self.spoken(query(select).bind(episode_key), bytes_max).await? {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The reply of a call by the store's own key.
    ///
    /// # Errors
    /// As [`Snapshot::first_request`].
    pub async fn reply_of(
        &mut self,
        call_key: i64,
        bytes_max: u64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        let select =
            "SELECT c.call_id, c.route, c.reply_body AS body_key FROM call c WHERE c.call_key = $1";
        Ok(self.spoken(query(select).bind(call_key), bytes_max).await?.flatten())
    }

    /// The last sampling call of an attempt.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_call_row(
        &mut self,
        episode_key: i64,
    ) -> Result<Option<CallRow>, SnapshotError> {
        self.one_row(format!("{ROW} WHERE {SAMPLING} {LAST}"), episode_key).await
    }

    /// The last sampling call of an attempt that has ended without a complete reply.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_fault_row(
        &mut self,
        episode_key: i64,
    ) -> Result<Option<CallRow>, SnapshotError> {
        let select = format!("{ROW} WHERE {SAMPLING} AND c.outcome <> 'complete' {LAST}");
        self.one_row(select, episode_key).await
    }

    async fn one_row(
        &mut self,
        select: String,
        episode_key: i64,
    ) -> Result<Option<CallRow>, SnapshotError> {
        let row = query(select).bind(episode_key).fetch_optional(self.connection()).await?;
        row.as_ref().map(row_of).transpose()
    }

    /// The body that a statement names; the outer `None` if it finds no call, the inner one if the
    /// call has no such body, or one that is too long.
    async fn spoken(
        &mut self,
        select: Query,
        bytes_max: u64,
    ) -> Result<Option<Option<SpokenBody>>, SnapshotError> {
        let Some(row) = select.fetch_optional(self.connection()).await? else { return Ok(None) };
        let route = Route::from_word(&row.try_get::<String>("route")?);
        let Some(key) = row.try_get::<Option<i64>>("body_key")? else { return Ok(Some(None)) };
        let call: String = row.try_get("call_id")?;

        let read = LogReader::default().bytes_alone(self.connection(), key, bytes_max).await;
        let bytes = read.map_err(|error| error.while_reading(format!("call `{call}`")))?;
        Ok(Some(bytes.map(|bytes| SpokenBody { route, bytes })))
    }
}
