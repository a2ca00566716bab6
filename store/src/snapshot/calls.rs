//! Reading calls back, whole.

use std::collections::HashMap;

use episode::{Call, CallId, Choice};

use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::log::reader::{BodyColumns, LogReader};
use crate::log::tokens::{CallIndex, LogSource, TokenReader};
use crate::snapshot::Snapshot;
use crate::snapshot::rows::{begun_of, choice_of, ended_of, parse, side_of};
use crate::snapshot::sealed::{CallsHolder, StorePart};
use crate::types::AttemptRecord;

/// A call with the rows of its bodies: `q` is the request, `p` the reply.
///
/// All columns: a segment that an earlier version wrote has not all that a store has now.
const CALL: &str = "SELECT c.*, \
    q.body_key AS q_body_key, q.encoding AS q_encoding, q.length AS q_length, q.data AS q_data, \
    q.base_key AS q_base_key, q.reel_key AS q_reel_key, q.hash AS q_hash, \
    p.body_key AS p_body_key, p.encoding AS p_encoding, p.length AS p_length, p.data AS p_data, \
    p.base_key AS p_base_key, p.reel_key AS p_reel_key, p.hash AS p_hash \
    FROM call c JOIN body q ON q.body_key = c.request_body \
    LEFT JOIN body p ON p.body_key = c.reply_body";

const REQUEST: BodyColumns = BodyColumns {
    key: "q_body_key",
    encoding: "q_encoding",
    length: "q_length",
    data: "q_data",
    base_key: "q_base_key",
    log_key: "q_reel_key",
    hash: "q_hash",
};
const REPLY: BodyColumns = BodyColumns {
    key: "p_body_key",
    encoding: "p_encoding",
    length: "p_length",
    data: "p_data",
    base_key: "p_base_key",
    log_key: "p_reel_key",
    hash: "p_hash",
};

const SIDES_OF_EPISODE: &str = "SELECT s.* FROM side s JOIN call c USING (call_key) \
    WHERE c.episode_key = $1 ORDER BY s.choice_index, s.name";

const ENDED_CALLS: &str = "SELECT call_id, path FROM call \
    WHERE episode_key = $1 AND outcome IS NOT NULL ORDER BY started_at";

/// The rows of one call.
#[derive(Clone, Copy)]
struct CallRows<'a> {
    key: i64,
    call: &'a Row,
    choices: &'a [Row],
    sides: &'a [Row],
}

/// Readers that the calls of an episode share.
#[derive(Default)]
struct Readers {
    bodies: LogReader,
    tokens: TokenReader,
}

impl Snapshot {
    /// All calls of one attempt, in the order in which they began. Takes a few statements, however
    /// many calls there are.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a body does not decode.
    pub async fn calls(&mut self, record: &AttemptRecord) -> Result<Vec<Call>, SnapshotError> {
        self.borrow_room(record.key).await?;
        let CallsHolder { part, key: episode_key, .. } = self.holder(record.key).await?;
        // In the order of an index. What begins at once is put in order below, since a sorter would
        // copy all rows.
        let select = format!("{CALL} WHERE c.episode_key = $1 ORDER BY c.started_at");
        let call_rows = query(select).bind(episode_key).fetch_all(&mut part.connection).await?;

        // Loaded at once; the calls below only look their rows up.
        let mut readers = Readers::default();
        let choice_rows = readers
            .tokens
            .load_episode(&mut part.connection, episode_key, &call_rows)
            .await
            .map_err(|error| error.while_reading(format!("episode `{}`", record.id)))?;
        let sides = query(SIDES_OF_EPISODE).bind(episode_key);
        let side_rows = match part.has_sides().await? {
            true => sides.fetch_all(&mut part.connection).await?,
            false => Vec::new(),
        };
        let (choices, sides) = (by_call(choice_rows)?, by_call(side_rows)?);

        let mut calls = Vec::with_capacity(call_rows.len());
        for row in &call_rows {
            let key: i64 = row.try_get("call_key")?;
            let rows = CallRows {
                key,
                call: row,
                choices: choices.get(&key).map_or(&[], Vec::as_slice),
                sides: sides.get(&key).map_or(&[], Vec::as_slice),
            };
            calls.push(part.call_of(rows, record, &mut readers).await?);
        }
        calls.sort_by_key(|call| (call.begun.started_at, call.begun.call_id));
        Ok(calls)
    }

    /// The ids and paths of the calls of an attempt that have ended, in the order in which they
    /// began.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn ended_calls(
        &mut self,
        record: &AttemptRecord,
    ) -> Result<Vec<(CallId, String)>, SnapshotError> {
        let CallsHolder { part, key, .. } = self.holder(record.key).await?;
        let rows = query(ENDED_CALLS).bind(key).fetch_all(&mut part.connection).await?;
        let id_and_path =
            |row: &Row| Ok((parse(row.try_get("call_id")?, "call id")?, row.try_get("path")?));
        rows.iter().map(id_and_path).collect()
    }

    /// One call; `None` when there is none of that id.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a body does not decode.
    pub async fn call(&mut self, call_id: CallId) -> Result<Option<Call>, SnapshotError> {
        let Some(record) = self.attempt_with(call_id).await? else { return Ok(None) };
        // Its bodies are in the log of the whole attempt.
        self.borrow_room(record.key).await?;
        let part = self.part_with(call_id).await?;
        let select = query(format!("{CALL} WHERE c.call_id = $1")).bind(call_id.to_string());
        let row = select.fetch_one(&mut part.connection).await?;
        let key: i64 = row.try_get("call_key")?;

        let mut readers = Readers::default();
        let loaded = readers.tokens.load_call(&mut part.connection, key).await;
        loaded.map_err(|error| error.of_call(call_id))?;
        let choices = query("SELECT * FROM choice WHERE call_key = $1 ORDER BY choice_index")
            .bind(key)
            .fetch_all(&mut part.connection)
            .await?;
        let sides = query("SELECT * FROM side WHERE call_key = $1 ORDER BY choice_index, name")
            .bind(key)
            .fetch_all(&mut part.connection)
            .await?;

        let rows = CallRows { key, call: &row, choices: &choices, sides: &sides };
        part.call_of(rows, &record, &mut readers).await.map(Some)
    }
}

impl StorePart {
    async fn call_of(
        &mut self,
        rows: CallRows<'_>,
        record: &AttemptRecord,
        readers: &mut Readers,
    ) -> Result<Call, SnapshotError> {
        let mut begun = begun_of(rows.call, record)?;
        let call_id = begun.call_id;
        let request = readers.bodies.keep_row(rows.call, &REQUEST)?;
        let reply = readers.bodies.keep_row(rows.call, &REPLY)?;
        if let Some(key) = request {
            let body = readers.bodies.body(&mut self.connection, key).await;
            begun.request = body.map_err(|error| error.of_call(call_id))?;
        }

        // A call without an outcome has not ended, whatever else its row may hold.
        let Some(outcome) = rows.call.try_get::<Option<String>>("outcome")? else {
            return Ok(Call { begun, ended: None });
        };
        let mut ended = ended_of(rows.call, call_id, &outcome)?;
        if let Some(key) = reply {
            let body = readers.bodies.body(&mut self.connection, key).await;
            ended.reply = body.map_err(|error| error.of_call(call_id))?;
        }

        let mut source =
            LogSource { connection: &mut self.connection, reader: &mut readers.bodies };
        let prompts = readers.tokens.prompts(&mut source, rows.key).await;
        ended.prompts = prompts.map_err(|error| error.of_call(call_id))?;
        ended.choices = choices(&rows, call_id, &mut source, &readers.tokens).await?;
        Ok(Call { begun, ended: Some(ended) })
    }
}

/// The choices of a call, with their ids and side arrays.
async fn choices(
    rows: &CallRows<'_>,
    call_id: CallId,
    source: &mut LogSource<'_>,
    tokens: &TokenReader,
) -> Result<Vec<Choice>, SnapshotError> {
    let mut choices = Vec::with_capacity(rows.choices.len());
    for row in rows.choices {
        let mut choice = choice_of(row, call_id)?;
        let at = CallIndex { call_key: rows.key, index: choice.index.into() };
        let sampled = tokens.sampled(source, at).await;
        choice.token_ids = sampled.map_err(|error| error.of_call(call_id))?;
        choices.push(choice);
    }
    choices.sort_by_key(|choice| choice.index);

    for row in rows.sides {
        let (index, side) = side_of(row, call_id)?;
        if let Some(choice) = choices.iter_mut().find(|choice| choice.index == index) {
            choice.token_columns.push(side);
        }
    }
    Ok(choices)
}

fn by_call(rows: Vec<Row>) -> Result<HashMap<i64, Vec<Row>>, sqlx::Error> {
    let mut found: HashMap<i64, Vec<Row>> = HashMap::new();
    for row in rows {
        found.entry(row.try_get("call_key")?).or_default().push(row);
    }
    Ok(found)
}
