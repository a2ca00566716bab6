//! Token counts, in the order and with the nulls of vLLM.

use serde::Serialize;

/// Counts of a reply. The details are null where a form has them and absent where not.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<()>,
}

impl Usage {
    /// Counts alone, as at the end of a stream.
    pub(super) fn new(prompt: usize, completion: usize) -> Usage {
        Usage {
            prompt_tokens: prompt,
            total_tokens: prompt + completion,
            completion_tokens: completion,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// With `prompt_tokens_details`.
    pub(super) fn with_prompt_details(self) -> Usage {
        Usage { prompt_tokens_details: Some(()), ..self }
    }

    /// With `completion_tokens_details`, which only chat has.
    pub(super) fn with_completion_details(self) -> Usage {
        Usage { completion_tokens_details: Some(()), ..self }
    }
}
