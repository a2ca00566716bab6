//! Trials and their episodes: announced when they begin, rewarded and closed when they end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use episode::EpisodeId;
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::super::recorder::RecorderClient;
use super::ids::{self, RecordedIds};
use super::result_file::ResultFile;
use crate::exit::Failure;
use proxy::EpisodePrefix;

/// Longest name of an episode or a group, in characters.
const NAME_CHARS_MAX: usize = 200;
/// Characters of the hash in a name that is shortened.
const HASH_CHARS: usize = 16;
/// Source of the rewards of a trial's verifier.
const SOURCE: &str = "harbor";

/// A trial as Harbor describes it before it runs.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TrialPlan {
    trial: String,
    /// The trial's own folder.
    folder: PathBuf,
    job: String,
    task: String,
    agent: String,
    model: Option<String>,
    /// The reason for which the agent is not told an address.
    reason: Option<String>,
}

/// A trial, and the attempt at its episode that ran last.
#[derive(Debug)]
struct Trial {
    plan: TrialPlan,
    episode: EpisodeId,
    /// The attempt that began last.
    attempt: Option<u32>,
    settled: Option<SettledTrial>,
}

/// The recording of a trial.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SettledTrial {
    pub(super) trial: String,
    pub(super) episode_id: String,
    pub(super) attempt: u32,
    pub(super) task: String,
    pub(super) agent: String,
    pub(super) model: Option<String>,
    pub(super) calls: u64,
    /// Number of those of which all ids are known as the server reported them.
    pub(super) exact_calls: u64,
    /// The verdict on the episode.
    pub(super) verdict: Option<String>,
    /// Reasons for the verdict.
    pub(super) reasons: Vec<String>,
    /// The rewards that its episode got.
    pub(super) rewards: Map<String, Value>,
    /// The name of the exception that ended it.
    pub(super) exception: Option<String>,
    /// The steps that could not be done, in words.
    pub(super) problems: Vec<String>,
    /// The trial's own folder.
    #[serde(skip)]
    pub(super) folder: PathBuf,
    /// Version of Harbor.
    #[serde(skip)]
    pub(super) harbor: String,
}

/// The trials of a command, and the server that records them.
pub(super) struct Trials {
    recorder: RecorderClient,
    prefix: EpisodePrefix,
    /// Labels of all episodes.
    labels: Map<String, Value>,
    found: Mutex<FoundTrials>,
}

/// The trials that Harbor named.
#[derive(Debug, Default)]
struct FoundTrials {
    harbor: String,
    by_name: BTreeMap<String, Trial>,
}

impl Trials {
    pub(super) fn new(
        recorder: RecorderClient,
        prefix: EpisodePrefix,
        labels: Map<String, Value>,
    ) -> Self {
        Self { recorder, prefix, labels, found: Mutex::default() }
    }

    /// Takes note of trials. Returns the URL below which each calls its episode.
    pub(super) async fn plan(
        &self,
        harbor: &str,
        plans: Vec<TrialPlan>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut found = self.found.lock().await;
        harbor.clone_into(&mut found.harbor);
        let mut roots = BTreeMap::new();
        for plan in plans {
            let name = plan.trial.clone();
            let episode = id_of(&name).parse().map_err(|e: episode::InvalidId| Failure::of(&e))?;
            let episode = self.prefix.before(episode).map_err(|e| Failure::of(&e))?;

            roots.insert(name.clone(), format!("{}/e/{episode}", self.recorder.proxy));
            found.by_name.insert(name, Trial { plan, episode, attempt: None, settled: None });
        }
        Ok(roots)
    }

    /// Announces the attempt that a trial is about to run, before its first call.
    pub(super) async fn begin(&self, name: &str, attempt: u32) -> Result<(), Failure> {
        let (episode, plan) = {
            let mut found = self.found.lock().await;
            let trial = found.get_mut(name)?;
            trial.attempt = Some(attempt);
            trial.settled = None;
            (trial.episode.clone(), trial.plan.clone())
        };
        let mut labels = self.labels.clone();
        labels
            .extend([("agent".to_owned(), json!(plan.agent)), ("job".to_owned(), json!(plan.job))]);
        let body = json!({
            "episode_id": episode.as_str(),
            "attempt": attempt,
            "group_id": plan.group(),
            "task_id": id_of(&plan.task),
            "labels": labels,
        });
        self.recorder.request(Method::POST, "/episodes", &body).await.map(|_| ())
    }

    /// Settles a trial that has ended: its rewards, its episode, and the ids in its result.
    pub(super) async fn end(&self, name: &str, attempt: u32) -> Result<(), Failure> {
        let (plan, episode, harbor) = {
            let mut found = self.found.lock().await;
            let harbor = found.harbor.clone();
            let trial = found.get_mut(name)?;
            trial.attempt = Some(attempt);
            (trial.plan.clone(), trial.episode.clone(), harbor)
        };
        let settled = self.settle(&plan, &episode, attempt).await;
        let problem = settled.problems.first().cloned();
        let settled = SettledTrial { harbor, ..settled };
        self.found.lock().await.get_mut(name)?.settled = Some(settled);
        problem.map_or(Ok(()), |problem| Err(Failure::new(problem)))
    }

    /// Settles what Harbor began and did not end, as it does when it is killed.
    pub(super) async fn finish(&self) {
        let left: Vec<(String, u32)> = {
            let found = self.found.lock().await;
            let open = found.by_name.iter().filter(|(_, trial)| trial.settled.is_none());
            open.filter_map(|(name, trial)| Some((name.clone(), trial.attempt?))).collect()
        };
        for (name, attempt) in left {
            // What goes wrong with one is told beside it.
            let _ = self.end(&name, attempt).await;
        }
    }

    /// The trials that began, by their names.
    pub(super) async fn settled(&self) -> Vec<SettledTrial> {
        let found = self.found.lock().await;
        found.by_name.values().filter_map(|trial| trial.settled.clone()).collect()
    }

    async fn settle(&self, plan: &TrialPlan, episode: &EpisodeId, attempt: u32) -> SettledTrial {
        let mut settled = SettledTrial::new(plan, episode, attempt);
        let result = ResultFile::read(&plan.folder);
        let mut result = result.map_err(|failure| settled.cannot(&failure)).ok();

        // The feed hands out what is closed, so the rewards come first.
        let mut status = "aborted";
        if let Some(result) = &result {
            status = result.status();
            settled.exception = result.exception().map(str::to_owned);
            match self.reward(episode, attempt, result.rewards()).await {
                Ok(given) => settled.rewards = given,
                Err(failure) => settled.cannot(&failure),
            }
        }
        let page = format!("/episodes/{episode}/close?attempt={attempt}");
        let closed = self.recorder.request(Method::POST, &page, &json!({ "status": status })).await;
        if let Err(failure) = closed {
            settled.cannot(&failure);
        }

        match ids::recorded(&self.recorder, episode, attempt).await {
            Ok(recorded) => settled.take(recorded, plan, result.as_mut()),
            Err(failure) => settled.cannot(&failure),
        }
        settled
    }

    /// Gives an episode the rewards of a verifier. Returns those that were given.
    async fn reward(
        &self,
        episode: &EpisodeId,
        attempt: u32,
        rewards: Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        let page = format!("/episodes/{episode}/rewards?attempt={attempt}");
        for (name, value) in &rewards {
            let body = json!({ "name": name, "value": value, "source": SOURCE });
            self.recorder.request(Method::POST, &page, &body).await?;
        }
        Ok(rewards)
    }
}

impl TrialPlan {
    /// The group of the trials of a job that one agent with one model makes of one task.
    fn group(&self) -> String {
        let model = self.model.iter().map(String::as_str);
        let parts = [self.job.as_str(), &self.agent].into_iter().chain(model);
        id_of(&parts.chain([self.task.as_str()]).collect::<Vec<_>>().join(":"))
    }
}

impl FoundTrials {
    fn get_mut(&mut self, name: &str) -> Result<&mut Trial, Failure> {
        let unknown = || Failure::new(format!("Harbor's plugin did not plan trial `{name}`"));
        self.by_name.get_mut(name).ok_or_else(unknown)
    }
}

impl SettledTrial {
    fn new(plan: &TrialPlan, episode: &EpisodeId, attempt: u32) -> Self {
        Self {
            trial: plan.trial.clone(),
            episode_id: episode.to_string(),
            attempt,
            task: plan.task.clone(),
            agent: plan.agent.clone(),
            model: plan.model.clone(),
            calls: 0,
            exact_calls: 0,
            verdict: None,
            reasons: Vec::new(),
            rewards: Map::new(),
            exception: None,
            problems: Vec::new(),
            folder: plan.folder.clone(),
            harbor: String::new(),
        }
    }

    /// Returns true if there are calls, and all ids of each are known.
    pub(super) fn is_exact(&self) -> bool {
        self.calls > 0 && self.exact_calls == self.calls
    }

    /// Takes note of what could not be done.
    fn cannot(&mut self, failure: &Failure) {
        self.problems.push(failure.to_string());
    }

    /// Takes what was recorded, and writes the ids into the trial's result.
    fn take(&mut self, recorded: RecordedIds, plan: &TrialPlan, result: Option<&mut ResultFile>) {
        self.calls = recorded.calls;
        self.exact_calls = recorded.exact_calls;
        self.verdict.clone_from(&recorded.verdict);
        self.reasons.clone_from(&recorded.reasons);
        if self.calls == 0 {
            let why = plan.reason.as_deref().unwrap_or("its agent called another address, or none");
            self.reasons = vec![format!("no call was recorded: {why}")];
        }

        let Some(result) = result else { return };
        let began = result.steps();
        let parts = match began.is_empty() {
            true => vec![recorded.details()],
            false => recorded.details_of_steps(&began),
        };
        if let Err(failure) = result.write_details(parts) {
            self.cannot(&failure);
        }
    }
}

/// A name of Harbor's in the characters of an id. A longer one than an id may be ends in its hash.
fn id_of(name: &str) -> String {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "._:-".contains(letter);
    let id: String =
        name.chars().map(|letter| if allowed(letter) { letter } else { '-' }).collect();
    match id.get(..NAME_CHARS_MAX - HASH_CHARS) {
        Some(start) if id.len() > NAME_CHARS_MAX => {
            format!("{start}{}", &blake3::hash(name.as_bytes()).to_hex()[..HASH_CHARS])
        }
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_harbor_s_is_an_id() {
        for name in ["hello-world__bZZeEkw", "org/task", "a b", &"x".repeat(300)] {
            assert!(id_of(name).parse::<EpisodeId>().is_ok(), "{name}");
        }
        let [one, other] = ["a", "b"].map(|end| id_of(&("x".repeat(300) + end)));
        assert!(one != other && one.len() == NAME_CHARS_MAX);
        assert_eq!(id_of("hello-world__bZZeEkw"), "hello-world__bZZeEkw");
    }

    #[test]
    fn trials_of_one_agent_model_and_task_are_a_group() {
        let plan = |model: Option<&str>| TrialPlan {
            trial: "task__x".to_owned(),
            folder: PathBuf::new(),
            job: "job".to_owned(),
            task: "org/task".to_owned(),
            agent: "terminus-2".to_owned(),
            model: model.map(str::to_owned),
            reason: None,
        };
        assert_eq!(plan(None).group(), "job:terminus-2:org-task");
        assert_eq!(plan(Some("openai/m")).group(), "job:terminus-2:openai-m:org-task");
    }
}
