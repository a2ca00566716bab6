//! `rolltape close`: closes an episode to further calls.

use std::process::ExitCode;

use clap::ValueEnum;
use episode::{AttemptId, EpisodeId};
use store::StoreEditor;

use crate::exit::CommandResult;
use crate::options::store::StoreArgs;
use crate::time::now;

/// Close an episode: later calls are answered 409
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Closing")]
pub(crate) struct Args {
    /// The episode
    #[arg(help_heading = None::<&str>)]
    episode: EpisodeId,
    /// Attempt of the episode
    #[arg(long, value_name = "N", default_value_t = 0)]
    attempt: u32,
    /// End of the run
    ///
    /// [default: exports derive it from the calls]
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<Status>,
    #[command(flatten)]
    store: StoreArgs,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    Completed,
    Truncated,
    Aborted,
    Failed,
}

impl Status {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Closes the episode.
pub(crate) async fn run(args: Args) -> CommandResult {
    let store = StoreEditor::open(&args.store.location).await?;
    let status = args.status.map(Status::name);
    store.close(AttemptId { episode: args.episode, attempt: args.attempt }, now(), status).await?;
    Ok(ExitCode::SUCCESS)
}
