//! The words of the first and the last calls of an attempt, read without the calls between them.

use bytes::Bytes;
use episode::{CallId, Route};

use crate::browse::calls::{CallRow, ROW, row_of};
use crate::database::query::{Query, query};
use crate::error::SnapshotError;
use crate::log::reader::LogReader;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::parse;
use crate::snapshot::sealed::CallsHolder;

/// A body of a call, not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenBody {
    /// The call.
    pub call_id: CallId,
    /// The endpoint, which says how the body is read.
    pub route: Route,
    /// The hash of the bytes; `None` in stores of early versions.
    pub hash: Option<Vec<u8>>,
    /// The store's own key of the attempt.
    episode_key: i64,
    /// The key of the body, where its calls are.
    key: i64,
}

/// The calls of an attempt that sample. A condition and an order follow.
const SAMPLING: &str = "c.episode_key = $1 \
    AND c.route IN ('chat', 'completions', 'responses', 'messages', 'generate')";
/// A call with its body of some column.
const SPOKEN: &str = "SELECT c.call_id, c.route, b.body_key, b.hash FROM call c";
const FIRST: &str = "ORDER BY c.started_at, c.call_key LIMIT 1";
const LAST: &str = "ORDER BY c.started_at DESC, c.call_key DESC LIMIT 1";
/// Turns of the main thread. An attempt may have none.
const MAIN: &str = "c.kind = 'main'";

impl Snapshot {
    /// The request of the first sampling call of an attempt, of its main thread if that has one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn first_request(
        &mut self,
        episode_key: i64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        let of = |condition: &str| {
            format!(
                "{SPOKEN} JOIN body b ON b.body_key = c.request_body \
                 WHERE {SAMPLING} AND {condition} {FIRST}"
            )
        };
        self.main_or_any(of, episode_key).await
    }

    /// The reply of the last sampling call of an attempt that was answered, of its main thread if
    /// that has one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_reply(
        &mut self,
        episode_key: i64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        let of = |condition: &str| {
            format!(
                "{SPOKEN} JOIN body b ON b.body_key = c.reply_body \
                 WHERE {SAMPLING} AND {condition} AND c.outcome = 'complete' {LAST}"
            )
        };
        self.main_or_any(of, episode_key).await
    }

    /// The reply of a call of [`Snapshot::last_call_row`] or [`Snapshot::last_fault_row`].
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn reply_of(&mut self, call: &CallRow) -> Result<Option<SpokenBody>, SnapshotError> {
        let select =
            format!("{SPOKEN} JOIN body b ON b.body_key = c.reply_body WHERE c.call_id = $1");
        self.spoken(query(select).bind(call.call_id.to_string()), call.episode_key).await
    }

    /// The bytes of a body, read without the rest of its episode; `None` if reading them takes more
    /// than `bytes_max`.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or the body does not decode.
    pub async fn body_alone(
        &mut self,
        body: &SpokenBody,
        bytes_max: u64,
    ) -> Result<Option<Bytes>, SnapshotError> {
        let CallsHolder { part, .. } = self.holder(body.episode_key).await?;
        let read =
            LogReader::default().bytes_alone(&mut part.connection, body.key, bytes_max).await;
        read.map_err(|error| error.of_call(body.call_id))
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
        let CallsHolder { part, key, .. } = self.holder(episode_key).await?;
        let row = query(select).bind(key).fetch_optional(&mut part.connection).await?;
        let row = row.as_ref().map(row_of).transpose()?;
        Ok(row.map(|row| CallRow { episode_key, ..row }))
    }

    /// The body that a statement finds in the main thread, else in any.
    async fn main_or_any(
        &mut self,
        statement: fn(&str) -> String,
        episode_key: i64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        let key = self.holder(episode_key).await?.key;
        let main = self.spoken(query(statement(MAIN)).bind(key), episode_key).await?;
        match main {
            Some(found) => Ok(Some(found)),
            None => self.spoken(query(statement("true")).bind(key), episode_key).await,
        }
    }

    /// The body that a statement finds where the calls of an attempt are.
    async fn spoken(
        &mut self,
        select: Query,
        episode_key: i64,
    ) -> Result<Option<SpokenBody>, SnapshotError> {
        let CallsHolder { part, .. } = self.holder(episode_key).await?;
        let Some(row) = select.fetch_optional(&mut part.connection).await? else { return Ok(None) };
        Ok(Some(SpokenBody {
            episode_key,
            call_id: parse(row.try_get("call_id")?, "call id")?,
            route: Route::from_word(&row.try_get::<String>("route")?),
            hash: row.try_get("hash")?,
            key: row.try_get("body_key")?,
        }))
    }
}
