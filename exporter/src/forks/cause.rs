//! Cause: why a history no longer starts with what was there before.
//!
//! Rules are pure functions over what is recorded of two calls: `messages` compares what was sent
//! with what should have been, `ids` the tokens where the messages are the same, `passing` tells
//! dates and nonces from other words. [`classify`] asks them in turn; what none of them knows is
//! `unknown`.

use serde_json::{Map, Value};

use crate::forks::texts::Texts;

mod ids;
mod messages;
mod passing;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use ids::{Ids, Span, is_near};
pub(crate) use messages::{Found, shown, thinks};
pub use words::Cause;

/// What one side of a fork says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct History {
    /// The messages; of what is known the answer last.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    /// The names of the model that the agent and the server gave.
    pub(crate) models: [Option<String>; 2],
    /// What else of the request a template reads.
    pub(crate) rendering: Map<String, Value>,
}

/// How the two calls of a fork are related, beside what they say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Related {
    /// The call goes on from the history in tokens or in words.
    pub(crate) goes_on: bool,
    /// The call makes a summary, or begins with one.
    pub(crate) summary: bool,
    /// The calls are of different agents, or for different purposes.
    pub(crate) other_agent: bool,
    /// How many messages the turn had, its answer included, whose tokens the call goes on from.
    pub(crate) held: Option<usize>,
}

/// All that rules may look at.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    /// What the history was, up to the newest answer.
    pub(crate) known: &'a History,
    /// What was sent.
    pub(crate) sent: &'a History,
    pub(crate) ids: Option<Ids<'a>>,
    pub(crate) related: Related,
    pub(crate) texts: &'a Texts,
}

/// The causes that the rules find; the likely one is first.
pub(crate) fn classify(case: &Case<'_>) -> Vec<Found> {
    if let Some(cause) = meant(case) {
        return vec![Found::new(cause)];
    }
    let (here, elsewhere) = differences(case);
    let is_weak = |found: &&Found| found.cause == Cause::MessageRespelled;
    let is_spelling = |found: &&Found| found.cause == Cause::ArgumentsReserialized;
    let is_strong = |found: &&Found| !is_weak(found) && !is_spelling(found);
    let mut all: Vec<Found> = here.iter().filter(is_strong).copied().collect();
    let by_ids = case.ids.as_ref().and_then(|ids| ids_rule(case, ids, here.is_empty()));
    match by_ids {
        // What the tokens show goes before another spelling, which a template may not even see.
        Some(Cause::ThinkingCutByTemplate) if all.is_empty() => {
            all.push(Found::new(Cause::ThinkingCutByTemplate));
            all.extend(here.iter().filter(is_spelling));
        }
        found => {
            all.extend(here.iter().filter(is_spelling));
            let found = found.filter(|_| all.is_empty());
            all.extend(found.map(Found::new));
        }
    }
    all.extend(here.iter().filter(is_weak));
    all.extend(elsewhere);
    if all.is_empty() {
        all.push(Found::new(Cause::Unknown));
    }
    let mut seen = Vec::new();
    all.retain(|found| {
        !seen.contains(&found.cause) && {
            seen.push(found.cause);
            true
        }
    });
    all
}

/// What an agent does on purpose.
fn meant(case: &Case<'_>) -> Option<Cause> {
    if case.related.summary {
        return Some(Cause::Compaction);
    }
    if case.related.other_agent {
        return Some(Cause::OtherAgent);
    }
    (!case.related.goes_on && is_other_conversation(case)).then_some(Cause::OtherConversation)
}

/// Whether neither the first message of the conversation nor any answer is shared. Of prompts that
/// are no messages nothing is known.
fn is_other_conversation(case: &Case<'_>) -> bool {
    let [known, sent] = [case.known, case.sent]
        .map(|history| &history.messages[messages::instructions(&history.messages)..]);
    let Some((first_known, first_sent)) = known.first().zip(sent.first()) else { return false };
    let text = |message: &Value| wire::content_text(message.get("content")).unwrap_or_default();
    let begins_alike = wire::canonical(first_known) == wire::canonical(first_sent)
        || passing::differ_in_passing(&text(first_known), &text(first_sent));
    let is_answer = |m: &&Value| m.get("role").and_then(Value::as_str) == Some("assistant");
    let said: Vec<String> = known.iter().filter(is_answer).map(wire::canonical).collect();
    let mut answers = sent.iter().filter(is_answer);
    !begins_alike && !answers.any(|m| said.contains(&wire::canonical(m)))
}

/// The differences between the requests: those at the place where the tokens part, and the others,
/// which the tokens do not show there. Without ids all are at the place.
fn differences(case: &Case<'_>) -> (Vec<Found>, Vec<Found>) {
    let mut found = head(case.known, case.sent);
    found.extend(messages::differences(
        &case.known.messages,
        &case.sent.messages,
        case.related.held,
    ));
    let Some(ids) = &case.ids else { return (found, Vec::new()) };
    let (first, last) = ids.place();
    // What is no message stands at the head of a prompt.
    let is_here = |found: &Found| match found.message {
        None => first == 0,
        Some(message) => (first..=last).contains(&message),
    };
    found.into_iter().partition(is_here)
}

fn head(known: &History, sent: &History) -> Vec<Found> {
    let as_text = |tools: &[Value]| tools.iter().map(Value::to_string).collect::<Vec<_>>();
    let mut causes = Vec::new();
    let mut models = known.models.iter().zip(&sent.models);
    // A call that failed has no name by the server.
    if models.any(|(old, new)| old.is_some() && new.is_some() && old != new) {
        causes.push(Cause::ModelChanged);
    }
    if as_text(&known.tools) != as_text(&sent.tools) {
        causes.push(Cause::ToolsChanged);
    }
    if known.rendering != sent.rendering {
        causes.push(Cause::TemplateChanged);
    }
    causes.into_iter().map(Found::new).collect()
}

fn ids_rule(case: &Case<'_>, ids: &Ids<'_>, same_messages: bool) -> Option<Cause> {
    if ids::thinking_is_cut(ids) {
        return Some(Cause::ThinkingCutByTemplate);
    }
    let same_text = ids::is_same_text(ids, case.texts);
    if same_text == Some(true) {
        return Some(Cause::Retokenized);
    }
    if ids::is_seam(ids) {
        return Some(Cause::Seam);
    }
    if same_text.is_none() && ids::looks_retokenized(ids) {
        return Some(Cause::Retokenized);
    }
    if ids::passes_as_text(ids, case.texts) {
        return Some(Cause::NonceOrDate);
    }
    // Everything that a template was given is the same, and it stands before any answer.
    let in_head = ids.spans.first().is_some_and(|span| ids.at < span.tokens.start);
    let said = !case.known.messages.is_empty() && !case.sent.messages.is_empty();
    (in_head && said && same_messages).then_some(Cause::TemplateChanged)
}
