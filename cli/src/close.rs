//! `rolltape close`: an episode takes no more calls.

use std::process::ExitCode;

use clap::ValueEnum;
use episode::EpisodeId;
use store::Amend;

use crate::at::At;
use crate::exit::Done;
use crate::reward::{now, unknown};

/// Close an episode: later calls are answered 409
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The episode
    episode: EpisodeId,
    /// Which run of the episode
    #[arg(long, default_value_t = 0)]
    attempt: u32,
    /// How the run ended; read off its calls when not given
    #[arg(long, value_enum)]
    status: Option<Status>,
    #[command(flatten)]
    at: At,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    Completed,
    Truncated,
    Aborted,
    Failed,
}

impl Status {
    fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Closes.
pub(crate) async fn run(args: Args) -> Done {
    let store = Amend::open(&args.at.store).await?;
    let status = args.status.map(Status::word);
    let done = store.close((args.episode, args.attempt), now(), status).await;
    done.map_err(|e| unknown(&e))?;
    Ok(ExitCode::SUCCESS)
}
