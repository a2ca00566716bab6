//! Rewards of attempts that were sealed before they came: a file of lines of JSON for each sealing
//! that finds some. The store keeps them, too.

use std::io::{BufWriter, Write};

use serde_json::{Value as Json, json};
use tempfile::NamedTempFile;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::database::value::Value;
use crate::maintenance::segments::SegmentError;
use crate::maintenance::segments::catalog::{CatalogEntry, EntryKind, SegmentFolder};

/// The setting with the key of the last reward that was looked at.
const SEEN: &str = "late_rewards_seen";
const LATE: &str = "SELECT r.*, e.episode_id, e.attempt FROM reward r JOIN sealed s \
    USING (episode_key) JOIN episode e USING (episode_key) \
    WHERE r.reward_key > $1 AND r.reward_key > s.reward_key ORDER BY r.reward_key";
const LAST: &str = "SELECT coalesce(max(reward_key), 0) FROM reward";
const SET_SEEN: &str = "INSERT INTO setting (name, value) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";
const INSERT: &str = "INSERT INTO reward (episode_key, scope, call_id, choice_index, token_start, \
    token_end, name, value, source, given_at, given_by, given_from, key_name, over_calls, \
    over_chain) \
    SELECT episode_key, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16 FROM episode \
    WHERE episode_id = $1 AND attempt = $2";

/// Writes the rewards that came late to a file beside the segments. `None` where there are none.
pub(super) async fn seal_rewards(
    connection: &mut StoreConnection,
    folder: &SegmentFolder,
    store: &str,
    number: u64,
) -> Result<Option<CatalogEntry>, SegmentError> {
    let seen = query("SELECT value FROM setting WHERE name = $1").bind(SEEN);
    let seen = seen.fetch_optional(connection).await?.map(|row| row.first::<Vec<u8>>());
    let seen = seen.transpose()?.and_then(|text| String::from_utf8(text).ok());
    let seen: i64 = seen.and_then(|text| text.parse().ok()).unwrap_or(0);
    let last: i64 = query(LAST).scalar(connection).await?;
    let rows = query(LATE).bind(seen).fetch_all(connection).await?;

    // A crash before the last statement makes another file with the same rewards, which `add`
    // takes once.
    let entry = match rows.is_empty() {
        true => None,
        false => Some(write(&rows, folder, store, number)?),
    };
    let text = last.to_string().into_bytes();
    query(SET_SEEN).bind(SEEN).bind(text).execute(connection).await?;
    Ok(entry)
}

fn write(
    rows: &[Row],
    folder: &SegmentFolder,
    store: &str,
    number: u64,
) -> Result<CatalogEntry, SegmentError> {
    let io = SegmentError::io;
    let file = NamedTempFile::new_in(folder.path()).map_err(io(folder.path()))?;
    let mut lines = BufWriter::new(file.as_file());
    for row in rows {
        writeln!(lines, "{}", line(row)?).map_err(io(file.path()))?;
    }
    lines.flush().map_err(io(file.path()))?;
    drop(lines);

    let (file, hash, bytes) = folder.keep(file, number, "rewards.jsonl")?;
    folder.enter(CatalogEntry {
        number,
        kind: EntryKind::Rewards,
        store: store.to_owned(),
        file,
        hash: hash.to_hex().to_string(),
        bytes,
        attempts: rows.len() as u64,
        calls: 0,
        completion_tokens: 0,
        positions: (0, 0),
        joins: Vec::new(),
    })
}

fn line(row: &Row) -> Result<Json, sqlx::Error> {
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

/// A reward of a file, by the name of its attempt.
pub(super) struct LateReward {
    /// The key that the store gave it, by which it is known when it comes twice.
    pub(super) key: i64,
    values: Vec<Value>,
}

impl LateReward {
    /// Reads the rewards of a file.
    pub(super) fn read(text: &str) -> Result<Vec<Self>, String> {
        text.lines().map(Self::of).collect()
    }

    fn of(line: &str) -> Result<Self, String> {
        let object: Json = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let text = |name: &str| Value::Text(object[name].as_str().map(str::to_owned));
        let number = |name: &str| Value::Integer(object[name].as_i64());

        Ok(Self {
            key: object["reward_key"].as_i64().ok_or("`reward_key` is no number")?,
            values: vec![
                text("episode_id"),
                number("attempt"),
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
            ],
        })
    }

    /// Adds it to the attempt of its name, where the store has that.
    pub(super) async fn add(self, to: &mut StoreConnection) -> Result<(), sqlx::Error> {
        query(INSERT).bind_all(self.values).execute(to).await
    }
}
