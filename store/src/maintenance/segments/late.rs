//! What came after attempts were sealed: their rewards, and annotations of their calls. A sealing
//! that finds some writes a file of lines of JSON for each kind. The store keeps them, too.

use std::io::{BufWriter, Write};

use episode::{AttemptId, InvalidId};
use serde_json::{Value as Json, json};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::database::value::Value;
use crate::encoding::pack::{pack_planes, unpack_planes};
use crate::maintenance::segments::{SegmentError, between_steps};
use crate::snapshot::catalog::{CatalogEntry, EntryKind, SegmentFolder};

/// Rows that are read at once.
const ROWS_AT_ONCE: usize = 256;

const INSERT_REWARD: &str = "INSERT INTO reward (episode_key, scope, call_id, choice_index, \
    token_start, token_end, name, value, source, given_at, given_by, given_from, key_name, \
    over_calls, over_chain) \
    SELECT episode_key, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16 FROM episode \
    WHERE episode_id = $1 AND attempt = $2";
const INSERT_ANNOTATION: &str = "INSERT INTO late_annotation (episode_key, call_id, choice_index, \
    name, version, token_start, tokens, data, given_at) \
    SELECT episode_key, $3, $4, $5, $6, $7, $8, $9, $10 FROM episode \
    WHERE episode_id = $1 AND attempt = $2";

/// A kind of what came late.
#[derive(Debug)]
pub(super) struct LateKind {
    pub(super) kind: EntryKind,
    table: &'static str,
    /// The column with the store's own key, by which a row is known when it comes twice.
    key: &'static str,
    /// The end of a file's name.
    pub(super) suffix: &'static str,
    /// Adds a row to the attempt of its name, where the store has that.
    insert: &'static str,
}

/// All kinds.
pub(super) static LATE: [LateKind; 2] = [
    LateKind {
        kind: EntryKind::Rewards,
        table: "reward",
        key: "reward_key",
        suffix: "rewards.jsonl",
        insert: INSERT_REWARD,
    },
    LateKind {
        kind: EntryKind::Annotations,
        table: "late_annotation",
        key: "late_annotation_key",
        suffix: "annotations.jsonl",
        insert: INSERT_ANNOTATION,
    },
];

impl LateKind {
    /// Writes what came late to a file beside the segments. `None` where there is nothing.
    pub(super) async fn seal(
        &self,
        connection: &mut StoreConnection,
        folder: &SegmentFolder,
        store: &str,
        number: u64,
    ) -> Result<Option<CatalogEntry>, SegmentError> {
        let Self { table, key, .. } = self;
        let late = query(format!("SELECT {key} FROM {table} WHERE is_late = 1 ORDER BY {key}"));
        let keys = late.scalars::<i64>(connection).await?;
        if keys.is_empty() {
            return Ok(None);
        }

        let file = folder.making()?;
        let mut lines = BufWriter::new(file.as_file());
        let mut count = 0;
        for keys in keys.chunks(ROWS_AT_ONCE) {
            let select = format!(
                "SELECT l.*, e.episode_id, e.attempt FROM {table} l JOIN episode e \
                 USING (episode_key) WHERE l.{key} IN ({}) ORDER BY l.{key}",
                listed(keys)
            );
            for row in query(select).fetch_all(connection).await? {
                let line = self.line(&row)?;
                writeln!(lines, "{line}").map_err(SegmentError::io(file.path()))?;
                count += 1;
            }
        }
        lines.flush().map_err(SegmentError::io(file.path()))?;
        drop(lines);

        let kept = folder.keep(file, number, self.suffix)?;
        between_steps()?;
        let entry = folder.enter(CatalogEntry::of_late(self.kind, store, number, kept, count))?;
        between_steps()?;
        // A crash before this makes another file with the same rows, which `gather` takes once.
        for keys in keys.chunks(ROWS_AT_ONCE) {
            let done = format!("UPDATE {table} SET is_late = 0 WHERE {key} IN ({})", listed(keys));
            query(done).execute(connection).await?;
        }
        Ok(Some(entry))
    }

    fn line(&self, row: &Row) -> Result<Json, SegmentError> {
        Ok(match self.kind {
            EntryKind::Annotations => annotation_line(row)?,
            _ => reward_line(row)?,
        })
    }

    /// Reads a line of a file.
    pub(super) fn read(&self, line: &str) -> Result<LateRow, String> {
        let object: Json = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let values = match self.kind {
            EntryKind::Annotations => annotation_values(&object)?,
            _ => reward_values(&object),
        };

        let key = self.key;
        Ok(LateRow {
            key: object[key].as_i64().ok_or_else(|| format!("`{key}` is no number"))?,
            episode: object["episode_id"].as_str().ok_or("`episode_id` is no text")?.to_owned(),
            attempt: object["attempt"].as_i64().ok_or("`attempt` is no number")?,
            values,
        })
    }

    /// Adds a row to the attempt of its name, where the store has that.
    pub(super) async fn add(
        &self,
        row: LateRow,
        to: &mut StoreConnection,
    ) -> Result<(), sqlx::Error> {
        let LateRow { episode, attempt, values, .. } = row;
        query(self.insert).bind(episode).bind(attempt).bind_all(values).execute(to).await
    }
}

/// A row of a file.
#[derive(Debug)]
pub(super) struct LateRow {
    /// The key that the store gave it.
    pub(super) key: i64,
    pub(super) episode: String,
    pub(super) attempt: i64,
    values: Vec<Value>,
}

impl LateRow {
    /// The name of its attempt.
    pub(super) fn named(&self) -> Result<AttemptId, String> {
        let episode = self.episode.parse().map_err(|error: InvalidId| error.to_string())?;
        let attempt = self.attempt.try_into().map_err(|_| "`attempt` is out of range")?;
        Ok(AttemptId { episode, attempt })
    }
}

fn listed(keys: &[i64]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn reward_line(row: &Row) -> Result<Json, sqlx::Error> {
    let text = |name: &str| row.try_get::<Option<String>>(name);
    let number = |name: &str| row.try_get::<Option<i64>>(name);

    Ok(json!({
        "episode_id": text("episode_id")?,
        "attempt": number("attempt")?,
        "reward_key": number("reward_key")?,
        "scope": text("scope")?,
        "call_id": text("call_id")?,
        "choice_index": number("choice_index")?,
        "token_start": number("token_start")?,
        "token_end": number("token_end")?,
        "name": text("name")?,
        "value": row.try_get::<Option<f64>>("value")?,
        "source": text("source")?,
        "given_at": number("given_at")?,
        "given_by": text("given_by")?,
        "given_from": text("given_from")?,
        "key_name": text("key_name")?,
        "over_calls": number("over_calls")?,
        "over_chain": row.try_get::<Option<Vec<u8>>>("over_chain")?,
    }))
}

fn reward_values(object: &Json) -> Vec<Value> {
    let text = |name: &str| Value::Text(object[name].as_str().map(str::to_owned));
    let number = |name: &str| Value::Integer(object[name].as_i64());

    vec![
        text("scope"),
        text("call_id"),
        number("choice_index"),
        number("token_start"),
        number("token_end"),
        text("name"),
        Value::Real(object["value"].as_f64()),
        text("source"),
        number("given_at"),
        text("given_by"),
        text("given_from"),
        text("key_name"),
        number("over_calls"),
        Value::Bytes(serde_json::from_value(object["over_chain"].clone()).unwrap_or(None)),
    ]
}

fn annotation_line(row: &Row) -> Result<Json, SegmentError> {
    let text = |name: &str| row.try_get::<String>(name);
    let number = |name: &str| row.try_get::<i64>(name);
    let values = unpack_planes(row.try_get("data")?, row.try_get("tokens")?)
        .map_err(|error| sqlx::Error::Decode(error.into()))?;

    Ok(json!({
        "episode_id": text("episode_id")?,
        "attempt": number("attempt")?,
        "late_annotation_key": number("late_annotation_key")?,
        "call_id": text("call_id")?,
        "choice_index": number("choice_index")?,
        "name": text("name")?,
        "version": text("version")?,
        "token_start": number("token_start")?,
        // Nothing is said of a token where the number is none.
        "values": values,
        "given_at": number("given_at")?,
    }))
}

fn annotation_values(object: &Json) -> Result<Vec<Value>, String> {
    let text = |name: &str| Value::Text(object[name].as_str().map(str::to_owned));
    let number = |name: &str| Value::Integer(object[name].as_i64());
    let values: Vec<Option<f32>> = serde_json::from_value(object["values"].clone())
        .map_err(|error| format!("`values` are no numbers: {error}"))?;
    let values: Vec<f32> = values.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect();

    Ok(vec![
        text("call_id"),
        number("choice_index"),
        text("name"),
        text("version"),
        number("token_start"),
        Value::from(values.len() as i64),
        Value::from(pack_planes(&values)),
        number("given_at"),
    ])
}
