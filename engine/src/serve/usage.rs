//! Token counts, in the order and with the nulls of vLLM.

use serde::Serialize;

/// Counts of a reply. The details are null where a form has them and absent where not.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<()>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

impl Usage {
    /// Counts alone.
    pub(super) fn new(prompt: usize, completion: usize) -> Usage {
        Usage {
            prompt_tokens: prompt,
            total_tokens: prompt + completion,
            completion_tokens: completion,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// With how many tokens of the prompts came from a cache.
    pub(super) fn with_cached(self, cached_tokens: usize) -> Usage {
        Usage { prompt_tokens_details: Some(PromptDetails { cached_tokens }), ..self }
    }

    /// With `completion_tokens_details`, which streams of completions do not have.
    pub(super) fn with_completion_details(self) -> Usage {
        Usage { completion_tokens_details: Some(()), ..self }
    }
}
