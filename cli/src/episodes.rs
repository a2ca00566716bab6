//! `rolltape episodes`: what a store holds.

use std::process::ExitCode;

use episode::{EpisodeId, GroupId, TaskId};
use serde_json::{Value, json};
use store::{Selection, Snapshot, Summary};

use crate::at::At;
use crate::exit::Done;
use crate::print;

/// Which store, and which of its episodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    #[command(flatten)]
    pub(crate) at: At,
    /// Only this episode
    #[arg(long, value_name = "ID")]
    pub(crate) episode: Option<EpisodeId>,
    /// Only episodes of this group
    #[arg(long, value_name = "ID")]
    pub(crate) group: Option<GroupId>,
    /// Only episodes of this task
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<TaskId>,
}

impl Which {
    /// The selection for the store.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            episode: self.episode.clone(),
            group: self.group.clone(),
            task: self.task.clone(),
        }
    }
}

/// List recorded episodes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Lists.
pub(crate) async fn run(args: Args) -> Done {
    let mut snapshot = Snapshot::open(&args.which.at.store).await?;
    let summaries = snapshot.summaries(&args.which.selection()).await?;
    if args.json {
        for summary in &summaries {
            print::line(&as_json(summary).to_string())?;
        }
    } else {
        let head =
            ["episode", "attempt", "group", "calls", "prompt", "sampled", "ids", "state", "reward"];
        print::table(&head, &summaries.iter().map(row).collect::<Vec<_>>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn state(summary: &Summary) -> &str {
    match (&summary.episode.status, summary.episode.closed_at) {
        (Some(status), _) => status,
        (None, Some(_)) => "closed",
        (None, None) => "open",
    }
}

fn row(summary: &Summary) -> Vec<String> {
    let episode = &summary.episode;
    let ids = format!("{}/{}", summary.with_ids, summary.generations);
    vec![
        episode.id.to_string(),
        episode.attempt.to_string(),
        episode.group.as_ref().map_or_else(|| "-".to_owned(), GroupId::to_string),
        summary.calls.to_string(),
        summary.prompt_tokens.to_string(),
        summary.completion_tokens.to_string(),
        ids,
        state(summary).to_owned(),
        print::reward(summary.reward),
    ]
}

fn as_json(summary: &Summary) -> Value {
    let episode = &summary.episode;
    json!({
        "episode_id": episode.id.as_str(),
        "attempt": episode.attempt,
        "group_id": episode.group.as_ref().map(GroupId::as_str),
        "task_id": episode.task.as_ref().map(TaskId::as_str),
        "source": episode.source.as_str(),
        "state": state(summary),
        "calls": summary.calls,
        "generations": summary.generations,
        "with_ids": summary.with_ids,
        "incomplete": summary.incomplete,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "reward": summary.reward,
    })
}
