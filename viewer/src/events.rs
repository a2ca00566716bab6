//! Changes of a recording: calls that begin and end, attempts, rewards.

use episode::{GroupId, TaskId};
use serde::{Deserialize, Serialize};
use store::{CallRow, LastKeys, RewardRow, Snapshot};

use crate::answer::Viewer;
use crate::bounds::{EVENT_ROWS, RUNNING_CALLS_MAX};
use crate::episodes::EpisodeView;
use crate::error::ViewError;
use crate::excerpt;
use crate::parameters::Parameters;
use crate::time::{milliseconds, seconds};

/// A call that began or ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct CallEvent {
    pub call_id: String,
    pub episode_id: String,
    pub attempt: u32,
    pub group_id: Option<String>,
    pub method: String,
    pub path: String,
    pub route: String,
    pub model: Option<String>,
    pub client: Option<String>,
    pub kind: String,
    pub agent: Option<String>,
    pub started_at: f64,
    pub first_byte_ms: Option<f64>,
    pub duration_ms: Option<f64>,
    pub status: Option<u16>,
    pub outcome: Option<String>,
    pub error: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub finish_reason: Option<String>,
    pub version_start: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// A reward that was given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct RewardEvent {
    pub episode_id: String,
    pub attempt: u32,
    pub name: String,
    pub value: Option<f64>,
    pub source: String,
    pub scope: String,
    pub call_id: Option<String>,
    pub given_at: f64,
}

/// A stream of changes, which asks the store at each look.
#[derive(Debug)]
pub struct EventReader {
    viewer: Viewer,
    episode: Option<String>,
    group: Option<String>,
    task: Option<String>,
    has_text: bool,
    /// The end of the last look; `None` before the first.
    last: Option<LastKeys>,
    /// Keys of calls that had not ended at the last look.
    running: Vec<i64>,
}

impl EventReader {
    /// A stream of what changes from its first look on.
    ///
    /// # Errors
    /// [`ViewError`] when a parameter is unknown or has no valid value.
    pub fn new(viewer: Viewer, parameters: &[(String, String)]) -> Result<Self, ViewError> {
        let mut parameters = Parameters::new(parameters);
        let [episode, group, task] = ["episode", "group", "task"].map(|name| parameters.text(name));
        let has_text = parameters.flag("text")?;
        parameters.end()?;
        Ok(Self { viewer, episode, group, task, has_text, last: None, running: Vec::new() })
    }

    /// Looks for changes since the last look: the kind and the document of each. The first look
    /// finds none. Reads a file in the caller's own thread, and blocks it.
    ///
    /// # Errors
    /// [`ViewError`] when the store cannot be read.
    pub async fn look(&mut self) -> Result<Vec<(&'static str, String)>, ViewError> {
        let mut snapshot = self.viewer.snapshot().await?;
        let Some(last) = self.last else {
            let keys = snapshot.last_keys().await?;
            let oldest = keys.call.saturating_sub(RUNNING_CALLS_MAX as i64);
            self.running = snapshot.running_calls(oldest).await?;
            self.last = Some(keys);
            return Ok(Vec::new());
        };
        let mut events = Vec::new();
        let keys = snapshot.last_keys().await?;

        let begun = snapshot.call_rows_after(last.call, EVENT_ROWS).await?;
        let ended = snapshot.ended_rows(&self.running).await?;
        self.running.retain(|key| ended.iter().all(|row| row.key != *key));
        self.running.extend(begun.iter().filter(|row| row.outcome.is_none()).map(|row| row.key));
        let excess = self.running.len().saturating_sub(RUNNING_CALLS_MAX);
        self.running.drain(..excess);
        // What was not read now is read at the next look.
        let call = begun.last().map_or(last.call, |row| row.key);
        for row in ended.into_iter().chain(begun) {
            let (group, task) = (row.group.as_deref(), row.task.as_deref());
            if self.takes(row.attempt.episode.as_str(), group, task) {
                let event = self.call_event(&mut snapshot, row).await?;
                events.push(("call", json(&event)));
            }
        }

        let rewards = snapshot.reward_rows_after(last.reward, EVENT_ROWS).await?;
        let reward = rewards.last().map_or(last.reward, |row| row.key);
        let taken = rewards.iter().filter(|row| {
            self.takes(row.attempt.episode.as_str(), row.group.as_deref(), row.task.as_deref())
        });
        events.extend(taken.map(|row| ("reward", json(&RewardEvent::of(row)))));

        let changed = snapshot.changed_attempts(last).await?;
        for episode in snapshot.attempts(&changed).await? {
            let group = episode.group.as_ref().map(GroupId::as_str);
            let task = episode.task.as_ref().map(TaskId::as_str);
            if self.takes(episode.id.as_str(), group, task) {
                let summary = snapshot.summary(episode).await?;
                events.push(("episode", json(&EpisodeView::in_list(summary))));
            }
        }
        self.last = Some(LastKeys { call, reward, ..keys });
        Ok(events)
    }

    /// True if the stream is about an episode of this group and task.
    fn takes(&self, episode: &str, group: Option<&str>, task: Option<&str>) -> bool {
        let same = |wanted: Option<&str>, found: Option<&str>| wanted.is_none() || wanted == found;
        same(self.episode.as_deref(), Some(episode))
            && same(self.group.as_deref(), group)
            && same(self.task.as_deref(), task)
    }

    async fn call_event(
        &self,
        snapshot: &mut Snapshot,
        row: CallRow,
    ) -> Result<CallEvent, ViewError> {
        let (mut heard, mut said) = (None, None);
        if self.has_text
            && row.outcome.is_some()
            && let Some(call) = snapshot.call(row.call_id).await?
        {
            let sent = wire::conversation(call.begun.route, &call.begun.request.read());
            heard = sent.map(|sent| excerpt::heard(sent.messages.iter()));
            let ended = call.ended.iter();
            let mut answers =
                ended.flat_map(|ended| wire::answers(call.begun.route, &ended.reply.read()));
            said = answers.next().map(|answer| excerpt::excerpt(&answer.message, true));
        }
        Ok(CallEvent { heard, said, ..CallEvent::of(row) })
    }
}

impl CallEvent {
    fn of(row: CallRow) -> Self {
        let started = row.started_at;
        Self {
            call_id: row.call_id.to_string(),
            episode_id: row.attempt.episode.to_string(),
            attempt: row.attempt.attempt,
            group_id: row.group,

            method: row.method,
            path: row.path,
            route: row.route,
            model: row.model,
            client: row.client,
            kind: row.kind,
            agent: row.agent,

            started_at: seconds(started),
            first_byte_ms: row.first_byte_at.map(|at| milliseconds(started, at)),
            duration_ms: row.ended_at.map(|at| milliseconds(started, at)),
            status: row.status,
            outcome: row.outcome,
            error: row.error,
            prompt_tokens: row.prompt_tokens,
            completion_tokens: row.completion_tokens,
            finish_reason: row.finish_reason,
            version_start: row.version,
            heard: None,
            said: None,
        }
    }
}

impl RewardEvent {
    fn of(row: &RewardRow) -> Self {
        let reward = &row.reward;
        Self {
            episode_id: row.attempt.episode.to_string(),
            attempt: row.attempt.attempt,
            name: reward.name.clone(),
            value: reward.value,
            source: reward.source.clone(),
            scope: reward.scope.as_str().to_owned(),
            call_id: reward.scope.call().map(|call| call.to_string()),
            given_at: seconds(reward.at),
        }
    }
}

/// The text of a document whose fields are all plain.
fn json(document: &impl Serialize) -> String {
    serde_json::to_string(document).unwrap_or_default()
}
