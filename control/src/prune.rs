//! Deleting episodes while calls are recorded.

use std::collections::BTreeSet;

use episode::AttemptId;
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, error, ok};
use http::clock::now;
use hyper::StatusCode;
use proxy::Recorder;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{
    CommitError, KeepReason, PruneCandidate, PruneError, PruneFilter, PrunePlan, PruneReport,
    plan_prune,
};

use crate::error::{commit_error, snapshot_error};
use crate::requests::PruneBody;

/// Microseconds of a second.
const SECOND: i64 = 1_000_000;

/// The attempts that a prune removed, or would remove, as a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneDocument {
    /// Attempts that are removed.
    pub episodes: u64,
    /// Their calls.
    pub calls: u64,
    /// The size of their rows in bytes, roughly.
    pub bytes: u64,
    /// Those attempts.
    pub pruned: Vec<PrunedAttempt>,
    /// Attempts that fit and are kept because they are listed.
    pub kept_exported: u64,
    /// Those that are not closed and were active within the last hour.
    pub kept_open: u64,
    /// Those with a call under way.
    pub kept_running: u64,
    /// Those that a consumer of the feed holds.
    pub kept_leased: u64,
    /// Those that others are based on.
    pub kept_needed: u64,
    /// The first 100 of the kept ones, but for the listed ones.
    pub kept: Vec<KeptAttempt>,
    /// The store's size; absent from a plan.
    #[serde(flatten)]
    pub space: Option<PrunedSpace>,
}

/// An attempt that is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedAttempt {
    /// Its episode.
    pub episode_id: String,
    /// Its number.
    pub attempt: u32,
    /// Its calls.
    pub calls: u64,
    /// The size of its rows in bytes, roughly.
    pub bytes: u64,
}

/// An attempt that fits and is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAttempt {
    /// Its episode.
    pub episode_id: String,
    /// Its number.
    pub attempt: u32,
    /// The reason: `open`, `running`, `leased` or `needed`.
    pub reason: String,
}

/// The store before and after a prune.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedSpace {
    /// Bytes before.
    pub file_bytes_before: u64,
    /// Bytes after.
    pub file_bytes_after: u64,
    /// The reason for which space was not given back.
    pub withheld: Option<String>,
    /// Files of segments that were replaced by others without these attempts.
    #[serde(default)]
    pub segments_replaced: u64,
    /// The reason for which segments still hold some of them, or replaced files are still there.
    #[serde(default)]
    pub segments_left: Option<String>,
}

impl From<PrunePlan> for PruneDocument {
    fn from(plan: PrunePlan) -> Self {
        let kept = |reason| plan.kept.get(&reason).copied().unwrap_or(0);
        let pruned: Vec<_> = plan.candidates.iter().map(PrunedAttempt::of).collect();
        Self {
            episodes: pruned.len() as u64,
            calls: pruned.iter().map(|one| one.calls).sum(),
            bytes: pruned.iter().map(|one| one.bytes).sum(),
            pruned,
            kept_exported: kept(KeepReason::Named),
            kept_open: kept(KeepReason::Open),
            kept_running: kept(KeepReason::Running),
            kept_leased: kept(KeepReason::Leased),
            kept_needed: kept(KeepReason::Needed),
            kept: plan.kept_attempts.iter().map(KeptAttempt::of).collect(),
            space: None,
        }
    }
}

impl From<PruneReport> for PruneDocument {
    fn from(report: PruneReport) -> Self {
        let space = PrunedSpace {
            file_bytes_before: report.bytes_before,
            file_bytes_after: report.bytes_after,
            withheld: report.withheld,
            segments_replaced: report.segments_replaced,
            segments_left: report.segments_left,
        };
        Self { space: Some(space), ..report.plan.into() }
    }
}

impl PrunedAttempt {
    fn of(candidate: &PruneCandidate) -> Self {
        let AttemptId { episode, attempt } = &candidate.attempt;
        Self {
            episode_id: episode.to_string(),
            attempt: *attempt,
            calls: candidate.calls,
            bytes: candidate.bytes,
        }
    }
}

impl KeptAttempt {
    fn of((kept, reason): &(AttemptId, KeepReason)) -> Self {
        Self {
            episode_id: kept.episode.to_string(),
            attempt: kept.attempt,
            reason: word(*reason).to_owned(),
        }
    }
}

fn word(reason: KeepReason) -> &'static str {
    match reason {
        KeepReason::Named => "exported",
        KeepReason::Open => "open",
        KeepReason::Running => "running",
        KeepReason::Leased => "leased",
        KeepReason::Needed => "needed",
    }
}

/// Deletes the episodes that fit a body, or says which would go.
pub(crate) async fn prune(recorder: &Recorder, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let body: PruneBody = parse(body)?;
    let is_dry = body.dry_run.unwrap_or(false);
    let filter = filter_of(body)?;
    let document: PruneDocument = match is_dry {
        true => {
            let filter = PruneFilter { keeps_open: true, ..filter };
            let planned = plan_prune(recorder.store().location(), &filter).await;
            planned.map_err(snapshot_error)?.into()
        }
        false => recorder.prune(&filter).await.map_err(prune_error)?.into(),
    };
    if !is_dry {
        note_deleted(document.episodes, document.calls);
    }
    Ok(ok(json!(document)))
}

/// Deletes one attempt.
pub(crate) async fn delete(
    recorder: &Recorder,
    attempt: AttemptId,
) -> Result<JsonReply, JsonReply> {
    let filter = PruneFilter {
        episode: Some(attempt.episode.clone()),
        attempt: Some(attempt.attempt),
        now: now(),
        ..PruneFilter::default()
    };
    let report = recorder.prune(&filter).await.map_err(prune_error)?;
    if let Some((_, reason)) = report.plan.kept_attempts.first() {
        return Err(kept(&attempt, *reason));
    }
    let Some(gone) = report.plan.candidates.first().map(PrunedAttempt::of) else {
        return Err(commit_error(CommitError::Unknown(attempt)));
    };
    note_deleted(1, gone.calls);
    Ok(ok(json!({
        "status": "ok",
        "episode_id": gone.episode_id,
        "attempt": gone.attempt,
        "calls": gone.calls,
        "bytes": gone.bytes,
        "segments_left": report.segments_left,
    })))
}

fn note_deleted(episodes: u64, calls: u64) {
    tracing::info!(episodes, calls, "episodes were deleted over the control listener");
}

/// The refusal to delete an attempt that is kept.
fn kept(attempt: &AttemptId, reason: KeepReason) -> JsonReply {
    let why = match reason {
        KeepReason::Named => "is kept",
        KeepReason::Open => "is open and was active within the last hour; close it first",
        KeepReason::Running => "has a call under way; close it first",
        KeepReason::Leased => "is leased by a consumer of the feed, which has not settled it",
        KeepReason::Needed => "is needed by another one; `rolltape verify` says what is damaged",
    };
    let AttemptId { episode, attempt } = attempt;
    let message = format!("episode `{episode}` attempt {attempt} {why}");
    error(StatusCode::CONFLICT, &message)
}

fn filter_of(body: PruneBody) -> Result<PruneFilter, JsonReply> {
    let PruneBody { older_than_s, episode_id, attempt, keep, .. } = body;
    if older_than_s.is_none() && episode_id.is_none() && keep.is_none() {
        return Err(bad_request(&"give `older_than_s`, `episode_id` or `keep`: what is to go"));
    }
    if attempt.is_some() && episode_id.is_none() {
        return Err(bad_request(&"`attempt` is one of an `episode_id`"));
    }
    let named = |name: String| {
        let wrong = || bad_request(&format!("`keep` is a list of EPISODE/ATTEMPT: {name}"));
        name.parse::<AttemptId>().map_err(|_| wrong())
    };
    let keep: BTreeSet<AttemptId> =
        keep.into_iter().flatten().map(named).collect::<Result<_, _>>()?;

    let now = now();
    let age = older_than_s.map(|age| i64::from(age).saturating_mul(SECOND));
    let episode = episode_id.map(|id| id.parse()).transpose();
    Ok(PruneFilter {
        episode: episode.map_err(|error| bad_request(&error))?,
        attempt,
        silent_since: age.map(|age| now.saturating_sub(age)),
        keep,
        now,
        keeps_open: true,
    })
}

fn prune_error(reason: PruneError) -> JsonReply {
    match reason {
        PruneError::Commit(reason) => commit_error(reason),
        PruneError::Read(reason) => snapshot_error(reason),
        reason @ (PruneError::Open(_) | PruneError::Database(_)) => {
            error(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string())
        }
    }
}
