//! `rolltape export`: a store to training data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use episode::Kind;
use exporter::{ExportError, Options, Report, Retokenizer, Shared};
use serde_json::json;
use store::Snapshot;

use crate::episodes::Which;
use crate::exit::{Done, Failure};
use crate::export_rewards::{self, ExportRewards};
use crate::print;

/// Export episodes as Parquet that trainers read
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// A folder, or a file whose name ends in .parquet
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Only these trajectories: main, subagent, compaction, retry, sibling, auxiliary, fork
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    kind: Vec<Kind>,
    /// Sampled tokens that several rows hold: trained in the first of them, or kept in all
    #[arg(long, value_name = "RULE", default_value = "once", value_parser = shared)]
    shared: Shared,
    #[command(flatten)]
    rewards: ExportRewards,
    /// A model folder, whose chat template and tokenizer make ids where no server reported any
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Replace files that rolltape did not write
    #[arg(long)]
    overwrite: bool,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Exports.
pub(crate) async fn run(args: Args) -> Done {
    let mut snapshot = Snapshot::open(&args.which.at.store).await?;
    let options = Options {
        out: args.out,
        selection: args.which.selection(),
        kinds: args.kind.into_iter().collect(),
        shared: args.shared,
        rewards: args.rewards.rewards(),
        versions: args.rewards.versions(),
        retokenizer: retokenizer(args.tokenizer.as_deref())?,
        overwrite: args.overwrite,
    };
    let report = exporter::export(&mut snapshot, &options).await.map_err(|e| failure(&e))?;
    if args.json {
        as_json(&report)?
    } else {
        as_text(&report)?
    }
    Ok(ExitCode::SUCCESS)
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
        ExportError::Empty { notes, .. } if !notes.not_of_versions.is_empty() => {
            failure.hint(format!("left out: {}", export_rewards::left_out(notes).join(", ")))
        }
        ExportError::Empty { .. } => failure.hint(
            "`rolltape episodes` lists what the store holds; check --store, --episode, --group, \
             --task and --kind",
        ),
        ExportError::OtherTokenizer(_) => {
            failure.hint("give the folder of the model that answered it with --tokenizer")
        }
        ExportError::Write(exporter::WriteError::Foreign { .. }) => {
            failure.hint("give another --out, or --overwrite to replace it")
        }
        _ => failure,
    }
}

fn as_text(report: &Report) -> Result<(), Failure> {
    print::line(&format!(
        "{} from {}, {} tokens of which {} train",
        print::count(report.rows, "row"),
        print::count(report.episodes, "episode"),
        report.tokens,
        report.trained_tokens
    ))?;
    for (kind, count) in report.notes.kinds.iter().filter(|(kind, _)| **kind != "main") {
        print::line(&format!("  {count} x {kind}"))?;
    }
    export_rewards::lines(report).iter().try_for_each(|line| print::line(line))?;
    for (reason, count) in &report.notes.reasons {
        print::line(&format!("  {count} x {}", reason.as_str()))?;
    }
    report.files.iter().try_for_each(|file| print::line(&file.display().to_string()))
}

fn as_json(report: &Report) -> Result<(), Failure> {
    let reasons: serde_json::Map<_, _> =
        report.notes.reasons.iter().map(|(r, n)| (r.as_str().to_owned(), json!(n))).collect();
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
        "files": report.files,
    });
    print::line(&body.to_string())
}
