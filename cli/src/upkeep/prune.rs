//! `rolltape prune`: removes episodes from a store.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use episode::{AttemptId, EpisodeId, Micros};
use serde_json::{Value, json};
use store::{
    KeepReason, PruneCandidate, PruneError, PruneFilter, PrunePlan, PruneReport, Snapshot,
};

use crate::exit::{CommandResult, Failure};
use crate::options::store::StoreArgs;
use crate::print;
use crate::terminal;
use crate::time::{duration, now};

/// Remove episodes from a store and free their space
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Episodes to remove")]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Args {
    /// Remove episodes that were silent for this long
    ///
    /// Such as 45m, 12h, 30d or 8w. An episode is silent without calls, rewards and closing.
    #[arg(long, value_name = "TIME", value_parser = duration, group = "what")]
    older_than: Option<Micros>,
    /// Remove this episode
    #[arg(long, value_name = "ID", group = "what")]
    episode: Option<EpisodeId>,
    /// Remove only this attempt of --episode [default: all]
    #[arg(long, value_name = "N", requires = "episode")]
    attempt: Option<u32>,
    /// Remove all episodes but those exported; repeatable
    ///
    /// A folder of exports, or one manifest.
    #[arg(long, value_name = "PATH", group = "what")]
    keep_exported: Vec<PathBuf>,
    /// Print what would be removed, and change nothing
    #[arg(long, help_heading = "Output")]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Prunes the store, or prints the plan.
pub(crate) async fn run(args: Args) -> CommandResult {
    let mut keep = BTreeSet::new();
    for path in &args.keep_exported {
        let mut snapshot = Snapshot::open_here(&args.store.location).await?;
        let exported = exporter::exported_attempts(path, &mut snapshot).await;
        keep.extend(exported.map_err(|error| {
            Failure::of(&error).hint("--keep-exported takes what `rolltape export` wrote")
        })?);
    }

    let now = now();
    let silent_since = args.older_than.map(|age| now.saturating_sub(age));
    // With other filters an empty plan is usual and says nothing about the name.
    let only_named = silent_since.is_none() && keep.is_empty();
    let named = args.episode.clone().filter(|_| only_named);
    let request =
        PruneFilter { episode: args.episode, attempt: args.attempt, silent_since, keep, now };

    if args.dry_run {
        // A plan takes no lock, so it works while `serve` records.
        let plan = store::plan_prune(&args.store.location, &request).await?;
        warn_if_unknown(named.as_ref(), &plan);
        match args.json {
            true => print::line(&plan_json(&plan).to_string())?,
            false => print_plan(&plan, "would go")?,
        }
        return Ok(ExitCode::SUCCESS);
    }

    let pruned = store::prune(&args.store.location, &request).await.map_err(failure)?;
    warn_if_unknown(named.as_ref(), &pruned.plan);
    match args.json {
        true => print::line(&pruned_json(&pruned).to_string())?,
        false => print_pruned(&pruned)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns if the named episode does not exist. That is not a failure, but the name may be wrong.
fn warn_if_unknown(named: Option<&EpisodeId>, plan: &PrunePlan) {
    if let Some(episode) = named.filter(|_| plan.candidates.is_empty() && plan.kept.is_empty()) {
        terminal::message(&format!("the store holds no such attempt of the episode `{episode}`"));
    }
}

fn failure(error: PruneError) -> Failure {
    use store::OpenError::{Database, InUse, OlderWriter};

    match error {
        error if error.is_full() => Failure::of(&error).hint(
            "deleting writes before it frees: make 100 MiB free and prune again; or \
             `rolltape backup --to` another disk, prune the copy there, and move it back",
        ),
        PruneError::Read(error) => error.into(),
        PruneError::Open(error) if !matches!(error, InUse(..) | OlderWriter(_) | Database(..)) => {
            error.into()
        }
        PruneError::Open(_) | PruneError::Database(_) => Failure::of(&error)
            .hint("if `rolltape serve` records to it, stop that, prune, and start it again"),
    }
}

fn print_plan(plan: &PrunePlan, verb: &str) -> Result<(), Failure> {
    if !plan.candidates.is_empty() {
        let rows: Vec<_> = plan.candidates.iter().map(table_row).collect();
        print::table(&["episode", "attempt", "calls", "bytes"], &rows)?;
    }

    let totals = PruneTotals::of(plan);
    print::line(&format!(
        "{verb}: {}, {}, about {} bytes",
        print::count(totals.episodes, "episode"),
        print::count(totals.calls, "call"),
        totals.bytes
    ))?;

    plan.kept.iter().try_for_each(|(kept, count)| {
        print::line(&format!("kept: {}, {}", print::count(*count, "episode"), reason(*kept)))
    })
}

fn table_row(doomed: &PruneCandidate) -> Vec<String> {
    let PruneCandidate { attempt: AttemptId { episode, attempt }, calls, bytes, .. } = doomed;
    vec![episode.to_string(), attempt.to_string(), calls.to_string(), bytes.to_string()]
}

/// Sums over the episodes to be removed.
struct PruneTotals {
    episodes: u64,
    calls: u64,
    bytes: u64,
}

impl PruneTotals {
    fn of(plan: &PrunePlan) -> Self {
        Self {
            episodes: plan.candidates.len() as u64,
            calls: plan.candidates.iter().map(|doomed| doomed.calls).sum(),
            bytes: plan.candidates.iter().map(|doomed| doomed.bytes).sum(),
        }
    }
}

fn reason(kept: KeepReason) -> &'static str {
    match kept {
        KeepReason::Named => "exported",
        KeepReason::Open => "not closed, and active within the last hour",
        KeepReason::Needed => "needed by other episodes that are kept",
    }
}

fn print_pruned(pruned: &PruneReport) -> Result<(), Failure> {
    print_plan(&pruned.plan, "gone")?;
    print::line(&format!(
        "the store has {} bytes; it had {}",
        pruned.bytes_after, pruned.bytes_before
    ))?;

    match &pruned.withheld {
        Some(why) => print::line(&format!("space that was not given back: {why}")),
        None => Ok(()),
    }
}

fn plan_json(plan: &PrunePlan) -> Value {
    let doomed = plan.candidates.iter().map(|doomed| {
        json!({
            "episode_id": doomed.attempt.episode.as_str(),
            "attempt": doomed.attempt.attempt,
            "calls": doomed.calls,
            "bytes": doomed.bytes,
        })
    });
    let totals = PruneTotals::of(plan);

    json!({
        "episodes": totals.episodes,
        "calls": totals.calls,
        "bytes": totals.bytes,
        "pruned": doomed.collect::<Vec<_>>(),
        "kept_exported": plan.kept.get(&KeepReason::Named).unwrap_or(&0),
        "kept_open": plan.kept.get(&KeepReason::Open).unwrap_or(&0),
        "kept_needed": plan.kept.get(&KeepReason::Needed).unwrap_or(&0),
    })
}

fn pruned_json(pruned: &PruneReport) -> Value {
    let mut object = plan_json(&pruned.plan);
    object["file_bytes_before"] = json!(pruned.bytes_before);
    object["file_bytes_after"] = json!(pruned.bytes_after);
    object["withheld"] = json!(pruned.withheld);
    object
}
