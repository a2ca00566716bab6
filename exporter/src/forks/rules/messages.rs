//! Rules over the messages of two requests: those that the agent sent, and the known ones.

use std::collections::HashSet;

use serde_json::Value;

use super::volatile::differ_only_in_volatile_words;
use crate::notes::cause::Cause;

/// A difference between two histories, and its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForkDifference {
    pub(crate) cause: Cause,
    /// Index of the message that differs, instructions included; none for what is no message.
    pub(crate) message: Option<usize>,
}

impl ForkDifference {
    pub(super) fn new(cause: Cause) -> Self {
        Self { cause, message: None }
    }

    fn at(message: usize, cause: Cause) -> Self {
        Self { cause, message: Some(message) }
    }
}

/// Returns the differences between the known history and the one that was sent, in the order of the
/// messages. It stops where the messages behind no longer line up.
///
/// `inherited` is the number of messages of the turn whose tokens the call continues.
pub(super) fn differences(
    known: &[Value],
    sent: &[Value],
    inherited: Option<usize>,
) -> Vec<ForkDifference> {
    let mut found = Vec::new();
    let [known_head, sent_head] = [known, sent].map(instruction_count);
    for at in 0..known_head.max(sent_head) {
        let (Some(old), Some(new)) = (known[..known_head].get(at), sent[..sent_head].get(at))
        else {
            found.push(ForkDifference::at(at, Cause::InstructionsChanged));
            return found;
        };
        found.extend(instruction_cause(old, new).map(|cause| ForkDifference::at(at, cause)));
    }
    conversation_differences(known, sent, inherited, found)
}

/// Adds the differences behind the instructions.
fn conversation_differences(
    known: &[Value],
    sent: &[Value],
    inherited: Option<usize>,
    mut found: Vec<ForkDifference>,
) -> Vec<ForkDifference> {
    for at in instruction_count(known)..known.len() {
        let is_edited = found.iter().any(|earlier| earlier.cause == Cause::MessageEdited);
        let Some(new) = sent.get(at) else {
            if !is_edited {
                found.push(ForkDifference::at(at, Cause::Branched));
            }
            return found;
        };
        let Some(cause) = difference(&known[at], new) else { continue };
        if cause != Cause::MessageEdited || is_edited {
            found.push(ForkDifference::at(at, cause));
            continue;
        }

        // The first edit may be a dropped message, a summary or a branch.
        let edit = edit_cause(known, sent, at, inherited);
        found.push(ForkDifference::at(at, edit));
        if edit != Cause::MessageEdited || role(&known[at]) != role(new) {
            return found;
        }
    }
    found
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn is_role(message: &Value, expected: &str) -> bool {
    role(message) == expected
}

/// Counts the leading messages that are the system's or the developer's.
pub(super) fn instruction_count(messages: &[Value]) -> usize {
    messages.iter().take_while(|m| ["system", "developer"].contains(&role(m))).count()
}

fn instruction_cause(old: &Value, new: &Value) -> Option<Cause> {
    match difference(old, new)? {
        Cause::MessageEdited => Some(Cause::InstructionsChanged),
        other => Some(other),
    }
}

/// Returns why the messages at one place differ; none where they do not.
fn difference(old: &Value, new: &Value) -> Option<Cause> {
    if role(old) != role(new) {
        return Some(Cause::MessageEdited);
    }
    let [known, sent] = [old, new].map(MessageParts::of);
    let same_calls = known.calls == sent.calls;
    let same_words = without_spaces(&known.body) == without_spaces(&sent.body);

    // The content, then its spelling, then its form: the first that differs is the cause.
    if same_calls && same_words && known.thought.is_some() && sent.thought.is_none() {
        return Some(Cause::ThinkingStripped);
    }
    if !same_calls || !same_words {
        let is_volatile = same_calls
            && !is_role(old, "assistant")
            && differ_only_in_volatile_words(&known.body, &sent.body);
        return Some(if is_volatile { Cause::NonceOrDate } else { Cause::MessageEdited });
    }
    if known.body != sent.body {
        return Some(Cause::WhitespaceChanged);
    }
    if known.arguments != sent.arguments {
        return Some(Cause::ArgumentsReserialized);
    }
    match (&known.thought, &sent.thought) {
        (Some(one), Some(other)) if without_spaces(one) != without_spaces(other) => {
            Some(Cause::MessageEdited)
        }
        (None, Some(_)) => Some(Cause::MessageRespelled),
        _ => (known.form != sent.form).then_some(Cause::MessageRespelled),
    }
}

/// Returns the cause of an edit at `at`, with the messages behind it in view.
fn edit_cause(known: &[Value], sent: &[Value], at: usize, inherited: Option<usize>) -> Cause {
    if sent.len() < known.len() && is_summarized(&known[at..], &sent[at..]) {
        return Cause::Compaction;
    }
    let later: HashSet<String> = known[at + 1..].iter().map(wire::canonical).collect();
    if later.contains(&wire::canonical(&sent[at])) {
        return Cause::MessageDropped;
    }
    let goes_on = sent[at + 1..].iter().any(|message| later.contains(&wire::canonical(message)));
    let is_behind_answer = inherited.is_some_and(|inherited| at >= inherited);
    if is_behind_answer && !goes_on && !is_role(&sent[at], "assistant") {
        return Cause::Branched;
    }
    Cause::MessageEdited
}

/// Returns true where a new message says that it summarizes others.
fn is_summarized(known: &[Value], sent: &[Value]) -> bool {
    let old: HashSet<String> = known.iter().map(wire::canonical).collect();
    sent.iter().any(|m| !old.contains(&wire::canonical(m)) && is_summary(m))
}

fn is_summary(message: &Value) -> bool {
    const WORDS: [&str; 4] = ["summar", "compacted", "continued from a previous", "condensed"];
    let text = wire::content_text(message.get("content")).unwrap_or_default().to_lowercase();
    WORDS.iter().any(|word| text.contains(word))
}

/// The content of a message, apart from its spelling.
struct MessageParts {
    /// Text without the reasoning.
    body: String,
    thought: Option<String>,
    /// Names and parsed arguments of its tool calls.
    calls: String,
    /// Arguments as they are spelled.
    arguments: Vec<String>,
    form: MessageForm,
}

/// The form of a message that templates mostly do not show.
#[derive(PartialEq, Eq)]
struct MessageForm {
    /// True for content in parts, false for a string.
    has_parts: bool,
    /// Ids of tool calls, and names.
    ids: Vec<String>,
}

impl MessageParts {
    fn of(message: &Value) -> Self {
        let text = wire::content_text(message.get("content")).unwrap_or_default();
        let (inline_thought, body) = split_thought(text);
        let thought = inline_thought.or_else(|| wire::reasoning(message).map(str::to_owned));
        let calls = tool_calls(message);
        Self {
            body,
            thought: thought.filter(|thought| !thought.trim().is_empty()),
            calls: wire::canonical(&serde_json::json!({ "tool_calls": calls })),
            arguments: calls.iter().map(argument_text).collect(),
            form: MessageForm {
                has_parts: message.get("content").is_some_and(Value::is_array),
                ids: ids(message),
            },
        }
    }
}

/// Splits a text into the reasoning between `<think>` tags and the rest.
fn split_thought(text: String) -> (Option<String>, String) {
    match text.split_once("</think>") {
        Some((thought, body)) => {
            let thought = thought.trim_start().trim_start_matches("<think>");
            (Some(thought.to_owned()), body.trim_start().to_owned())
        }
        None => (None, text),
    }
}

fn tool_calls(message: &Value) -> &[Value] {
    message.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn argument_text(call: &Value) -> String {
    match call.pointer("/function/arguments") {
        Some(Value::String(text)) => text.clone(),
        other => other.map(Value::to_string).unwrap_or_default(),
    }
}

fn ids(message: &Value) -> Vec<String> {
    let of_calls = tool_calls(message).iter().map(|call| call.get("id"));
    let own = [message.get("tool_call_id"), message.get("name")];
    of_calls.chain(own).flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn without_spaces(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Returns true where a message holds reasoning, in a field of its own or in its text.
pub(crate) fn thinks(message: &Value) -> bool {
    MessageParts::of(message).thought.is_some()
}

/// Returns a message as one text, in the order in which templates write it.
pub(crate) fn shown(message: &Value) -> String {
    let parts = MessageParts::of(message);
    let thought = parts.thought.map(|t| format!("<think>{t}</think>")).unwrap_or_default();
    let calls = tool_calls(message).iter().zip(&parts.arguments).map(|(call, arguments)| {
        let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or("?");
        format!("{name}({arguments})")
    });
    format!("{}: {thought}{}{}", role(message), parts.body, calls.collect::<String>())
}
