//! `rolltape tail`: prints each call when it ends.

use std::process::ExitCode;

use episode::{EpisodeId, GroupId, TaskId};
use viewer::CallEvent;

use super::call_line::call_line;
use super::source::{SourceArgs, pair};
use crate::exit::{CommandResult, Failure};
use crate::print;
use crate::terminal;

/// Print each call when it ends, until interrupted
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct Args {
    /// Only calls of this episode
    #[arg(long, value_name = "ID")]
    episode: Option<EpisodeId>,
    /// Only calls of this group
    #[arg(long, value_name = "ID")]
    group: Option<GroupId>,
    /// Only calls of this task
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
    /// Print one JSON object per call
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// Prints calls until a signal ends the command, or nobody reads any more.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let mut parameters = vec![pair("text", 1)];
    parameters.extend(args.episode.as_ref().map(|id| pair("episode", id)));
    parameters.extend(args.group.as_ref().map(|id| pair("group", id)));
    parameters.extend(args.task.as_ref().map(|id| pair("task", id)));
    let mut changes = args.source.open().await?.changes(&parameters).await?;
    terminal::remark("waiting for calls; Ctrl-C ends this");

    loop {
        for (kind, text) in changes.next().await? {
            if kind == "call" && !print_call(&text, args.json)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Prints a call if it has ended. Returns false if nobody reads any more.
fn print_call(text: &str, as_json: bool) -> Result<bool, Failure> {
    let event: CallEvent = serde_json::from_str(text).map_err(|e| Failure::of(&e))?;
    if event.outcome.is_none() {
        return Ok(true);
    }
    match as_json {
        true => print::styled(&text.to_owned().into()),
        false => print::styled(&call_line(&event, terminal::width())),
    }
}
