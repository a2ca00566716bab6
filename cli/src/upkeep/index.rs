//! `rolltape index`: makes the index of texts that searches use.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use store::{Snapshot, TextIndex};

use crate::exit::{CommandResult, Failure};
use crate::options::secret_file;
use crate::options::store::{StoreArgs, text_index};
use crate::print;
use crate::terminal;

/// Index what was said, so that searches of the page read only what holds the text
///
/// The index is a file beside the store; for a database it is in your folder of states. Searches
/// use it once it is there, and add what is new. Remove the file to search without it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

/// Indexes all that is not.
pub(crate) async fn run(args: Args) -> CommandResult {
    let store = args.store.location;
    let mut snapshot = Snapshot::open_here(&store).await?;
    let path = text_index(&store).ok_or_else(|| {
        Failure::new("there is no folder for the index").hint("set HOME or XDG_STATE_HOME")
    })?;
    secret_file::create_folder_of(&path, &store)?;
    let index = TextIndex::create(&path)
        .map_err(|e| Failure::of(&e).context(&format!("cannot write `{}`", path.display())))?;

    let bar =
        if terminal::messages_are_read() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("indexing {bar:32} {pos}/{len} attempts {elapsed}");
    bar.set_style(style.map_err(|e| Failure::of(&e))?);
    let step = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let indexed = viewer::index_texts(&mut snapshot, &index, step).await;
    bar.finish_and_clear();

    let new = print::count(indexed.map_err(|e| Failure::of(&e))?, "new attempt");
    print::line(&format!("{}: {new}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}
