//! `rolltape episodes`: lists the episodes of a store.

use std::process::ExitCode;

use episode::{GroupId, TaskId};
use serde_json::{Value, json};
use store::{EpisodeSummary, Snapshot};

use crate::exit::CommandResult;
use crate::options::episodes::EpisodeFilter;
use crate::print;

/// List recorded episodes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: EpisodeFilter,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Prints the list.
pub(crate) async fn run(args: Args) -> CommandResult {
    let mut snapshot = Snapshot::open(&args.filter.store.location).await?;
    let summaries = snapshot.summaries(&args.filter.selection()).await?;
    if args.json {
        for summary in &summaries {
            print::line(&as_json(summary).to_string())?;
        }
    } else {
        let head =
            ["episode", "attempt", "group", "calls", "prompt", "sampled", "ids", "state", "reward"];
        print::table(&head, &summaries.iter().map(table_row).collect::<Vec<_>>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn state(summary: &EpisodeSummary) -> &str {
    match (&summary.episode.status, summary.episode.closed_at) {
        (Some(status), _) => status,
        (None, Some(_)) => "closed",
        (None, None) => "open",
    }
}

fn table_row(summary: &EpisodeSummary) -> Vec<String> {
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

fn as_json(summary: &EpisodeSummary) -> Value {
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
