//! `rolltape fork`: runs a command several times from a turn of a recording on.

use std::process::ExitCode;

use serde_json::Value;

use super::replay::{ReplayArgs, report};
use super::{not_run, prepare, run_once};
use crate::exit::{CommandResult, Failure};
use crate::options::parse::{AttemptName, attempt_name};
use crate::server::RunningServer;
use crate::terminal;

/// Run a command several times from a turn of a recorded episode on
///
/// Each run begins with the recorded replies of the first turns, and is live behind them: a branch.
/// The branches are attempts of one episode and one group, so that their rewards are compared with
/// each other. What was recorded before is context in them and is not trained again.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The recorded episode: ID or ID/ATTEMPT
    #[arg(value_name = "EPISODE", value_parser = attempt_name)]
    source: AttemptName,
    /// Turns that all branches share
    #[arg(long, value_name = "TURNS", help_heading = "Recording")]
    turn: u32,
    /// Number of branches
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Recording")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    attempts: u32,
    #[command(flatten)]
    how: ReplayArgs,
    #[command(flatten)]
    run: super::Args,
}

/// Runs the branches one after the other. It has failed if one of them did not become one.
pub(crate) async fn run(args: Args) -> CommandResult {
    let Args { source, turn, attempts, how, run: mut args } = args;
    prepare(&args)?;
    let server = how.server(&mut args).await?;
    let wish = how.wish(&source, Some(turn));
    name_branches(&mut args, &source, turn)?;

    let ended = run_branches(&mut args, attempts, server.as_ref(), &wish).await;
    if let Some(server) = server {
        // The store is complete whatever became of the branches.
        server.stop(std::future::pending()).await?;
    }
    ended
}

/// Runs one branch after the other.
async fn run_branches(
    args: &mut super::Args,
    attempts: u32,
    server: Option<&RunningServer>,
    wish: &Value,
) -> CommandResult {
    let first = args.episode.attempt;
    let mut failed = 0;
    for attempt in first..first.saturating_add(attempts) {
        args.episode.attempt = attempt;
        let ran = run_once(args, server, Some(wish)).await?;
        let is_branch = report(&ran);
        match &ran.ended {
            // The next one would not start either.
            Err(error) => return Ok(not_run(args, error)),
            Ok(ended) => failed += u32::from(!is_branch || !ended.success()),
        }
    }
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    terminal::remark(&format!("{failed} of {attempts} branches failed"));
    Ok(ExitCode::FAILURE)
}

/// Names the episode and the group of the branches by the turn, unless the user did.
fn name_branches(args: &mut super::Args, source: &AttemptName, turn: u32) -> Result<(), Failure> {
    let AttemptName { id, attempt } = source;
    let of_attempt = match attempt.unwrap_or(0) {
        0 => String::new(),
        attempt => format!(".{attempt}"),
    };
    let name = format!("{id}{of_attempt}.turn{turn}");
    let invalid = |error: episode::InvalidId| {
        Failure::of(&error).hint("give the branches a name with --episode")
    };
    let id = match args.episode.id.take() {
        Some(id) => id,
        None => name.parse().map_err(invalid)?,
    };
    if args.episode.group.is_none() {
        args.episode.group = Some(id.as_str().parse().map_err(invalid)?);
    }
    args.episode.id = Some(id);
    Ok(())
}
