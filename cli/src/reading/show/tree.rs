//! An episode's turns as a tree of one line each.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use viewer::{EpisodeTree, OtherCall, TurnId, TurnView};

use super::turn::label;
use super::versions::{versions_suffix, weights};
use crate::exit::Failure;
use crate::print;
use crate::terminal;
use crate::terminal::layout::{shortened, width_of};

/// The room of an excerpt of a message, in columns: as much as the terminal has, within this.
const EXCERPT_ROOM: RangeInclusive<usize> = 12..=60;

/// Between what was heard and what was said.
const ARROW: &str = " -> ";

/// The turns of an episode, by the turn that each continues.
struct TurnTree<'a>(BTreeMap<Option<(&'a str, u32)>, Vec<&'a TurnView>>);

/// Prints the tree, then the calls without a turn, then the weights.
pub(super) fn print(tree: &EpisodeTree) -> Result<(), Failure> {
    print::line(&heading(tree))?;
    TurnTree::of(&tree.turns).draw_below(None, "")?;
    tree.others.iter().try_for_each(|other| print::line(&other_line(other)))?;
    weights(&tree.turns).iter().try_for_each(|line| print::line(line))
}

fn heading(tree: &EpisodeTree) -> String {
    let episode = &tree.episode;
    let mut parts = vec![format!("{} attempt {}", episode.episode_id, episode.attempt)];
    parts.extend(episode.group_id.as_ref().map(|group| format!("group {group}")));
    parts.extend(episode.task_id.as_ref().map(|task| format!("task {task}")));
    parts.push(print::count(episode.calls, "call"));
    parts.push(format!("{} sampled tokens", episode.completion_tokens));
    parts.push(format!("reward {}", print::reward(episode.reward)));
    parts.join(" | ")
}

impl<'a> TurnTree<'a> {
    fn of(turns: &'a [TurnView]) -> Self {
        let mut children: BTreeMap<_, Vec<&TurnView>> = BTreeMap::new();
        for turn in turns {
            let parent = turn.parent.as_ref();
            let parent = parent.map(|TurnId { call_id, choice }| (call_id.as_str(), *choice));
            children.entry(parent).or_default().push(turn);
        }
        Self(children)
    }

    /// Draws the turns below `parent`. A history without forks stays flush left; only forks indent.
    fn draw_below(&self, mut parent: Option<(&'a str, u32)>, indent: &str) -> Result<(), Failure> {
        loop {
            let children = self.0.get(&parent).map_or(&[][..], Vec::as_slice);
            match children {
                [] => return Ok(()),
                // A loop, not a recursion: a history may have thousands of turns.
                [only] => {
                    print_turn(indent, only)?;
                    parent = Some((&only.call_id, only.choice));
                }
                forks => return self.draw_forks(forks, indent),
            }
        }
    }

    fn draw_forks(&self, forks: &[&TurnView], indent: &str) -> Result<(), Failure> {
        for (at, child) in forks.iter().enumerate() {
            let is_last = at + 1 == forks.len();
            let (branch, below) = if is_last { ("`- ", "   ") } else { ("|- ", "|  ") };
            print_turn(&format!("{indent}{branch}"), child)?;
            let turn = Some((child.call_id.as_str(), child.choice));
            self.draw_below(turn, &format!("{indent}{below}"))?;
        }
        Ok(())
    }
}

/// Prints a turn in one line of the terminal.
fn print_turn(indent: &str, turn: &TurnView) -> Result<(), Failure> {
    let width = terminal::width();
    let line = turn_line(turn, width.map(|width| width.saturating_sub(width_of(indent))));
    let line = format!("{indent}{line}");
    print::line(&match width {
        Some(width) => shortened(&line, width),
        None => line,
    })
}

/// The line of a turn. What was heard and said has the room that the numbers leave of `width`.
fn turn_line(turn: &TurnView, width: Option<usize>) -> String {
    let kind = match turn.kind.as_str() {
        "main" => String::new(),
        kind => format!(" {kind} ({})", turn.kind_reason),
    };
    let versions = versions_suffix(turn).map(|versions| format!(" by {versions}"));
    let notes = match turn.reasons.is_empty() {
        true => String::new(),
        false => format!("  ! {}", turn.reasons.join(", ")),
    };
    let numbers = format!(
        "{}{kind} +{} prompt +{} sampled{}{}  ",
        label(turn),
        turn.new_prompt_tokens,
        turn.counted_tokens.unwrap_or(turn.sampled_tokens),
        versions.unwrap_or_default(),
        timing(turn),
    );

    let taken = width_of(&numbers) + width_of(&notes) + width_of(ARROW);
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(taken) / 2);
    let room = room.clamp(*EXCERPT_ROOM.start(), *EXCERPT_ROOM.end());
    format!(
        "{numbers}{}{ARROW}{}{notes}",
        shortened(&turn.heard, room),
        shortened(&turn.said, room)
    )
}

/// A call's duration, and its outcome if that is not `complete`.
fn timing(turn: &TurnView) -> String {
    let Some(ms) = turn.duration_ms else { return String::new() };
    match turn.outcome.as_deref() {
        Some("complete") | None => format!(" {ms:.0} ms"),
        Some(other) => format!(" {ms:.0} ms {other}"),
    }
}

fn other_line(call: &OtherCall) -> String {
    let status = call.status.map_or("-".to_owned(), |status| status.to_string());
    let outcome = call.outcome.as_deref().unwrap_or("no end: the recorder died");
    format!("#{} {} {} -> {status} {outcome}", call.number, call.method, call.path)
}
