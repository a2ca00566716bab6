//! Episodes: announced, shown, rewarded and closed.

use std::sync::Arc;

use episode::{
    AttemptId, CLOSE_STATUSES, EpisodeId, GroupId, Reward, RewardScope, ScopeParts, Tag, TagSource,
    TaskId,
};
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, ok};
use http::clock::now;
use serde_json::{Value, json};
use store::{Announcement, Budget, CommitError, Selection};
use wire::ForcedSampling;

use crate::bounds::{
    CUT_PAUSE, CUT_WAIT, GROUP_SIZE_MAX, LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX,
};
use crate::control::error::{commit_error, snapshot_error};
use crate::control::requests::{AnnounceBody, CloseBody, RewardBody};
use crate::proxy::Proxy;

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
    let budget = Budget {
        calls: body.calls_max.map(u64::from),
        tokens: body.tokens_max.map(u64::from),
        seconds: body.seconds_max.map(u64::from),
    };
    let tag = announced_tag(body)?;
    if group_size.is_some_and(|size| !(1..=GROUP_SIZE_MAX).contains(&size) || tag.group.is_none()) {
        let message = format!("`group_size` is 1 to {GROUP_SIZE_MAX}, beside a `group_id`");
        return Err(bad_request(&message));
    }

    let attempt = AttemptId::from(&tag);
    let stored_force = force.as_ref().map(ForcedSampling::to_string);
    let announcement = Announcement { tag, at: now(), force: stored_force, group_size, budget };
    proxy.store().announce(announcement).await.map_err(commit_error)?;
    if budget != Budget::default() {
        proxy.open_attempts.count(attempt.clone());
    }
    // Calls that say something else must not pass as those before.
    proxy.open_attempts.forget(&attempt.episode);
    if let Some(force) = force {
        proxy.set_force(attempt, force);
    }
    Ok(done())
}

fn announced_tag(body: AnnounceBody) -> Result<Tag, JsonReply> {
    let AttemptId { episode, attempt } = named_attempt(&body.episode_id, body.attempt)?;
    let labels = body.labels.into_iter().flatten().map(|(name, value)| match value {
        Value::String(text) => (name, text),
        other => (name, other.to_string()),
    });
    let labels: Vec<_> = labels.collect();

    let is_long = |(name, value): &(String, String)| {
        name.len() > LABEL_NAME_BYTES_MAX || value.len() > LABEL_VALUE_BYTES_MAX
    };
    if labels.iter().any(is_long) {
        return Err(bad_request(&format!(
            "a label's name has {LABEL_NAME_BYTES_MAX} bytes at most, and its value \
             {LABEL_VALUE_BYTES_MAX}"
        )));
    }

    Ok(Tag {
        episode,
        attempt,
        group: parse_id(body.group_id.as_deref())?,
        task: parse_id(body.task_id.as_deref())?,
        labels,
        source: TagSource::Control,
    })
}

/// Closes an attempt: later calls are refused, and the feed hands it out.
pub(super) async fn close(
    proxy: &Proxy,
    attempt: AttemptId,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let CloseBody { status } = parse(body)?;
    if status.as_deref().is_some_and(|status| !CLOSE_STATUSES.contains(&status)) {
        let known = CLOSE_STATUSES.join(", ");
        return Err(bad_request(&format!("`status` is not one of {known}")));
    }

    // Calls wait for the store from here on. The rest of what is known of the attempt stays until
    // it is closed: it goes on if the store cannot be written.
    proxy.open_attempts.forget(&attempt.episode);
    proxy.store().close(attempt.clone(), now(), status).await.map_err(commit_error)?;
    proxy.forget(&attempt);
    end_calls(proxy, &attempt);
    proxy.feed.changed();
    Ok(done())
}

/// Ends the calls of a closed attempt. Those whose agents do not read are ended in the store.
fn end_calls(proxy: &Proxy, attempt: &AttemptId) {
    let running = proxy.tracker.cancel(attempt);
    if running.is_empty() {
        return;
    }

    let (tracker, feed) = (Arc::clone(&proxy.tracker), Arc::clone(&proxy.feed));
    let store = proxy.store().clone();
    tokio::spawn(async move {
        let deadline = tokio::time::Instant::now() + CUT_WAIT;
        let mut left = running;
        while !left.is_empty() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(CUT_PAUSE).await;
            left = tracker.still_running(&left);
        }

        if !left.is_empty()
            && let Err(error) = store.cut(left, now()).await
        {
            tracing::error!(%error, "calls of a closed episode could not be ended");
        }
        feed.changed();
    });
}

/// Appends a reward.
pub(super) async fn add_reward(
    proxy: &Proxy,
    attempt: AttemptId,
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
pub(super) async fn show(proxy: &Proxy, id: AttemptId) -> Result<JsonReply, JsonReply> {
    let mut snapshot = proxy.store().snapshot().await.map_err(snapshot_error)?;
    let selection = Selection { episode: Some(id.episode.clone()), ..Selection::default() };
    let summaries = snapshot.summaries(&selection).await.map_err(snapshot_error)?;
    let summary = summaries
        .into_iter()
        .find(|summary| summary.episode.attempt == id.attempt)
        .ok_or_else(|| commit_error(CommitError::Unknown(id.clone())))?;

    // The Python package and `rolltape run` read these names.
    Ok(ok(json!({
        "episode_id": summary.episode.id.as_str(),
        "attempt": id.attempt,
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
pub(super) fn attempt_key(id: &str, attempt: Option<&str>) -> Result<AttemptId, JsonReply> {
    let attempt = attempt.map(|text| {
        let message = format!("`attempt` is not a number from 0: {text}");
        text.parse().map_err(|_| bad_request(&message))
    });
    named_attempt(id, attempt.transpose()?)
}

/// The attempt that a body names; 0 if it names none.
pub(super) fn named_attempt(id: &str, attempt: Option<u32>) -> Result<AttemptId, JsonReply> {
    let episode = id.parse::<EpisodeId>().map_err(|error| bad_request(&error))?;
    Ok(AttemptId { episode, attempt: attempt.unwrap_or(0) })
}

fn parse_id<T: std::str::FromStr<Err: std::fmt::Display>>(
    id: Option<&str>,
) -> Result<Option<T>, JsonReply> {
    id.map(str::parse).transpose().map_err(|error: T::Err| bad_request(&error))
}

#[cfg(test)]
mod tests {
    use store::{Durability, Store};

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn an_attempt_that_could_not_be_closed_keeps_what_its_calls_are_held_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("test.db");
        let (store, writer) = Store::open(at.as_path(), Durability::Process).await.unwrap();
        let config = Config::new("http://127.0.0.1:9".parse().unwrap());
        let proxy = Proxy::start(config, store).await.unwrap();
        let attempt: AttemptId = "a/0".parse().unwrap();
        proxy.open_attempts.count(attempt.clone());
        proxy.set_force(attempt.clone(), "temperature=1".parse().unwrap());

        // The store has no such episode: the close is not written.
        assert!(close(&proxy, attempt.clone(), b"").await.is_err());
        proxy.open_attempts.insert(attempt.clone(), 1);
        assert!(!proxy.open_attempts.contains(&attempt, 1), "its calls are counted");
        assert!(!proxy.force_of(&attempt).is_empty(), "its sampling is forced");
        drop(proxy);
        writer.finish().await;
    }
}
