//! `rolltape show`: draws an episode as a tree of turns.

mod call;
mod messages;
mod tree;
mod versions;

use std::process::ExitCode;

use episode::{CallId, EpisodeId};
use store::{EpisodeSummary, Selection, Snapshot};

use self::tree::TurnTree;
use self::versions::VersionTable;
use crate::exit::{CommandResult, Failure};
use crate::options::parse;
use crate::options::store::StoreArgs;
use crate::print;

/// Draw an episode as a tree of turns
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The episode
    episode: EpisodeId,
    /// Attempt of the episode [default: the newest]
    #[arg(long)]
    attempt: Option<u32>,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object per turn
    #[arg(long)]
    json: bool,
    /// Print this call of the episode in full, as one JSON object
    #[arg(long, value_name = "CALL", value_parser = parse::call_id)]
    call: Option<CallId>,
}

/// Prints the tree, its turns as JSON, or one call.
pub(crate) async fn run(args: Args) -> CommandResult {
    let mut snapshot = Snapshot::open(&args.store.location).await?;
    let filter = Selection { episode: Some(args.episode.clone()), ..Selection::default() };
    let attempts = snapshot.summaries(&filter).await?;
    // Attempts are in order: the last one that fits is the newest.
    let Some(summary) = attempts
        .iter()
        .rfind(|summary| args.attempt.is_none_or(|attempt| summary.episode.attempt == attempt))
    else {
        return Err(Failure::new(format!("no episode `{}` in the store", args.episode))
            .hint("`rolltape episodes` lists the episodes of the store"));
    };
    if let Some(call_id) = args.call {
        return call::run(&mut snapshot, &args.episode, call_id).await;
    }

    let versions = VersionTable(snapshot.versions().await?);
    let calls = snapshot.calls(&summary.episode).await?;
    let (links, _) = exporter::choice_links(&calls);
    let tree = TurnTree::new(&calls, &links);

    if args.json {
        for link in &links {
            print::line(&tree.turn_json(link, &versions).to_string())?;
        }
    } else {
        print::line(&heading(summary))?;
        tree.draw()?;
        versions.lines(&calls).iter().try_for_each(|line| print::line(line))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn heading(summary: &EpisodeSummary) -> String {
    let episode = &summary.episode;
    let mut parts = vec![format!("{} attempt {}", episode.id, episode.attempt)];
    parts.extend(episode.group.as_ref().map(|group| format!("group {group}")));
    parts.extend(episode.task.as_ref().map(|task| format!("task {task}")));
    parts.push(print::count(summary.calls, "call"));
    parts.push(format!("{} sampled tokens", summary.completion_tokens));
    parts.push(format!("reward {}", print::reward(summary.reward)));
    parts.join(" | ")
}
