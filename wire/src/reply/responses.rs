//! The Responses route of an upstream that has one itself.

use serde::Deserialize;
use serde_json::Value;

use super::Collector;
use super::chat::LogprobEntry;

/// An event of a stream.
#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(borrow)]
    response: Option<Response<'a>>,
    /// Logprobs of a text delta.
    #[serde(borrow)]
    logprobs: Option<Vec<LogprobEntry<'a>>>,
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
    incomplete_details: Option<IncompleteDetails>,
    usage: Option<ResponsesUsage>,
    /// vLLM, if asked: the ids of the prompt and of the sampled tokens.
    input_messages: Option<Vec<TokenMessage>>,
    output_messages: Option<Vec<TokenMessage>>,
    #[serde(borrow)]
    output: Option<Vec<ResponseItem<'a>>>,
}

#[derive(Deserialize)]
struct IncompleteDetails {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct ResponsesUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// Ids of a message. gpt-oss models get messages of another form, without ids.
#[derive(Deserialize)]
struct TokenMessage {
    tokens: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct ResponseItem<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    content: Option<Vec<ContentPart<'a>>>,
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow)]
    logprobs: Option<Vec<LogprobEntry<'a>>>,
}

impl ResponseItem<'_> {
    fn is_call(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind.ends_with("_call"))
    }
}

impl Collector {
    pub(super) fn take_responses(&mut self, json: &[u8]) -> Option<()> {
        let event: ResponsesEvent<'_> = serde_json::from_slice(json).ok()?;
        let error = event.error.filter(|error| !error.is_null());
        match (event.response, event.kind.as_deref(), error) {
            (Some(response), ..) => self.take_response(response),
            (None, Some("error"), error) => {
                self.set_error(&error.or(event.message).unwrap_or_default());
            }
            (None, Some(_), _) => self.take_deltas(event.logprobs.unwrap_or_default()),
            (None, None, Some(error)) => self.set_error(&error),
            // Without a type it is a whole response, not an event.
            (None, None, None) => self.take_response(serde_json::from_slice(json).ok()?),
        }
        Some(())
    }

    fn take_deltas(&mut self, entries: Vec<LogprobEntry<'_>>) {
        if entries.is_empty() {
            return;
        }
        let keeps_bytes = self.vocabulary.is_some();
        let tokens = entries.into_iter().map(|entry| entry.token(keeps_bytes));
        self.choice(0, 0).add_tokens(tokens);
    }

    fn take_response(&mut self, response: Response<'_>) {
        self.model = response.model.or(self.model.take());
        if let Some(usage) = response.usage {
            self.set_usage(usage.input_tokens, usage.output_tokens);
        }
        if let Some(error) = response.error.filter(|error| !error.is_null()) {
            self.set_error(&error);
        }
        let prompt = ids(response.input_messages);
        if !prompt.is_empty() {
            self.prompts.insert(0, prompt);
        }

        // The wire has no choices, so all of it is choice 0.
        let keeps_bytes = self.vocabulary.is_some();
        let choice = self.choice(0, 0);
        let sampled = ids(response.output_messages);
        if !sampled.is_empty() {
            choice.add_ids(sampled);
        }
        let output = response.output.unwrap_or_default();
        let finish = if output.iter().any(ResponseItem::is_call) { "tool_calls" } else { "stop" };
        // The last event of a stream repeats the logprobs of all its deltas.
        let parts = output.into_iter().filter_map(|item| item.content).flatten();
        let entries = parts.filter_map(|part| part.logprobs).flatten();
        choice.repeat_tokens(entries.map(|entry| entry.token(keeps_bytes)));

        // The words of the chat route, so that all routes are recorded alike.
        let cut = response.incomplete_details.and_then(|details| details.reason);
        let reason = match (response.status.as_deref(), cut.as_deref()) {
            (Some("completed"), _) => Some(finish),
            (Some("incomplete"), Some("max_output_tokens")) => Some("length"),
            (Some("incomplete"), other) => Some(other.unwrap_or("incomplete")),
            _ => None,
        };
        choice.set_finish(reason.map(str::to_owned), None);
    }
}

fn ids(messages: Option<Vec<TokenMessage>>) -> Vec<u32> {
    messages.into_iter().flatten().filter_map(|message| message.tokens).flatten().collect()
}
