//! `rolltape backup`: copies a store that may be in use.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use store::BackupError;

use crate::exit::{CommandResult, Failure};
use crate::options::store::StoreArgs;
use crate::print;

/// Copy a store while it is in use
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Copies the store.
pub(crate) async fn run(args: Args) -> CommandResult {
    let bytes = store::backup(&args.store.location, &args.to).await.map_err(failure)?;
    let to = args.to.display().to_string();
    match args.json {
        true => print::line(&json!({ "file": to, "bytes": bytes }).to_string())?,
        false => print::line(&format!("{to}: {bytes} bytes"))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(error: BackupError) -> Failure {
    match error {
        BackupError::Open(error) => error.into(),
        BackupError::Server(_) => Failure::of(&error).hint(
            "copy it with `pg_dump --schema=rolltape`, which works while it is in use; check the \
             restored copy with `rolltape verify`",
        ),
        BackupError::Exists(_) => {
            Failure::of(&error).hint("a backup never overwrites a file; give another --to")
        }
        other => Failure::of(&other),
    }
}
