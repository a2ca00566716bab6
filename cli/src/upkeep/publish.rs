//! `rolltape publish`: a folder for a dataset hub, without secrets.

mod card;
mod sessions;

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use exporter::{Options, Report};
use serde_json::json;
use store::{Selection, Snapshot};

use self::card::Card;
use crate::exit::{CommandResult, Failure};
use crate::export;
use crate::options::episodes::SelectionArgs;
use crate::print;
use crate::terminal;
use crate::upkeep::redact::{CopiedAttempts, RedactArgs, Redacted, redact};
use crate::upkeep::secrets::SecretFinder;

/// The folder of sessions in the one that is published.
const SESSIONS: &str = "sessions";

/// Write a folder for a dataset hub: rows, sessions and a card, without secrets
///
/// The rows are those of `rolltape export`, from a copy that `rolltape redact` makes. Each episode
/// is also a session, as agent-trace viewers read it. Nothing is uploaded; the folder is yours
/// alone until you do.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Folder to write; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// License of the data, as the hub writes it, such as cc-by-4.0
    #[arg(long, value_name = "NAME")]
    license: Option<String>,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: RedactArgs,
    #[command(flatten)]
    filter: SelectionArgs,
}

/// Publishes into a folder.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    refuse_existing(&args.out)?;
    let parent = match args.out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let cannot = |e| Failure::of(&e).context(&format!("cannot write `{}`", args.out.display()));
    let staging =
        tempfile::Builder::new().prefix(".publish-").tempdir_in(parent).map_err(cannot)?;
    let folder = staging.path().join("dataset");
    DirBuilder::new().mode(0o700).create(&folder)?;

    let mut snapshot = Snapshot::open_here(args.filter.store.read_from().await?).await?;
    let clean = staging.path().join("clean.db");
    let selection = args.filter.selection();
    let work = redact(&mut snapshot, &selection, &args.how, (&clean, CopiedAttempts::All));
    let redacted = terminal::waiting("looking for secrets", work).await?;
    let report = written(&clean, &folder, args.license, &redacted).await?;
    check(&folder)?;

    // An empty folder may be replaced, and nothing else.
    std::fs::rename(&folder, &args.out).map_err(cannot)?;
    print_report(&args.out, args.json, &report, &redacted)
}

fn refuse_existing(out: &Path) -> Result<(), Failure> {
    match std::fs::read_dir(out).map(|entries| entries.count()) {
        Ok(0) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(Failure::new(format!("`{}` exists already", out.display()))
            .hint("a published folder is never overwritten; give another --out")),
    }
}

/// Writes rows, sessions and the card of a store into a folder.
async fn written(
    store: &Path,
    folder: &Path,
    license: Option<String>,
    redacted: &Redacted,
) -> Result<Report, Failure> {
    let options = Options { out: folder.to_owned().into(), ..Options::default() };
    let snapshot = Snapshot::open_here(store).await?;
    let exported = exporter::export(snapshot, &options).await;
    let report = exported.map_err(|error| export::failure(&error))?;

    let sessions = folder.join(SESSIONS);
    DirBuilder::new().mode(0o700).create(&sessions)?;
    let mut snapshot = Snapshot::open_here(store).await?;
    for attempt in snapshot.episodes(&Selection::default()).await? {
        if let Some(session) = sessions::session(&mut snapshot, &attempt).await? {
            let name = format!("{}-{}.jsonl", attempt.id, attempt.attempt);
            write(&sessions.join(name), &session)?;
        }
    }

    let card = Card { license, report: &report, redacted };
    write(&folder.join("README.md"), &card.text())?;
    card::add_sessions(folder)?;
    Ok(report)
}

/// Writes a file that only its owner may read.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, Permissions::from_mode(0o600))?)
}

/// Looks for secrets in the texts of the folder once more.
fn check(folder: &Path) -> Result<(), Failure> {
    let finder = SecretFinder::usual()?;
    for entry in std::fs::read_dir(folder.join(SESSIONS))? {
        let path = entry?.path();
        if !finder.find(&std::fs::read(&path)?).is_empty() {
            let name = path.file_name().unwrap_or_default().display().to_string();
            return Err(Failure::new(format!("a secret is left in session `{name}`"))
                .hint("nothing is written; `rolltape scan` tells which"));
        }
    }
    Ok(())
}

fn print_report(out: &Path, as_json: bool, report: &Report, redacted: &Redacted) -> CommandResult {
    let name = out.file_name().unwrap_or_default().display();
    let upload = format!("hf upload --repo-type dataset --private YOU/{name} {}", out.display());
    if as_json {
        let document = json!({
            "folder": out.display().to_string(),
            "rows": report.rows,
            "episodes": redacted.episodes,
            "changed_episodes": redacted.changed_episodes,
            "secrets": redacted.secrets,
            "upload": upload,
        });
        print::line(&document.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }

    print::line(&format!(
        "{}: {} from {}, {} of them redacted",
        out.display(),
        print::count(report.rows, "row"),
        print::count(redacted.episodes, "episode"),
        redacted.changed_episodes
    ))?;
    for (kind, count) in &redacted.secrets {
        print::line(&format!("  {count} x {kind}"))?;
    }
    terminal::remark(
        "rules find forms of secrets, not names or code that is private: read it first",
    );
    terminal::remark(&format!("to upload it: {upload}"));
    Ok(ExitCode::SUCCESS)
}
