//! The tokens that one call adds to a conversation.

use thiserror::Error;

use crate::CallId;

/// Columns of sampled tokens that differ in length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{ids} sampled ids but {logprobs} logprobs and {versions} versions")]
pub struct UnevenColumns {
    /// Number of ids.
    pub ids: usize,
    /// Number of logprobs.
    pub logprobs: usize,
    /// Number of versions.
    pub versions: usize,
}

/// Tokens that the policy sampled: three columns of one length, which the constructor checks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledTokens {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    versions: Vec<i32>,
}

impl SampledTokens {
    /// Joins `ids[n]`, `logprobs[n]` and `versions[n]`; a version is -1 if it is not known.
    ///
    /// # Errors
    /// [`UnevenColumns`] if the lengths differ.
    pub fn new(
        ids: Vec<u32>,
        logprobs: Vec<f32>,
        versions: Vec<i32>,
    ) -> Result<Self, UnevenColumns> {
        if ids.len() != logprobs.len() || ids.len() != versions.len() {
            return Err(UnevenColumns {
                ids: ids.len(),
                logprobs: logprobs.len(),
                versions: versions.len(),
            });
        }
        Ok(Self { ids, logprobs, versions })
    }

    /// Sampled ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// One logprob for each id.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// One policy version for each id.
    pub fn versions(&self) -> &[i32] {
        &self.versions
    }
}

/// The tokens that one choice of one call added: new prompt tokens, then sampled tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// The call.
    pub call_id: CallId,
    /// The choice of that call.
    pub choice: u32,
    /// Prompt tokens that the path did not hold before this turn.
    pub new_prompt: Vec<u32>,
    /// Tokens sampled after them.
    pub sampled: SampledTokens,
    /// True if the sampled tokens may be trained on this path; false if an earlier trajectory of
    /// the episode already trains them.
    pub trained: bool,
    /// The reason for which sampling stopped, as the server reported it.
    pub finish_reason: Option<String>,
    /// The temperature that the agent requested.
    pub temperature: Option<f64>,
}

impl Turn {
    /// Number of tokens that the turn adds to its path.
    pub fn len(&self) -> usize {
        self.new_prompt.len() + self.sampled.ids().len()
    }

    /// True if the turn adds no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
