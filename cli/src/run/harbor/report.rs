//! The table of agents with what was recorded of their trials, and the file of trials.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::trials::SettledTrial;
use crate::exit::Failure;
use crate::print;
use crate::terminal::table::{plain, table};
use crate::terminal::{self, width};

/// The name of the file of trials in a job's folder.
const NAME: &str = "rolltape.json";

/// The trials of one agent.
#[derive(Debug, Default)]
struct AgentTrials {
    trials: u64,
    exact: u64,
    calls: u64,
    /// The `reward` of each trial that has one.
    rewards: Vec<f64>,
}

impl AgentTrials {
    fn mean(&self) -> Option<f64> {
        let count = self.rewards.len();
        (count > 0).then(|| self.rewards.iter().sum::<f64>() / count as f64)
    }
}

/// Prints a line for each agent, then one for each trial that is not exact or did not end well.
pub(super) fn print(trials: &[SettledTrial]) -> Result<(), Failure> {
    if trials.is_empty() {
        return Ok(());
    }
    let columns =
        [("agent", 0), ("trials", 0), ("exact ids", 0), ("calls", 1), ("scored", 1), ("reward", 0)];
    let rows = by_agent(trials).into_iter().map(|(agent, found)| {
        let AgentTrials { trials, exact, calls, rewards } = &found;
        let numbers = [*trials, *exact, *calls, rewards.len() as u64].map(plain);
        let cells =
            [vec![plain(agent)], numbers.to_vec(), vec![plain(print::reward(found.mean()))]];
        cells.concat()
    });
    for line in table(columns, rows.collect(), width()) {
        terminal::styled(&line)?;
    }

    for told in trials.iter().flat_map(faults) {
        terminal::line(&told)?;
    }
    Ok(())
}

fn by_agent(trials: &[SettledTrial]) -> BTreeMap<String, AgentTrials> {
    let mut found = BTreeMap::<String, AgentTrials>::new();
    for trial in trials {
        let of_agent = found.entry(trial.agent.clone()).or_default();
        of_agent.trials += 1;
        of_agent.exact += u64::from(trial.is_exact());
        of_agent.calls += trial.calls;
        of_agent.rewards.extend(trial.rewards.get("reward").and_then(Value::as_f64));
    }
    found
}

/// The words on a trial that is not exact, failed, or could not be settled.
fn faults(trial: &SettledTrial) -> Vec<String> {
    let ended = trial.exception.iter().map(|name| format!("ended by {name}"));
    let SettledTrial { calls, exact_calls, .. } = trial;
    let counted = (*calls > 0).then(|| format!("{exact_calls} of {calls} calls have exact ids"));
    let reasons = counted.into_iter().chain(trial.reasons.iter().cloned());
    let told =
        ended.chain(reasons.filter(|_| !trial.is_exact())).chain(trial.problems.iter().cloned());
    told.map(|told| format!("{}: {told}", trial.trial)).collect()
}

/// Writes the trials of each job into its folder, beside those of an earlier run of the job.
pub(super) fn write_files(trials: &[SettledTrial]) -> Result<(), Failure> {
    let mut jobs = BTreeMap::<&Path, Vec<&SettledTrial>>::new();
    for trial in trials {
        jobs.entry(trial.folder.parent().unwrap_or(&trial.folder)).or_default().push(trial);
    }
    for (folder, trials) in jobs.into_iter().filter(|(folder, _)| folder.is_dir()) {
        let path = folder.join(NAME);
        let text = format!("{:#}\n", merged(&path, &trials)?);
        fs::write(&path, text)
            .map_err(|e| Failure::of(&e).context(&format!("cannot write `{}`", path.display())))?;
    }
    Ok(())
}

/// The trials of a job: those of the file whose folders are still there, as Harbor removes what it
/// runs again, and those of this run.
fn merged(path: &Path, trials: &[&SettledTrial]) -> Result<Value, Failure> {
    let before: Value = fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or(Value::Null);
    let earlier = before["trials"].as_array().into_iter().flatten();
    let named = earlier.filter_map(|trial| Some((trial["trial"].as_str()?, trial)));
    let there = named.filter(|(name, _)| path.with_file_name(name).is_dir());
    let mut all: BTreeMap<String, Value> =
        there.map(|(name, trial)| (name.to_owned(), trial.clone())).collect();

    for trial in trials {
        let written = serde_json::to_value(trial).map_err(|error| Failure::of(&error))?;
        all.insert(trial.trial.clone(), written);
    }

    let harbor = trials.first().map(|trial| trial.harbor.as_str());
    Ok(json!({ "version": 1, "harbor": harbor, "trials": all.into_values().collect::<Vec<_>>() }))
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn trial(name: &str, exact: bool, reward: Option<f64>) -> SettledTrial {
        let rewards: Map<String, Value> =
            reward.map(|value| ("reward".to_owned(), json!(value))).into_iter().collect();
        SettledTrial {
            trial: name.to_owned(),
            episode_id: name.to_owned(),
            attempt: 0,
            task: "t".to_owned(),
            agent: "terminus-2".to_owned(),
            model: None,
            calls: 2,
            exact_calls: if exact { 2 } else { 1 },
            verdict: None,
            reasons: vec!["lost_call: a call was lost".to_owned()],
            rewards,
            exception: None,
            problems: Vec::new(),
            folder: "/jobs/j/t".into(),
            harbor: "0.26.0".to_owned(),
        }
    }

    #[test]
    fn an_agent_is_counted_by_its_trials() {
        let found = by_agent(&[trial("a", true, Some(1.0)), trial("b", false, None)]);
        let agent = &found["terminus-2"];
        assert_eq!((agent.trials, agent.exact, agent.calls, agent.mean()), (2, 1, 4, Some(1.0)));
    }

    #[test]
    fn a_trial_that_is_not_exact_says_why() {
        assert!(faults(&trial("a", true, None)).is_empty());
        let found = faults(&trial("b", false, None));
        let expected = ["b: 1 of 2 calls have exact ids", "b: lost_call: a call was lost"];
        assert_eq!(found, expected);
        let failed = SettledTrial {
            exception: Some("AgentTimeoutError".to_owned()),
            ..trial("c", true, None)
        };
        assert_eq!(faults(&failed), ["c: ended by AgentTimeoutError"]);
    }

    #[test]
    fn trials_of_an_earlier_run_stay_while_they_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let of_job = |name: &str| SettledTrial {
            folder: folder.path().join(name),
            ..trial(name, true, None)
        };
        for name in ["a", "b"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        write_files(&[of_job("a"), of_job("b"), of_job("removed")]).unwrap();
        write_files(&[SettledTrial { calls: 9, ..of_job("b") }, of_job("c")]).unwrap();
        let read = fs::read(folder.path().join(NAME)).unwrap();
        let read: Value = serde_json::from_slice(&read).unwrap();
        let calls = |trial: &Value| (trial["trial"].clone(), trial["calls"].clone());
        let found: Vec<_> = read["trials"].as_array().unwrap().iter().map(calls).collect();
        assert_eq!(found, [("a", 2), ("b", 9), ("c", 2)].map(|(n, c)| (json!(n), json!(c))));
    }
}
