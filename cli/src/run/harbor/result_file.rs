//! `result.json` of a trial: how it ended, its rewards, and the place for its ids.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use episode::Micros;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use crate::exit::Failure;
use crate::time::moment;

/// The name of the file in a trial's folder.
const NAME: &str = "result.json";
/// Exceptions by which Harbor says that a limit of the task or of the model ended the agent.
const LIMITS: [&str; 5] = [
    "AgentTimeoutError",
    "ContextLengthExceededError",
    "ContextWindowExceededError",
    "OutputLengthExceededError",
    "OutputTokenExceededError",
];

/// The result of a trial, as Harbor wrote it.
#[derive(Debug)]
pub(super) struct ResultFile {
    path: PathBuf,
    value: Value,
}

impl ResultFile {
    /// Reads the result in the folder of a trial.
    ///
    /// # Errors
    /// [`Failure`] if Harbor left none.
    pub(super) fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(NAME);
        let unread =
            |why: String| Failure::new(format!("no result in `{}`: {why}", path.display()));
        let bytes = fs::read(&path).map_err(|error| unread(error.to_string()))?;
        let value = serde_json::from_slice(&bytes).map_err(|error| unread(error.to_string()))?;
        Ok(Self { path, value })
    }

    /// The name of the exception that ended the trial.
    pub(super) fn exception(&self) -> Option<&str> {
        self.value["exception_info"]["exception_type"].as_str()
    }

    /// The status with which the episode is closed. What Harbor counts as no fault of the agent is
    /// none of the policy.
    pub(super) fn status(&self) -> &'static str {
        let policy = &self.value["exception_info"]["policy"];
        match self.exception() {
            None => "completed",
            Some(name) if LIMITS.contains(&name) => "truncated",
            Some(_) if policy["has_valid_reward"] == json!(false) => "infrastructure_failed",
            Some(_) => "failed",
        }
    }

    /// The rewards of the verifier, by name; none where Harbor calls them not valid.
    pub(super) fn rewards(&self) -> Map<String, Value> {
        let rewards = self.value["verifier_result"]["rewards"].as_object();
        match rewards {
            Some(rewards) if self.value["reward_valid"] != json!(false) => rewards.clone(),
            _ => Map::new(),
        }
    }

    /// The steps of a trial that has several, each with a result of its own: the time at which its
    /// agent began, if it did.
    pub(super) fn steps(&self) -> Vec<Option<Micros>> {
        let steps = self.value["step_results"].as_array();
        let began = |step: &Value| moment(step["agent_execution"]["started_at"].as_str()?).ok();
        steps.into_iter().flatten().map(began).collect()
    }

    /// Writes ids in place of those that are there: one part for each step or, where there are no
    /// steps, one for the trial. A part without ids changes nothing.
    ///
    /// # Errors
    /// [`Failure`] if the file cannot be replaced.
    pub(super) fn write_details(&mut self, parts: Vec<Vec<Value>>) -> Result<(), Failure> {
        if parts.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let has_steps = !self.steps().is_empty();
        for (number, details) in parts.into_iter().enumerate() {
            match has_steps {
                true => put(&mut self.value["step_results"][number], details),
                false => put(&mut self.value, details),
            }
        }
        self.write().map_err(|error| {
            Failure::of(&error).context(&format!("cannot write `{}`", self.path.display()))
        })
    }

    /// Replaces the file, in the form in which Harbor writes it.
    fn write(&self) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        let indented = PrettyFormatter::with_indent(b"    ");
        self.value.serialize(&mut Serializer::with_formatter(&mut bytes, indented))?;

        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(&bytes)?;
        let mode = fs::metadata(&self.path)?.permissions();
        fs::set_permissions(file.path(), mode)?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Puts ids into the result of a trial or of a step.
fn put(result: &mut Value, details: Vec<Value>) {
    if details.is_empty() {
        return;
    }
    let agent = &mut result["agent_result"];
    if agent.is_null() {
        *agent = json!({});
    }
    agent["rollout_details"] = Value::Array(details);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(value: Value) -> ResultFile {
        ResultFile { path: PathBuf::new(), value }
    }

    fn ended_by(name: &str, has_valid_reward: bool) -> ResultFile {
        let policy = json!({ "has_valid_reward": has_valid_reward });
        result(json!({ "exception_info": { "exception_type": name, "policy": policy } }))
    }

    #[test]
    fn the_end_of_a_trial_is_the_status_of_its_episode() {
        assert_eq!(result(json!({ "exception_info": null })).status(), "completed");
        assert_eq!(ended_by("AgentTimeoutError", true).status(), "truncated");
        assert_eq!(ended_by("NonZeroAgentExitCodeError", true).status(), "failed");
        assert_eq!(
            ended_by("EnvironmentStartTimeoutError", false).status(),
            "infrastructure_failed"
        );
    }

    #[test]
    fn a_reward_that_is_not_valid_is_none() {
        let rewards = json!({ "rewards": { "reward": 1.0 } });
        let valid = json!({ "verifier_result": rewards, "reward_valid": true });
        assert_eq!(result(valid).rewards()["reward"], json!(1.0));
        let invalid = json!({ "verifier_result": rewards, "reward_valid": false });
        assert!(result(invalid).rewards().is_empty());
        assert!(result(json!({ "verifier_result": null })).rewards().is_empty());
    }

    #[test]
    fn ids_are_written_once_however_often() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        fs::write(&path, r#"{"id": "x", "agent_result": null, "cost": 0.1}"#).unwrap();
        let details = || vec![json!({ "prompt_token_ids": [[1, 2]], "logprobs": [[-0.25]] })];
        ResultFile::read(folder.path()).unwrap().write_details(vec![details()]).unwrap();
        let once = fs::read_to_string(&path).unwrap();
        ResultFile::read(folder.path()).unwrap().write_details(vec![details()]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), once);

        let read: Value = serde_json::from_str(&once).unwrap();
        assert_eq!(read["agent_result"]["rollout_details"], Value::Array(details()));
        assert!(once.starts_with("{\n    \"id\": \"x\",\n"), "{once}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn each_step_has_the_ids_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |at: &str| json!({ "agent_execution": { "started_at": at } });
        let steps = [at("1970-01-01T00:00:01Z"), json!({ "agent_result": null }), at("later")];
        let result = json!({ "step_results": steps, "agent_result": null });
        fs::write(folder.path().join(NAME), result.to_string()).unwrap();
        let mut file = ResultFile::read(folder.path()).unwrap();
        assert_eq!(file.steps(), [Some(1_000_000), None, None]);

        let details = json!([{ "prompt_token_ids": [[1]] }]);
        let details = || details.as_array().unwrap().clone();
        file.write_details(vec![details(), Vec::new(), Vec::new()]).unwrap();
        let written = ResultFile::read(folder.path()).unwrap().value;
        let [first, second, _] = written["step_results"].as_array().unwrap().as_slice() else {
            panic!("{written}")
        };
        assert_eq!(first["agent_result"]["rollout_details"], Value::Array(details()));
        assert!(second["agent_result"].is_null() && written["agent_result"].is_null());
    }

    #[test]
    fn a_trial_without_a_result_says_where_it_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let failure = ResultFile::read(folder.path()).unwrap_err().to_string();
        assert!(failure.contains("result.json") && failure.contains("no result in"), "{failure}");
    }
}
