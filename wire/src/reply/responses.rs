//! The Responses route of an upstream that has one itself.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Collector;
use super::chat::{LogprobEntry, PromptIds};
use super::choice::ChoiceDraft;
use super::list::{Capped, each, filled};
use crate::bounds::TOKEN_BYTES_MAX;

/// An event of a stream.
#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(borrow)]
    response: Option<Response<'a>>,
    /// Logprobs of a text delta.
    #[serde(borrow)]
    logprobs: Option<Capped<LogprobEntry<'a>>>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Response<'a> {
    model: Option<String>,
    status: Option<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    incomplete_details: Option<IncompleteDetails>,
    usage: Option<ResponsesUsage>,
    /// vLLM, if asked: the ids of the prompt and of the sampled tokens.
    #[serde(borrow)]
    input_messages: Option<&'a RawValue>,
    #[serde(borrow)]
    output_messages: Option<&'a RawValue>,
    /// A list of [`ResponseItem`], read one by one.
    #[serde(borrow)]
    output: Option<&'a RawValue>,
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
    tokens: Option<PromptIds>,
}

#[derive(Deserialize)]
struct ResponseItem<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// A list of [`ContentPart`], read one by one.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow)]
    logprobs: Option<Capped<LogprobEntry<'a>>>,
}

impl ResponseItem<'_> {
    fn is_call(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind.ends_with("_call"))
    }
}

impl Collector {
    pub(super) fn take_responses(&mut self, json: &[u8]) -> Option<()> {
        let event: ResponsesEvent<'_> = serde_json::from_slice(json).ok()?;
        let error = filled(event.error);
        match (event.response, event.kind.as_deref(), error) {
            (Some(response), ..) => self.take_response(response)?,
            (None, Some("error"), error) => {
                self.set_raw_error(error.or(event.message).unwrap_or(RawValue::NULL));
            }
            (None, Some(_), _) => self.take_deltas(event.logprobs.unwrap_or_default()),
            (None, None, Some(error)) => self.set_raw_error(error),
            // Without a type it is a whole response, not an event.
            (None, None, None) => self.take_response(serde_json::from_slice(json).ok()?)?,
        }
        Some(())
    }

    fn take_deltas(&mut self, entries: Capped<LogprobEntry<'_>>) {
        if entries.items.is_empty() {
            return;
        }
        let keeps_bytes = self.vocabulary.is_some();
        self.change(0, |choice| {
            choice.note_cut(entries.is_cut);
            choice.add_tokens(entries.items.into_iter().map(|entry| entry.token(keeps_bytes)));
        });
    }

    fn take_response(&mut self, response: Response<'_>) -> Option<()> {
        self.set_model(response.model);
        if let Some(usage) = response.usage {
            self.set_usage(usage.input_tokens, usage.output_tokens);
        }
        if let Some(error) = filled(response.error) {
            self.set_raw_error(error);
        }
        let mut prompt = PromptIds::default();
        add_ids(response.input_messages, &mut prompt)?;
        if !prompt.items.is_empty() {
            // Those of the last event hold.
            self.prompts.remove(&0);
            self.set_prompt(0, prompt);
        }

        // The wire has no choices, so all of it is choice 0.
        let mut sampled = Capped::default();
        add_ids(response.output_messages, &mut sampled)?;
        let keeps_bytes = self.vocabulary.is_some();
        let mut has_call = None;
        self.change(0, |choice| {
            if !sampled.items.is_empty() {
                choice.add_ids(sampled);
            }
            has_call = take_output(filled(response.output), keeps_bytes, choice);
        });
        let finish = if has_call? { "tool_calls" } else { "stop" };

        // The words of the chat route, so that all routes are recorded alike.
        let cut = response.incomplete_details.and_then(|details| details.reason);
        let reason = match (response.status.as_deref(), cut.as_deref()) {
            (Some("completed"), _) => Some(finish),
            (Some("incomplete"), Some("max_output_tokens")) => Some("length"),
            (Some("incomplete"), other) => Some(other.unwrap_or("incomplete")),
            _ => None,
        };
        self.change(0, |choice| choice.set_finish(reason.map(str::to_owned), None));
        Some(())
    }
}

/// Takes the logprobs of a response's output, and returns whether it holds a call of a tool; `None`
/// if it cannot be read.
fn take_output(
    output: Option<&RawValue>,
    keeps_bytes: bool,
    choice: &mut ChoiceDraft,
) -> Option<bool> {
    let (mut has_call, mut is_read) = (false, true);
    let Some(output) = output else { return Some(false) };
    let walked = each(output, |item: ResponseItem<'_>| {
        has_call |= item.is_call();
        let Some(content) = filled(item.content) else { return true };
        let walked = each(content, |part: ContentPart<'_>| {
            let entries = part.logprobs.unwrap_or_default();
            choice.note_cut(entries.is_cut);
            // The last event of a stream repeats the logprobs of all its deltas.
            choice.repeat_tokens(entries.items.into_iter().map(|entry| entry.token(keeps_bytes)));
            choice.token_bytes() <= TOKEN_BYTES_MAX
        });
        is_read &= walked.is_ok();
        is_read && choice.token_bytes() <= TOKEN_BYTES_MAX
    });
    (walked.is_ok() && is_read).then_some(has_call)
}

/// Adds the ids of messages to a list; `None` if they cannot be read.
fn add_ids<const MAX: usize>(
    messages: Option<&RawValue>,
    ids: &mut Capped<u32, MAX>,
) -> Option<()> {
    let Some(messages) = filled(messages) else { return Some(()) };
    let is_cut = each(messages, |message: TokenMessage| {
        let tokens = message.tokens.unwrap_or_default();
        ids.is_cut |= tokens.is_cut;
        ids.items.extend(tokens.items);
        ids.items.len() <= MAX
    });
    ids.is_cut |= is_cut.ok()?;
    Some(())
}
