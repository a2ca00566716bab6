//! Decoding rows into the types of `episode`.

use std::str::FromStr;

use episode::{
    Annotation, Body, CallEnd, CallId, CallKind, CallStart, ChainHead, Choice, Comment, Continued,
    Fidelity, Giver, Lineage, Outcome, Provenance, Replay, ReplyHead, Reward, RewardScope, Route,
    ScopeError, ScopeParts, TagSource, TokenColumn, TokenCounts, VersionSpan, VersionStamps,
};

use crate::chain::digest_of;
use crate::database::row::Row;
use crate::encoding::pack::{Packed, unpack, unpack_floats, unpack_planes};
use crate::error::{ReadError, SnapshotError};
use crate::log::format::IN_LOG;
use crate::types::AttemptRecord;

/// An episode, without its labels.
pub(crate) fn episode_of(row: &Row) -> Result<AttemptRecord, SnapshotError> {
    let source: String = row.try_get("source")?;
    let group: Option<String> = row.try_get("group_id")?;
    let task: Option<String> = row.try_get("task_id")?;
    let replay: Option<String> = row.try_get("replay")?;

    Ok(AttemptRecord {
        key: row.try_get("episode_key")?,
        id: parse(row.try_get("episode_id")?, "episode id")?,
        attempt: row.try_get("attempt")?,
        group: group.map(|group| parse(group, "group id")).transpose()?,
        task: task.map(|task| parse(task, "task id")).transpose()?,
        labels: Vec::new(),
        source: TagSource::from_word(&source)
            .ok_or_else(|| SnapshotError::Word(source.clone(), "source of a tag"))?,
        opened_at: row.try_get("opened_at")?,
        closed_at: row.try_get("closed_at")?,
        status: row.try_get("status")?,
        force_sampling: row.try_get("force_sampling")?,
        continues: row.try_get("continues")?,
        replay: replay.as_deref().and_then(Replay::of_text),
        may_lack_calls: row.try_get::<i64>("may_lack_calls")? > 0 || row.try_get("marked")?,
    })
}

/// An id of the store.
pub(crate) fn parse<T: FromStr>(word: String, kind: &'static str) -> Result<T, SnapshotError> {
    word.parse().map_err(|_| SnapshotError::Word(word, kind))
}

/// The beginning of a call, without its body.
pub(crate) fn begun_of(row: &Row, record: &AttemptRecord) -> Result<CallStart, SnapshotError> {
    let call_id: CallId = parse(row.try_get("call_id")?, "call id")?;

    Ok(CallStart {
        call_id,
        tag: record.tag(),
        started_at: row.try_get("started_at")?,
        method: row.try_get("method")?,
        path: row.try_get("path")?,
        route: Route::from_word(&row.try_get::<String>("route")?),
        model: row.try_get("requested_model")?,
        request: Body::default(),
        sampling: row.try_get("sampling")?,
        lineage: Lineage {
            client: row.try_get("client")?,
            session: row.try_get("session")?,
            agent: row.try_get("agent")?,
            parent: row.try_get("parent_agent")?,
            kind: CallKind::from_word(&row.try_get::<String>("kind")?),
            retry: row.try_get("retry")?,
        },
    })
}

/// The end of a call, without its body, prompts and choices.
pub(crate) fn ended_of(
    row: &Row,
    call_id: CallId,
    outcome: &str,
) -> Result<CallEnd, SnapshotError> {
    let outcome = Outcome::from_word(outcome)
        .ok_or_else(|| SnapshotError::Word(outcome.to_owned(), "outcome"))?;
    let logprob_kind: Option<String> = row.try_get("logprob_kind")?;
    let translated: Option<String> = row.try_get("translated")?;
    // Absent in calls of older versions.
    let heartbeats: Option<i64> = row.try_get("heartbeats")?;
    let continued: Option<String> = row.try_get("continued")?;

    Ok(CallEnd {
        call_id,
        ended_at: row.try_get("ended_at")?,
        first_byte_at: row.try_get("first_byte_at")?,
        status: row.try_get("status")?,
        outcome,
        error: row.try_get("error")?,
        reply: Body::default(),
        model: row.try_get("reply_model")?,
        prompts: Vec::new(),
        choices: Vec::new(),
        usage: TokenCounts {
            prompt: row.try_get::<Option<i64>>("prompt_tokens")?.map(i64::cast_unsigned),
            completion: row.try_get::<Option<i64>>("completion_tokens")?.map(i64::cast_unsigned),
        },
        sampled_with: row.try_get("sampled_with")?,
        logprob_kind: logprob_kind.unwrap_or_else(|| "unknown".to_owned()),
        translated: translated.map(|word| Route::from_word(&word)),
        unasked: row.try_get("unasked")?,
        heartbeats: heartbeats.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        stamps: VersionStamps {
            start: row.try_get("stamp_start")?,
            end: row.try_get("stamp_end")?,
        },
        engine: row.try_get("engine")?,
        routed: row.try_get("routed")?,
        continued: continued.as_deref().and_then(Continued::from_json),
        head: if_there(row, "reply_head")?
            .map_or_else(ReplyHead::default, |head| ReplyHead::of_text(&head)),
        replayed: if_there(row, "replayed")?.map(|id| parse(id, "call id")).transpose()?,
    })
}

/// The text in a column that segments of earlier versions lack.
fn if_there(row: &Row, name: &str) -> Result<Option<String>, sqlx::Error> {
    match row.try_get(name) {
        Err(sqlx::Error::ColumnNotFound(_)) => Ok(None),
        read => read,
    }
}

/// A choice, without its token ids and side arrays.
pub(crate) fn choice_of(row: &Row, call: CallId) -> Result<Choice, SnapshotError> {
    let versions: Option<String> = row.try_get("versions")?;
    let fidelity: String = row.try_get("fidelity")?;
    Ok(Choice {
        index: row.try_get("choice_index")?,
        prompt_index: row.try_get("prompt_index")?,
        token_ids: None,
        logprobs: logprobs_of(row).map_err(|error| error.of_call(call))?,
        finish_reason: row.try_get("finish_reason")?,
        stop_reason: row.try_get("stop_reason")?,
        versions: versions.map_or(Ok(Vec::new()), |text| spans_of(&text))?,
        fidelity: Fidelity::from_word(&fidelity)
            .ok_or_else(|| SnapshotError::Word(fidelity.clone(), "fidelity"))?,
        token_columns: Vec::new(),
    })
}

fn logprobs_of(row: &Row) -> Result<Vec<f32>, ReadError> {
    let data: &[u8] = row.try_get("logprobs")?;
    match row.try_get("encoding")? {
        IN_LOG => Ok(unpack_planes(data, row.try_get("logprob_count")?)?),
        older => Ok(unpack_floats(older, data)?),
    }
}

/// The spans of a choice's versions.
pub(crate) fn spans_of(text: &str) -> Result<Vec<VersionSpan>, SnapshotError> {
    let spans: Vec<(String, u32, u32)> = serde_json::from_str(text)
        .map_err(|_| SnapshotError::Word(text.to_owned(), "list of version spans"))?;
    Ok(spans.into_iter().map(|(version, start, end)| VersionSpan { version, start, end }).collect())
}

/// A side array and the index of its choice.
pub(crate) fn side_of(row: &Row, call: CallId) -> Result<(u32, TokenColumn), SnapshotError> {
    let packed = Packed { encoding: row.try_get("encoding")?, data: row.try_get("data")? };
    let bytes = unpack(packed, row.try_get("length")?, &[])
        .map_err(|error| ReadError::from(error).of_call(call))?;
    let name: String = row.try_get("name")?;
    let json = String::from_utf8(bytes).map_err(|_| SnapshotError::Word(name.clone(), "text"))?;
    Ok((row.try_get("choice_index")?, TokenColumn { name, json }))
}

/// An annotation, with the id of its call.
pub(crate) fn annotation_of(row: &Row) -> Result<Annotation, SnapshotError> {
    let call: CallId = parse(row.try_get("call_id")?, "call id")?;
    let values = unpack_planes(row.try_get("data")?, row.try_get("tokens")?)
        .map_err(|error| ReadError::from(error).of_call(call))?;
    Ok(Annotation {
        call,
        choice: row.try_get("choice_index")?,
        name: row.try_get("name")?,
        version: row.try_get("version")?,
        start: row.try_get("token_start")?,
        values,
        at: row.try_get("given_at")?,
    })
}

/// A reward.
pub(crate) fn reward_of(row: &Row) -> Result<Reward, SnapshotError> {
    let word: Option<String> = row.try_get("scope")?;
    let call: Option<String> = row.try_get("call_id")?;
    let parts = ScopeParts {
        word: word.as_deref(),
        call: call.map(|call| parse(call, "call id")).transpose()?,
        choice: row.try_get("choice_index")?,
        tokens: (row.try_get("token_start")?, row.try_get("token_end")?),
    };
    let scope = RewardScope::new(&parts)
        .map_err(|error: ScopeError| SnapshotError::Word(error.to_string(), "scope of a reward"))?;
    Ok(Reward {
        scope,
        name: row.try_get("name")?,
        value: row.try_get("value")?,
        source: row.try_get("source")?,
        at: row.try_get("given_at")?,
        provenance: provenance_of(row)?,
    })
}

/// A comment.
pub(crate) fn comment_of(row: &Row) -> Result<Comment, SnapshotError> {
    let call: Option<String> = row.try_get("call_id")?;
    Ok(Comment {
        call: call.map(|call| parse(call, "call id")).transpose()?,
        text: row.try_get("text")?,
        score: row.try_get("score")?,
        author: row.try_get("author")?,
        at: row.try_get("given_at")?,
        provenance: giver_of(row)?,
    })
}

fn provenance_of(row: &Row) -> Result<Provenance, SnapshotError> {
    let calls: Option<i64> = row.try_get("over_calls")?;
    let digest: Option<&[u8]> = row.try_get("over_chain")?;
    Ok(Provenance {
        over: calls.zip(digest).map(|(calls, digest)| ChainHead {
            calls: calls.unsigned_abs(),
            digest: digest_of(digest),
        }),
        ..giver_of(row)?
    })
}

/// The provenance of a row without a chain.
fn giver_of(row: &Row) -> Result<Provenance, SnapshotError> {
    let by: Option<String> = row.try_get("given_by")?;
    let by = by.map(|word| {
        Giver::from_word(&word).ok_or_else(|| SnapshotError::Word(word.clone(), "giver"))
    });
    let (from, key) = (row.try_get("given_from")?, row.try_get("key_name")?);
    Ok(Provenance { by: by.transpose()?, from, key, over: None })
}
