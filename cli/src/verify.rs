//! `rolltape verify`: whether a store is whole, and what is broken where it is not.

use std::process::ExitCode;

use serde_json::{Value, json};
use store::{Place, Verified};

use crate::at::At;
use crate::exit::{Done, Failure};
use crate::print;

/// Check every hash, chain and count of a store, and name what is broken
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    at: At,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Checks.
pub(crate) async fn run(args: Args) -> Done {
    let report = store::verify(&args.at.store).await?;
    if args.json {
        print::line(&as_json(&report).to_string())?;
    } else {
        as_text(&report)?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(report: &Verified) -> Result<(), Failure> {
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
        print::line(&format!("hole: {hole} has no end: it runs still, or the recorder died"))
    })?;
    more(report.holes_found, report.holes.len(), "hole")?;
    report.damage.iter().try_for_each(|damage| print::line(&format!("broken: {damage}")))?;
    more(report.damage_found, report.damage.len(), "more that is broken")?;
    match report.damage_found {
        0 => print::line("nothing is broken"),
        found => print::line(&format!("{} broken", counted(found, "thing is", "things are"))),
    }
}

fn more(found: u64, named: usize, what: &str) -> Result<(), Failure> {
    match found.saturating_sub(named as u64) {
        0 => Ok(()),
        more => print::line(&format!("and {more} x {what}, not named here")),
    }
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn as_json(report: &Verified) -> Value {
    let place = |place: &Place| {
        let (id, attempt) = place.episode.clone().unzip();
        json!({ "episode_id": id, "attempt": attempt, "call_id": place.call })
    };
    let damage = report.damage.iter().map(|damage| {
        let mut told = place(&damage.place);
        told["what"] = json!(damage.what);
        told
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
        "holes": report.holes.iter().map(place).collect::<Vec<_>>(),
        "damage_found": report.damage_found,
        "damage": damage.collect::<Vec<_>>(),
    })
}
