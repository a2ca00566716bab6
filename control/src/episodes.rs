//! Episodes: announced, shown and closed.

use episode::{AttemptId, CLOSE_STATUSES, EpisodeId, GroupId, Tag, TagSource, TaskId};
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, ok};
use http::clock::now;
use proxy::{ContinueMode, Recorder};
use proxy::{LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX};
use serde_json::{Value, json};
use store::{Announcement, Budget, CommitError, Selection};
use wire::ForcedSampling;

use crate::bounds::GROUP_SIZE_MAX;
use crate::error::{commit_error, snapshot_error};
use crate::replays::{named_replay, state_of};
use crate::requests::{AnnounceBody, CloseBody, ReplayBody};

/// Announces an episode, with the sampling parameters for its calls.
pub(crate) async fn announce(recorder: &Recorder, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let mut body: AnnounceBody = parse(body)?;
    let group_size = body.group_size;
    let force = body
        .force_sampling
        .as_deref()
        .map(str::parse::<ForcedSampling>)
        .transpose()
        .map_err(|error| bad_request(&error))?;
    let continues = body.continues.as_deref().map(str::parse::<ContinueMode>).transpose();
    let mut continues = continues.map_err(|error| bad_request(&error))?;
    let replay = match body.replay.take() {
        None => None,
        Some(named) => {
            let named: ReplayBody = serde_json::from_value(Value::Object(named))
                .map_err(|error| bad_request(&format!("`replay`: {error}")))?;
            let source = named_attempt(&named.episode_id, named.attempt)?;
            let names = [source.clone(), with_prefix(recorder, source)?];
            let (replay, source) = named_replay(recorder, named, names).await?;
            body.task_id = body.task_id.or(source.task.map(|task| task.to_string()));
            // What goes on from a recording goes on from its ids.
            continues = continues.or(replay.until.map(|_| ContinueMode::Exact));
            Some(replay)
        }
    };
    let budget = Budget {
        calls: body.calls_max.map(u64::from),
        tokens: body.tokens_max.map(u64::from),
        seconds: body.seconds_max.map(u64::from),
    };
    let tag = announced_tag(recorder, body)?;
    if replay.as_ref().is_some_and(|replay| replay.source == AttemptId::from(&tag)) {
        return Err(bad_request(&"an attempt cannot be a replay of itself"));
    }
    let told = json!({ "status": "ok", "episode_id": tag.episode.as_str() });
    if group_size.is_some_and(|size| !(1..=GROUP_SIZE_MAX).contains(&size) || tag.group.is_none()) {
        let message = format!("`group_size` is 1 to {GROUP_SIZE_MAX}, beside a `group_id`");
        return Err(bad_request(&message));
    }

    let announcement = Announcement {
        tag,
        at: now(),
        force: force.as_ref().map(ForcedSampling::to_string),
        continues: continues.map(|mode| mode.as_str().to_owned()),
        replay,
        group_size,
        budget,
    };
    recorder.announce(announcement, force, continues).await.map_err(commit_error)?;
    Ok(ok(told))
}

fn announced_tag(recorder: &Recorder, body: AnnounceBody) -> Result<Tag, JsonReply> {
    let named = named_attempt(&body.episode_id, body.attempt)?;
    let AttemptId { episode, attempt } = with_prefix(recorder, named)?;
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
pub(crate) async fn close(
    recorder: &Recorder,
    attempt: AttemptId,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let CloseBody { status } = parse(body)?;
    if status.as_deref().is_some_and(|status| !CLOSE_STATUSES.contains(&status)) {
        let known = CLOSE_STATUSES.join(", ");
        return Err(bad_request(&format!("`status` is not one of {known}")));
    }

    recorder.close(attempt, status).await.map_err(commit_error)?;
    Ok(done())
}

/// Returns counts of what was recorded of an attempt.
pub(crate) async fn show(recorder: &Recorder, shown: AttemptId) -> Result<JsonReply, JsonReply> {
    let mut snapshot = recorder.store().reading().await.map_err(snapshot_error)?;
    let selection = Selection { episode: Some(shown.episode.clone()), ..Selection::default() };
    let summaries = snapshot.summaries(&selection).await.map_err(snapshot_error)?;
    let summary = summaries
        .into_iter()
        .find(|summary| summary.episode.attempt == shown.attempt)
        .ok_or_else(|| commit_error(CommitError::Unknown(shown.clone())))?;

    // The Python package and `rolltape run` read these names.
    Ok(ok(json!({
        "episode_id": summary.episode.id.as_str(),
        "attempt": shown.attempt,
        "group_id": summary.episode.group.as_ref().map(GroupId::as_str),
        "task_id": summary.episode.task.as_ref().map(TaskId::as_str),
        "closed": summary.episode.closed_at.is_some(),
        "status": summary.episode.status,
        "calls": summary.calls,
        "generations": summary.generations,
        "with_ids": summary.with_ids,
        "incomplete": summary.incomplete,
        "refused": summary.refused,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "reward": summary.reward,
        "replay": state_of(recorder, &shown),
    })))
}

/// The attempt that a path and its query name.
pub(crate) fn attempt_key(id: &str, attempt: Option<&str>) -> Result<AttemptId, JsonReply> {
    let attempt = attempt.map(|text| {
        let message = format!("`attempt` is not a number from 0: {text}");
        text.parse().map_err(|_| bad_request(&message))
    });
    named_attempt(id, attempt.transpose()?)
}

/// The attempt with the recorder's prefix before its episode.
pub(crate) fn with_prefix(recorder: &Recorder, named: AttemptId) -> Result<AttemptId, JsonReply> {
    let AttemptId { episode, attempt } = named;
    let episode = recorder.prefixed(episode).map_err(|error| bad_request(&error))?;
    Ok(AttemptId { episode, attempt })
}

/// The attempt that a body names; 0 if it names none.
pub(crate) fn named_attempt(id: &str, attempt: Option<u32>) -> Result<AttemptId, JsonReply> {
    let episode = id.parse::<EpisodeId>().map_err(|error| bad_request(&error))?;
    Ok(AttemptId { episode, attempt: attempt.unwrap_or(0) })
}

fn parse_id<T: std::str::FromStr<Err: std::fmt::Display>>(
    id: Option<&str>,
) -> Result<Option<T>, JsonReply> {
    id.map(str::parse).transpose().map_err(|error: T::Err| bad_request(&error))
}
