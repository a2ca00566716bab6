//! `rolltape fork`: runs a command several times from a turn of a recording on.

use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinSet;

use super::client::EpisodeClient;
use super::replay::{ReplayArgs, live_calls, report};
use super::{AttemptChoice, RanEpisode, not_run, prepare, run_once};
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
    /// Branches that run at once
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Recording")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    jobs: u32,
    #[command(flatten)]
    how: ReplayArgs,
    #[command(flatten)]
    run: super::Args,
}

/// Runs the branches. It has failed if one of them did not become one.
pub(crate) async fn run(args: Args) -> CommandResult {
    let Args { source, turn, attempts, jobs, how, run: mut args } = args;
    let AttemptChoice::Number(first) = args.episode.attempt else {
        return Err(Failure::new("--attempt of a fork is the number of its first branch"));
    };
    prepare(&args)?;
    let server = how.server(&mut args).await?.map(Arc::new);
    let wish = how.wish(&source, Some(turn));
    name_branches(&mut args, &source, turn)?;

    let branches = Branches { args, first, server: server.clone(), wish };
    let ended = branches.run(attempts, jobs as usize).await;
    if let Some(server) = server.and_then(Arc::into_inner) {
        // The store is complete whatever became of the branches.
        server.stop(std::future::pending()).await?;
    }
    ended
}

/// The command that is run for each branch.
struct Branches {
    args: super::Args,
    /// The attempt of the first branch.
    first: u32,
    server: Option<Arc<RunningServer>>,
    wish: Value,
}

impl Branches {
    /// Runs `attempts` branches, at most `jobs` at once.
    async fn run(self, attempts: u32, jobs: usize) -> CommandResult {
        let mut running = JoinSet::new();
        let ended = self.run_all(&mut running, attempts, jobs).await;
        // If one could not be run, others may still be.
        running.shutdown().await;
        ended
    }

    /// A signal to this process ends the branches that run, and no further one is started.
    async fn run_all(
        &self,
        running: &mut JoinSet<Result<RanEpisode, Failure>>,
        attempts: u32,
        jobs: usize,
    ) -> CommandResult {
        let mut to_start = self.first..self.first.saturating_add(attempts);
        let mut failed = 0;

        loop {
            while running.len() < jobs
                && let Some(attempt) = to_start.next()
            {
                running.spawn(self.branch(attempt));
            }
            let Some(ran) = running.join_next().await else { break };
            let ran = ran.map_err(|error| Failure::new(error.to_string()))??;
            let is_branch = report(&ran) && is_live(&ran);
            match &ran.ended {
                // The next one would not start either.
                Err(error) => return Ok(not_run(&self.args, error)),
                Ok(ended) => failed += u32::from(!is_branch || !ended.success()),
            }
            if ran.is_stopped {
                failed += to_start.len() as u32;
                to_start = 0..0;
            }
        }

        if failed == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        terminal::remark(&format!("{failed} of {attempts} branches failed or were not run"));
        Ok(ExitCode::FAILURE)
    }

    /// One branch. It owns what it needs, so that others run beside it.
    fn branch(
        &self,
        attempt: u32,
    ) -> impl Future<Output = Result<RanEpisode, Failure>> + Send + 'static {
        let (mut args, server) = (self.args.clone(), self.server.clone());
        let wish = self.wish.clone();
        args.episode.attempt = AttemptChoice::Number(attempt);
        async move { run_once(&args, server.as_deref(), Some(&wish)).await }
    }
}

/// True if a command that ended well made a call behind the recording; says so if it did not.
fn is_live(ran: &RanEpisode) -> bool {
    let has_ended_well = ran.ended.as_ref().is_ok_and(ExitStatus::success);
    let is_live = live_calls(ran) > 0;
    if has_ended_well && !is_live {
        let EpisodeClient { id, attempt, .. } = &ran.episode;
        let source = ran.replay["source"].as_str().unwrap_or_default();
        let told =
            format!("{id}/{attempt} is no branch: it made no call behind the recorded turns");
        let hint = format!("choose an earlier --turn; `rolltape show {source}` lists the turns");
        let _ = Failure::new(told).hint(hint).report();
    }
    is_live
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
