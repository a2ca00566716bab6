//! A turn of a conversation: its line of numbers, what was new in it, and its answers.

use serde_json::json;
use viewer::{CallView, EpisodeTree, OtherCall, TurnView};

use super::super::message::{ReadableMessage, TextRoom};
use super::super::numbers::milliseconds;
use super::comments::comments;
use super::versions::versions_suffix;
use crate::exit::Failure;
use crate::print;
use crate::terminal::layout::wrap_line;
use crate::terminal::{Line, Style};
use crate::time::date;

/// Most names of tools that are listed.
const TOOLS_MAX: usize = 40;
/// The reason for which the prompt of a first call begins with no recorded ids.
const NO_PARENT: &str = "no_parent";
/// A turn whose reply is a recorded one. Nothing was sampled for it.
pub(super) const GIVEN_AGAIN: &str = "given again";
/// The reason that such a turn has, which then needs no saying.
pub(super) const REPLAYED: &str = "replayed";

/// The line of numbers of a turn, as wide as the room. `before` is the turn that stands
/// above it, `shared` has the reasons that need no saying again.
pub(super) fn heading(
    tree: &EpisodeTree,
    turn: &TurnView,
    before: Option<&TurnView>,
    shared: &[&str],
    room: &TextRoom,
) -> Vec<Line> {
    let number = label(turn);
    let place = place(tree, turn, before);
    let mut parts = vec![tokens(turn)];
    parts.extend(turn.duration_ms.map(milliseconds));
    parts.extend(versions_suffix(turn).map(|versions| format!("version {versions}")));
    parts.extend(turn.agent.as_ref().map(|agent| format!("agent {agent}")));
    let text = parts.join(" | ");

    let title = if place.is_empty() { number } else { format!("{number}  {place}") };
    let one = title.chars().count() + 3 + text.chars().count();
    let mut lines = match room.width {
        Some(width) if one > width => {
            let mut lines = vec![Line::styled(Style::Bold, title)];
            let text = wrap_line(&text, Some(width.saturating_sub(2)));
            lines
                .extend(text.into_iter().map(|line| Line::styled(Style::Dim, format!("  {line}"))));
            lines
        }
        _ => vec![Line::styled(Style::Bold, title).then(Style::Dim, format!(" | {text}"))],
    };
    lines.extend(trouble(turn, shared).into_iter().map(|text| Line::styled(Style::Red, text)));
    lines
}

/// The number of a turn, with that of its choice if it is not the first one.
pub(super) fn label(turn: &TurnView) -> String {
    match turn.choice {
        0 => format!("#{}", turn.number),
        choice => format!("#{}.{choice}", turn.number),
    }
}

/// The place of a turn in the history, unless that goes on from the turn above.
fn place(tree: &EpisodeTree, turn: &TurnView, before: Option<&TurnView>) -> String {
    let parent = turn.parent.as_ref().and_then(|parent| {
        let mut turns = tree.turns.iter();
        turns.find(|one| one.call_id == parent.call_id && one.choice == parent.choice)
    });
    match (turn.kind.as_str(), parent) {
        ("main", Some(parent)) if before.is_some_and(|before| same(before, parent)) => {
            String::new()
        }
        ("main", Some(parent)) => format!("after {}", label(parent)),
        ("main", None) if before.is_none() => String::new(),
        ("main", None) => "from the start".to_owned(),
        (kind, Some(parent)) => format!("{kind} of {} ({})", label(parent), turn.kind_reason),
        (kind, None) => format!("{kind} ({})", turn.kind_reason),
    }
}

fn same(one: &TurnView, other: &TurnView) -> bool {
    (&one.call_id, one.choice) == (&other.call_id, other.choice)
}

fn tokens(turn: &TurnView) -> String {
    let limit = match turn.finish_reason.as_deref() {
        Some("length") => " up to the limit",
        _ => "",
    };
    if turn.replayed.is_some() {
        return GIVEN_AGAIN.to_owned();
    }

    let mut text = match turn.counted_tokens {
        Some(counted) => counted_by_server(turn.prompt_tokens, counted, limit),
        None => {
            format!("+{} prompt, {} sampled{limit}", turn.new_prompt_tokens, turn.sampled_tokens)
        }
    };
    if let Some(mean) = turn.mean_logprob {
        text += &format!(", mean logprob {mean:.2}");
    }
    // A first call goes on from nothing.
    let reason = turn.continued.as_ref().and_then(|continued| continued.reason.as_deref());
    if let Some(reason) = reason.filter(|reason| *reason != NO_PARENT) {
        text += &format!(", continued: {reason}");
    }
    text
}

/// The numbers of a turn of which the server told no ids.
fn counted_by_server(prompt: Option<u64>, sampled: u64, limit: &str) -> String {
    let prompt = prompt.map(|prompt| format!("{prompt} prompt, ")).unwrap_or_default();
    format!("{prompt}{sampled} sampled{limit}, by the server's count")
}

/// The reasons that all turns of an episode have, and its head says. Those of a single turn are its
/// own.
pub(super) fn shared_reasons(tree: &EpisodeTree) -> Vec<&str> {
    let [first, _, ..] = tree.turns.as_slice() else { return Vec::new() };
    let of_all =
        |reason: &&str| tree.turns.iter().all(|turn| turn.reasons.iter().any(|one| one == reason));
    first.reasons.iter().map(String::as_str).filter(of_all).collect()
}

/// The faults of a turn but those that the head of the episode has.
fn trouble(turn: &TurnView, shared: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    match turn.outcome.as_deref() {
        Some("complete") => {}
        Some(outcome) => found.push(outcome.to_owned()),
        None => found.push("no end: it still runs, or the recorder died".to_owned()),
    }

    found.extend(turn.status.filter(|status| *status >= 400).map(|status| format!("{status}")));
    found.extend(turn.error.clone());
    if turn.retry > 0 {
        found.push(format!("try {}", turn.retry + 1));
    }

    let reasons: Vec<&str> = turn
        .reasons
        .iter()
        .map(String::as_str)
        .filter(|reason| Some(*reason) != turn.outcome.as_deref() && !shared.contains(reason))
        .filter(|reason| *reason != REPLAYED)
        .collect();
    found.extend((!reasons.is_empty()).then(|| reasons.join(", ")));

    match found.is_empty() {
        true => Vec::new(),
        false => vec![format!("  ! {}", found.join(" | "))],
    }
}

/// The messages that are new in a turn, of a call with all of its messages.
fn new_messages(turn: &TurnView, call: &CallView, room: &TextRoom) -> Vec<Line> {
    let messages = ReadableMessage::all(&call.messages);
    let new = messages.iter().skip(turn.new_from as usize);
    new.flat_map(|message| message.lines(room)).collect()
}

/// The answer of a turn's choice.
pub(super) fn answer(turn: &TurnView, call: &CallView, room: &TextRoom) -> Vec<Line> {
    let choice = call.choices.iter().find(|choice| choice.index == turn.choice);
    match choice.map(|choice| &choice.message).filter(|message| !message.is_null()) {
        Some(message) => ReadableMessage::of(message).lines(room),
        None => vec![Line::styled(Style::Dim, "  no answer")],
    }
}

/// A call without a turn, in one line.
pub(super) fn other(call: &OtherCall) -> Line {
    let outcome = call.outcome.as_deref();
    let status = call.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
    let mut text = format!(" {} {} -> {status}", call.method, call.path);
    let duration = call.duration_ms.map(milliseconds);
    text += &duration.map(|duration| format!(" | {duration}")).unwrap_or_default();
    if call.replayed.is_some() {
        text += &format!(" | {GIVEN_AGAIN}");
    }
    let line = Line::styled(Style::Bold, format!("#{}", call.number)).then(Style::Dim, text);
    let error = call.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match outcome {
        Some("complete") => line,
        Some(outcome) => line.then(Style::Red, format!(" | {outcome}{error}")),
        None => line.then(Style::Red, " | no end: it still runs, or the recorder died"),
    }
}

/// Prints one call with its choices in full.
pub(super) fn print_one(tree: &EpisodeTree, call: &CallView, as_json: bool) -> Result<(), Failure> {
    let turns: Vec<&TurnView> =
        tree.turns.iter().filter(|turn| turn.call_id == call.call_id).collect();
    if as_json {
        return print::line(&json!({ "turns": turns, "call": call }).to_string());
    }

    let room = TextRoom::whole();
    let mut lines = match turns.split_first() {
        Some((first, more)) => one_turn(tree, call, first, more, &room),
        None => other_in_full(tree, call, &room),
    };
    lines.extend(comments(tree, Some(&call.call_id), &room));
    print::styled_lines(&lines).map(drop)
}

fn one_turn(
    tree: &EpisodeTree,
    call: &CallView,
    first: &TurnView,
    more: &[&TurnView],
    room: &TextRoom,
) -> Vec<Line> {
    let above = tree.turns.iter().rev().find(|turn| turn.number < first.number);
    let mut lines = about(tree, call, room);
    lines.extend(heading(tree, first, above, &[], room));
    if first.new_from > 0 {
        let text = format!("  after {} earlier messages", first.new_from);
        lines.push(Line::styled(Style::Dim, text));
    }
    lines.extend(new_messages(first, call, room));
    lines.extend(answer(first, call, room));
    for turn in more {
        lines.extend(heading(tree, turn, Some(first), &[], room));
        lines.extend(answer(turn, call, room));
    }
    lines
}

/// A call that has no turn: what was sent, and what came back, as far as they are messages.
fn other_in_full(tree: &EpisodeTree, call: &CallView, room: &TextRoom) -> Vec<Line> {
    let mut lines = about(tree, call, room);
    let others = tree.others.iter().filter(|one| one.call_id == call.call_id);
    lines.extend(others.map(other));
    let messages = ReadableMessage::all(&call.messages);
    lines.extend(messages.iter().flat_map(|message| message.lines(room)));
    let answers = call.choices.iter().filter(|choice| !choice.message.is_null());
    lines.extend(answers.flat_map(|choice| ReadableMessage::of(&choice.message).lines(room)));
    let number = tree.others.iter().find(|one| one.call_id == call.call_id);
    let number = number.map_or(0, |one| one.number);
    let hint = format!("  --turn {number} --raw prints what was sent and received");
    lines.push(Line::styled(Style::Dim, hint));
    lines
}

/// The particulars of a call: when, to whom, with which tools and parameters.
fn about(tree: &EpisodeTree, call: &CallView, room: &TextRoom) -> Vec<Line> {
    let mut parts = vec![format!("{} attempt {}", tree.episode.episode_id, call.attempt)];
    parts.push(date(call.started_at));
    parts.push(format!("{} {}", call.method, call.path));
    parts.extend(call.model.clone());
    parts.extend(call.lineage.client.clone());
    parts.push(format!("call {}", call.call_id));

    let mut texts = vec![parts.join(" | ")];
    let tools: Vec<&str> =
        call.tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    if !tools.is_empty() {
        let listed = tools.iter().take(TOOLS_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = tools.len().saturating_sub(TOOLS_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        texts.push(format!("tools: {listed}{more}"));
    }

    if let Some(sampling) = call.sampling.as_object().filter(|fields| !fields.is_empty()) {
        let fields = sampling.iter().map(|(name, value)| format!("{name} {value}"));
        texts.push(format!("asked for: {}", fields.collect::<Vec<_>>().join(", ")));
    }

    let lines = texts.iter().flat_map(|text| wrap_line(text, room.width));
    lines.map(|line| Line::styled(Style::Dim, line)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::versions::tests::turn;
    use super::*;

    #[test]
    fn a_turn_that_was_given_again_says_so_in_place_of_numbers() {
        let none = || serde_json::Value::Null;
        let mut given = turn(&[], (none(), none()));
        assert_eq!(tokens(&given), "+1 prompt, 1 sampled");
        given.replayed = Some("0199".to_owned());
        given.reasons = vec![REPLAYED.to_owned(), "mapped".to_owned()];
        assert_eq!(tokens(&given), GIVEN_AGAIN);
        given.outcome = Some("complete".to_owned());
        assert_eq!(trouble(&given, &[]), ["  ! mapped"]);
        // What the head of the episode says is not said again.
        assert!(trouble(&given, &["mapped"]).is_empty());
    }
}
