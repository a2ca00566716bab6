//! The Responses route of an upstream that has one itself.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Collector;
use super::chat::PromptIds;
use super::choice::ChoiceDraft;
use super::endings::error_of;
use super::lenient::{Held, Lenient};
use super::list::{Ids, each, filled};
use super::logprobs::Entries;
use crate::bounds::TOKEN_BYTES_MAX;
use crate::json::mended;

/// Calls of tools that the server runs itself. They end no answer.
const SERVER_CALLS: [&str; 5] = [
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_call",
    "web_search_call",
];

/// An event of a stream.
#[derive(Default, Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(borrow)]
    response: Held<Response<'a>>,
    /// Logprobs of a text delta.
    #[serde(borrow)]
    logprobs: Lenient<Entries<'a>>,
    /// An item that begins or ends. The last event may not repeat it.
    #[serde(borrow)]
    item: Held<ResponseItem<'a>>,
    r#type: Lenient<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Response<'a> {
    model: Lenient<String>,
    status: Lenient<String>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    incomplete_details: Held<IncompleteDetails>,
    usage: Held<ResponsesUsage>,
    /// vLLM, if asked: the ids of the prompt and of the sampled tokens.
    #[serde(borrow)]
    input_messages: Option<&'a RawValue>,
    #[serde(borrow)]
    output_messages: Option<&'a RawValue>,
    /// A list of [`ResponseItem`], read one by one.
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct IncompleteDetails {
    reason: Lenient<String>,
}

#[derive(Default, Deserialize)]
struct ResponsesUsage {
    input_tokens: Lenient<u64>,
    output_tokens: Lenient<u64>,
}

/// Ids of a message. gpt-oss models get messages of another form, without ids.
#[derive(Default, Deserialize)]
struct TokenMessage {
    tokens: Lenient<PromptIds>,
}

#[derive(Default, Deserialize)]
struct ResponseItem<'a> {
    r#type: Lenient<String>,
    /// A list of [`ContentPart`], read one by one.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow)]
    logprobs: Lenient<Entries<'a>>,
}

impl ResponseItem<'_> {
    /// Returns true for a call of one of the agent's tools.
    fn is_call(&self) -> bool {
        let kind = self.r#type.as_value().map_or("", String::as_str);
        kind.ends_with("_call") && !SERVER_CALLS.contains(&kind)
    }
}

impl Collector {
    pub(super) fn take_responses(&mut self, json: &[u8]) -> Option<()> {
        if let Ok(event) = serde_json::from_slice(json) {
            return self.take_response_event(event, json);
        }
        let json = mended(json)?;
        self.take_response_event(serde_json::from_slice(&json).ok()?, &json)
    }

    fn take_response_event(&mut self, event: ResponsesEvent<'_>, json: &[u8]) -> Option<()> {
        let error = error_of(event.error);
        self.has_call |= event.item.members().is_some_and(|item| item.is_call());
        match (event.response, event.r#type.as_value().map(String::as_str), error) {
            (Lenient::Value(response), ..) => self.take_response(response.0)?,
            (_, Some("error"), error) => {
                self.set_raw_error(error.or(event.message).unwrap_or(RawValue::NULL));
            }
            (_, Some(kind), _) if kind.ends_with(".delta") => self.take_deltas(event.logprobs),
            (_, Some(_), _) => {}
            (_, None, Some(error)) => self.set_raw_error(error),
            // Without a type it is a whole response, not an event.
            (_, None, None) => self.take_response(serde_json::from_slice(json).ok()?)?,
        }
        Some(())
    }

    fn take_deltas(&mut self, entries: Lenient<Entries<'_>>) {
        let is_lost = entries.is_other();
        let entries = entries.value().unwrap_or_default();
        if entries.items.is_empty() && !is_lost {
            return;
        }
        let keeps_bytes = self.vocabulary.is_some();
        self.change(0, |choice| {
            choice.note_lost_logprobs(is_lost || entries.has_others());
            choice.note_cut(entries.is_cut);
            choice.add_tokens(entries.tokens(keeps_bytes));
        });
    }

    fn take_response(&mut self, response: Response<'_>) -> Option<()> {
        self.set_model(response.model.value());
        if let Some(usage) = response.usage.members() {
            self.set_usage(usage.input_tokens.value(), usage.output_tokens.value());
        }
        let status = response.status.value();
        if let Some(error) = error_of(response.error) {
            self.set_raw_error(error);
        }
        self.note_ending(status.as_deref());
        let prompt: PromptIds = ids_of(response.input_messages);
        if !prompt.items.is_empty() {
            // Those of the last event hold.
            self.prompts.remove(&0);
            self.set_prompt(0, prompt);
        }

        // The wire has no choices, so all of it is choice 0.
        let sampled: Ids = ids_of(response.output_messages);
        let keeps_bytes = self.vocabulary.is_some();
        let mut has_call = self.has_call;
        self.change(0, |choice| {
            if !sampled.items.is_empty() || sampled.is_damaged {
                choice.add_ids(sampled);
            }
            has_call |= take_output(filled(response.output), keeps_bytes, choice);
        });
        let finish = if has_call { "tool_calls" } else { "stop" };

        // The words of the chat route, so that all routes are recorded alike.
        let cut = response.incomplete_details.members().and_then(|details| details.reason.value());
        let reason = match (status.as_deref(), cut.as_deref()) {
            (Some("completed"), _) => Some(finish),
            (Some("incomplete"), Some("max_output_tokens")) => Some("length"),
            (Some("incomplete"), other) => Some(other.unwrap_or("incomplete")),
            _ => None,
        };
        self.change(0, |choice| choice.set_finish(reason.map(str::to_owned), None));
        Some(())
    }
}

/// Takes the logprobs of a response's output, and returns whether it holds a call of a tool. What
/// is no list has neither.
fn take_output(output: Option<&RawValue>, keeps_bytes: bool, choice: &mut ChoiceDraft) -> bool {
    let mut has_call = false;
    let Some(output) = output else { return false };
    let _walked = each(output, |item: Held<ResponseItem<'_>>| {
        let Some(item) = item.members() else { return true };
        has_call |= item.is_call();
        let Some(content) = filled(item.content) else { return true };
        let _walked = each(content, |part: Held<ContentPart<'_>>| {
            let logprobs = part.members().unwrap_or_default().logprobs;
            let entries = logprobs.value().unwrap_or_default();
            choice.note_cut(entries.is_cut);
            // The last event of a stream repeats the logprobs of all its deltas.
            choice.repeat_tokens(entries.tokens(keeps_bytes));
            choice.token_bytes() <= TOKEN_BYTES_MAX
        });
        choice.token_bytes() <= TOKEN_BYTES_MAX
    });
    has_call
}

/// The ids of messages.
fn ids_of<const MAX: usize>(messages: Option<&RawValue>) -> Ids<MAX> {
    let mut ids = Ids::default();
    let Some(messages) = filled(messages) else { return ids };
    let is_cut = each(messages, |message: Held<TokenMessage>| {
        let tokens = message.members().unwrap_or_default().tokens;
        ids.is_damaged |= tokens.is_other();
        let tokens = tokens.value().unwrap_or_default();
        ids.is_cut |= tokens.is_cut;
        ids.is_damaged |= tokens.is_damaged;
        ids.items.extend(tokens.items);
        ids.items.len() <= MAX
    });
    ids.is_damaged |= is_cut.is_err();
    ids.is_cut |= is_cut.unwrap_or(false);
    ids
}

#[cfg(test)]
mod tests {
    use episode::Route;

    use super::super::Facts;
    use super::*;

    fn facts(parts: &[&str]) -> Facts {
        let mut collector = Collector::new(Route::Responses, None, None);
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    fn reason(parts: &[&str]) -> Option<String> {
        facts(parts).choices.into_iter().next().and_then(|choice| choice.finish_reason)
    }

    #[test]
    fn a_call_counts_though_the_last_event_does_not_repeat_it() {
        let item = |kind: &str, step: &str| {
            format!(
                r#"{{"type":"response.output_item.{step}","item":{{"type":"{kind}","arguments":"\ud83d"}}}}"#
            )
        };
        for output in [r#","output":[]"#, "", r#","output":null"#, r#","output":"none""#] {
            let end = format!(
                r#"{{"type":"response.completed","response":{{"status":"completed"{output}}}}}"#
            );
            for (kind, told) in [
                ("function_call", "tool_calls"),
                ("custom_tool_call", "tool_calls"),
                ("local_shell_call", "tool_calls"),
                ("web_search_call", "stop"),
                ("message", "stop"),
            ] {
                for step in ["added", "done"] {
                    let told = Some(told.to_owned());
                    assert_eq!(reason(&[&item(kind, step), &end]), told, "{kind} {step} {output}");
                }
            }
        }
    }

    #[test]
    fn a_foreign_member_costs_only_itself() {
        let stream = [
            r#"{"type":"response.created","response":{"model":"m","status":"in_progress","output":[]}}"#,
            r#"{"type":"response.output_text.delta","delta":"hi","logprobs":[]}"#,
            r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],"usage":{"input_tokens":3,"output_tokens":2}}}"#,
        ];
        let whole = facts(&stream);
        assert!(whole.is_finished && whole.unread == 0 && whole.usage.prompt == Some(3));
        for value in ["7", "[1]", "\"\\ud83d\"", "1e999", "{\"a\":1}", "null", "false"] {
            for (at, event) in stream.iter().enumerate() {
                for name in ["sequence_number", "item", "delta", "part", "message", "extra"] {
                    let event = event.replacen('{', &format!(r#"{{"{name}":{value},"#), 1);
                    let mut changed = stream;
                    changed[at] = &event;
                    assert_eq!(facts(&changed), whole, "{name}: {value}");
                }
                for name in ["id", "created_at", "output_messages", "input_messages", "error2"] {
                    let member = format!(r#""response":{{"{name}":{value},"#);
                    let event = event.replacen(r#""response":{"#, &member, 1);
                    let mut changed = stream;
                    changed[at] = &event;
                    assert_eq!(facts(&changed), whole, "{name}: {value}");
                }
            }
        }
        for event in ["", "ping", "null", "[]", "7", r#"{"type":"keepalive"}"#, "[DONE]"] {
            assert_eq!(facts(&[stream[0], event, stream[1], stream[2]]), whole, "{event}");
        }
    }

    #[test]
    fn a_status_that_is_no_end_finishes_no_answer() {
        let of = |status: &str| facts(&[&format!(r#"{{"output":[],"status":{status}}}"#)]);
        for open in ["\"in_progress\"", "\"queued\"", "null", "7"] {
            assert!(!of(open).is_finished && of(open).error.is_none(), "{open}");
        }
        for (status, word) in [("\"failed\"", "failed"), ("\"cancelled\"", "cancelled")] {
            let told = format!("the engine ended the answer with `{word}`");
            assert_eq!(of(status).error, Some(told));
        }
        assert!(of("\"completed\"").is_finished && of("\"incomplete\"").is_finished);
    }
}
