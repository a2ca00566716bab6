//! `rolltape prune`: episodes out of a store, by plan.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use episode::{EpisodeId, Micros};
use serde_json::{Value, json};
use store::{Doomed, Kept, Prune, PruneError, PrunePlan, Pruned};

use crate::at::At;
use crate::exit::{Done, Failure};
use crate::print;
use crate::reward::now;

/// Remove episodes from a store and give the space back
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Args {
    /// Episodes of which nothing was heard for so long: 45m, 12h, 30d, 8w
    #[arg(long, value_name = "TIME", value_parser = micros, group = "what")]
    older_than: Option<Micros>,
    /// This episode
    #[arg(long, value_name = "ID", group = "what")]
    episode: Option<EpisodeId>,
    /// This run of the episode; all of them if not given
    #[arg(long, value_name = "N", requires = "episode")]
    attempt: Option<u32>,
    /// All but what exports hold: a folder of them, or one manifest; may be repeated
    #[arg(long, value_name = "PATH", group = "what")]
    keep_exported: Vec<PathBuf>,
    /// Say what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: At,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
}

/// A length of time in microseconds.
fn micros(text: &str) -> Result<Micros, String> {
    let wrong = || "not a time such as 45m, 12h, 30d or 8w".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds: Micros = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    Ok(Micros::from(number) * seconds * 1_000_000)
}

/// Prunes, or says what would be.
pub(crate) async fn run(args: Args) -> Done {
    let mut keep = BTreeSet::new();
    for path in &args.keep_exported {
        keep.extend(exporter::exported(path).map_err(|error| {
            Failure::of(&error).hint("--keep-exported takes what `rolltape export` wrote")
        })?);
    }
    let now = now();
    let silent_since = args.older_than.map(|time| now.saturating_sub(time));
    let named = args.episode.clone().filter(|_| silent_since.is_none() && keep.is_empty());
    let which = Prune { episode: args.episode, attempt: args.attempt, silent_since, keep, now };
    if args.dry_run {
        let plan = store::plan_prune(&args.at.store, &which).await?;
        tell_of_none(named.as_ref(), &plan);
        match args.json {
            true => print::line(&plan_as_json(&plan).to_string())?,
            false => plan_as_text(&plan, "would go")?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let pruned = store::prune(&args.at.store, &which).await.map_err(failure)?;
    tell_of_none(named.as_ref(), &pruned.plan);
    match args.json {
        true => print::line(&as_json(&pruned).to_string())?,
        false => as_text(&pruned)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// That nothing goes is no failure, but a name may have been meant otherwise.
fn tell_of_none(named: Option<&EpisodeId>, plan: &PrunePlan) {
    if let Some(episode) = named.filter(|_| plan.candidates.is_empty() && plan.kept.is_empty()) {
        eprintln!("there is no such run of an episode `{episode}`");
    }
}

fn failure(error: PruneError) -> Failure {
    use store::OpenError::{Missing, Newer, NotAStore};
    match error {
        PruneError::Open(error @ (Missing(_) | NotAStore(_) | Newer(..))) => return error.into(),
        PruneError::Read(error) => return error.into(),
        PruneError::Open(_) | PruneError::Database(_) => {}
    }
    Failure::of(&error)
        .hint("while `rolltape serve` records to it, stop that, prune, and start it again")
}

fn plan_as_text(plan: &PrunePlan, verb: &str) -> Result<(), Failure> {
    let row = |doomed: &Doomed| {
        let Doomed { episode, attempt, calls, bytes, .. } = doomed;
        vec![episode.clone(), attempt.to_string(), calls.to_string(), bytes.to_string()]
    };
    if !plan.candidates.is_empty() {
        let rows: Vec<_> = plan.candidates.iter().map(row).collect();
        print::table(&["episode", "attempt", "calls", "bytes"], &rows)?;
    }
    let (episodes, calls, bytes) = totals(plan);
    let episodes = print::count(episodes, "episode");
    print::line(&format!(
        "{verb}: {episodes}, {}, about {bytes} bytes",
        print::count(calls, "call")
    ))?;
    plan.kept.iter().try_for_each(|(kept, count)| {
        print::line(&format!("kept: {}, {}", print::count(*count, "episode"), why(*kept)))
    })
}

fn totals(plan: &PrunePlan) -> (u64, u64, u64) {
    let sum = |of: fn(&Doomed) -> u64| plan.candidates.iter().map(of).sum();
    (plan.candidates.len() as u64, sum(|doomed| doomed.calls), sum(|doomed| doomed.bytes))
}

fn why(kept: Kept) -> &'static str {
    match kept {
        Kept::Named => "exported",
        Kept::Open => "not closed, and heard of within the last hour",
        Kept::Needed => "needed by what is kept",
    }
}

fn as_text(pruned: &Pruned) -> Result<(), Failure> {
    plan_as_text(&pruned.plan, "gone")?;
    print::line(&format!(
        "the store has {} bytes; it had {}",
        pruned.bytes_after, pruned.bytes_before
    ))?;
    let withheld = pruned.withheld.as_ref();
    withheld.map_or(Ok(()), |why| print::line(&format!("space that was not given back: {why}")))
}

fn plan_as_json(plan: &PrunePlan) -> Value {
    let doomed = plan.candidates.iter().map(|doomed| {
        json!({ "episode_id": doomed.episode, "attempt": doomed.attempt, "calls": doomed.calls,
            "bytes": doomed.bytes })
    });
    let (episodes, calls, bytes) = totals(plan);
    let kept = |kept| plan.kept.get(&kept).copied().unwrap_or(0);
    json!({
        "episodes": episodes,
        "calls": calls,
        "bytes": bytes,
        "pruned": doomed.collect::<Vec<_>>(),
        "kept_exported": kept(Kept::Named),
        "kept_open": kept(Kept::Open),
        "kept_needed": kept(Kept::Needed),
    })
}

fn as_json(pruned: &Pruned) -> Value {
    let mut told = plan_as_json(&pruned.plan);
    told["file_bytes_before"] = json!(pruned.bytes_before);
    told["file_bytes_after"] = json!(pruned.bytes_after);
    told["withheld"] = json!(pruned.withheld);
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(micros("90s"), Ok(90_000_000));
        assert_eq!(micros("2d"), Ok(2 * 86_400_000_000));
        for wrong in ["", "d", "30", "-1d", "1.5h", "3y", "9999999999d", "1é"] {
            assert!(micros(wrong).is_err(), "{wrong}");
        }
    }
}
