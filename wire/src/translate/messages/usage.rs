//! Token counts of a chat reply in Anthropic's form.

use serde_json::{Map, Value, json};

use super::list;

/// The token counts of a chat reply so far.
#[derive(Debug, Default)]
pub(super) struct UsageCounter {
    prompt: Option<u64>,
    completion: Option<u64>,
    cache_read: Option<u64>,
    cache_created: Option<u64>,
    /// True if the server's own Messages route counts the tokens of reasoning.
    counts_reasoning: bool,
    /// Tokens of reasoning.
    reasoning: Option<u64>,
    /// Number of prompt ids, for a server that sends ids before counts, or no counts at all.
    prompt_ids: Option<u64>,
    /// Number of sampled ids so far.
    completion_ids: u64,
}

impl UsageCounter {
    /// A counter without counts; tokens of reasoning are shown with `counts_reasoning` only.
    pub(super) fn new(counts_reasoning: bool) -> UsageCounter {
        UsageCounter { counts_reasoning, ..UsageCounter::default() }
    }

    /// Takes the counts of a chat document or chunk; later counts replace earlier ones.
    pub(super) fn take(&mut self, chat: &Value) {
        let count = |place: &str| chat.pointer(place).and_then(Value::as_u64);
        self.prompt = count("/usage/prompt_tokens").or(self.prompt);
        self.completion = count("/usage/completion_tokens").or(self.completion);
        self.cache_read = count("/usage/prompt_tokens_details/cached_tokens").or(self.cache_read);
        if self.counts_reasoning {
            let reasoning = count("/usage/completion_tokens_details/reasoning_tokens");
            self.reasoning = reasoning.or(self.reasoning);
        }
        self.cache_created =
            count("/usage/prompt_tokens_details/created_cache_tokens").or(self.cache_created);

        // llama.cpp sends the numbers of read and of cached tokens before its usage.
        if self.prompt.is_none()
            && let Some(read) = count("/timings/prompt_n")
        {
            let cached = count("/timings/cache_n");
            self.prompt = Some(read.saturating_add(cached.unwrap_or(0)));
            self.cache_read = cached.filter(|n| *n > 0).or(self.cache_read);
        }

        self.prompt_ids = self.prompt_ids.or(length(chat, "prompt_token_ids").filter(|n| *n > 0));
        let choices = list(chat, "choices").iter();
        self.completion_ids +=
            choices.filter_map(|choice| length(choice, "token_ids")).sum::<u64>();
    }

    /// Returns true if the length of the prompt is known.
    pub(super) fn knows_prompt(&self) -> bool {
        self.prompt.or(self.prompt_ids).is_some()
    }

    /// The counts at the start of a stream, without any output.
    pub(super) fn at_start(&self) -> Value {
        self.with_output(0)
    }

    /// The counts so far.
    pub(super) fn so_far(&self) -> Value {
        self.with_output(self.completion.unwrap_or(self.completion_ids))
    }

    /// The counts with `output` sampled tokens. Chat counts cached tokens among the prompt's,
    /// Anthropic beside them.
    fn with_output(&self, output: u64) -> Value {
        let prompt = self.prompt.or(self.prompt_ids).unwrap_or(0);
        let cached = self.cache_read.unwrap_or(0).saturating_add(self.cache_created.unwrap_or(0));
        let mut usage = Map::new();
        usage.insert("input_tokens".to_owned(), json!(prompt.saturating_sub(cached)));
        for (key, count) in [
            ("cache_creation_input_tokens", self.cache_created),
            ("cache_read_input_tokens", self.cache_read),
            ("output_tokens", Some(output)),
        ] {
            usage.extend(count.map(|count| (key.to_owned(), json!(count))));
        }
        if let Some(thinking) = self.reasoning {
            let details = json!({ "thinking_tokens": thinking.min(output) });
            usage.insert("output_tokens_details".to_owned(), details);
        }
        Value::Object(usage)
    }
}

/// The length of the list under `key`; 0 for a value that is not a list.
fn length(value: &Value, key: &str) -> Option<u64> {
    value.get(key).map(|_| list(value, key).len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_are_counted_apart() {
        let mut usage = UsageCounter::default();
        assert_eq!(usage.so_far(), json!({ "input_tokens": 0, "output_tokens": 0 }));
        usage.take(&json!({ "usage": {
            "prompt_tokens": 10, "completion_tokens": 3,
            "prompt_tokens_details": { "cached_tokens": 8 },
        } }));
        let expected =
            json!({ "input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 3 });
        assert_eq!(usage.so_far(), expected);
        usage.take(&json!({ "usage": null }));
        assert_eq!(usage.so_far(), expected);
    }

    #[test]
    fn reasoning_is_counted_where_the_server_counts_it() {
        let counts = json!({ "usage": {
            "prompt_tokens": 1, "completion_tokens": 3,
            "completion_tokens_details": { "reasoning_tokens": 2 },
        } });
        let mut usage = UsageCounter::new(true);
        usage.take(&counts);
        assert_eq!(usage.so_far()["output_tokens_details"], json!({ "thinking_tokens": 2 }));
        assert_eq!(usage.at_start()["output_tokens_details"], json!({ "thinking_tokens": 0 }));

        let mut other = UsageCounter::new(false);
        other.take(&counts);
        assert_eq!(other.so_far(), json!({ "input_tokens": 1, "output_tokens": 3 }));
    }

    #[test]
    fn ids_are_counted_where_counts_are_missing() {
        let mut usage = UsageCounter::default();
        usage.take(&json!({ "prompt_token_ids": [1, 2, 3], "choices": [{ "token_ids": [4] }] }));
        assert_eq!(usage.at_start(), json!({ "input_tokens": 3, "output_tokens": 0 }));
        usage.take(&json!({ "prompt_token_ids": null, "choices": [{ "token_ids": [5, 6] }] }));
        assert_eq!(usage.so_far(), json!({ "input_tokens": 3, "output_tokens": 3 }));
    }
}
