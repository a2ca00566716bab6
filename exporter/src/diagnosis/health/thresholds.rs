//! The numbers from which on a check has a finding, as a file may set them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::diagnosis::health::names::CHECKS;

/// The thresholds of all checks. A file is a JSON object with some of these fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// The largest share, from 0 to 1, of what a check counts that may be faulty, by check. Checks
    /// that are not named keep their own.
    pub shares: BTreeMap<String, f64>,
    /// Checks that are left out.
    pub off: BTreeSet<String>,
    /// Replies that a rate of replies needs; also of each side that is compared.
    pub replies_min: u64,
    /// Scored attempts that a statistic of rewards needs.
    pub rewards_min: u64,
    /// Scored attempts that a task needs to be called failed or solved.
    pub task_attempts_min: u64,
    /// Tasks that a share of tasks needs, and groups that a share of groups needs.
    pub tasks_min: u64,
    /// The reward from which on an attempt is solved.
    pub solved_at: f64,
    /// Seconds from which on a call hangs.
    pub hung_s: f64,
    /// Tokens that a reply without a word may have and still be called empty.
    pub empty_tokens_max: usize,
    /// Tokens that a reply needs to be looked at for loops, and an attempt to be compared.
    pub tokens_min: usize,
    /// The share of a reply's runs of eight ids that were in it before, from which on it is a loop.
    pub loop_share: f64,
    /// The share of runs of eight ids that two attempts have in common, from which on they are
    /// nearly the same.
    pub overlap: f64,
    /// Failed tool results in a row that are a streak.
    pub tool_error_streak: usize,
    /// Beginnings of a tool result that failed, in small letters.
    pub tool_error_words: Vec<String>,
    /// Paths that graders own: `/folder/` and what is below it, `folder/` anywhere, a file's name.
    pub grader_paths: Vec<String>,
    /// Versions that the tokens of one attempt may lie apart.
    pub versions_apart_max: i64,
    /// Sampled tokens of a version that its means need.
    pub version_tokens_min: u64,
    /// Nats that the mean logprobs of neighboring versions may differ by.
    pub logprob_jump_max: f64,
    /// The factor by which the mean of negative logprobs may rise or fall over all versions.
    pub entropy_factor_max: f64,
    /// The rise of the share of cut replies from the older versions to the newer ones.
    pub truncation_rise_max: f64,
    /// Standard errors by which something must differ to be more than chance.
    pub sigmas: f64,
    /// Nats that the mean logprob of an engine may differ by from the others'.
    pub engine_logprob_max: f64,
    /// The difference of an engine's share of cut replies from the others'.
    pub engine_truncation_max: f64,
    /// The amount of the correlation of reward and sampled tokens within groups.
    pub length_correlation_max: f64,
    /// The standard deviation below which a reward says nothing.
    pub reward_std_min: f64,
    /// The share of the variance of all components that one of them may have.
    pub component_share_max: f64,
}

/// The reasons for which thresholds are not taken.
#[derive(Debug, Error)]
pub enum ThresholdsError {
    /// The text is no JSON object, or a field of it is unknown or of another type.
    #[error("the thresholds are not read")]
    Json(#[from] serde_json::Error),
    /// A share or a name of a check that does not exist.
    #[error("there is no check `{0}`")]
    Unknown(String),
    /// A share beyond 0 to 1.
    #[error("the share of `{0}` is not from 0 to 1")]
    Share(String),
}

impl Default for Thresholds {
    fn default() -> Self {
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            shares: BTreeMap::new(),
            off: BTreeSet::new(),

            replies_min: 30,
            rewards_min: 20,
            task_attempts_min: 4,
            tasks_min: 4,
            solved_at: 0.5,

            hung_s: 600.0,
            empty_tokens_max: 16,
            tokens_min: 64,
            loop_share: 0.5,
            overlap: 0.8,

            tool_error_streak: 5,
            tool_error_words: texts(&ERROR_WORDS),
            grader_paths: texts(&GRADER_PATHS),

            versions_apart_max: 4,
            version_tokens_min: 1000,
            logprob_jump_max: 0.5,
            entropy_factor_max: 2.0,
            truncation_rise_max: 0.1,
            sigmas: 4.0,
            engine_logprob_max: 0.2,
            engine_truncation_max: 0.1,

            length_correlation_max: 0.5,
            reward_std_min: 1e-6,
            component_share_max: 0.95,
        }
    }
}

/// Beginnings of the results of failed tools.
const ERROR_WORDS: [&str; 8] = [
    "error",
    "traceback (most recent call last)",
    "fatal:",
    "exception:",
    "<tool_use_error>",
    "tool error",
    "command failed",
    "failed to ",
];

/// Places that graders of usual harnesses own. A folder `tests` in a repository is not among them:
/// agents are asked to write tests.
const GRADER_PATHS: [&str; 6] =
    ["/grader/", "/verifier/", "/tests/", "/logs/verifier/", "conftest.py", "sitecustomize.py"];

impl Thresholds {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ThresholdsError`] when it is no JSON object of these fields, or names an unknown check.
    pub fn read(text: &[u8]) -> Result<Self, ThresholdsError> {
        let read: Self = serde_json::from_slice(text)?;
        let mut names = read.shares.keys().chain(&read.off);
        if let Some(unknown) = names.find(|name| !CHECKS.contains(&name.as_str())) {
            return Err(ThresholdsError::Unknown(unknown.clone()));
        }
        match read.shares.iter().find(|(_, share)| !(0.0..=1.0).contains(*share)) {
            Some((name, _)) => Err(ThresholdsError::Share(name.clone())),
            None => Ok(read),
        }
    }

    /// Returns the largest share of a check, which is `own` unless the file says another.
    pub(crate) fn share_max(&self, check: &str, own: f64) -> f64 {
        self.shares.get(check).copied().unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_some_and_unknown_names_are_refused() {
        let text = br#"{ "shares": { "loops": 0.25 }, "off": ["slow_calls"], "hung_s": 60 }"#;
        let read = Thresholds::read(text).unwrap();
        assert_eq!((read.share_max("loops", 0.5), read.share_max("empty_turns", 0.5)), (0.25, 0.5));
        assert_eq!((read.hung_s, read.overlap), (60.0, Thresholds::default().overlap));
        assert!(read.off.contains("slow_calls"));

        let refused = |text: &str| Thresholds::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(r#"{ "off": ["loop"] }"#), "there is no check `loop`");
        assert_eq!(
            refused(r#"{ "shares": { "loops": 3 } }"#),
            "the share of `loops` is not from 0 to 1"
        );
        assert_eq!(refused(r#"{ "loops": 3 }"#), "the thresholds are not read");
    }
}
