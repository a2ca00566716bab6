//! Admission by version: the rule by which attempts may begin, set by the trainer.

use std::time::Duration;

use episode::{EpisodeId, Micros};
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, ok};
use http::clock::now;
use proxy::{AdmissionStatus, Recorder};
use serde_json::{Value, json};
use store::AdmissionRule;

use crate::bounds::{
    ADMISSION_BATCH_MAX, ADMISSION_IDLE, ADMISSION_WAIT, ADMISSION_WAIT_S_MAX, GROUP_SIZE_MAX,
    LEASE_S_MAX,
};
use crate::error::{commit_error, snapshot_error};
use crate::requests::AdmissionBody;

/// Sets the rule. Attempts that began before count.
pub(crate) async fn set(recorder: &Recorder, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let rule = rule(parse(body)?)?;
    recorder.set_admission(Some(rule)).await.map_err(commit_error)?;
    show(recorder).await
}

/// Lifts the rule. All that wait may begin.
pub(crate) async fn lift(recorder: &Recorder) -> Result<JsonReply, JsonReply> {
    recorder.set_admission(None).await.map_err(commit_error)?;
    Ok(done())
}

/// Returns the rule and what is under way.
pub(crate) async fn show(recorder: &Recorder) -> Result<JsonReply, JsonReply> {
    let status = recorder.admission().await.map_err(snapshot_error)?;
    Ok(ok(json!({ "admission": status.as_ref().map(shown) })))
}

fn shown(status: &AdmissionStatus) -> Value {
    let AdmissionStatus { rule, counts, waiting, admitted, refused } = status;
    json!({
        "consumer": rule.consumer,
        "batch_attempts": rule.batch_attempts,
        "max_versions": rule.max_versions,
        "unit": if rule.whole_groups { "group" } else { "episode" },
        "group_size": rule.group_size,
        "wait_s": rule.wait / SECOND,
        "idle_s": rule.idle / SECOND,
        "limit": rule.limit(),
        "taken": counts.taken,
        "open": counts.open,
        "finished": counts.finished,
        "idle": counts.idle,
        "waiting": waiting,
        "admitted": admitted,
        "refused": refused,
    })
}

const SECOND: Micros = 1_000_000;

fn rule(body: AdmissionBody) -> Result<AdmissionRule, JsonReply> {
    let consumer: EpisodeId =
        body.consumer.parse().map_err(|why| bad_request(&format!("`consumer`: {why}")))?;
    within("batch_attempts", Some(body.batch_attempts), 1, ADMISSION_BATCH_MAX)?;
    within("max_versions", Some(body.max_versions), 0, ADMISSION_BATCH_MAX)?;
    within("group_size", body.group_size, 1, GROUP_SIZE_MAX)?;
    within("wait_s", body.wait_s, 0, ADMISSION_WAIT_S_MAX)?;
    within("idle_s", body.idle_s, 1, LEASE_S_MAX)?;
    let whole_groups = match body.unit.as_deref() {
        None | Some("episode") if body.group_size.is_some() => {
            return Err(bad_request(&"`group_size` needs unit=group"));
        }
        None | Some("episode") => false,
        Some("group") => true,
        Some(_) => return Err(bad_request(&"`unit` is not episode or group")),
    };
    Ok(AdmissionRule {
        consumer: consumer.to_string(),
        batch_attempts: body.batch_attempts,
        max_versions: body.max_versions,
        whole_groups,
        group_size: body.group_size,
        wait: seconds(body.wait_s, ADMISSION_WAIT),
        idle: seconds(body.idle_s, ADMISSION_IDLE),
        set_at: now(),
    })
}

fn seconds(given: Option<u32>, default: Duration) -> Micros {
    SECOND * given.map_or(default.as_secs().cast_signed(), Micros::from)
}

fn within(name: &str, value: Option<u32>, min: u32, max: u32) -> Result<(), JsonReply> {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(bad_request(&format!("`{name}` is not {min} to {max}")))
        }
        _ => Ok(()),
    }
}
