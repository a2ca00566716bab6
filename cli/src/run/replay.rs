//! `rolltape replay`: runs a command against a recording.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::{RanEpisode, exit_code, not_run, number, prepare, run_once, start_own_server};
use crate::exit::{CommandResult, Failure};
use crate::options::parse::{AttemptName, attempt_name, upstream};
use crate::options::pointer;
use crate::server::RunningServer;
use crate::terminal;

/// Run a command against a recorded episode, without a model
///
/// The command's calls get the bytes that were recorded. A call that differs in what matters is a
/// 409 that says where. The replay is an episode of its own, and nothing of it is trained. With
/// --until and --then the command goes on live behind a turn.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The recorded episode: ID or ID/ATTEMPT
    #[arg(value_name = "EPISODE", value_parser = attempt_name)]
    source: AttemptName,
    /// Turns that the recording answers; later calls are live [default: all]
    #[arg(long, value_name = "TURNS", help_heading = "Recording")]
    until: Option<u32>,
    #[command(flatten)]
    how: ReplayArgs,
    #[command(flatten)]
    run: super::Args,
}

/// The options of a replay.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Recording")]
pub(super) struct ReplayArgs {
    /// Server or model folder for what the recording does not answer
    #[arg(long, value_name = "URL|DIR", conflicts_with_all = ["upstream", "model"])]
    then: Option<String>,
    /// Take the nearest recorded call for one that differs
    #[arg(long = "loose")]
    is_loose: bool,
    /// Rule for what does not matter in a request; repeatable
    ///
    /// clocks, ids, paths, numbers, /FIELD/FIELD with * for any one, or re:PATTERN.
    #[arg(long, value_name = "RULE")]
    ignore: Vec<String>,
    /// Let replies take the time that they took
    #[arg(long = "timing")]
    keeps_time: bool,
}

impl ReplayArgs {
    /// The recording, as the control listener takes it.
    pub(super) fn wish(&self, source: &AttemptName, until: Option<u32>) -> Value {
        json!({
            "episode_id": source.id,
            "attempt": source.attempt.unwrap_or(0),
            "until": until,
            "mode": if self.is_loose { "loose" } else { "strict" },
            "ignore": self.ignore,
            "keeps_time": self.keeps_time,
        })
    }

    /// Starts a server for the command, unless one runs here. One of the command's own has the
    /// upstream of `--then`, or none.
    pub(super) async fn server(
        &self,
        run: &mut super::Args,
    ) -> Result<Option<RunningServer>, Failure> {
        if let Some(then) = &self.then {
            match PathBuf::from(then) {
                folder if folder.is_dir() => run.server.model = Some(folder),
                _ => run.server.upstream = Some(upstream(then).map_err(Failure::new)?),
            }
        }
        let has_backend = run.server.upstream.is_some() || run.server.model.is_some();
        let control = &run.server.control;
        let is_elsewhere = control != super::CONTROL || pointer::server_at(control).is_some();
        match !has_backend && is_elsewhere {
            true => Ok(None),
            false => start_own_server(run).await.map(Some),
        }
    }
}

/// Runs the command. It has failed if the recording did not answer a call.
pub(crate) async fn run(args: Args) -> CommandResult {
    let Args { source, until, how, run: mut args } = args;
    prepare(&args)?;
    let server = how.server(&mut args).await?;
    let wish = how.wish(&source, until);
    let ran = run_once(&args, server.as_ref(), Some(&wish)).await;
    if let Some(server) = server {
        server.stop(std::future::pending()).await?;
    }

    let ran = ran?;
    let is_whole = report(&ran);
    match ran.ended {
        Err(error) => Ok(not_run(&args, &error)),
        Ok(ended) if is_whole || !ended.success() => Ok(exit_code(ended)),
        Ok(_) => Ok(ExitCode::FAILURE),
    }
}

/// The calls that went to the upstream.
pub(super) fn live_calls(ran: &RanEpisode) -> u64 {
    let RanEpisode { replay, recorded, .. } = ran;
    number(recorded, "calls").saturating_sub(number(replay, "given") + number(recorded, "refused"))
}

/// Says how far a replay came. Returns true if the recording answered every call that it should.
pub(super) fn report(ran: &RanEpisode) -> bool {
    let RanEpisode { episode, replay, .. } = ran;
    let (given, calls, live) = (number(replay, "given"), number(replay, "calls"), live_calls(ran));
    let source = replay["source"].as_str().unwrap_or_default();
    terminal::remark(&format!(
        "{}/{}: {given} of {calls} calls of {source} given again, {live} live",
        episode.id, episode.attempt
    ));

    let Some(refused) = replay["refused"].as_str() else { return true };
    let _ = Failure::new(refused.to_owned()).report();
    false
}
