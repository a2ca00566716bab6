//! Token counts: chat's, in Anthropic's words.

use serde_json::{Map, Value, json};

use super::list;

/// What the chat reply has said of its tokens so far.
#[derive(Debug, Default)]
pub(super) struct Usage {
    prompt: Option<u64>,
    completion: Option<u64>,
    cache_read: Option<u64>,
    cache_created: Option<u64>,
    /// Token ids seen, for a server that reports ids before counts, or no counts at all.
    prompt_ids: Option<u64>,
    completion_ids: u64,
}

impl Usage {
    /// Takes what a chat document or chunk says; later counts replace earlier ones.
    pub(super) fn note(&mut self, chat: &Value) {
        let count = |place: &str| chat.pointer(place).and_then(Value::as_u64);
        let renew = |held: &mut Option<u64>, place: &str| *held = count(place).or(*held);
        renew(&mut self.prompt, "/usage/prompt_tokens");
        renew(&mut self.completion, "/usage/completion_tokens");
        renew(&mut self.cache_read, "/usage/prompt_tokens_details/cached_tokens");
        renew(&mut self.cache_created, "/usage/prompt_tokens_details/created_cache_tokens");
        // llama.cpp tells them before its usage: those that it read, and those that it had.
        if self.prompt.is_none()
            && let Some(read) = count("/timings/prompt_n")
        {
            let cached = count("/timings/cache_n");
            self.prompt = Some(read.saturating_add(cached.unwrap_or(0)));
            self.cache_read = cached.filter(|n| *n > 0).or(self.cache_read);
        }
        let ids = |value: &Value, key| value.get(key).map(|_| list(value, key).len() as u64);
        self.prompt_ids = self.prompt_ids.or(ids(chat, "prompt_token_ids").filter(|n| *n > 0));
        let choices = list(chat, "choices").iter();
        self.completion_ids += choices.filter_map(|choice| ids(choice, "token_ids")).sum::<u64>();
    }

    /// Whether it is known how long the prompt is.
    pub(super) fn knows_prompt(&self) -> bool {
        self.prompt.or(self.prompt_ids).is_some()
    }

    /// The counts at the start of a stream: none of the output is told yet.
    pub(super) fn at_start(&self) -> Value {
        self.with_output(0)
    }

    /// The counts so far.
    pub(super) fn so_far(&self) -> Value {
        self.with_output(self.completion.unwrap_or(self.completion_ids))
    }

    /// Chat counts cached tokens among the prompt's, Anthropic beside them.
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
        Value::Object(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_are_counted_apart() {
        let mut usage = Usage::default();
        assert_eq!(usage.so_far(), json!({ "input_tokens": 0, "output_tokens": 0 }));
        usage.note(&json!({ "usage": {
            "prompt_tokens": 10, "completion_tokens": 3,
            "prompt_tokens_details": { "cached_tokens": 8 },
        } }));
        let expected =
            json!({ "input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 3 });
        assert_eq!(usage.so_far(), expected);
        usage.note(&json!({ "usage": null }));
        assert_eq!(usage.so_far(), expected);
    }

    #[test]
    fn ids_are_counted_where_counts_are_missing() {
        let mut usage = Usage::default();
        usage.note(&json!({ "prompt_token_ids": [1, 2, 3], "choices": [{ "token_ids": [4] }] }));
        assert_eq!(usage.at_start(), json!({ "input_tokens": 3, "output_tokens": 0 }));
        usage.note(&json!({ "prompt_token_ids": null, "choices": [{ "token_ids": [5, 6] }] }));
        assert_eq!(usage.so_far(), json!({ "input_tokens": 3, "output_tokens": 3 }));
    }
}
