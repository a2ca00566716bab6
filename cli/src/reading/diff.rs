//! `rolltape diff`: compares two attempts.

use std::process::ExitCode;

use serde::Serialize;
use viewer::{CallView, EpisodeTree, TurnView};

use super::message::{ReadableMessage, TextRoom};
use super::numbers::{grouped, milliseconds};
use super::source::{Source, SourceArgs};
use crate::exit::{CommandResult, Failure};
use crate::options::parse::{AttemptName, attempt_name};
use crate::print;
use crate::terminal::table::{plain, table};
use crate::terminal::{self, Line, Style};

/// Compare two attempts: their numbers, and where their conversations part
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// An episode, or the beginning of its name [default: the newest but one]
    ///
    /// ID/ATTEMPT for one of its attempts.
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    a: Option<AttemptName>,
    /// Another one [default: the newest]
    #[arg(value_parser = attempt_name, help_heading = None::<&str>)]
    b: Option<AttemptName>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// The comparison, as a document.
#[derive(Debug, Serialize)]
struct AttemptComparison {
    a: EpisodeNumbers,
    b: EpisodeNumbers,
    /// Messages that the two have in common at their beginning.
    same_messages: usize,
    /// The first message in which they differ; `None` if one conversation is the beginning of the
    /// other, or both are the same.
    first: Option<FirstDifference>,
    is_same: bool,
}

#[derive(Debug, Serialize)]
struct FirstDifference {
    a: Option<SaidMessage>,
    b: Option<SaidMessage>,
}

/// A message in its conversation.
#[derive(Debug, Clone, Serialize)]
struct SaidMessage {
    turn: u32,
    call_id: String,
    /// True if the model said it.
    is_answer: bool,
    text: String,
    #[serde(skip)]
    message: ReadableMessage,
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
pub(crate) async fn run(args: Args) -> CommandResult {
    let source = args.source.open()?;
    let work = async {
        let a = source.named(args.a.as_ref(), 1).await?;
        let b = source.named(args.b.as_ref(), 0).await?;
        let (same_messages, first) = compare(&source, &a, &b).await?;
        let is_same = first.is_none();
        let (a, b) = (EpisodeNumbers::of(&a), EpisodeNumbers::of(&b));
        Ok::<_, Failure>(AttemptComparison { a, b, same_messages, first, is_same })
    };
    let found = terminal::waiting("comparing", work).await?;
    match args.json {
        true => print::line(&serde_json::to_string(&found).map_err(|e| Failure::of(&e))?)?,
        false => drop(print::styled_lines(&page(&found))?),
    }
    Ok(ExitCode::SUCCESS)
}

/// A conversation that is read turn by turn: what was new in each, then the answer.
struct ConversationReader<'a> {
    source: &'a Source,
    turns: std::slice::Iter<'a, TurnView>,
    /// The last call that was read.
    call: Option<CallView>,
    /// Messages of the last turn that were not taken yet.
    waiting: std::vec::IntoIter<SaidMessage>,
}

impl<'a> ConversationReader<'a> {
    fn of(source: &'a Source, tree: &'a EpisodeTree) -> Self {
        let turns = tree.turns.iter();
        Self { source, turns, call: None, waiting: Vec::new().into_iter() }
    }

    async fn next(&mut self) -> Result<Option<SaidMessage>, Failure> {
        loop {
            if let Some(said) = self.waiting.next() {
                return Ok(Some(said));
            }
            let Some(turn) = self.turns.next() else { return Ok(None) };
            let is_first = self.call.as_ref().is_none_or(|call| call.call_id != turn.call_id);
            if is_first {
                self.call = Some(self.source.call(&turn.call_id).await?);
            }
            if let Some(call) = &self.call {
                self.waiting = said(turn, call, is_first).into_iter();
            }
        }
    }
}

/// The messages that a turn adds to a conversation.
fn said(turn: &TurnView, call: &CallView, is_first: bool) -> Vec<SaidMessage> {
    let of = |message: ReadableMessage, is_answer| SaidMessage {
        turn: turn.number,
        call_id: turn.call_id.clone(),
        is_answer,
        text: message.plain(),
        message,
    };
    let new = ReadableMessage::all(&call.messages).into_iter().skip(turn.new_from as usize);
    let mut found: Vec<SaidMessage> =
        new.filter(|_| is_first).map(|message| of(message, false)).collect();
    let choice = call.choices.iter().find(|choice| choice.index == turn.choice);
    let answer = choice.filter(|choice| !choice.message.is_null());
    found.extend(answer.map(|choice| of(ReadableMessage::of(&choice.message), true)));
    found
}

/// The number of messages that two conversations share at their beginning, and the first in which
/// they differ.
async fn compare(
    source: &Source,
    a: &EpisodeTree,
    b: &EpisodeTree,
) -> Result<(usize, Option<FirstDifference>), Failure> {
    let (mut a, mut b) = (ConversationReader::of(source, a), ConversationReader::of(source, b));
    let mut same = 0;
    loop {
        match (a.next().await?, b.next().await?) {
            (None, None) => return Ok((same, None)),
            (Some(one), Some(other)) if one.text == other.text => same += 1,
            (a, b) => return Ok((same, Some(FirstDifference { a, b }))),
        }
    }
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
            ("state", self.state.clone()),
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

fn page(found: &AttemptComparison) -> Vec<Line> {
    let name = |numbers: &EpisodeNumbers| ("episode", numbers.episode_id.clone());
    let rows = |numbers: &EpisodeNumbers| {
        std::iter::once(name(numbers)).chain(numbers.rows()).collect::<Vec<_>>()
    };
    let rows = rows(&found.a).into_iter().zip(rows(&found.b));
    let rows = rows.map(|((name, one), (_, other))| {
        let style = if one == other { Style::Dim } else { Style::Plain };
        vec![plain(name), (style, one), (style, other)]
    });
    let mut lines = table([("", 0), ("A", 0), ("B", 0)], rows.collect(), terminal::width());

    lines.push(Line::default());
    let same = print::count(found.same_messages as u64, "message");
    match &found.first {
        None => lines.push(Line::from(format!("the conversations are the same: {same}"))),
        Some(FirstDifference { a, b }) => {
            let are = if found.same_messages == 1 { "is" } else { "are" };
            lines.push(Line::from(format!("the first {same} {are} the same; then")));
            for (side, said, numbers) in [("A", a, &found.a), ("B", b, &found.b)] {
                lines.extend(side_lines(side, said.as_ref(), numbers));
            }
        }
    }
    lines
}

/// The text of one side where the two differ.
fn side_lines(side: &str, said: Option<&SaidMessage>, numbers: &EpisodeNumbers) -> Vec<Line> {
    let heading = |text: &str| {
        Line::styled(Style::Bold, side.to_owned()).then(Style::Dim, format!("  {text}"))
    };
    let Some(said) = said else { return vec![heading("has ended")] };
    let name = format!("{}/{}", numbers.episode_id, numbers.attempt);
    let whose = if said.is_answer { "the model says" } else { "the model is told" };
    let mut lines = vec![heading(&format!("in turn #{} {whose}", said.turn))];
    let more = format!("rolltape show {name} --turn {}", said.turn);
    lines.extend(said.message.lines(&TextRoom::short(more)));
    lines
}
