//! What one call adds to a conversation.

use thiserror::Error;

use crate::CallId;

/// Ids and logprobs of one span differ in number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{ids} sampled ids but {logprobs} logprobs and {versions} versions")]
pub struct UnevenSpan {
    /// Number of ids.
    pub ids: usize,
    /// Number of logprobs.
    pub logprobs: usize,
    /// Number of versions.
    pub versions: usize,
}

/// Tokens that the policy sampled: three arrays of one length, checked when made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampled {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    versions: Vec<i32>,
}

impl Sampled {
    /// Joins `ids[n]`, `logprobs[n]` and `versions[n]` (-1 where not known).
    ///
    /// # Errors
    /// [`UnevenSpan`] when the lengths differ.
    pub fn new(ids: Vec<u32>, logprobs: Vec<f32>, versions: Vec<i32>) -> Result<Self, UnevenSpan> {
        if ids.len() != logprobs.len() || ids.len() != versions.len() {
            return Err(UnevenSpan {
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

/// What one choice of one call added: new prompt tokens, then sampled tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// The call.
    pub call_id: CallId,
    /// The choice of that call.
    pub choice: u32,
    /// Prompt tokens that the path before this turn did not hold.
    pub new_prompt: Vec<u32>,
    /// What was sampled after them.
    pub sampled: Sampled,
    /// Whether this path's sampled tokens may be trained here; false where an earlier
    /// trajectory of the episode already holds them.
    pub trained: bool,
    /// The model's own word for why it stopped.
    pub finish_reason: Option<String>,
    /// The temperature that the agent asked for.
    pub temperature: Option<f64>,
}

impl Turn {
    /// Tokens that this turn adds to its path.
    pub fn len(&self) -> usize {
        self.new_prompt.len() + self.sampled.ids().len()
    }

    /// Whether the turn adds no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
