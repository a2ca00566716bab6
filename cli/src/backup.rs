//! `rolltape backup`: a whole copy of a store, while it is written to.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use store::BackupError;

use crate::at::At;
use crate::exit::{Done, Failure};
use crate::print;

/// Copy a store while it is in use
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The copy to write; nothing may be there yet
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    at: At,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Copies.
pub(crate) async fn run(args: Args) -> Done {
    let bytes = store::backup(&args.at.store, &args.to).await.map_err(failure)?;
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
            "`pg_dump --schema=rolltape` copies it while it is in use; `rolltape verify` checks \
             the copy once it is restored",
        ),
        BackupError::Exists(_) => {
            Failure::of(&error).hint("a backup replaces nothing; give another --to")
        }
        other => Failure::of(&other),
    }
}
