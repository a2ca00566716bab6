//! The end of a call, with all that was sampled, inside the write transaction.

use episode::{Choice, Ended, Route, Side};
use sqlx::{Row, SqliteConnection};

use crate::commit::Verdict;
use crate::pack::{REELED, pack, pack_planes};
use crate::reel::{Ids, Prompt, Reel};
use crate::reels::Reels;
use crate::write::{write_reply, write_segment};

/// Writes the end of a call with all that was sampled.
pub(crate) async fn write_ended(
    connection: &mut SqliteConnection,
    reels: &mut Reels,
    ended: &Ended,
) -> Verdict {
    let open = "SELECT call_key, episode_key FROM call WHERE call_id = $1 AND ended_at IS NULL";
    let open =
        sqlx::query(open).bind(ended.call_id.to_string()).fetch_one(&mut *connection).await?;
    let (call_key, episode_key) = (open.try_get("call_key")?, open.try_get("episode_key")?);
    let mut reel = reels.take(connection, episode_key).await?;
    let reply_body = write_reply(connection, &mut reel, &ended.reply).await?;
    update_call(connection, (call_key, reply_body, reel.key), ended).await?;
    write_ids(connection, (call_key, &mut reel), ended).await?;
    reels.put(episode_key, reel);
    Ok(())
}

async fn update_call(
    connection: &mut SqliteConnection,
    (call_key, reply_body, reel_key): (i64, i64, i64),
    ended: &Ended,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE call SET ended_at = $1, first_byte_at = $2, status = $3, outcome = $4, \
         error = $5, reply_body = $6, reply_model = $7, prompt_tokens = $8, \
         completion_tokens = $9, logprob_kind = $10, translated = $11, unasked = $12, \
         reel_key = $13 WHERE call_key = $14",
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
    .bind(reel_key)
    .bind(call_key)
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_ids(
    connection: &mut SqliteConnection,
    (call_key, reel): (i64, &mut Reel),
    ended: &Ended,
) -> Result<(), sqlx::Error> {
    let ids: Ids = reel.ids(ended);
    if let Some(segment) = &ids.segment {
        write_segment(connection, reel.key, segment).await?;
    }
    for ((index, prompt), whole) in (0..).zip(&ids.prompts).zip(&ended.prompts) {
        write_prompt(connection, (call_key, index), (prompt, whole.len())).await?;
    }
    for (choice, start) in ended.choices.iter().zip(&ids.choices) {
        write_choice(connection, (call_key, *start), choice).await?;
    }
    reel.follow(call_key, ended, &ids);
    Ok(())
}

async fn write_prompt(
    connection: &mut SqliteConnection,
    (call_key, index): (i64, i64),
    (prompt, tokens): (&Prompt, usize),
) -> Result<(), sqlx::Error> {
    let parent = prompt.walked.parent;
    sqlx::query(
        "INSERT INTO prompt (call_key, prompt_index, parent_key, parent_choice, shared, tokens, \
         encoding, token_ids, start, depth, hash) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, x'', $8, $9, $10)",
    )
    .bind(call_key)
    .bind(index)
    .bind(parent.map(|parent| parent.call_key))
    .bind(parent.map(|parent| parent.choice))
    .bind(parent.map_or(0, |parent| parent.shared as i64))
    .bind(tokens as i64)
    .bind(REELED)
    .bind(prompt.start as i64)
    .bind(prompt.walked.depth())
    .bind(prompt.hash.as_slice())
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_choice(
    connection: &mut SqliteConnection,
    (call_key, start): (i64, u64),
    choice: &Choice,
) -> Result<(), sqlx::Error> {
    let spans: Vec<_> = choice.versions.iter().map(|s| (&s.version, s.start, s.end)).collect();
    let versions = (!spans.is_empty())
        .then(|| serde_json::to_string(&spans).expect("strings and numbers are always JSON"));
    sqlx::query(
        "INSERT INTO choice (call_key, choice_index, prompt_index, tokens, logprob_count, \
         encoding, start, logprobs, finish_reason, stop_reason, versions, fidelity) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(call_key)
    .bind(choice.index)
    .bind(choice.prompt_index)
    .bind(choice.token_ids.as_ref().map(|ids| ids.len() as i64))
    .bind(choice.logprobs.len() as i64)
    .bind(REELED)
    .bind(start as i64)
    .bind(pack_planes(&choice.logprobs))
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
    let packed = pack(side.json.as_bytes(), &[]);
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
