//! Token counts, with vLLM's order of fields and its nulls.

use kernels::PAGE;
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
    completion_tokens_details: Option<Option<CompletionDetails>>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_cache_tokens: Option<usize>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
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
        let details = PromptDetails { cached_tokens, created_cache_tokens: None };
        Usage { prompt_tokens_details: Some(details), ..self }
    }

    /// Adds the number of tokens of one prompt that came from the cache, and of those that later
    /// prompts find there: the other ones in full pages.
    pub(crate) fn with_cache(self, cached_tokens: usize) -> Usage {
        let created = (self.prompt_tokens / PAGE * PAGE).saturating_sub(cached_tokens);
        let details = PromptDetails { cached_tokens, created_cache_tokens: Some(created) };
        Usage { prompt_tokens_details: Some(details), ..self }
    }

    /// Adds `completion_tokens_details`, which streams of completions do not have: the tokens of
    /// reasoning, or null for a model without it.
    pub(crate) fn with_reasoning(self, reasoning_tokens: Option<usize>) -> Usage {
        let details =
            reasoning_tokens.map(|reasoning_tokens| CompletionDetails { reasoning_tokens });
        Usage { completion_tokens_details: Some(details), ..self }
    }
}
