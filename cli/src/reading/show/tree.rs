//! An episode's turns as a tree of one line each.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use viewer::{EpisodeTree, OtherCall, TurnId, TurnView};

use super::page::replay_text;
use super::turn::{GIVEN_AGAIN, REPLAYED, label, shared_reasons};
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
struct TurnTree<'a> {
    children: BTreeMap<Option<(&'a str, u32)>, Vec<&'a TurnView>>,
    /// Reasons that all turns have.
    shared: Vec<&'a str>,
}

/// Prints the tree, then the calls without a turn, then the weights.
pub(super) fn print(tree: &EpisodeTree) -> Result<(), Failure> {
    print::line(&heading(tree))?;
    TurnTree::of(tree).draw_below(None, "")?;
    tree.others.iter().try_for_each(|other| print::line(&other_line(other)))?;
    weights(&tree.turns).iter().try_for_each(|line| print::line(line))
}

fn heading(tree: &EpisodeTree) -> String {
    let episode = &tree.episode;
    let mut parts = vec![format!("{} attempt {}", episode.episode_id, episode.attempt)];
    parts.extend(episode.group_id.as_ref().map(|group| format!("group {group}")));
    parts.extend(episode.task_id.as_ref().map(|task| format!("task {task}")));
    parts.extend(episode.replay.as_ref().map(replay_text));
    parts.push(print::count(episode.calls, "call"));
    parts.push(format!("{} sampled tokens", episode.completion_tokens));
    parts.push(format!("reward {}", print::reward(episode.reward)));
    let shared = shared_reasons(tree);
    parts.extend((!shared.is_empty()).then(|| format!("all turns: {}", shared.join(", "))));
    parts.join(" | ")
}

impl<'a> TurnTree<'a> {
    fn of(tree: &'a EpisodeTree) -> Self {
        let mut children: BTreeMap<_, Vec<&TurnView>> = BTreeMap::new();
        for turn in &tree.turns {
            let parent = turn.parent.as_ref();
            let parent = parent.map(|TurnId { call_id, choice }| (call_id.as_str(), *choice));
            children.entry(parent).or_default().push(turn);
        }
        Self { children, shared: shared_reasons(tree) }
    }

    /// Draws the turns below `parent`. A history without forks stays flush left; only forks indent.
    fn draw_below(&self, mut parent: Option<(&'a str, u32)>, indent: &str) -> Result<(), Failure> {
        loop {
            let children = self.children.get(&parent).map_or(&[][..], Vec::as_slice);
            match children {
                [] => return Ok(()),
                // A loop, not a recursion: a history may have thousands of turns.
                [only] => {
                    self.print(indent, only)?;
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
            self.print(&format!("{indent}{branch}"), child)?;
            let turn = Some((child.call_id.as_str(), child.choice));
            self.draw_below(turn, &format!("{indent}{below}"))?;
        }
        Ok(())
    }

    /// Prints a turn in one line of the terminal.
    fn print(&self, indent: &str, turn: &TurnView) -> Result<(), Failure> {
        let width = terminal::width();
        let room = width.map(|width| width.saturating_sub(width_of(indent)));
        let line = format!("{indent}{}", turn_line(turn, &self.shared, room));
        print::line(&match width {
            Some(width) => shortened(&line, width),
            None => line,
        })
    }
}

/// The line of a turn, without the reasons that are `shared`. What was heard and said has the room
/// that the numbers leave of `width`.
fn turn_line(turn: &TurnView, shared: &[&str], width: Option<usize>) -> String {
    let kind = match turn.kind.as_str() {
        "main" => String::new(),
        kind => format!(" {kind} ({})", turn.kind_reason),
    };
    let versions = versions_suffix(turn).map(|versions| format!(" by {versions}"));
    let reasons = turn.reasons.iter().map(String::as_str);
    let own = reasons.filter(|reason| *reason != REPLAYED && !shared.contains(reason));
    let own: Vec<&str> = own.collect();
    let notes = if own.is_empty() { String::new() } else { format!("  ! {}", own.join(", ")) };
    // Without ids nobody knows which tokens of the prompt are new.
    let (prompt, sampled) = match turn.counted_tokens {
        Some(counted) => (format!("{}", turn.prompt_tokens.unwrap_or(0)), counted),
        None => (format!("+{}", turn.new_prompt_tokens), turn.sampled_tokens),
    };
    let tokens = match turn.replayed {
        Some(_) => GIVEN_AGAIN.to_owned(),
        None => format!("{prompt} prompt +{sampled} sampled"),
    };
    let numbers = format!(
        "{}{kind} {tokens}{}{}  ",
        label(turn),
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
