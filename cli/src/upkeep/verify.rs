//! `rolltape verify`: checks a store and lists what is broken.

use std::process::ExitCode;

use serde_json::{Value, json};
use store::{RecordRef, VerifyReport};

use crate::exit::{CommandResult, Failure};
use crate::options::store::StoreArgs;
use crate::print;

/// Check every hash, chain and count of a store, and list what is broken
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Checks the store.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let report = store::verify(args.store.read_from().await?).await?;
    if args.json {
        print::line(&as_json(&report).to_string())?;
    } else {
        as_text(&report)?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(report: &VerifyReport) -> Result<(), Failure> {
    print::line(&format!(
        "checked {}, {}: {}, {}, {}, {}",
        print::count(report.episodes, "episode"),
        print::count(report.calls, "call"),
        counted(report.bodies, "body", "bodies"),
        print::count(report.prompts, "prompt"),
        print::count(report.choices, "choice"),
        print::count(report.segments, "segment"),
    ))?;

    report.holes.iter().try_for_each(|hole| {
        print::line(&format!("hole: {hole} has no end: it still runs, or the recorder died"))
    })?;
    print_rest(report.holes_found, report.holes.len(), "hole")?;

    if report.removed > 0 {
        print::line(&format!(
            "removed from segments: {}",
            print::count(report.removed, "episode")
        ))?;
    }
    for place in &report.removed_here {
        print::line(&format!("removed: {place}, of which the store still has a line"))?;
    }
    report.damage.iter().try_for_each(|damage| print::line(&format!("broken: {damage}")))?;
    print_rest(report.damage_found, report.damage.len(), "more that is broken")?;
    match report.damage_found {
        0 => print::line("nothing is broken"),
        found => print::line(&format!("{} broken", counted(found, "thing is", "things are"))),
    }
}

fn print_rest(found: u64, named: usize, what: &str) -> Result<(), Failure> {
    match found.saturating_sub(named as u64) {
        0 => Ok(()),
        rest => print::line(&format!("and {rest} x {what}, not listed here")),
    }
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The episode and the call that a finding is about.
fn location_json(place: &RecordRef) -> Value {
    let (id, attempt) = place.episode.clone().unzip();
    json!({ "episode_id": id, "attempt": attempt, "call_id": place.call })
}

fn as_json(report: &VerifyReport) -> Value {
    let damage = report.damage.iter().map(|damage| {
        let mut object = location_json(&damage.place);
        object["what"] = json!(damage.what);
        object
    });

    json!({
        "clean": report.is_clean(),
        "episodes": report.episodes,
        "calls": report.calls,
        "bodies": report.bodies,
        "prompts": report.prompts,
        "choices": report.choices,
        "segments": report.segments,
        "holes_found": report.holes_found,
        "holes": report.holes.iter().map(location_json).collect::<Vec<_>>(),
        "removed": report.removed,
        "removed_here": report.removed_here.iter().map(location_json).collect::<Vec<_>>(),
        "damage_found": report.damage_found,
        "damage": damage.collect::<Vec<_>>(),
    })
}
