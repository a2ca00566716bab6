//! The store, and a selection of its episodes.

use episode::{EpisodeId, GroupId, TaskId};
use store::Selection;

use super::store::StoreArgs;

/// A store and filters on its episodes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Episodes")]
pub(crate) struct SelectionArgs {
    /// Only this episode
    #[arg(long, value_name = "ID")]
    episode: Option<EpisodeId>,
    /// Only episodes of this group
    #[arg(long, value_name = "ID")]
    group: Option<GroupId>,
    /// Only episodes of this task
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

impl SelectionArgs {
    /// The same filters as the store takes them.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            episode: self.episode.clone(),
            group: self.group.clone(),
            task: self.task.clone(),
        }
    }
}
