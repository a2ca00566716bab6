//! The end of a call, with all that was sampled, inside the write transaction.

use episode::{Choice, Ended, Route, Side};
use sqlx::SqliteConnection;

use crate::body::{pack, pack_floats, pack_ids};
use crate::commit::Verdict;

/// Writes a body and gives its key.
pub(crate) async fn write_body(
    connection: &mut SqliteConnection,
    body: &[u8],
) -> Result<i64, sqlx::Error> {
    let packed = pack(body);
    let done = sqlx::query("INSERT INTO body (encoding, length, data) VALUES (?, ?, ?)")
        .bind(packed.encoding)
        .bind(body.len() as i64)
        .bind(packed.data)
        .execute(connection)
        .await?;
    Ok(done.last_insert_rowid())
}

/// Writes the end of a call with all that was sampled.
pub(crate) async fn write_ended(connection: &mut SqliteConnection, ended: &Ended) -> Verdict {
    let reply_body = write_body(connection, &ended.reply).await?;
    let call_key: i64 = sqlx::query_scalar(
        "UPDATE call SET ended_at = ?, first_byte_at = ?, status = ?, outcome = ?, error = ?, \
         reply_body = ?, reply_model = ?, prompt_tokens = ?, completion_tokens = ?, \
         logprob_kind = ?, translated = ?, unasked = ? \
         WHERE call_id = ? AND ended_at IS NULL RETURNING call_key",
    )
    .bind(ended.ended_at)
    .bind(ended.first_byte_at)
    .bind(ended.status)
    .bind(ended.outcome.as_str())
    .bind(&ended.error)
    .bind(reply_body)
    .bind(&ended.model)
    .bind(ended.usage.prompt.map(|n| n as i64))
    .bind(ended.usage.completion.map(|n| n as i64))
    .bind(&ended.logprob_kind)
    .bind(ended.translated.map(Route::as_str))
    .bind(&ended.unasked)
    .bind(ended.call_id.to_string())
    .fetch_one(&mut *connection)
    .await?;
    for (index, ids) in ended.prompts.iter().enumerate() {
        write_prompt(connection, (call_key, index as i64), ids).await?;
    }
    for choice in &ended.choices {
        write_choice(connection, call_key, choice).await?;
    }
    Ok(())
}

async fn write_prompt(
    connection: &mut SqliteConnection,
    (call_key, index): (i64, i64),
    ids: &[u32],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO prompt (call_key, prompt_index, shared, tokens, encoding, token_ids) \
         VALUES (?, ?, 0, ?, 0, ?)",
    )
    .bind(call_key)
    .bind(index)
    .bind(ids.len() as i64)
    .bind(pack_ids(ids))
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_choice(
    connection: &mut SqliteConnection,
    call_key: i64,
    choice: &Choice,
) -> Result<(), sqlx::Error> {
    let spans: Vec<_> = choice.versions.iter().map(|s| (&s.version, s.start, s.end)).collect();
    let versions = (!spans.is_empty())
        .then(|| serde_json::to_string(&spans).expect("strings and numbers are always JSON"));
    sqlx::query(
        "INSERT INTO choice (call_key, choice_index, prompt_index, tokens, encoding, token_ids, \
         logprobs, finish_reason, stop_reason, versions, fidelity) \
         VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?)",
    )
    .bind(call_key)
    .bind(choice.index)
    .bind(choice.prompt_index)
    .bind(choice.token_ids.as_ref().map(|ids| ids.len() as i64))
    .bind(choice.token_ids.as_ref().map(|ids| pack_ids(ids)))
    .bind(pack_floats(&choice.logprobs))
    .bind(&choice.finish_reason)
    .bind(&choice.stop_reason)
    .bind(versions)
    .bind(choice.fidelity.as_str())
    .execute(&mut *connection)
    .await?;
    for side in &choice.sides {
        write_side(connection, (call_key, choice.index), side).await?;
    }
    Ok(())
}

async fn write_side(
    connection: &mut SqliteConnection,
    (call_key, choice_index): (i64, u32),
    side: &Side,
) -> Result<(), sqlx::Error> {
    let packed = pack(side.json.as_bytes());
    sqlx::query(
        "INSERT INTO side (call_key, choice_index, name, encoding, length, data) \
         VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(call_key)
    .bind(choice_index)
    .bind(&side.name)
    .bind(packed.encoding)
    .bind(side.json.len() as i64)
    .bind(packed.data)
    .execute(connection)
    .await?;
    Ok(())
}
