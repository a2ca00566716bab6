//! `rolltape export`: writes training data from a store.

mod files;
mod rewards;
mod rows;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, ErrorKind, IsTerminal};
use std::process::ExitCode;

use exporter::{ExportError, Omission, Options, Report, ScoreCount, ScoreFolderError, WriteError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use store::Snapshot;
use tokio::signal::unix::{SignalKind, signal};

use self::files::ExportFiles;
use self::rewards::{ExportRewards, ExportVersions};
use self::rows::ExportRows;
use crate::exit::{CommandResult, Failure};
use crate::options::episodes::SelectionArgs;
use crate::options::segments::SegmentsArgs;
use crate::print;
use crate::terminal;

/// Export episodes as files that trainers read
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    files: ExportFiles,
    #[command(flatten)]
    filter: SelectionArgs,
    #[command(flatten)]
    segments: SegmentsArgs,
    #[command(flatten)]
    rows: ExportRows,
    #[command(flatten)]
    rewards: ExportRewards,
    #[command(flatten)]
    versions: ExportVersions,
}

/// Exports. A signal ends the export and removes what is half written.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let segments = args.segments.gather(args.files.shard).await?;
    let location = match &segments {
        Some(segments) => segments.store.location(),
        None => args.filter.store.read_from().await?,
    };
    let snapshot = Snapshot::open_here(&location).await?;
    let to_stdout = args.files.to_stdout();
    let as_json = args.files.json;
    let is_shard_already = segments.is_some() && args.files.shard.is_some();
    let options = args.files.fill(Options {
        selection: args.filter.selection(),
        rewards: args.rewards.rewards(),
        versions: args.versions.filter(),
        is_shard_already,
        ..Options::default()
    })?;
    let options = args.rows.fill(options)?;

    let bar = progress_bar()?;
    // A dropped export removes its temporary files, so a signal must not end the process first.
    let mut terminate = signal(SignalKind::terminate())?;
    let exported = exporter::export_with_progress(snapshot, &options, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    let result = tokio::select! {
        result = exported => match result {
            Err(error) if to_stdout && is_reader_gone(&error) => Ok(None),
            result => result.map(Some).map_err(|error| failure(&error)),
        },
        _ = tokio::signal::ctrl_c() => Err(interrupted()),
        _ = terminate.recv() => Err(interrupted()),
    };
    bar.finish_and_clear();

    // A report on rows that nobody reads is of no use, either.
    let Some(report) = result? else { return Ok(ExitCode::SUCCESS) };
    let lines = if as_json { vec![report_json(&report).to_string()] } else { as_text(&report) };
    match to_stdout {
        // Rows are on stdout, so the report goes to stderr.
        true => lines.iter().for_each(|line| terminal::message(line)),
        false => lines.iter().try_for_each(|line| print::line(line))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A progress bar if stderr is a terminal, else a hidden one.
fn progress_bar() -> Result<ProgressBar, Failure> {
    if !io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("exporting {bar:32} {pos}/{len} episodes {elapsed}")
        .map_err(|e| Failure::of(&e))?;
    Ok(ProgressBar::new(0).with_style(style))
}

/// True if whoever read the rows has left.
fn is_reader_gone(error: &ExportError) -> bool {
    let ExportError::Write(error) = error else { return false };
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        let fault = error.downcast_ref::<io::Error>();
        if fault.is_some_and(|fault| fault.kind() == ErrorKind::BrokenPipe) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn interrupted() -> Failure {
    Failure::new("the export was interrupted; nothing was changed")
}

/// An export's failure, with a hint if there is a way out.
pub(crate) fn failure(error: &ExportError) -> Failure {
    let failure = Failure::of(error);

    match error {
        ExportError::Empty { left_out, .. } if !left_out.is_empty() => {
            let left = left_out.iter().map(|(why, left)| left_out_words(why, left));
            failure.hint(format!("left out: {}", left.collect::<Vec<_>>().join(", ")))
        }
        ExportError::Empty { .. } => failure.hint(
            "`rolltape episodes` lists what the store holds; check --store, --episode, --group, \
             --task and --kind",
        ),

        ExportError::OtherTokenizer(_) => {
            failure.hint("give --tokenizer the folder of the model that answered it")
        }

        ExportError::Scores(ScoreFolderError::NotScores(_)) => {
            failure.hint("--scores names a folder that `rolltape score` has made")
        }
        ExportError::Write(WriteError::Foreign { .. }) => {
            failure.hint("give another --out, or --overwrite to replace it")
        }
        ExportError::Write(WriteError::OtherOptions { .. }) => {
            failure.hint("give the options of the earlier export, or leave out --new to replace it")
        }
        ExportError::Write(WriteError::OtherStore { .. }) => {
            failure.hint("give another --out, or leave out --new to replace it")
        }
        ExportError::Write(WriteError::Pairs { .. }) => {
            failure.hint("leave out --new: then all pairs are made again from all attempts")
        }
        ExportError::Write(WriteError::Whole { .. }) => {
            failure.hint("leave out --new and --shard; --partition-by makes a file of each part")
        }
        ExportError::Write(WriteError::Uncounted { .. }) => {
            failure.hint("leave out --new to replace it; `--new` can add to the result later")
        }
        ExportError::Write(WriteError::OtherEncoding { .. }) => {
            failure.hint("name a folder, or a file that ends in the encoding's name")
        }
        _ => failure,
    }
}

/// `2 rows without reward (31 trained tokens)`.
fn left_out_words(why: &str, left: &Omission) -> String {
    let what = format!("{} {}", left.count, why.replace('_', " "));
    match left.trained_tokens {
        0 => what,
        tokens => format!("{what} ({})", print::count(tokens, "trained token")),
    }
}

/// The report's lines on what is left out, and on other models.
fn left_out_lines(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = report
        .left_out
        .iter()
        .map(|(why, left)| format!("  left out: {}", left_out_words(why, left)))
        .collect();

    let other_models: Vec<String> =
        report.notes.other_models.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    if !other_models.is_empty() {
        let names = other_models.join(", ");
        lines.push(format!("  other models: {names}; select models with `--model`"));
    }
    lines
}

/// The line on shards that do not go together.
fn other_lists_line(report: &Report) -> Option<String> {
    let others = &report.shards_of_other_lists;
    let numbers = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    (!others.is_empty()).then(|| {
        format!(
            "  shard {numbers} beside it is of another list of groups: they may lack groups, or \
             have some twice; export all shards with one `--until`"
        )
    })
}

fn as_text(report: &Report) -> Vec<String> {
    let mut lines = vec![format!(
        "{} from {}, {} tokens of which {} train",
        print::count(report.rows, "row"),
        print::count(report.episodes, "episode"),
        report.tokens,
        report.trained_tokens
    )];

    let kinds = report.notes.kinds.iter().filter(|(kind, _)| **kind != "main");
    lines.extend(kinds.map(|(kind, count)| format!("  {count} x {kind}")));
    lines.extend(rewards::report_lines(report));
    lines.extend(score_lines(report));
    let reasons = report.notes.reasons.iter();
    lines.extend(reasons.map(|(reason, count)| format!("  {count} x {}", reason.as_str())));
    lines.extend(left_out_lines(report));
    lines.extend(other_lists_line(report));
    lines.extend(report.files.iter().map(|file| file.display().to_string()));
    lines
}

/// The lines on scores: `  big: 9 rows scored, 1 not, 2 of other ids`.
fn score_lines(report: &Report) -> impl Iterator<Item = String> {
    report.scores.iter().map(|count| {
        let mut line = format!("  {}: {} scored", count.name, print::count(count.rows, "row"));
        for (number, what) in [(count.without, "not"), (count.other_ids, "of other ids")] {
            if number > 0 {
                line = format!("{line}, {number} {what}");
            }
        }
        line
    })
}

fn report_json(report: &Report) -> Value {
    let reasons: BTreeMap<&str, _> =
        report.notes.reasons.iter().map(|(reason, count)| (reason.as_str(), count)).collect();
    let left_out: BTreeMap<_, _> =
        report.left_out.iter().map(|(why, left)| (why, left.count)).collect();
    let left_out_tokens: BTreeMap<_, _> =
        report.left_out.iter().map(|(why, left)| (why, left.trained_tokens)).collect();

    let counts = |count: &ScoreCount| {
        let ScoreCount { rows, without, other_ids, .. } = count;
        json!({"rows": rows, "without": without, "other_ids": other_ids})
    };
    let scores: BTreeMap<_, _> =
        report.scores.iter().map(|count| (count.name.as_str(), counts(count))).collect();

    json!({
        "rows": report.rows,
        "episodes": report.episodes,
        "tokens": report.tokens,
        "trained_tokens": report.trained_tokens,
        "kinds": report.notes.kinds,
        "reasons": reasons,
        "not_of_versions": report.notes.not_of_versions,
        "rewards_unplaced": report.notes.rewards_unplaced,
        // The last entry is of the episodes without a group, and is none itself.
        "groups": report.groups.iter().filter(|group| group.group.is_some()).count(),
        "flat_groups": rewards::flat_groups(report),
        "scores": scores,
        "models": report.notes.models,
        "other_models": report.notes.other_models,
        "left_out": left_out,
        "left_out_tokens": left_out_tokens,
        "shards_of_other_lists": report.shards_of_other_lists,
        "files": report.files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_other_lists_are_named() {
        let mut report = Report::default();
        assert_eq!(other_lists_line(&report), None);
        report.shards_of_other_lists = vec![1, 3];
        let line = other_lists_line(&report).unwrap();
        assert!(line.starts_with("  shard 1 and 3 beside it is of another list"), "{line}");
    }

    #[test]
    fn rows_that_got_no_scores_are_told() {
        let mut report = Report::default();
        let name = "big".to_owned();
        report.scores = vec![ScoreCount { name, rows: 9, without: 0, other_ids: 2 }];
        assert!(score_lines(&report).eq(["  big: 9 rows scored, 2 of other ids"]));
        assert_eq!(report_json(&report)["scores"]["big"]["other_ids"], 2);
    }

    #[test]
    fn what_is_left_out_is_reported_with_what_it_costs() {
        let mut report = Report::default();
        let left = |count, trained_tokens| Omission { count, trained_tokens };
        report.left_out.insert("rows_of_kind_fork", left(3, 275));
        report.left_out.insert("rows_of_other_models", left(1, 1));
        report.left_out.insert("episodes_still_open", left(2, 0));
        report.notes.other_models.insert("judge".to_owned(), 1);
        let expected = [
            "  left out: 2 episodes still open",
            "  left out: 3 rows of kind fork (275 trained tokens)",
            "  left out: 1 rows of other models (1 trained token)",
            "  other models: 1 x judge; select models with `--model`",
        ];
        assert_eq!(left_out_lines(&report), expected);
        let document = report_json(&report);
        assert_eq!(document["left_out"]["rows_of_kind_fork"], 3);
        assert_eq!(document["left_out_tokens"]["rows_of_kind_fork"], 275);
    }
}
