//! `rolltape audit`: whether recorded logprobs are those of the policy, and if not, why.
//!
//! [`page`] is what is printed, [`kept`] is where the store's page finds it; [`crate::scoring`] has
//! the server that scores the ids again.

mod kept;
mod page;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::ValueParser;
use episode::version_number;
use exporter::{
    AuditSample, AuditWord, SampledSpan, ScorePath, audit, exported_paths, sample_paths,
};
use store::Snapshot;

use crate::exit::{CommandResult, Failure};
use crate::options::device::DeviceArgs;
use crate::options::episodes::SelectionArgs;
use crate::scoring::ScoredWith;
use crate::scoring::scorer::{Scorer, ScorerWeights};
use crate::scoring::weights::WeightsPattern;
use crate::{print, terminal};

/// Score recorded tokens again, and name the cause where their logprobs are not the policy's
///
/// A sample of whole episodes is scored by a server (vLLM, SGLang, rolltape) or with a model
/// folder. Exits with 1 if it differs: docs/audit.md lists the causes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scores")]
pub(crate) struct Args {
    /// A server to score with, or a model folder
    #[arg(long, value_name = "URL|DIR")]
    with: String,
    /// Folders of weights by version: 'runs/w/v{version}'
    ///
    /// Each version's tokens are scored with its own weights, and with those beside it where they
    /// differ. Not with a server of others.
    #[arg(long, value_name = "PATTERN")]
    #[arg(value_parser = ValueParser::new(str::parse::<WeightsPattern>))]
    weights: Option<WeightsPattern>,
    /// Label of the weights of --with [default: the newest that is recorded]
    #[arg(id = "of_version", long = "version", value_name = "LABEL", conflicts_with = "weights")]
    version: Option<String>,
    /// An adapter of a model folder; repeatable
    #[arg(long, value_name = "NAME=DIR", value_parser = adapter)]
    adapter: Vec<(String, PathBuf)>,
    /// Variable that holds the server's API key
    #[arg(long, value_name = "NAME")]
    with_key_env: Option<String>,
    /// Audit the rows of an exported Parquet file, and not the store
    #[arg(long, value_name = "FILE", conflicts_with_all = ["episode", "group", "task"])]
    export: Option<PathBuf>,
    /// Audit what a trainer computed (`trainer_logprobs` of its annotations)
    #[arg(long, conflicts_with = "export")]
    of_trainer: bool,
    /// Part of the episodes to score
    ///
    /// At least 16 episodes are scored, as far as there are.
    #[arg(long, value_name = "PART", default_value_t = 0.01, value_parser = part)]
    sample: f64,
    /// Most tokens to score, prompts included
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    tokens_max: usize,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Keep the result beside the store, where its page shows it
    #[arg(long, conflicts_with = "export", help_heading = "Output")]
    keep: bool,
    #[command(flatten)]
    filter: SelectionArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Audits the sample, and prints the verdict.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let paths = match &args.export {
        Some(file) => exported_paths(file, args.sample).map_err(|e| Failure::of(&e))?,
        None => recorded_paths(&mut args).await?,
    };
    if paths.is_empty() {
        return Err(match args.of_trainer {
            true => Failure::new("no annotation `trainer_logprobs` is recorded")
                .hint("a trainer gives them by POST /annotations (docs/annotations.md)"),
            false => Failure::new("no sampled token with an id is recorded")
                .hint("`rolltape doctor --upstream URL` says what the server reports"),
        });
    }

    let mut scorer = scorer(&args, &paths).await?;
    let work = audit(&paths, &mut scorer, |_, _| {});
    let report = terminal::waiting("scoring", work).await?;

    if args.keep {
        kept::keep(&report, &args.filter.store.location, args.of_trainer)?;
    }
    match args.json {
        true => print::line(&serde_json::to_string(&report).map_err(|e| Failure::of(&e))?)?,
        false => drop(print::styled_lines(&page::lines(&report))?),
    }
    Ok(match report.verdict {
        AuditWord::Differs => ExitCode::FAILURE,
        AuditWord::NoEvidence | AuditWord::Clean => ExitCode::SUCCESS,
    })
}

/// The paths of the sample in the store.
async fn recorded_paths(args: &mut Args) -> Result<Vec<ScorePath>, Failure> {
    let sample = AuditSample {
        selection: args.filter.selection(),
        share: args.sample,
        tokens_max: args.tokens_max,
        of_trainer: args.of_trainer,
    };
    let mut snapshot = Snapshot::open_here(args.filter.store.read_from().await?).await?;
    Ok(terminal::waiting("reading", sample_paths(&mut snapshot, &sample)).await?)
}

/// The server, or an engine with the folder, that `--with` names.
async fn scorer(args: &Args, paths: &[ScorePath]) -> Result<Scorer, Failure> {
    let own = match (&args.weights, &args.version) {
        (Some(_), _) => None,
        (None, Some(label)) => Some(Some(label.clone())),
        (None, None) => newest(paths),
    };
    let weights = ScorerWeights { own, pattern: args.weights.clone(), ..ScorerWeights::default() };
    let with = ScoredWith::of(&args.with);
    let options = args.device.apply(::engine::EngineOptions::default());
    let mut scorer = with.scorer(args.with_key_env.as_deref(), options, weights).await?;
    if let ScoredWith::Url(_) = with {
        return Ok(scorer);
    }
    for (name, folder) in &args.adapter {
        scorer.add_adapter(name, folder).await?;
    }
    Ok(scorer)
}

/// The newest label of the weights that sampled: the one with the largest number, else the last.
/// None where there is one label only, or none.
fn newest(paths: &[ScorePath]) -> Option<Option<String>> {
    let spans = || paths.iter().flat_map(|path| &path.spans);
    let first = spans().next()?.version.clone();
    if spans().all(|span| span.version == first) {
        return None;
    }
    let number = |span: &&SampledSpan| span.version.as_deref().and_then(version_number);
    let numbered = spans().filter(|span| number(span).is_some()).max_by_key(number);
    Some(numbered.or_else(|| spans().last())?.version.clone())
}

fn adapter(text: &str) -> Result<(String, PathBuf), String> {
    let (name, folder) = text.split_once('=').ok_or("is not NAME=DIR")?;
    Ok((name.to_owned(), folder.into()))
}

fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    match part > 0.0 && part <= 1.0 {
        true => Ok(part),
        false => Err("is not between 0 and 1".to_owned()),
    }
}
