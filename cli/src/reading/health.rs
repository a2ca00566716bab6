//! `rolltape health`: verdicts on a run, for people and for CI.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use exporter::{
    CheckVerdict, HealthExample, HealthOptions, HealthReport, HealthWord, Thresholds, health,
};
use store::Snapshot;

use crate::exit::{CommandResult, Failure};
use crate::options::episodes::SelectionArgs;
use crate::print;
use crate::terminal::table::{TableCell, beside, plain, table};
use crate::terminal::{self, Line, Style};
use crate::time::past;

/// Judge a run: loops, duplicates, empty turns, rewards, tools, drift of versions and engines
///
/// Thirty checks in one pass. Each has a finding, is fine, or had no evidence: docs/health.md lists
/// them. Exits with 1 if any has a finding.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// A JSON file with other thresholds
    #[arg(long, value_name = "FILE")]
    thresholds: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: SelectionArgs,
    /// Only episodes that began since then
    ///
    /// A time before now, such as 45m, 12h or 7d, or a moment, such as 2026-11-21T20:17:47Z.
    #[arg(long, value_name = "TIME", value_parser = past, help_heading = "Episodes")]
    since: Option<f64>,
}

/// Prints the verdicts.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let thresholds = match &args.thresholds {
        Some(path) => read_thresholds(path)?,
        None => Thresholds::default(),
    };
    let options = HealthOptions {
        selection: args.filter.selection(),
        since: args.since.map(|seconds| (seconds * 1e6) as episode::Micros),
        thresholds,
    };
    let snapshot = Snapshot::open_here(args.filter.store.read_from().await?).await?;
    let work = health(snapshot, &options, |_, _| {});
    let report = terminal::waiting("reading attempts", work).await?;

    match args.json {
        true => print::line(&serde_json::to_string(&report).map_err(|e| Failure::of(&e))?)?,
        false => drop(print::styled_lines(&page(&report))?),
    }
    Ok(match report.verdict {
        HealthWord::Finding => ExitCode::FAILURE,
        HealthWord::NoEvidence | HealthWord::Fine => ExitCode::SUCCESS,
    })
}

fn read_thresholds(path: &Path) -> Result<Thresholds, Failure> {
    let doing = format!("cannot use `{}`", path.display());
    let text = std::fs::read(path).map_err(|error| Failure::of(&error).context(&doing))?;
    Thresholds::read(&text).map_err(|error| Failure::of(&error).context(&doing))
}

fn page(report: &HealthReport) -> Vec<Line> {
    let rows = report.checks.iter().map(row).collect();
    let columns = table([("verdict", 0), ("check", 0), ("looked at", 1)], rows, None);
    let said: Vec<TableCell> = report.checks.iter().map(|check| plain(&check.sentence)).collect();
    let mut lines = beside(columns, "what", &said, None);

    let findings: Vec<_> = report.checks.iter().filter(|check| is_finding(check)).collect();
    for check in &findings {
        lines.push(Line::default());
        lines.push(Line::styled(Style::Red, check.check));
        lines.extend(check.examples.iter().map(|example| format!("  {}", place(example)).into()));
        if let Some(sql) = check.sql {
            lines.push(format!("  rolltape sql \"{sql}\"").into());
        }
    }

    let blind =
        report.checks.iter().filter(|check| check.verdict == HealthWord::NoEvidence).count();
    lines.push(Line::default());
    lines.push(Line::from(format!(
        "{}, {}, {}: {}, {blind} without evidence, of {}",
        print::count(report.attempts, "attempt"),
        print::count(report.calls, "call"),
        print::count(report.sampled_tokens, "sampled token"),
        print::count(findings.len() as u64, "finding"),
        print::count(report.checks.len() as u64, "check"),
    )));
    lines
}

fn is_finding(check: &CheckVerdict) -> bool {
    check.verdict == HealthWord::Finding
}

fn row(check: &CheckVerdict) -> Vec<TableCell> {
    let style = if is_finding(check) { Style::Red } else { Style::Plain };
    vec![(style, check.verdict.as_str().to_owned()), plain(check.check), plain(check.looked_at)]
}

/// An example in one line: the attempt, the turn with its call, and what is there.
fn place(example: &HealthExample) -> String {
    let HealthExample { episode_id, attempt, call_id, turn, note } = example;
    let mut text = format!("{episode_id}/{attempt}");
    if let Some(turn) = turn {
        text += &format!(", turn {turn}");
    }
    if let Some(call) = call_id {
        text += &format!(", call {call}");
    }
    if !note.is_empty() {
        text += &format!(": {note}");
    }
    text
}
