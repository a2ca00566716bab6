//! Secrets are taken out of the store itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use store::{AttemptReplacer, Location, OpenError, ReplaceError, Snapshot};

use super::{Args, CopiedAttempts, redact, tell};
use crate::exit::{CommandResult, Failure};
use crate::options::store::text_index;
use crate::terminal;

/// The name of the store with what takes the place of attempts, in a temporary folder.
const NAME: &str = "new.db";

/// Takes the secrets out of the selected attempts of the store.
pub(super) async fn run(args: Args) -> CommandResult {
    let location = &args.filter.store.location;
    let Location::File(path) = location else {
        return Err(Failure::new("--in-place changes a store that is a file").hint(
            "copy a database with --to; its server keeps old rows, logs and backups of its own",
        ));
    };
    let replacement = AttemptReplacer::begin(path).await.map_err(failure)?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = tempfile::Builder::new().prefix(".redact-").tempdir_in(parent)?;
    let new = folder.path().join(NAME);

    let mut snapshot = Snapshot::open_here(location).await?;
    let selection = args.filter.selection();
    let work = redact(&mut snapshot, &selection, &args.how, (&new, CopiedAttempts::Changed));
    let mut report = terminal::waiting("looking for secrets", work).await?;
    // A reader would keep what was there.
    drop(snapshot);

    let replaced = match report.changed_episodes {
        0 => replacement.rewrite().await,
        _ => replacement.replace(&new).await,
    };
    let is_held = replaced.map_err(failure)?.is_held;
    text_index(location).iter().try_for_each(|index| forget(index))?;
    report.bytes = std::fs::metadata(path)?.len();
    tell(path, &report, args.json)?;
    match is_held {
        false => Ok(ExitCode::SUCCESS),
        true => Err(Failure::new("a reader keeps pages of before beside the store")
            .hint("end what reads it (`view`, `show`, an export), and run this again")),
    }
}

/// Removes an index of texts, which holds what was said.
fn forget(index: &Path) -> Result<(), Failure> {
    for ending in ["", "-wal", "-shm"] {
        let file = PathBuf::from(format!("{}{ending}", index.display()));
        if file.exists() {
            std::fs::remove_file(&file).map_err(|e| {
                Failure::of(&e).context(&format!("cannot remove `{}`", file.display()))
            })?;
        }
    }
    Ok(())
}

fn failure(error: ReplaceError) -> Failure {
    match error {
        ReplaceError::Open(OpenError::InUse(..)) => Failure::of(&error)
            .hint("stop the server, redact, and start it again; it holds in memory what was said"),
        ReplaceError::Open(error) => error.into(),
        ReplaceError::Read(error) => error.into(),
        ReplaceError::Sealed(_) => Failure::of(&error).hint(
            "copy the episode with --to, and remove it here: `rolltape prune` takes it out of the \
             store and its segments",
        ),
        ReplaceError::Changed => Failure::of(&error).hint("nothing was changed; run it again"),
        ReplaceError::Needed(_) => {
            Failure::of(&error).hint("nothing was changed; redact that one as well")
        }
        other => Failure::of(&other),
    }
}
