//! Token counts, with vLLM's order of fields and its nulls.

use serde::Serialize;

/// The token counts of a reply. The details are null in the forms that have them, and absent in the
/// others.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
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
    /// Counts tokens, without details.
    pub(crate) fn new(prompt: usize, completion: usize) -> Usage {
        Usage {
            prompt_tokens: prompt,
            total_tokens: prompt + completion,
            completion_tokens: completion,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// Adds the number of prompt tokens that came from the cache.
    pub(crate) fn with_cached(self, cached_tokens: usize) -> Usage {
        Usage { prompt_tokens_details: Some(PromptDetails { cached_tokens }), ..self }
    }

    /// Adds `completion_tokens_details`, which streams of completions do not have.
    pub(crate) fn with_completion_details(self) -> Usage {
        Usage { completion_tokens_details: Some(()), ..self }
    }
}
