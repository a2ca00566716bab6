//! Rules over the messages of two requests: what the agent sent back, and what it should have.

use std::collections::HashSet;

use serde_json::Value;

use super::Cause;
use super::passing::differ_in_passing;

/// Where two histories differ, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) cause: Cause,
    /// Index of the message that differs, the instructions counted; none where it is none.
    pub(crate) message: Option<usize>,
}

impl Found {
    pub(super) fn new(cause: Cause) -> Self {
        Self { cause, message: None }
    }

    fn at(message: usize, cause: Cause) -> Self {
        Self { cause, message: Some(message) }
    }
}

/// All differences between the history that was known and the one that was sent, in the order of
/// the messages, up to the first one behind which messages do not line up any more.
/// `held` is how many messages the turn had whose tokens the call goes on from.
pub(super) fn differences(known: &[Value], sent: &[Value], held: Option<usize>) -> Vec<Found> {
    let mut found = Vec::new();
    let heads = [known, sent].map(instructions);
    for at in 0..heads[0].max(heads[1]) {
        match (known[..heads[0]].get(at), sent[..heads[1]].get(at)) {
            (Some(old), Some(new)) => found.extend(instruction(old, new).map(|c| Found::at(at, c))),
            _ => return with(found, Found::at(at, Cause::InstructionsChanged)),
        }
    }
    for at in heads[0]..known.len() {
        let Some(new) = sent.get(at) else {
            let is_edited = found.iter().any(|f| f.cause == Cause::MessageEdited);
            return if is_edited { found } else { with(found, Found::at(at, Cause::Branched)) };
        };
        let Some(cause) = between(&known[at], new) else { continue };
        let is_first_edit = found.iter().all(|f| f.cause != Cause::MessageEdited);
        if cause != Cause::MessageEdited || !is_first_edit {
            found.push(Found::at(at, cause));
            continue;
        }
        let cause = moved(known, sent, at, held);
        found.push(Found::at(at, cause));
        if cause != Cause::MessageEdited || role(&known[at]) != role(new) {
            return found;
        }
    }
    found
}

fn with(mut found: Vec<Found>, last: Found) -> Vec<Found> {
    found.push(last);
    found
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// How many messages at the start are the system's or the developer's.
pub(super) fn instructions(messages: &[Value]) -> usize {
    messages.iter().take_while(|m| ["system", "developer"].contains(&role(m))).count()
}

fn instruction(old: &Value, new: &Value) -> Option<Cause> {
    match between(old, new)? {
        Cause::MessageEdited => Some(Cause::InstructionsChanged),
        other => Some(other),
    }
}

/// Why the messages at one place differ; none where they do not.
fn between(old: &Value, new: &Value) -> Option<Cause> {
    if role(old) != role(new) {
        return Some(Cause::MessageEdited);
    }
    let [said, sent] = [old, new].map(Parts::of);
    let bodies_alike = squeezed(&said.body) == squeezed(&sent.body);
    let same_calls = said.calls == sent.calls;
    if same_calls && bodies_alike && said.thought.is_some() && sent.thought.is_none() {
        return Some(Cause::ThinkingStripped);
    }
    if !same_calls || !bodies_alike {
        let passes = same_calls && role(old) != "assistant";
        let passes = passes && differ_in_passing(&said.body, &sent.body);
        return Some(if passes { Cause::NonceOrDate } else { Cause::MessageEdited });
    }
    if said.body != sent.body {
        return Some(Cause::WhitespaceChanged);
    }
    if said.arguments != sent.arguments {
        return Some(Cause::ArgumentsReserialized);
    }
    match (&said.thought, &sent.thought) {
        (Some(one), Some(other)) if squeezed(one) != squeezed(other) => Some(Cause::MessageEdited),
        (None, Some(_)) => Some(Cause::MessageRespelled),
        _ => (said.form != sent.form).then_some(Cause::MessageRespelled),
    }
}

/// What an edit at `at` is when the messages behind it are looked at as well.
fn moved(known: &[Value], sent: &[Value], at: usize, held: Option<usize>) -> Cause {
    if sent.len() < known.len() && is_summed_up(&known[at..], &sent[at..]) {
        return Cause::Compaction;
    }
    let new = wire::canonical(&sent[at]);
    if known[at + 1..].iter().any(|old| wire::canonical(old) == new) {
        return Cause::MessageDropped;
    }
    let later: HashSet<String> = known[at + 1..].iter().map(wire::canonical).collect();
    let goes_on = sent[at + 1..].iter().any(|m| later.contains(&wire::canonical(m)));
    let after_an_answer = held.is_some_and(|held| at >= held);
    if after_an_answer && !goes_on && role(&sent[at]) != "assistant" {
        return Cause::Branched;
    }
    Cause::MessageEdited
}

/// Whether several messages were replaced by one that says that it sums them up.
fn is_summed_up(known: &[Value], sent: &[Value]) -> bool {
    const WORDS: [&str; 4] = ["summar", "compacted", "continued from a previous", "condensed"];
    let old: HashSet<String> = known.iter().map(wire::canonical).collect();
    let sums_up = |message: &Value| {
        let text = wire::content_text(message.get("content")).unwrap_or_default().to_lowercase();
        WORDS.iter().any(|word| text.contains(word))
    };
    sent.iter().any(|m| !old.contains(&wire::canonical(m)) && sums_up(m))
}

/// What a message says, apart from how it is spelled.
struct Parts {
    /// Its text without the reasoning.
    body: String,
    thought: Option<String>,
    /// Names and parsed arguments of its tool calls.
    calls: String,
    /// The arguments as they are spelled.
    arguments: Vec<String>,
    /// How it is put: as parts or as a string, under which ids.
    form: (bool, Vec<String>),
}

impl Parts {
    fn of(message: &Value) -> Self {
        let text = wire::content_text(message.get("content")).unwrap_or_default();
        let (thought, body) = match text.split_once("</think>") {
            Some((thought, body)) => {
                let thought = thought.trim_start().trim_start_matches("<think>");
                (Some(thought.to_owned()), body.trim_start().to_owned())
            }
            None => (None, text),
        };
        let thought = thought.or_else(|| wire::reasoning(message).map(str::to_owned));
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let calls = calls.map_or(&[][..], Vec::as_slice);
        let argument = |call: &Value| match call.pointer("/function/arguments") {
            Some(Value::String(text)) => text.clone(),
            other => other.map(Value::to_string).unwrap_or_default(),
        };
        let bare = serde_json::json!({ "tool_calls": calls });
        let id = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let ids = calls.iter().filter_map(|call| id(call.get("id")));
        let ids = ids.chain(id(message.get("tool_call_id"))).chain(id(message.get("name")));
        Self {
            body,
            thought: thought.filter(|thought| !thought.trim().is_empty()),
            calls: wire::canonical(&bare),
            arguments: calls.iter().map(argument).collect(),
            form: (message.get("content").is_some_and(Value::is_array), ids.collect()),
        }
    }
}

/// The text without any spaces.
fn squeezed(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Whether the message holds reasoning, in a field of its own or in its text.
pub(crate) fn thinks(message: &Value) -> bool {
    Parts::of(message).thought.is_some()
}

/// The message as one text, in the order in which templates write it.
pub(crate) fn shown(message: &Value) -> String {
    let parts = Parts::of(message);
    let thought = parts.thought.map(|t| format!("<think>{t}</think>")).unwrap_or_default();
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let names = calls.map(|c| c.pointer("/function/name").and_then(Value::as_str).unwrap_or("?"));
    let calls = names.zip(&parts.arguments).map(|(name, arguments)| format!("{name}({arguments})"));
    format!("{}: {thought}{}{}", role(message), parts.body, calls.collect::<String>())
}
