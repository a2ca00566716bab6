//! Rules that find why a history no longer starts with what was there before.
//!
//! Rules are pure functions over what is recorded of two calls ([`evidence`]). [`messages`]
//! compares the messages that were sent with the known ones, [`ids`] the tokens where the messages
//! are the same, and [`volatile`] tells dates and nonces from other words. [`classify`] asks them
//! in turn. A difference that no rule knows is `unknown`.

pub(crate) mod evidence;
mod ids;
pub(crate) mod messages;
mod volatile;

use serde_json::Value;

use crate::forks::rules::evidence::{ForkCase, ForkIds, HistorySide};
use crate::forks::rules::messages::{ForkDifference, is_role};
use crate::notes::cause::Cause;

/// Returns the causes that the rules find, the likely one first.
pub(crate) fn classify(case: &ForkCase<'_>) -> Vec<ForkDifference> {
    if let Some(cause) = intended(case) {
        return vec![ForkDifference::new(cause)];
    }
    let Differences { here, elsewhere } = differences(case);
    let by_ids = case.ids.as_ref().and_then(|ids| ids_rule(case, ids, here.is_empty()));
    let of = |cause: Cause| here.iter().copied().filter(move |found| found.cause == cause);
    let spellings = || of(Cause::ArgumentsReserialized);
    let respelled = of(Cause::MessageRespelled);
    let weak = [Cause::ArgumentsReserialized, Cause::MessageRespelled];

    let mut found: Vec<ForkDifference> =
        here.iter().copied().filter(|found| !weak.contains(&found.cause)).collect();
    match by_ids {
        // The tokens come before another spelling, which a template may not even see.
        Some(Cause::ThinkingCutByTemplate) if found.is_empty() => {
            found.push(ForkDifference::new(Cause::ThinkingCutByTemplate));
            found.extend(spellings());
        }
        by_ids => {
            found.extend(spellings());
            if found.is_empty() {
                found.extend(by_ids.map(ForkDifference::new));
            }
        }
    }
    found.extend(respelled);
    found.extend(elsewhere);

    if found.is_empty() {
        found.push(ForkDifference::new(Cause::Unknown));
    }
    first_of_each_cause(found)
}

fn first_of_each_cause(found: Vec<ForkDifference>) -> Vec<ForkDifference> {
    let mut first: Vec<ForkDifference> = Vec::new();
    for difference in found {
        if first.iter().all(|earlier| earlier.cause != difference.cause) {
            first.push(difference);
        }
    }
    first
}

/// Returns the cause of a fork that the agent intends.
fn intended(case: &ForkCase<'_>) -> Option<Cause> {
    if case.relation.summary {
        return Some(Cause::Compaction);
    }
    if case.relation.other_agent {
        return Some(Cause::OtherAgent);
    }
    let is_other = !case.relation.continues && is_other_conversation(case);
    is_other.then_some(Cause::OtherConversation)
}

/// Returns true where the sides share neither the first message of the conversation nor any answer.
/// Prompts that are no messages are not compared.
fn is_other_conversation(case: &ForkCase<'_>) -> bool {
    let [known, sent] = [case.known, case.sent].map(HistorySide::conversation);
    let Some((first_known, first_sent)) = known.first().zip(sent.first()) else { return false };
    let [known_text, sent_text] = [first_known, first_sent]
        .map(|message| wire::content_text(message.get("content")).unwrap_or_default());
    let begin_alike = wire::canonical(first_known) == wire::canonical(first_sent)
        || volatile::differ_only_in_volatile_words(&known_text, &sent_text);

    let answers = |side: &[Value]| -> Vec<String> {
        side.iter().filter(|m| is_role(m, "assistant")).map(wire::canonical).collect()
    };
    let known_answers = answers(known);
    !begin_alike && !answers(sent).iter().any(|answer| known_answers.contains(answer))
}

/// Differences between the requests.
struct Differences {
    /// Those at the position where the tokens differ; without ids, all.
    here: Vec<ForkDifference>,
    /// Those that the tokens do not show at that position.
    elsewhere: Vec<ForkDifference>,
}

fn differences(case: &ForkCase<'_>) -> Differences {
    let mut all = head_differences(case.known, case.sent);
    all.extend(messages::differences(
        &case.known.messages,
        &case.sent.messages,
        case.relation.inherited_messages,
    ));
    let Some(ids) = &case.ids else { return Differences { here: all, elsewhere: Vec::new() } };

    let messages = ids.messages_at_position();
    let (here, elsewhere) = all.into_iter().partition(|difference| match difference.message {
        Some(message) => messages.contains(&message),
        // Models, tools and template arguments show at the head of a prompt.
        None => *messages.start() == 0,
    });
    Differences { here, elsewhere }
}

/// Compares the models, the tools and the template arguments.
fn head_differences(known: &HistorySide, sent: &HistorySide) -> Vec<ForkDifference> {
    let mut models = known.models.iter().zip(&sent.models);
    let texts = |tools: &[Value]| tools.iter().map(Value::to_string).collect::<Vec<_>>();
    let found = [
        // A call that failed has no name by the server, so only known names are compared.
        (Cause::ModelChanged, models.any(|(a, b)| a.is_some() && b.is_some() && a != b)),
        (Cause::ToolsChanged, texts(&known.tools) != texts(&sent.tools)),
        (Cause::TemplateChanged, known.rendering != sent.rendering),
    ];
    found
        .into_iter()
        .filter(|(_, holds)| *holds)
        .map(|(cause, _)| ForkDifference::new(cause))
        .collect()
}

fn ids_rule(case: &ForkCase<'_>, ids: &ForkIds<'_>, same_messages: bool) -> Option<Cause> {
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
    if ids::differs_only_in_volatile_words(ids, case.texts) {
        return Some(Cause::NonceOrDate);
    }

    // All inputs of the template are the same, and the position is before any answer.
    let in_head = ids.spans.first().is_some_and(|span| ids.at < span.tokens.start);
    let have_messages = !case.known.messages.is_empty() && !case.sent.messages.is_empty();
    (in_head && have_messages && same_messages).then_some(Cause::TemplateChanged)
}

#[cfg(test)]
mod tests;
