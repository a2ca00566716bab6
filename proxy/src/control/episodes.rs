//! Episodes: announced, looked at, rewarded, closed; keys that name them.

use episode::{
    CLOSING_WORDS, EpisodeId, GroupId, Reward, RewardScope, ScopeParts, Tag, TagSource, TaskId,
};
use hyper::StatusCode;
use serde_json::{Value, json};
use store::{CommitError, Selection};
use wire::Force;

use super::answers::{Answer, bad, done, error, fields, number, query, refused, text, unread};
use crate::open_call::now;
use crate::proxy::Proxy;

/// How long an API key is good for unless told, in seconds: a day.
const KEY_LIFE_S: i64 = 86_400;
const KEY_LIFE_S_MAX: i64 = 31_536_000;
/// Attempts in a group at most.
const GROUP_MAX: u32 = 100_000;
/// What may be said of an episode before its first call.
const ANNOUNCED: [&str; 7] =
    ["episode_id", "attempt", "group_id", "group_size", "task_id", "labels", "force_sampling"];
/// What may be said of a reward.
const REWARDED: [&str; 8] =
    ["value", "name", "source", "scope", "call_id", "choice", "start", "end"];

/// An attempt at an episode.
pub(super) type Which = (EpisodeId, u32);

/// Makes an episode known, with the sampling that its calls are to get.
pub(super) async fn announce(proxy: &Proxy, body: &[u8]) -> Result<Answer, Answer> {
    let fields = &fields(body, &ANNOUNCED)?;
    let tag = announced(fields)?;
    let key = tag.key();
    let force = text(fields, "force_sampling")?.map(|force| force.parse::<Force>());
    let force = force.transpose().map_err(|e| bad(&e))?;
    let size = number(fields, "group_size")?;
    if size.is_some_and(|size| !(1..=GROUP_MAX).contains(&size))
        || size.is_some_and(|_| tag.group.is_none())
    {
        return Err(bad(&format!("`group_size` is 1 to {GROUP_MAX}, beside a `group_id`")));
    }
    let written = force.as_ref().map(Force::to_string);
    proxy.store().announce(tag, now(), written, size).await.map_err(refused)?;
    if let Some(force) = force {
        proxy.force_on(key, force);
    }
    Ok(done())
}

/// An API key for an attempt, with its end.
pub(super) fn mint(
    proxy: &Proxy,
    (episode, attempt): &Which,
    body: &[u8],
) -> Result<Answer, Answer> {
    let fields = fields(body, &["ttl_s"])?;
    let seconds = match fields.get("ttl_s") {
        None | Some(Value::Null) => KEY_LIFE_S,
        Some(number) => number
            .as_i64()
            .filter(|seconds| (1..=KEY_LIFE_S_MAX).contains(seconds))
            .ok_or_else(|| bad(&"`ttl_s` is not 1 to 31536000"))?,
    };
    let until = now() + seconds * 1_000_000;
    let key = proxy.known.signer.mint(episode, *attempt, until);
    Ok((StatusCode::OK, json!({ "api_key": key, "expires_at": until / 1_000_000 })))
}

/// Refuses later calls, and makes the attempt one that is handed out.
pub(super) async fn close(proxy: &Proxy, which: Which, body: &[u8]) -> Result<Answer, Answer> {
    let status = closing_word(&fields(body, &["status"])?)?;
    proxy.forget(&which);
    proxy.store().close(which.clone(), now(), status).await.map_err(refused)?;
    // A call that began meanwhile may have put it back.
    proxy.forget(&which);
    proxy.feed.changed();
    Ok(done())
}

/// Appends a reward.
pub(super) async fn give(proxy: &Proxy, which: Which, body: &[u8]) -> Result<Answer, Answer> {
    let reward = reward(&fields(body, &REWARDED)?)?;
    if let RewardScope::Tokens { .. } = reward.scope {
        let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
        let sampled = snapshot.sampled(reward.scope).await.map_err(unread)?;
        reward.scope.within(sampled).map_err(|why| bad(&why))?;
    }
    proxy.store().reward(which, reward).await.map_err(refused)?;
    proxy.feed.changed();
    Ok(done())
}

/// What was recorded of an attempt, counted.
pub(super) async fn summary(proxy: &Proxy, (id, attempt): Which) -> Result<Answer, Answer> {
    let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
    let only = Selection { episode: Some(id.clone()), ..Selection::default() };
    let found = snapshot.summaries(&only).await.map_err(unread)?;
    let Some(found) = found.into_iter().find(|s| s.episode.attempt == attempt) else {
        return Err(refused(CommitError::Unknown(id, attempt)));
    };
    let body = json!({
        "episode_id": found.episode.id.as_str(),
        "attempt": attempt,
        "group_id": found.episode.group.as_ref().map(GroupId::as_str),
        "task_id": found.episode.task.as_ref().map(TaskId::as_str),
        "closed": found.episode.closed_at.is_some(),
        "status": found.episode.status,
        "calls": found.calls,
        "generations": found.generations,
        "with_ids": found.with_ids,
        "incomplete": found.incomplete,
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "reward": found.reward,
    });
    Ok((StatusCode::OK, body))
}

/// The attempt that a path and its query name.
pub(super) fn which(id: &str, query: Option<&str>) -> Result<Which, Answer> {
    Ok((id.parse().map_err(|e| bad(&e))?, attempt(query)?))
}

fn attempt(given: Option<&str>) -> Result<u32, Answer> {
    match query(given, &["attempt"])?.first() {
        None => Ok(0),
        Some((_, number)) => {
            number.parse().map_err(|_| bad(&format!("`attempt` is not a number from 0: {number}")))
        }
    }
}

fn announced(fields: &Value) -> Result<Tag, Answer> {
    let (id, attempt) = named(fields)?;
    let labels = match fields.get("labels") {
        None | Some(Value::Null) => None,
        Some(Value::Object(labels)) => Some(labels),
        Some(_) => return Err(bad(&"`labels` is not a JSON object")),
    };
    let labels = labels.into_iter().flatten();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(Tag {
        episode: id,
        attempt,
        group: text(fields, "group_id")?.map(|g| g.parse()).transpose().map_err(|e| bad(&e))?,
        task: text(fields, "task_id")?.map(|t| t.parse()).transpose().map_err(|e| bad(&e))?,
        labels: labels.map(|(name, value)| (name.clone(), word(value))).collect(),
        source: TagSource::Control,
    })
}

/// The attempt that `episode_id` and `attempt` name.
pub(super) fn named(fields: &Value) -> Result<Which, Answer> {
    let id = text(fields, "episode_id")?.ok_or_else(|| bad(&"`episode_id` is missing"))?;
    Ok((id.parse().map_err(|e| bad(&e))?, number(fields, "attempt")?.unwrap_or(0)))
}

fn closing_word(fields: &Value) -> Result<Option<String>, Answer> {
    let word = text(fields, "status")?;
    match word {
        Some(other) if !CLOSING_WORDS.contains(&other.as_str()) => {
            let words = CLOSING_WORDS.join(", ");
            Err(error(StatusCode::BAD_REQUEST, &format!("`status` is none of {words}")))
        }
        known => Ok(known),
    }
}

fn reward(fields: &Value) -> Result<Reward, Answer> {
    let value = match fields.get("value") {
        Some(Value::Null) => None,
        Some(Value::Number(number)) => number.as_f64(),
        _ => return Err(bad(&"`value` is not a number or null")),
    };
    Ok(Reward {
        scope: scope(fields)?,
        name: text(fields, "name")?.unwrap_or_else(|| "reward".to_owned()),
        value,
        source: text(fields, "source")?.unwrap_or_else(|| "api".to_owned()),
        at: now(),
    })
}

fn scope(fields: &Value) -> Result<RewardScope, Answer> {
    let word = text(fields, "scope")?;
    let call = text(fields, "call_id")?.map(|call| call.parse()).transpose();
    let parts = ScopeParts {
        word: word.as_deref(),
        call: call.map_err(|e| bad(&e))?,
        choice: number(fields, "choice")?,
        tokens: (number(fields, "start")?, number(fields, "end")?),
    };
    RewardScope::new(&parts).map_err(|e| bad(&e))
}
