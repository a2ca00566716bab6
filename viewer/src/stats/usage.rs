//! Tokens by model: what a price is put on.

use std::collections::BTreeMap;

use episode::{AttemptId, Route};
use serde::{Deserialize, Serialize};
use store::CallRow;

/// The tokens of a model's calls, as the server counted them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUsage {
    /// The server's name of the model, else the agent's.
    pub model: Option<String>,
    /// Calls with a count.
    pub calls: u64,
    /// Calls that were answered, and of which the server told no count.
    pub uncounted: u64,
    /// Tokens of prompts, cached ones among them.
    pub prompt_tokens: u64,
    /// Sampled tokens.
    pub completion_tokens: u64,
}

/// The tokens of an attempt, by model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct AttemptUsage {
    pub episode_id: String,
    pub attempt: u32,
    pub group_id: Option<String>,
    pub models: Vec<ModelUsage>,
}

/// The tokens of calls, as they are counted.
#[derive(Debug, Default)]
pub(crate) struct UsageTable {
    attempts: BTreeMap<i64, CountedAttempt>,
}

#[derive(Debug)]
struct CountedAttempt {
    id: AttemptId,
    group: Option<String>,
    models: BTreeMap<Option<String>, ModelUsage>,
}

impl UsageTable {
    /// Counts a call. Those that no model answered are none, and those that only count tokens.
    pub(crate) fn add(&mut self, call: &CallRow) {
        let route: Route = Route::from_word(&call.route);
        let is_refused = call.status.is_none_or(|status| status >= 400);
        let has_counts = call.prompt_tokens.is_some() || call.completion_tokens.is_some();
        let is_priced = route.generates() || route == Route::Embeddings;
        if !is_priced || call.ended_at.is_none() || (is_refused && !has_counts) {
            return;
        }

        let attempt = self.attempts.entry(call.episode_key).or_insert_with(|| CountedAttempt {
            id: call.attempt.clone(),
            group: call.group.clone(),
            models: BTreeMap::new(),
        });
        let usage = attempt.models.entry(call.model.clone()).or_default();
        let is_whole = call.prompt_tokens.is_some()
            && (call.completion_tokens.is_some() || route == Route::Embeddings);
        *(if is_whole { &mut usage.calls } else { &mut usage.uncounted }) += 1;
        usage.prompt_tokens += call.prompt_tokens.unwrap_or(0);
        usage.completion_tokens += call.completion_tokens.unwrap_or(0);
    }

    /// The tokens of all attempts.
    pub(crate) fn models(&self) -> Vec<ModelUsage> {
        let mut sums: BTreeMap<&Option<String>, ModelUsage> = BTreeMap::new();
        for (model, usage) in self.attempts.values().flat_map(|attempt| &attempt.models) {
            let sum = sums.entry(model).or_default();
            sum.calls += usage.calls;
            sum.uncounted += usage.uncounted;
            sum.prompt_tokens += usage.prompt_tokens;
            sum.completion_tokens += usage.completion_tokens;
        }
        let named = |(model, sum): (&Option<String>, ModelUsage)| named(model.clone(), sum);
        sums.into_iter().map(named).collect()
    }

    /// The tokens of each attempt, in the order in which they were opened.
    pub(crate) fn attempts(self) -> Vec<AttemptUsage> {
        let attempts = self.attempts.into_values().map(|attempt| AttemptUsage {
            episode_id: attempt.id.episode.to_string(),
            attempt: attempt.id.attempt,
            group_id: attempt.group,
            models: attempt.models.into_iter().map(|(model, sum)| named(model, sum)).collect(),
        });
        attempts.collect()
    }
}

fn named(model: Option<String>, usage: ModelUsage) -> ModelUsage {
    ModelUsage { model, ..usage }
}
