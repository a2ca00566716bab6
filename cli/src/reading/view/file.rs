//! The page of an episode or a group as one file.

use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use episode::AttemptId;
use tempfile::NamedTempFile;
use viewer::{FileContent, FileError, Viewer, attempts_of, write_page};

use super::Args;
use crate::exit::{CommandResult, Failure};
use crate::reading::named::Depth;
use crate::reading::source::{Source, failure};
use crate::terminal;
use crate::time::now;
use crate::version;

/// Longest page: a browser that opens a longer one takes many times as much memory.
const BYTES_MAX: u64 = 200_000_000;
/// The name of stdout.
const STDOUT: &str = "-";

/// Writes the page to `to`.
pub(super) async fn write(viewer: &Viewer, args: &Args, to: &Path) -> CommandResult {
    let attempts = match (&args.file.group, &args.episode) {
        (Some(group), _) => attempts_of(viewer, group).await.map_err(failure)?,
        (None, name) => {
            let tree = Source::Store(viewer.clone()).named(name.as_ref(), 0, Depth::Turns).await?;
            let episode = tree.episode.episode_id.parse().map_err(|e| Failure::of(&e))?;
            vec![AttemptId { episode, attempt: tree.episode.attempt }]
        }
    };
    let content = FileContent {
        attempts,
        group: args.file.group.clone(),
        has_bodies: args.file.bodies,
        version: version::text().to_owned(),
        written_at: now(),
        bytes_max: BYTES_MAX,
    };

    let to_stdout = to == Path::new(STDOUT);
    if to_stdout && terminal::is_terminal() {
        let why = "the page is not written to a terminal";
        return Err(Failure::new(why).hint("redirect stdout to a file, or name one with --html"));
    }
    let written = match to_stdout {
        true => write_page(viewer, &content, BufWriter::new(terminal::document())).await,
        false => write_file(viewer, &content, to).await,
    };
    match written {
        Ok(bytes) => remark(&content, to, bytes),
        // A reader of stdout that leaves has what it wanted.
        Err(FileError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => return Err(refused(error, to)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file, which gets its name when it is whole.
async fn write_file(viewer: &Viewer, content: &FileContent, to: &Path) -> Result<u64, FileError> {
    if to.symlink_metadata().is_ok() {
        return Err(io::Error::from(ErrorKind::AlreadyExists).into());
    }
    let folder = match to.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let file = tempfile::Builder::new().prefix(".page-").suffix(".tmp").tempfile_in(folder)?;

    let bytes = write_page(viewer, content, BufWriter::new(file.as_file())).await?;
    keep(file, to)?;
    Ok(bytes)
}

fn keep(file: NamedTempFile, to: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist_noclobber(to).map(drop).map_err(|error| error.error)
}

/// Says what was written, and what of it is to be known before it is sent to somebody.
fn remark(content: &FileContent, to: &Path, bytes: u64) {
    let calls = match content.has_bodies {
        true => "with the bytes of every request and reply",
        false => "without the bytes of requests and replies (--bodies)",
    };
    terminal::remark(&format!(
        "{}: {:.1} MB; it holds everything that was said, {calls}. A browser opens it without a \
         server, and it asks no network",
        to.display(),
        bytes as f64 / 1e6
    ));
}

fn refused(error: FileError, to: &Path) -> Failure {
    match error {
        FileError::View(why) => failure(why),
        FileError::TooLong(_) => Failure::of(&error).hint(
            "leave out --bodies or name one attempt; `rolltape backup --episode ID --to FILE` \
             writes a recording of that episode, which `rolltape view --store FILE` shows",
        ),
        FileError::Io(why) if why.kind() == ErrorKind::AlreadyExists => {
            Failure::new(format!("`{}` exists already", to.display()))
                .hint("a file is never overwritten; give another --html")
        }
        FileError::Io(why) => {
            Failure::of(&why).context(&format!("cannot write `{}`", to.display()))
        }
    }
}
