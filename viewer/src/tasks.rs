//! Tasks in numbers, for a sampler that chooses the next ones.

use std::collections::BTreeMap;

use episode::{TaskId, version_number};
use exporter::{mean, std};
use serde::{Deserialize, Serialize};
use store::{EpisodeFilter, Score, Snapshot};

use crate::error::ViewError;
use crate::parameters::Parameters;
use crate::time::seconds;

/// Attempts of a task that are looked at for its last version, the newest first.
const VERSION_ATTEMPTS: usize = 8;

/// A page of tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskList {
    /// Tasks on all pages.
    pub total: u64,
    /// The tasks of the page.
    pub tasks: Vec<TaskView>,
}

/// A task in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct TaskView {
    pub task_id: String,
    pub tries: u64,
    pub closed: u64,
    pub infrastructure_failed: u64,
    pub scored: u64,
    pub mean: Option<f64>,
    pub std: Option<f64>,
    pub pass_rate: Option<f64>,
    pub last_version: Option<TaskVersion>,
    pub last_opened_at: f64,
}

/// A policy version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct TaskVersion {
    pub label: String,
    pub number: Option<i64>,
}

/// Lists tasks, by their names.
pub(crate) async fn tasks(
    snapshot: &mut Snapshot,
    mut parameters: Parameters,
) -> Result<TaskList, ViewError> {
    let name = parameters.text("name").map(|name| name.to_lowercase());
    let filter = EpisodeFilter {
        since: parameters.time("since")?,
        until: parameters.time("until")?,
        ..EpisodeFilter::default()
    };
    let solved_at = parameters.finite("solved_at")?.unwrap_or(1.0);
    let (limit, offset) = parameters.part()?;
    parameters.end()?;

    let mut by_task: BTreeMap<TaskId, Vec<Score>> = BTreeMap::new();
    for score in snapshot.scores(&filter).await? {
        if let Some(task) = score.task.clone() {
            by_task.entry(task).or_default().push(score);
        }
    }
    let is_named = |task: &TaskId| {
        name.as_ref().is_none_or(|name| task.as_str().to_lowercase().contains(name))
    };
    by_task.retain(|task, _| is_named(task));

    let total = by_task.len() as u64;
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let mut tasks = Vec::new();
    for (task, mut tries) in by_task.into_iter().skip(offset).take(limit as usize) {
        tries.sort_by_key(|attempt| (attempt.opened_at, attempt.episode_key));
        let last_version = last_version(snapshot, &tries).await?;
        tasks.push(TaskView { last_version, ..TaskView::of(&task, &tries, solved_at) });
    }
    Ok(TaskList { total, tasks })
}

/// The version of the newest call that has one, among the newest attempts.
async fn last_version(
    snapshot: &mut Snapshot,
    tries: &[Score],
) -> Result<Option<TaskVersion>, ViewError> {
    for attempt in tries.iter().rev().take(VERSION_ATTEMPTS) {
        if let Some(label) = snapshot.last_version_of(attempt.episode_key).await? {
            let number = version_number(&label);
            return Ok(Some(TaskVersion { label, number }));
        }
    }
    Ok(None)
}

impl TaskView {
    /// The numbers of one task's attempts, of which there is one at least, sorted by time.
    fn of(task: &TaskId, tries: &[Score], solved_at: f64) -> Self {
        // A failure of the infrastructure says nothing about the task.
        let judged = tries.iter().filter(|attempt| !attempt.is_infrastructure_failed);
        let rewards: Vec<f64> = judged.filter_map(|a| a.reward).filter(|r| r.is_finite()).collect();
        let passes: Vec<f64> =
            rewards.iter().map(|r| f64::from(u8::from(*r >= solved_at))).collect();
        let count = |of: fn(&&Score) -> bool| tries.iter().filter(of).count() as u64;

        Self {
            task_id: task.to_string(),
            tries: tries.len() as u64,
            closed: count(|attempt| attempt.is_closed),
            infrastructure_failed: count(|attempt| attempt.is_infrastructure_failed),
            scored: rewards.len() as u64,
            mean: mean(&rewards),
            std: std(&rewards),
            pass_rate: mean(&passes),
            last_version: None,
            last_opened_at: seconds(tries.last().map_or(0, |attempt| attempt.opened_at)),
        }
    }
}
