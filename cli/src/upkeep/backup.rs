//! `rolltape backup`: copies a store that may be in use, or some of its episodes.

use std::path::PathBuf;
use std::process::ExitCode;

use episode::{EpisodeId, GroupId, InvalidId};
use serde_json::json;
use store::{BackupError, ExtractFilter};

use crate::exit::{CommandResult, Failure};
use crate::options::parse::{AttemptName, attempt_name};
use crate::options::store::StoreArgs;
use crate::print;

/// Copy a store, or some of its episodes, while it is in use
///
/// With --episode or --group the copy is a store with these alone, complete: every command reads
/// it. API keys, the key that signs them and what the feed has handed out are left out.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Copy this episode, all its attempts or one; repeatable
    #[arg(long, value_name = "ID[/ATTEMPT]", value_parser = attempt_name)]
    #[arg(help_heading = "Episodes to copy")]
    episode: Vec<AttemptName>,
    /// Copy the episodes of this group; repeatable
    #[arg(long, value_name = "ID", help_heading = "Episodes to copy")]
    group: Vec<GroupId>,
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Copies the store, or a part of it.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let to = args.to.display().to_string();
    let (text, object) = if args.episode.is_empty() && args.group.is_empty() {
        let bytes = store::backup(&args.store.location, &args.to).await.map_err(failure)?;
        (format!("{to}: {bytes} bytes"), json!({ "file": to, "bytes": bytes }))
    } else {
        let which = ExtractFilter { episodes: episodes(&args.episode)?, groups: args.group };
        let report = store::extract(args.store.read_from().await?, &which, &args.to)
            .await
            .map_err(failure)?;
        let counts = [(report.attempts, "attempt"), (report.calls, "call"), (report.bytes, "byte")];
        let counts = counts.map(|(number, noun)| print::count(number, noun)).join(", ");
        let object = json!({
            "file": to,
            "bytes": report.bytes,
            "attempts": report.attempts,
            "calls": report.calls,
        });
        (format!("{to}: {counts}"), object)
    };

    match args.json {
        true => print::line(&object.to_string())?,
        false => print::line(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn episodes(names: &[AttemptName]) -> Result<Vec<(EpisodeId, Option<u32>)>, Failure> {
    let mut episodes = Vec::new();
    for name in names {
        let id = name.id.parse().map_err(|error: InvalidId| Failure::of(&error))?;
        episodes.push((id, name.attempt));
    }
    Ok(episodes)
}

fn failure(error: BackupError) -> Failure {
    match error {
        BackupError::Open(error) => error.into(),
        BackupError::Server(_) => Failure::of(&error).hint(
            "copy it with `pg_dump --schema=rolltape`, which works while it is in use; check the \
             restored copy with `rolltape verify`. --episode and --group copy a part of it to a \
             file",
        ),
        BackupError::Exists(_) => {
            Failure::of(&error).hint("a backup never overwrites a file; give another --to")
        }
        BackupError::Missing(_) => {
            Failure::of(&error).hint("`rolltape episodes` lists the episodes, with their groups")
        }
        BackupError::Needed(_) => {
            Failure::of(&error).hint("copy the whole store: leave out --episode and --group")
        }
        other => Failure::of(&other),
    }
}
