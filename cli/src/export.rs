//! `rolltape export`: a store to training data.

use std::path::PathBuf;
use std::process::ExitCode;

use exporter::{ExportError, Options, Report};
use serde_json::json;
use store::Snapshot;

use crate::episodes::Which;
use crate::exit::{Done, Failure};
use crate::print;

/// Export episodes as Parquet that trainers read
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// A folder, or a file whose name ends in .parquet
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Replace files that rolltape did not write
    #[arg(long)]
    overwrite: bool,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Exports.
pub(crate) async fn run(args: Args) -> Done {
    let mut snapshot = Snapshot::open(&args.which.at.store).await?;
    let options =
        Options { out: args.out, selection: args.which.selection(), overwrite: args.overwrite };
    let report = exporter::export(&mut snapshot, &options).await.map_err(|e| failure(&e))?;
    if args.json {
        as_json(&report)?
    } else {
        as_text(&report)?
    }
    Ok(ExitCode::SUCCESS)
}

/// What went wrong, with the way out.
pub(crate) fn failure(error: &ExportError) -> Failure {
    let failure = Failure::of(error);
    match error {
        ExportError::Empty { .. } => failure.hint(
            "`rolltape episodes` lists what the store holds; check --store, --episode, --group \
             and --task",
        ),
        ExportError::Write(exporter::WriteError::Foreign { .. }) => {
            failure.hint("give another --out, or --overwrite to replace it")
        }
        _ => failure,
    }
}

fn as_text(report: &Report) -> Result<(), Failure> {
    print::line(&format!(
        "{} from {}, {} tokens of which {} train",
        print::count(report.rows, "row"),
        print::count(report.episodes, "episode"),
        report.tokens,
        report.trained_tokens
    ))?;
    for (reason, count) in &report.notes.reasons {
        print::line(&format!("  {count} x {}", reason.as_str()))?;
    }
    report.files.iter().try_for_each(|file| print::line(&file.display().to_string()))
}

fn as_json(report: &Report) -> Result<(), Failure> {
    let reasons: serde_json::Map<_, _> =
        report.notes.reasons.iter().map(|(r, n)| (r.as_str().to_owned(), json!(n))).collect();
    let body = json!({
        "rows": report.rows,
        "episodes": report.episodes,
        "tokens": report.tokens,
        "trained_tokens": report.trained_tokens,
        "reasons": reasons,
        "files": report.files,
    });
    print::line(&body.to_string())
}
