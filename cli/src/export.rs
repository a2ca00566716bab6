//! `rolltape export`: a store to training data.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use episode::Kind;
use exporter::{ExportError, Left, Models, Options, Report, Retokenizer, Shared, WriteError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use store::Snapshot;
use tokio::signal::unix::{SignalKind, signal};

use crate::episodes::Which;
use crate::exit::{Done, Failure};
use crate::export_files::ExportFiles;
use crate::export_rewards::{self, ExportRewards};
use crate::print;

/// Export episodes as files that trainers read
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    files: ExportFiles,
    /// Only these trajectories: main, subagent, compaction, retry, sibling, auxiliary, fork
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    kind: Vec<Kind>,
    /// Only rows of these models: names, policy (each attempt's main model), all [default: policy
    /// for trainers' formats, else all]
    #[arg(long, value_name = "MODEL,...")]
    model: Option<Models>,
    /// Sampled tokens that several rows hold: trained in the first of them, or kept in all
    #[arg(long, value_name = "RULE", default_value = "once", value_parser = shared)]
    shared: Shared,
    #[command(flatten)]
    rewards: ExportRewards,
    /// A model folder, whose chat template and tokenizer make ids where no server reported any
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Exports. What is half written is taken away again when a signal ends it.
pub(crate) async fn run(args: Args) -> Done {
    let snapshot = Snapshot::open_here(&args.which.at.store).await?;
    let to_stdout = args.files.to_stdout();
    let options = args.files.fill(Options {
        selection: args.which.selection(),
        kinds: args.kind.into_iter().collect(),
        models: args.model,
        shared: args.shared,
        rewards: args.rewards.rewards(),
        versions: args.rewards.versions(),
        retokenizer: retokenizer(args.tokenizer.as_deref())?,
        ..Options::default()
    })?;
    let bar = progress()?;
    let mut stopped = signal(SignalKind::terminate())?;
    let exported = exporter::export_telling(snapshot, &options, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    let report = tokio::select! {
        done = exported => done.map_err(|error| failure(&error)),
        _ = tokio::signal::ctrl_c() => Err(interrupted()),
        _ = stopped.recv() => Err(interrupted()),
    };
    bar.finish_and_clear();
    let lines = if args.json { as_json(&report?) } else { as_text(&report?) };
    match to_stdout {
        true => lines.iter().for_each(|line| eprintln!("{line}")),
        false => lines.iter().try_for_each(|line| print::line(line))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A bar on a terminal, nothing elsewhere.
fn progress() -> Result<ProgressBar, Failure> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = "exporting {bar:32} {pos}/{len} episodes {elapsed}";
    let style = ProgressStyle::with_template(style).map_err(|e| Failure::of(&e))?;
    Ok(ProgressBar::new(0).with_style(style))
}

fn interrupted() -> Failure {
    Failure::new("the export was interrupted; nothing was changed")
}

fn kind(word: &str) -> Result<Kind, String> {
    let words = || Kind::ALL.map(Kind::as_str).join(", ");
    Kind::from_word(word).ok_or_else(|| format!("the kinds are {}", words()))
}

fn shared(word: &str) -> Result<Shared, String> {
    let found = [Shared::Once, Shared::Keep].into_iter().find(|shared| shared.as_str() == word);
    found.ok_or_else(|| "the rules are once and keep".to_owned())
}

fn retokenizer(folder: Option<&Path>) -> Result<Option<Arc<Retokenizer>>, Failure> {
    let loaded = folder.map(Retokenizer::load).transpose();
    let loaded = loaded.map_err(|error| {
        Failure::of(&error).hint("give the folder that the model was served from with --tokenizer")
    })?;
    Ok(loaded.map(Arc::new))
}

/// What went wrong, with the way out.
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
            failure.hint("give the folder of the model that answered it with --tokenizer")
        }
        ExportError::Write(WriteError::Foreign { .. }) => {
            failure.hint("give another --out, or --overwrite to replace it")
        }
        ExportError::Write(WriteError::OtherOptions { .. }) => {
            failure.hint("give the options that it was made with, or leave out --new to replace it")
        }
        ExportError::Write(WriteError::Pairs { .. }) => {
            failure.hint("leave out --new: pairs of the attempts that are there now are made anew")
        }
        ExportError::Write(WriteError::Uncounted { .. }) => {
            failure.hint("leave out --new to replace it; `--new` can add to what is written then")
        }
        ExportError::Write(WriteError::OtherEncoding { .. }) => {
            failure.hint("name a folder, or a file that ends in the encoding's name")
        }
        _ => failure,
    }
}

/// `2 rows without reward (31 trained tokens)`.
fn left_out_words(why: &str, left: &Left) -> String {
    let what = format!("{} {}", left.count, why.replace('_', " "));
    match left.trained_tokens {
        0 => what,
        tokens => format!("{what} ({})", print::count(tokens, "trained token")),
    }
}

/// The lines about what is left out, and of which models.
fn left_out_lines(report: &Report) -> Vec<String> {
    let left = report.left_out.iter();
    let mut lines: Vec<String> =
        left.map(|(why, left)| format!("  left out: {}", left_out_words(why, left))).collect();
    let others = report.notes.other_models.iter();
    let others: Vec<String> = others.map(|(name, count)| format!("{count} x {name}")).collect();
    if !others.is_empty() {
        lines.push(format!("  other models: {}; `--model` names those to take", others.join(", ")));
    }
    lines
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
    lines.extend(export_rewards::lines(report));
    let reasons = report.notes.reasons.iter();
    lines.extend(reasons.map(|(reason, count)| format!("  {count} x {}", reason.as_str())));
    lines.extend(left_out_lines(report));
    lines.extend(report.files.iter().map(|file| file.display().to_string()));
    lines
}

fn as_json(report: &Report) -> Vec<String> {
    let reasons: serde_json::Map<_, _> =
        report.notes.reasons.iter().map(|(r, n)| (r.as_str().to_owned(), json!(n))).collect();
    let left = |of: fn(&Left) -> u64| -> BTreeMap<&str, u64> {
        report.left_out.iter().map(|(why, left)| (*why, of(left))).collect()
    };
    let body = json!({
        "rows": report.rows,
        "episodes": report.episodes,
        "tokens": report.tokens,
        "trained_tokens": report.trained_tokens,
        "kinds": report.notes.kinds,
        "reasons": reasons,
        "not_of_versions": report.notes.not_of_versions,
        "rewards_unplaced": report.notes.rewards_unplaced,
        "groups": report.groups.iter().filter(|group| group.group.is_some()).count(),
        "flat_groups": export_rewards::flat(report),
        "models": report.notes.models,
        "other_models": report.notes.other_models,
        "left_out": left(|left| left.count),
        "left_out_tokens": left(|left| left.trained_tokens),
        "files": report.files,
    });
    vec![body.to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_told_with_what_it_costs() {
        let mut report = Report::default();
        let left = |count, trained_tokens| Left { count, trained_tokens };
        report.left_out.insert("rows_of_kind_fork", left(3, 275));
        report.left_out.insert("rows_of_other_models", left(1, 1));
        report.left_out.insert("episodes_still_open", left(2, 0));
        report.notes.other_models.insert("judge".to_owned(), 1);
        let expected = [
            "  left out: 2 episodes still open",
            "  left out: 3 rows of kind fork (275 trained tokens)",
            "  left out: 1 rows of other models (1 trained token)",
            "  other models: 1 x judge; `--model` names those to take",
        ];
        assert_eq!(left_out_lines(&report), expected);
        let told: serde_json::Value = serde_json::from_str(&as_json(&report)[0]).unwrap();
        assert_eq!(told["left_out"]["rows_of_kind_fork"], 3);
        assert_eq!(told["left_out_tokens"]["rows_of_kind_fork"], 275);
    }
}
