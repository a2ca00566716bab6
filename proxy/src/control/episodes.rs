//! Episodes: announced, shown, rewarded and closed, and API keys that name them.

use episode::{
    CLOSE_STATUSES, EpisodeId, GroupId, Reward, RewardScope, ScopeParts, Tag, TagSource, TaskId,
};
use serde_json::{Value, json};
use store::{CommitError, Selection};
use wire::ForcedSampling;

use crate::bounds::{GROUP_SIZE_MAX, KEY_LIFE_S_MAX};
use crate::clock::now;
use crate::control::body::parse;
use crate::control::reply::{JsonReply, bad_request, commit_error, done, ok, snapshot_error};
use crate::control::requests::{AnnounceBody, CloseBody, KeyBody, RewardBody};
use crate::proxy::Proxy;
use crate::record::attempts::AttemptKey;

/// Default life of an API key, in seconds: a day.
const KEY_LIFE_S: i64 = 86_400;
/// Announces an episode, with the sampling parameters for its calls.
pub(super) async fn announce(proxy: &Proxy, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let body: AnnounceBody = parse(body)?;
    let group_size = body.group_size;
    let force = body
        .force_sampling
        .as_deref()
        .map(str::parse::<ForcedSampling>)
        .transpose()
        .map_err(|error| bad_request(&error))?;
    let tag = announced_tag(body)?;
    if group_size.is_some_and(|size| !(1..=GROUP_SIZE_MAX).contains(&size) || tag.group.is_none()) {
        let message = format!("`group_size` is 1 to {GROUP_SIZE_MAX}, beside a `group_id`");
        return Err(bad_request(&message));
    }

    let attempt = tag.key();
    let stored_force = force.as_ref().map(ForcedSampling::to_string);
    let announced = proxy.store().announce(tag, now(), stored_force, group_size).await;
    announced.map_err(commit_error)?;
    if let Some(force) = force {
        proxy.set_force(attempt, force);
    }
    Ok(done())
}

fn announced_tag(body: AnnounceBody) -> Result<Tag, JsonReply> {
    let (episode, attempt) = named_attempt(&body.episode_id, body.attempt)?;
    let labels = body.labels.into_iter().flatten().map(|(name, value)| match value {
        Value::String(text) => (name, text),
        other => (name, other.to_string()),
    });
    Ok(Tag {
        episode,
        attempt,
        group: parse_id(body.group_id.as_deref())?,
        task: parse_id(body.task_id.as_deref())?,
        labels: labels.collect(),
        source: TagSource::Control,
    })
}

/// Returns an API key for an attempt.
pub(super) fn sign_key(
    proxy: &Proxy,
    (episode, attempt): &AttemptKey,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let body: KeyBody = parse(body)?;
    let life_s = body.ttl_s.unwrap_or(KEY_LIFE_S);
    if !(1..=KEY_LIFE_S_MAX).contains(&life_s) {
        return Err(bad_request(&format!("`ttl_s` is not 1 to {KEY_LIFE_S_MAX}")));
    }
    let expires_at = now() + life_s * 1_000_000;
    let key = proxy.tags.signer.sign(episode, *attempt, expires_at);
    Ok(ok(json!({ "api_key": key, "expires_at": expires_at / 1_000_000 })))
}

/// Closes an attempt: later calls are refused, and the feed hands it out.
pub(super) async fn close(
    proxy: &Proxy,
    attempt: AttemptKey,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let CloseBody { status } = parse(body)?;
    if status.as_deref().is_some_and(|status| !CLOSE_STATUSES.contains(&status)) {
        let known = CLOSE_STATUSES.join(", ");
        return Err(bad_request(&format!("`status` is not one of {known}")));
    }

    proxy.forget(&attempt);
    proxy.store().close(attempt.clone(), now(), status).await.map_err(commit_error)?;
    // A call that began meanwhile may have added the attempt again.
    proxy.forget(&attempt);
    proxy.feed.changed();
    Ok(done())
}

/// Appends a reward.
pub(super) async fn add_reward(
    proxy: &Proxy,
    attempt: AttemptKey,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let reward = reward(parse(body)?)?;
    if let RewardScope::Tokens { .. } = reward.scope {
        let mut snapshot = proxy.store().snapshot().await.map_err(snapshot_error)?;
        let sampled = snapshot.sampled(reward.scope).await.map_err(snapshot_error)?;
        reward.scope.within(sampled).map_err(|error| bad_request(&error))?;
    }
    proxy.store().reward(attempt, reward).await.map_err(commit_error)?;
    proxy.feed.changed();
    Ok(done())
}

fn reward(body: RewardBody) -> Result<Reward, JsonReply> {
    let call = body.call_id.map(|call| call.parse()).transpose();
    let parts = ScopeParts {
        word: body.scope.as_deref(),
        call: call.map_err(|error| bad_request(&format!("`call_id`: {error}")))?,
        choice: body.choice,
        tokens: (body.start, body.end),
    };
    Ok(Reward {
        scope: RewardScope::new(&parts).map_err(|error| bad_request(&error))?,
        name: body.name.unwrap_or_else(|| "reward".to_owned()),
        value: body.value,
        source: body.source.unwrap_or_else(|| "api".to_owned()),
        at: now(),
    })
}

/// Returns counts of what was recorded of an attempt.
pub(super) async fn show(proxy: &Proxy, (id, attempt): AttemptKey) -> Result<JsonReply, JsonReply> {
    let mut snapshot = proxy.store().snapshot().await.map_err(snapshot_error)?;
    let selection = Selection { episode: Some(id.clone()), ..Selection::default() };
    let summaries = snapshot.summaries(&selection).await.map_err(snapshot_error)?;
    let summary = summaries
        .into_iter()
        .find(|summary| summary.episode.attempt == attempt)
        .ok_or_else(|| commit_error(CommitError::Unknown(id, attempt)))?;

    // The Python package and `rolltape run` read these names.
    Ok(ok(json!({
        "episode_id": summary.episode.id.as_str(),
        "attempt": attempt,
        "group_id": summary.episode.group.as_ref().map(GroupId::as_str),
        "task_id": summary.episode.task.as_ref().map(TaskId::as_str),
        "closed": summary.episode.closed_at.is_some(),
        "status": summary.episode.status,
        "calls": summary.calls,
        "generations": summary.generations,
        "with_ids": summary.with_ids,
        "incomplete": summary.incomplete,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "reward": summary.reward,
    })))
}

/// The attempt that a path and its query name.
pub(super) fn attempt_key(id: &str, attempt: Option<&str>) -> Result<AttemptKey, JsonReply> {
    let attempt = attempt.map(|text| {
        let message = format!("`attempt` is not a number from 0: {text}");
        text.parse().map_err(|_| bad_request(&message))
    });
    named_attempt(id, attempt.transpose()?)
}

/// The attempt that a body names; 0 if it names none.
pub(super) fn named_attempt(id: &str, attempt: Option<u32>) -> Result<AttemptKey, JsonReply> {
    let episode = id.parse::<EpisodeId>().map_err(|error| bad_request(&error))?;
    Ok((episode, attempt.unwrap_or(0)))
}

fn parse_id<T: std::str::FromStr<Err: std::fmt::Display>>(
    id: Option<&str>,
) -> Result<Option<T>, JsonReply> {
    id.map(str::parse).transpose().map_err(|error: T::Err| bad_request(&error))
}
