//! An episode as a conversation.

use viewer::{EpisodeTree, FindingView, OtherCall, ReplayView, SiblingView, TurnView};

use super::super::episodes::{state_cell, verdict_cell};
use super::super::message::{TextRoom, ToolNames};
use super::super::numbers::{grouped, reward};
use super::comments::comments;
use super::given::givers;
use super::turn::{self, answer, heading};
use crate::exit::Failure;
use crate::print;
use crate::terminal::{Line, Style};
use crate::time::{date, rough};

/// Calls that are named with a reason.
const CALLS_MAX: usize = 8;

/// The reason that a recording of text alone has for every call.
const NO_TOKEN_IDS: &str = "no_token_ids";

/// A part of the page.
enum PagePart<'a> {
    Turn(&'a TurnView),
    Other(&'a OtherCall),
}

impl PagePart<'_> {
    fn place(&self) -> (u32, u32) {
        match self {
            Self::Turn(turn) => (turn.number, turn.choice),
            Self::Other(other) => (other.number, 0),
        }
    }
}

/// Prints the conversation of an attempt that was read with its messages. Printing ends when nobody
/// listens any more.
pub(super) fn print(tree: &EpisodeTree, is_full: bool) -> Result<(), Failure> {
    let whole = TextRoom::whole();
    let mut shared = turn::shared_reasons(tree);
    if tree.is_text_only() {
        shared.push(NO_TOKEN_IDS);
    }
    let (calls, mut names) = (tree.calls_by_id(), ToolNames::default());
    let mut goes_on = print::styled_lines(&about(tree, &whole))?;
    let mut before: Option<&TurnView> = None;
    for part in parts(tree) {
        if !goes_on {
            return Ok(());
        }
        let turn = match part {
            PagePart::Other(other) => {
                let line = turn::other(other);
                let mut lines = vec![Line::default(), line];
                lines.extend(comments(tree, Some(&other.call_id), &whole));
                goes_on = print::styled_lines(&lines)?;
                continue;
            }
            PagePart::Turn(turn) => turn,
        };
        let is_first = before.is_none_or(|before| before.call_id != turn.call_id);
        let room = if is_full { TextRoom::whole() } else { TextRoom::short(command(tree, turn)) };

        let mut lines = vec![Line::default()];
        lines.extend(heading(tree, turn, before, &shared, &whole));
        if let Some(call) = calls.get(turn.call_id.as_str()) {
            let new = names.read(if is_first { &call.messages } else { &[] });
            lines.extend(new.iter().flat_map(|message| message.lines(&room)));
            names.learn(call.choices.iter().map(|choice| &choice.message));
            lines.extend(answer(turn, call, &room));
        }
        if is_first {
            lines.extend(comments(tree, Some(&turn.call_id), &whole));
        }
        goes_on = print::styled_lines(&lines)?;
        before = Some(turn);
    }
    Ok(())
}

fn parts(tree: &EpisodeTree) -> Vec<PagePart<'_>> {
    let turns = tree.turns.iter().map(PagePart::Turn);
    let mut parts: Vec<_> = turns.chain(tree.others.iter().map(PagePart::Other)).collect();
    parts.sort_by_key(PagePart::place);
    parts
}

/// The command that shows a turn in full.
fn command(tree: &EpisodeTree, turn: &TurnView) -> String {
    let episode = &tree.episode;
    let is_newest = tree.attempts.iter().max() == Some(&episode.attempt);
    let attempt = if is_newest { String::new() } else { format!("/{}", episode.attempt) };
    format!("rolltape show {}{attempt} --turn {}", episode.episode_id, turn.number)
}

/// The head of an episode: names, numbers, and why its tokens are not exact.
pub(super) fn about(tree: &EpisodeTree, room: &TextRoom) -> Vec<Line> {
    let episode = &tree.episode;
    let mut title = Line::styled(Style::Bold, episode.episode_id.clone())
        .then(Style::Plain, format!(" attempt {}", episode.attempt));
    if tree.attempts.len() > 1 {
        title = title.then(Style::Plain, format!(" of {}", tree.attempts.len()));
    }
    let named = [("group", &episode.group_id), ("task", &episode.task_id)];
    for (name, id) in named {
        if let Some(id) = id {
            title = title.then(Style::Plain, format!(" | {name} {id}"));
        }
    }
    let (style, state) = state_cell(&episode.state);
    title = title.then(Style::Plain, " | ").then(style, state);
    let (style, value) = reward(episode.reward);
    title = title.then(Style::Plain, " | reward ").then(style, value);

    let mut lines = vec![title];
    lines.extend(episode.replay.as_ref().map(|replay| Line::from(replay_text(replay))));
    lines.extend(replays_text(&tree.replays).map(Line::from));
    lines.extend(dim(&numbers(tree), room));
    lines.extend(dim(&times(tree), room));
    lines.extend(givers(tree).iter().flat_map(|given| dim(given, room)));
    lines.extend(verdict(tree, room));
    lines.extend(comments(tree, None, room));
    lines
}

/// The recording that an attempt goes on from, in words.
pub(super) fn replay_text(replay: &ReplayView) -> String {
    let ReplayView { episode_id, attempt, until, mode } = replay;
    let live = until.map(|turns| format!(", live from turn {}", turns + 1)).unwrap_or_default();
    let loose = if mode == "loose" { ", loose" } else { "" };
    format!("replay of {episode_id}/{attempt}{live}{loose}")
}

/// The attempts that go on from this one, in words; `None` if there are none.
fn replays_text(replays: &[SiblingView]) -> Option<String> {
    let first = replays.first()?;
    let rest = match replays.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("replayed by {}/{}{rest}", first.episode_id, first.attempt))
}

fn numbers(tree: &EpisodeTree) -> String {
    let episode = &tree.episode;
    let mut parts = vec![
        print::count(episode.calls, "call"),
        format!("{} prompt tokens", grouped(episode.prompt_tokens)),
        match tree.is_text_only() {
            true => {
                format!("{} sampled, by the server's count", grouped(episode.completion_tokens))
            }
            false => format!(
                "{} sampled, {} of them trainable",
                grouped(tree.sampled_tokens),
                grouped(tree.trainable_tokens)
            ),
        },
    ];

    if tree.trajectories != 1 {
        parts.push(match tree.trajectories {
            0 => "no trajectory".to_owned(),
            count => format!("{count} trajectories"),
        });
    }

    let rewards = tree.rewards.iter().filter(|one| one.scope != "episode" || one.name != "reward");
    let named = rewards.map(|one| format!("{} {}", one.name, print::reward(one.value)));
    let named: Vec<String> = named.take(CALLS_MAX).collect();
    if !named.is_empty() {
        parts.push(format!("rewards: {}", named.join(", ")));
    }

    parts.join(" | ")
}

fn times(tree: &EpisodeTree) -> String {
    let episode = &tree.episode;
    let mut parts = vec![format!("opened {}", date(episode.opened_at))];
    if let Some(last) = episode.closed_at.or(episode.last_call_at) {
        parts.push(format!("lasted {}", rough(last - episode.opened_at)));
    }
    parts.extend(episode.model.as_ref().map(|model| format!("model {model}")));
    let client = tree.turns.iter().find_map(|turn| turn.client.as_ref());
    parts.extend(client.map(|client| format!("client {client}")));
    let labels = episode.labels.iter().map(|(name, value)| format!("{name}={value}"));
    parts.extend(labels);
    parts.join(" | ")
}

/// The verdict, with the reasons in words.
fn verdict(tree: &EpisodeTree, room: &TextRoom) -> Vec<Line> {
    let mut lines = vec![match verdict_cell(tree) {
        (style, word) if tree.is_text_only() => {
            Line::styled(style, word + ": the server told no token ids")
        }
        (_, word) if word == "exact" => Line::styled(Style::Green, word),
        (style, word) => Line::styled(style, word),
    }];
    if tree.episode.may_lack_calls {
        lines.push(Line::styled(Style::Red, "  calls may be missing"));
    }
    let told = |finding: &&FindingView| !tree.is_text_only() || finding.reason != NO_TOKEN_IDS;
    for finding in tree.reasons.iter().filter(told) {
        let text = format!("{}{}: {}", finding.reason, calls_of(tree, finding), finding.meaning);
        let rows = super::super::message::hanging(&text, 2, room);
        lines.extend(rows.into_iter().map(Line::from));
    }
    lines
}

/// The numbers of the calls that a reason is about.
fn calls_of(tree: &EpisodeTree, finding: &FindingView) -> String {
    let number = |id: &String| {
        let turns = tree.turns.iter().map(|turn| (&turn.call_id, turn.number));
        let others = tree.others.iter().map(|other| (&other.call_id, other.number));
        let found = turns.chain(others).find(|(call, _)| *call == id);
        found.map_or_else(|| id.clone(), |(_, number)| format!("#{number}"))
    };
    let mut named: Vec<String> = finding.calls.iter().take(CALLS_MAX).map(number).collect();
    if finding.calls.len() > CALLS_MAX {
        named.push(format!("{} more", finding.calls.len() - CALLS_MAX));
    }
    if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
}

fn dim(text: &str, room: &TextRoom) -> Vec<Line> {
    let lines = crate::terminal::layout::wrap_line(text, room.width).into_iter();
    lines.map(|line| Line::styled(Style::Dim, line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_names_what_goes_on_from_it() {
        let replay = |attempt| SiblingView {
            episode_id: "run.turn2".to_owned(),
            attempt,
            until: Some(2),
            state: "open".to_owned(),
            reward: None,
        };
        let told = |attempts| replays_text(&(0..attempts).map(replay).collect::<Vec<_>>());
        assert_eq!(told(0), None);
        assert_eq!(told(1).as_deref(), Some("replayed by run.turn2/0"));
        assert_eq!(told(3).as_deref(), Some("replayed by run.turn2/0 and 2 more"));
    }

    #[test]
    fn a_branch_names_its_source_and_its_first_own_turn() {
        let mut replay = ReplayView {
            episode_id: "run".to_owned(),
            attempt: 1,
            until: None,
            mode: "strict".to_owned(),
        };
        assert_eq!(replay_text(&replay), "replay of run/1");
        (replay.until, replay.mode) = (Some(3), "loose".to_owned());
        assert_eq!(replay_text(&replay), "replay of run/1, live from turn 4, loose");
    }
}
