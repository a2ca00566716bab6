//! Reading calls back, whole.

use std::collections::{BTreeSet, HashMap};

use episode::{Call, CallId, Choice, Ended, Micros, Outcome, Route, Stamps, TokenCounts};

use crate::fields::Row;
use crate::query::query;
use crate::read::{Names, Reader};
use crate::rows::{begun_of, choice_of, side_of, unread};
use crate::snapshot::{EpisodeRecord, Snapshot, SnapshotError};
use crate::trace::Trace;

/// A call with the rows of its bodies.
const CALL: &str = "SELECT c.call_key, c.call_id, c.started_at, c.method, c.path, c.route, \
    c.requested_model, c.sampling, c.ended_at, c.first_byte_at, c.status, c.outcome, c.error, \
    c.reply_model, c.prompt_tokens, c.completion_tokens, c.logprob_kind, c.client, c.session, \
    c.agent, c.parent_agent, c.kind, c.retry, c.translated, c.unasked, c.stamp_start, c.stamp_end, \
    c.sampled_with, \
    q.body_key AS q_body_key, q.encoding AS q_encoding, q.length AS q_length, q.data AS q_data, \
    q.base_key AS q_base_key, q.reel_key AS q_reel_key, q.hash AS q_hash, \
    p.body_key AS p_body_key, p.encoding AS p_encoding, p.length AS p_length, p.data AS p_data, \
    p.base_key AS p_base_key, p.reel_key AS p_reel_key, p.hash AS p_hash \
    FROM call c JOIN body q ON q.body_key = c.request_body \
    LEFT JOIN body p ON p.body_key = c.reply_body";

const REQUEST: Names =
    ["q_body_key", "q_encoding", "q_length", "q_data", "q_base_key", "q_reel_key", "q_hash"];
const REPLY: Names =
    ["p_body_key", "p_encoding", "p_length", "p_data", "p_base_key", "p_reel_key", "p_hash"];

const SIDES_OF_EPISODE: &str = "SELECT s.* FROM side s JOIN call c USING (call_key) \
    WHERE c.episode_key = $1 ORDER BY s.choice_index, s.name";

const CLOSED_WITH_OPEN_CALLS: &str = "SELECT e.episode_key FROM episode e \
    WHERE e.closed_at > $1 AND EXISTS (SELECT 1 FROM call c \
        WHERE c.episode_key = e.episode_key AND c.outcome IS NULL)";

impl Snapshot {
    /// The keys of the attempts that were closed after a time and have calls without an end: calls
    /// that are under way, or whose recorder died.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn closed_with_open_calls(
        &mut self,
        after: Micros,
    ) -> Result<BTreeSet<i64>, SnapshotError> {
        let keys = query(CLOSED_WITH_OPEN_CALLS).bind(after);
        let keys: Vec<i64> = keys.scalars(self.connection()).await?;
        Ok(keys.into_iter().collect())
    }

    /// All calls of one attempt, in the order in which they began. A few statements, however many
    /// calls there are.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a body does not decode.
    pub async fn calls(&mut self, episode: &EpisodeRecord) -> Result<Vec<Call>, SnapshotError> {
        let all = format!("{CALL} WHERE c.episode_key = $1 ORDER BY c.started_at, c.call_id");
        let rows = query(all).bind(episode.key).fetch_all(self.connection()).await?;
        let (mut reader, mut trace) = (Reader::default(), Trace::default());
        let loaded = trace.of_episode(self.connection(), episode.key).await;
        let choices = loaded.map_err(|error| error.of(format!("episode `{}`", episode.id)))?;
        let sides = match self.has_sides().await? {
            true => query(SIDES_OF_EPISODE).bind(episode.key).fetch_all(self.connection()).await?,
            false => Vec::new(),
        };
        let (choices, sides) = (by_call(choices)?, by_call(sides)?);
        let mut calls = Vec::with_capacity(rows.len());
        for row in rows {
            let key: i64 = row.try_get("call_key")?;
            let rows = Rows { call: &row, choices: of(&choices, key), sides: of(&sides, key) };
            calls.push(self.call_of(rows, episode, (&mut reader, &mut trace)).await?);
        }
        Ok(calls)
    }

    /// One call; `None` when there is none of that id.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a body does not decode.
    pub async fn call(&mut self, call_id: CallId) -> Result<Option<Call>, SnapshotError> {
        let one = format!("{CALL} WHERE c.call_id = $1");
        let row = query(one).bind(call_id.to_string());
        let Some(row) = row.fetch_optional(self.connection()).await? else { return Ok(None) };
        let Some(episode) = self.episode_with(call_id).await? else { return Ok(None) };
        let key: i64 = row.try_get("call_key")?;
        let (mut reader, mut trace) = (Reader::default(), Trace::default());
        let loaded = trace.of_call(self.connection(), key).await;
        loaded.map_err(|error| unread(call_id, error))?;
        let choices = "SELECT * FROM choice WHERE call_key = $1 ORDER BY choice_index";
        let choices = query(choices).bind(key).fetch_all(self.connection()).await?;
        let sides = "SELECT * FROM side WHERE call_key = $1 ORDER BY choice_index, name";
        let sides = query(sides).bind(key).fetch_all(self.connection()).await?;
        let rows = Rows { call: &row, choices: &choices, sides: &sides };
        self.call_of(rows, &episode, (&mut reader, &mut trace)).await.map(Some)
    }

    async fn call_of(
        &mut self,
        rows: Rows<'_>,
        episode: &EpisodeRecord,
        (reader, trace): (&mut Reader, &mut Trace),
    ) -> Result<Call, SnapshotError> {
        let row = rows.call;
        let mut begun = begun_of(row, episode)?;
        let call_id = begun.call_id;
        let (request, reply) = (reader.keep(row, &REQUEST)?, reader.keep(row, &REPLY)?);
        if let Some(key) = request {
            let body = reader.body(self.connection(), key).await;
            begun.request = body.map_err(|error| unread(call_id, error))?;
        }
        let Some(outcome) = row.try_get::<Option<String>>("outcome")? else {
            return Ok(Call { begun, ended: None });
        };
        let mut ended = ended_of(row, call_id, &outcome)?;
        if let Some(key) = reply {
            let body = reader.body(self.connection(), key).await;
            ended.reply = body.map_err(|error| unread(call_id, error))?;
        }
        let call_key: i64 = row.try_get("call_key")?;
        let prompts = trace.prompts((self.connection(), reader), call_key).await;
        ended.prompts = prompts.map_err(|error| unread(call_id, error))?;
        ended.choices = self.choices(rows, call_id, (reader, trace)).await?;
        Ok(Call { begun, ended: Some(ended) })
    }

    async fn choices(
        &mut self,
        rows: Rows<'_>,
        call_id: CallId,
        (reader, trace): (&mut Reader, &mut Trace),
    ) -> Result<Vec<Choice>, SnapshotError> {
        let call_key: i64 = rows.call.try_get("call_key")?;
        let mut choices = Vec::with_capacity(rows.choices.len());
        for row in rows.choices {
            let mut choice = choice_of(row, call_id)?;
            let at = (call_key, i64::from(choice.index));
            let sampled = trace.sampled((self.connection(), reader), at).await;
            choice.token_ids = sampled.map_err(|error| unread(call_id, error))?;
            choices.push(choice);
        }
        for row in rows.sides {
            let (index, side) = side_of(row, call_id)?;
            if let Some(choice) = choices.iter_mut().find(|choice| choice.index == index) {
                choice.sides.push(side);
            }
        }
        Ok(choices)
    }
}

/// What is read of a call.
#[derive(Clone, Copy)]
struct Rows<'a> {
    call: &'a Row,
    choices: &'a [Row],
    sides: &'a [Row],
}

type ByCall = HashMap<i64, Vec<Row>>;

fn of(rows: &ByCall, call_key: i64) -> &[Row] {
    rows.get(&call_key).map_or(&[], Vec::as_slice)
}

fn by_call(rows: Vec<Row>) -> Result<ByCall, sqlx::Error> {
    let mut found = ByCall::new();
    for row in rows {
        found.entry(row.try_get("call_key")?).or_default().push(row);
    }
    Ok(found)
}

/// The end of a call, without its body and its tokens.
pub(crate) fn ended_of(row: &Row, call_id: CallId, outcome: &str) -> Result<Ended, SnapshotError> {
    let outcome = Outcome::from_word(outcome)
        .ok_or_else(|| SnapshotError::Word(outcome.to_owned(), "outcome"))?;
    let count = |name| -> Result<Option<u64>, sqlx::Error> {
        Ok(row.try_get::<Option<i64>>(name)?.map(i64::unsigned_abs))
    };
    let kind: Option<String> = row.try_get("logprob_kind")?;
    let translated: Option<String> = row.try_get("translated")?;
    Ok(Ended {
        call_id,
        ended_at: row.try_get("ended_at")?,
        first_byte_at: row.try_get("first_byte_at")?,
        status: row.try_get("status")?,
        outcome,
        error: row.try_get("error")?,
        reply: bytes::Bytes::new(),
        model: row.try_get("reply_model")?,
        prompts: Vec::new(),
        choices: Vec::new(),
        usage: TokenCounts {
            prompt: count("prompt_tokens")?,
            completion: count("completion_tokens")?,
        },
        sampled_with: row.try_get("sampled_with")?,
        logprob_kind: kind.unwrap_or_else(|| "unknown".to_owned()),
        translated: translated.map(|word| Route::from_word(&word)),
        unasked: row.try_get("unasked")?,
        stamps: Stamps { start: row.try_get("stamp_start")?, end: row.try_get("stamp_end")? },
    })
}
