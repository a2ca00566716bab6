//! The Responses route, as an upstream speaks it itself.

use serde::Deserialize;
use serde_json::Value;

use super::Collector;
use super::chat::Entry;

/// An event of a stream.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    response: Option<Response<'a>>,
    /// Of a piece of text.
    #[serde(borrow)]
    logprobs: Option<Vec<Entry<'a>>>,
    #[serde(rename = "type")]
    kind: Option<String>,
    error: Option<Value>,
    message: Option<Value>,
}

#[derive(Deserialize)]
struct Response<'a> {
    model: Option<String>,
    status: Option<String>,
    error: Option<Value>,
    incomplete_details: Option<Incomplete>,
    usage: Option<Usage>,
    /// vLLM, when asked: what the model was given and gave, by id.
    input_messages: Option<Vec<Tokens>>,
    output_messages: Option<Vec<Tokens>>,
    #[serde(borrow)]
    output: Option<Vec<Item<'a>>>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// gpt-oss models get messages of another form, without ids.
#[derive(Deserialize)]
struct Tokens {
    tokens: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    content: Option<Vec<Part<'a>>>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    logprobs: Option<Vec<Entry<'a>>>,
}

impl Collector {
    pub(super) fn take_responses(&mut self, json: &[u8]) -> Option<()> {
        let event: Event<'_> = serde_json::from_slice(json).ok()?;
        let error = event.error.filter(|e| !e.is_null());
        match (event.response, event.kind.as_deref(), error) {
            (Some(response), ..) => self.response(response),
            (None, Some("error"), error) => {
                self.failed_with(&error.or(event.message).unwrap_or_default());
            }
            (None, Some(_), _) => {
                let bytes = self.vocabulary.is_some();
                let entries = event.logprobs.unwrap_or_default();
                if !entries.is_empty() {
                    let tokens = entries.into_iter().map(|entry| entry.token(bytes));
                    self.draft(0, 0).add_tokens(tokens);
                }
            }
            (None, None, Some(error)) => self.failed_with(&error),
            (None, None, None) => self.response(serde_json::from_slice(json).ok()?),
        }
        Some(())
    }

    fn response(&mut self, response: Response<'_>) {
        self.model = response.model.or(self.model.take());
        if let Some(usage) = response.usage {
            self.counts(usage.input_tokens, usage.output_tokens);
        }
        if let Some(error) = response.error.filter(|e| !e.is_null()) {
            self.failed_with(&error);
        }
        let prompt = ids(response.input_messages);
        if !prompt.is_empty() {
            self.prompts.insert(0, prompt);
        }
        let sampled = ids(response.output_messages);
        let bytes = self.vocabulary.is_some();
        let output = response.output.unwrap_or_default();
        let calls = output.iter().any(|i| i.kind.as_deref().is_some_and(|k| k.ends_with("_call")));
        let draft = self.draft(0, 0);
        if !sampled.is_empty() {
            draft.add_ids(sampled);
        }
        let parts = output.into_iter().filter_map(|item| item.content).flatten();
        let entries = parts.filter_map(|part| part.logprobs).flatten();
        draft.tokens_again(entries.map(|entry| entry.token(bytes)));
        let cut = response.incomplete_details.and_then(|details| details.reason);
        let reason = match (response.status.as_deref(), cut.as_deref()) {
            (Some("completed"), _) => Some(if calls { "tool_calls" } else { "stop" }),
            (Some("incomplete"), Some("max_output_tokens")) => Some("length"),
            (Some("incomplete"), other) => Some(other.unwrap_or("incomplete")),
            _ => None,
        };
        draft.finish(reason.map(str::to_owned), None);
    }
}

fn ids(messages: Option<Vec<Tokens>>) -> Vec<u32> {
    messages.into_iter().flatten().filter_map(|m| m.tokens).flatten().collect()
}
