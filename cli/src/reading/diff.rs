//! `rolltape diff`: compares two attempts.

mod aligned;
mod conversation;
mod sides;
mod words;

use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;
use viewer::EpisodeTree;

use self::aligned::{Said, Stretch, aligned};
use self::conversation::{MESSAGES_MAX, SaidMessage, conversation};
use self::sides::{SIDES_FROM, Sides};
use super::episodes::state_cell;
use super::message::TextRoom;
use super::named::Depth;
use super::numbers::{grouped, milliseconds};
use super::source::{Source, SourceArgs};
use crate::exit::{CommandResult, Failure};
use crate::options::parse::{AttemptName, attempt_name};
use crate::print;
use crate::terminal::table::{plain, table};
use crate::terminal::{self, Line, Style};

/// Compare two attempts: their numbers, and what was said differently
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// An episode, or the beginning of its name [default: the newest but one]
    ///
    /// ID/ATTEMPT for one of its attempts. A replay or a branch that is named alone is compared
    /// with its source, which is then the first of both.
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    a: Option<AttemptName>,
    /// Another one [default: the newest; of a branch its source]
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    b: Option<AttemptName>,
    /// Print whole messages, and the lines of both that are the same
    #[arg(long, conflicts_with = "json")]
    full: bool,
    /// Both in lines, or in columns [default: columns on a wide terminal]
    ///
    /// A terminal of 120 columns is wide.
    #[arg(long, value_enum, value_name = "LAYOUT", conflicts_with = "json")]
    layout: Option<DiffLayout>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// A value of `--layout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DiffLayout {
    /// Lines of the second below those of the first
    Lines,
    /// Side by side, as wide as the terminal
    Columns,
}

/// The comparison, as a document.
#[derive(Debug, Serialize)]
struct AttemptComparison {
    a: EpisodeNumbers,
    b: EpisodeNumbers,
    /// Messages that the two have in common at their beginning.
    same_messages: usize,
    /// The first difference; `None` if both are the same.
    first: Option<SaidDifference>,
    /// All differences, in the order of the conversations.
    differences: Vec<SaidDifference>,
    is_same: bool,
    /// The lines' order: the differences, and the equal messages between.
    #[serde(skip)]
    parts: Vec<Part>,
}

/// Two forms of a message, or one that the other attempt lacks.
#[derive(Debug, Clone, Serialize)]
struct SaidDifference {
    a: Option<SaidMessage>,
    b: Option<SaidMessage>,
}

#[derive(Debug)]
enum Part {
    /// Messages of the first attempt that the second has as well.
    Same(Vec<SaidMessage>),
    /// One of the differences, by its number.
    Differs(usize),
}

/// The numbers of an attempt.
#[derive(Debug, Serialize)]
struct EpisodeNumbers {
    episode_id: String,
    attempt: u32,
    state: String,
    reward: Option<f64>,
    verdict: String,
    model: Option<String>,
    versions: Vec<String>,
    calls: u64,
    turns: usize,
    trajectories: u64,
    prompt_tokens: u64,
    sampled_tokens: u64,
    trainable_tokens: u64,
    mean_logprob: Option<f64>,
    duration_ms: f64,
}

/// Compares.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let source = args.source.open().await?;
    let work = async {
        let (a, b) = both(&source, args.a.as_ref(), args.b.as_ref()).await?;
        let said = (conversation(&a), conversation(&b));
        Ok::<_, Failure>(AttemptComparison::of((&a, said.0), (&b, said.1)))
    };
    let found = terminal::waiting("comparing", work).await?;
    match args.json {
        true => print::line(&serde_json::to_string(&found).map_err(|e| Failure::of(&e))?)?,
        false => drop(print::styled_lines(&page(&found, args.full, sides(args.layout)))?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the attempts that are compared.
async fn both(
    source: &Source,
    a: Option<&AttemptName>,
    b: Option<&AttemptName>,
) -> Result<(EpisodeTree, EpisodeTree), Failure> {
    let first = source.named(a, 1, Depth::Messages).await?;
    if let (Some(_), None, Some(replay)) = (a, b, &first.episode.replay) {
        let recorded = source.told_tree(&replay.episode_id, Some(replay.attempt)).await?;
        return Ok((recorded, first));
    }

    let second = source.named(b, 0, Depth::Messages).await?;
    // The newest is compared with the one before it.
    match b.is_none() && is_same_attempt(&first, &second) {
        true => Ok((first, source.named(None, 1, Depth::Messages).await?)),
        false => Ok((first, second)),
    }
}

fn is_same_attempt(a: &EpisodeTree, b: &EpisodeTree) -> bool {
    a.episode.episode_id == b.episode.episode_id && a.episode.attempt == b.episode.attempt
}

impl AttemptComparison {
    fn of(a: (&EpisodeTree, Vec<SaidMessage>), b: (&EpisodeTree, Vec<SaidMessage>)) -> Self {
        let ((a, a_said), (b, b_said)) = (a, b);
        if a_said.len() >= MESSAGES_MAX || b_said.len() >= MESSAGES_MAX {
            terminal::remark(&format!("about {MESSAGES_MAX} messages of each are compared"));
        }
        let stretches = aligned(&texts(&a_said), &texts(&b_said));

        let mut differences = Vec::new();
        let mut differs = |a: Option<&SaidMessage>, b: Option<&SaidMessage>| {
            differences.push(SaidDifference { a: a.cloned(), b: b.cloned() });
            Part::Differs(differences.len() - 1)
        };
        let parts: Vec<Part> = stretches
            .iter()
            .map(|stretch| match *stretch {
                Stretch::Same { a, len, .. } => Part::Same(a_said[a..a + len].to_vec()),
                Stretch::Changed { a, b } => differs(Some(&a_said[a]), Some(&b_said[b])),
                Stretch::OnlyA(at) => differs(Some(&a_said[at]), None),
                Stretch::OnlyB(at) => differs(None, Some(&b_said[at])),
            })
            .collect();

        Self {
            a: EpisodeNumbers::of(a),
            b: EpisodeNumbers::of(b),
            same_messages: match parts.first() {
                Some(Part::Same(same)) => same.len(),
                _ => 0,
            },
            first: differences.first().cloned(),
            is_same: differences.is_empty(),
            differences,
            parts,
        }
    }
}

fn texts(all: &[SaidMessage]) -> Vec<Said<'_>> {
    all.iter().map(SaidMessage::said).collect()
}

impl EpisodeNumbers {
    fn of(tree: &EpisodeTree) -> Self {
        let episode = &tree.episode;
        let mut versions: Vec<String> = Vec::new();
        for span in tree.turns.iter().flat_map(|turn| &turn.versions) {
            if !versions.contains(&span.version) {
                versions.push(span.version.clone());
            }
        }

        let known = tree
            .turns
            .iter()
            .filter_map(|turn| Some((turn.mean_logprob?, turn.sampled_tokens as f64)));
        let (sum, count) =
            known.fold((0.0, 0.0), |(sum, all), (mean, count)| (sum + mean * count, all + count));

        let turns = tree.turns.iter().filter(|turn| turn.choice == 0);

        Self {
            episode_id: episode.episode_id.clone(),
            attempt: episode.attempt,
            state: episode.state.clone(),
            reward: episode.reward,
            verdict: tree.verdict.clone(),
            model: episode.model.clone(),
            versions,
            calls: episode.calls,
            turns: tree.turns.len(),
            trajectories: tree.trajectories,
            prompt_tokens: episode.prompt_tokens,
            sampled_tokens: match tree.is_text_only() {
                true => episode.completion_tokens,
                false => tree.sampled_tokens,
            },
            trainable_tokens: tree.trainable_tokens,
            mean_logprob: (count > 0.0).then(|| sum / count),
            duration_ms: turns.filter_map(|turn| turn.duration_ms).sum(),
        }
    }

    /// The names and the values of the numbers.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            ("attempt", self.attempt.to_string()),
            ("state", state_cell(&self.state).1),
            ("reward", print::reward(self.reward)),
            ("verdict", self.verdict.clone()),
            ("model", or_dash(self.model.clone())),
            ("versions", self.versions.join(", ")),
            ("calls", grouped(self.calls)),
            ("turns", grouped(self.turns as u64)),
            ("trajectories", grouped(self.trajectories)),
            ("prompt tokens", grouped(self.prompt_tokens)),
            ("sampled", grouped(self.sampled_tokens)),
            ("trainable", grouped(self.trainable_tokens)),
            ("mean logprob", or_dash(self.mean_logprob.map(|mean| format!("{mean:.3}")))),
            ("model's time", milliseconds(self.duration_ms)),
        ]
    }
}

/// The two sides of the page, if it has two.
fn sides(asked: Option<DiffLayout>) -> Option<Sides> {
    let width = terminal::width().unwrap_or(SIDES_FROM);
    let is_wide = || terminal::is_terminal() && width >= SIDES_FROM;
    let are_asked = asked.map_or_else(is_wide, |layout| layout == DiffLayout::Columns);
    are_asked.then(|| Sides::within(width))
}

fn page(found: &AttemptComparison, full: bool, sides: Option<Sides>) -> Vec<Line> {
    let mut lines = numbers(found);
    lines.push(Line::default());
    match sides {
        Some(sides) => lines.extend(sides.lines(found, full)),
        None => lines.extend(found.parts.iter().flat_map(|part| part.lines(found, full))),
    }
    if found.is_same {
        lines.push(Line::from("the conversations are the same".to_owned()));
    }
    lines
}

impl Part {
    fn lines(&self, found: &AttemptComparison, full: bool) -> Vec<Line> {
        match self {
            Self::Same(all) if full => {
                all.iter().flat_map(|said| said.message.lines(&TextRoom::whole())).collect()
            }
            Self::Same(all) => vec![same(all)],
            Self::Differs(at) => found.differences[*at].lines(found, full),
        }
    }
}

/// The line in the place of messages that both have.
fn same(all: &[SaidMessage]) -> Line {
    let are = if all.len() == 1 { "is" } else { "are" };
    let count = print::count(all.len() as u64, "message");
    Line::styled(Style::Dim, format!("= {count} {are} the same"))
}

/// The numbers of both, side by side.
fn numbers(found: &AttemptComparison) -> Vec<Line> {
    let name = |numbers: &EpisodeNumbers| ("episode", numbers.episode_id.clone());
    let rows = |numbers: &EpisodeNumbers| {
        std::iter::once(name(numbers)).chain(numbers.rows()).collect::<Vec<_>>()
    };
    let rows = rows(&found.a).into_iter().zip(rows(&found.b));
    let rows = rows.map(|((name, one), (_, other))| {
        let style = if one == other { Style::Dim } else { Style::Plain };
        vec![plain(name), (style, one), (style, other)]
    });
    table([("", 0), ("A", 0), ("B", 0)], rows.collect(), terminal::width())
}

impl SaidDifference {
    fn lines(&self, found: &AttemptComparison, full: bool) -> Vec<Line> {
        let room = |numbers: &EpisodeNumbers, said: &SaidMessage| match full {
            true => TextRoom::whole(),
            false => TextRoom::short(numbers.turn(said.turn)),
        };
        match (&self.a, &self.b) {
            (Some(a), Some(b)) => {
                let turns = format!("A #{}, B #{}", a.turn, b.turn);
                let mut lines = vec![heading(&turns, a)];
                lines.extend(room(&found.b, b).fitting(words::marked(&a.text, &b.text)));
                lines
            }
            (Some(only), None) => one_side("A", only, &room(&found.a, only)),
            (None, Some(only)) => one_side("B", only, &room(&found.b, only)),
            (None, None) => Vec::new(),
        }
    }
}

impl EpisodeNumbers {
    /// The command that shows a turn.
    fn turn(&self, number: u32) -> String {
        format!("rolltape show {}/{} --turn {number}", self.episode_id, self.attempt)
    }
}

/// A message that only one attempt has.
fn one_side(side: &str, said: &SaidMessage, room: &TextRoom) -> Vec<Line> {
    let mut lines = vec![heading(&format!("only {side} #{}", said.turn), said)];
    lines.extend(said.message.lines(room));
    lines
}

fn heading(turns: &str, said: &SaidMessage) -> Line {
    let whose = if said.is_answer { "the model says" } else { "the model is told" };
    Line::styled(Style::Bold, turns.to_owned()).then(Style::Dim, format!("  {whose}"))
}
