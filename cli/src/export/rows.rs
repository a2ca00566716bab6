//! `rolltape export`: the options on what becomes a row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use episode::{Micros, TrajectoryKind};
use exporter::{ModelFilter, Options, Retokenizer, SharedTokens};

use crate::exit::Failure;
use crate::options::tokenizer::tokenizer_folder;
use crate::time::moment;

/// Options on the rows of an export.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rows")]
pub(crate) struct ExportRows {
    /// Export only episodes with at least this reward
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Leave out attempts that the infrastructure failed
    #[arg(long)]
    no_infrastructure_failed: bool,
    /// Export only attempts closed at this time or later
    ///
    /// An open attempt counts by its start. Such as 2026-11-21T20:17:47Z, or microseconds since
    /// 1970.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Micros>,
    /// Export only attempts finished up to this position
    ///
    /// Positions are given in the order in which attempts are finished, so these stay the same when
    /// more is recorded.
    #[arg(long, value_name = "POSITION")]
    until: Option<i64>,
    /// Export only trajectories of these kinds
    ///
    /// main, subagent, compaction, retry, sibling, auxiliary, fork, with commas between.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    kind: Vec<TrajectoryKind>,
    /// Export only rows of these models: names, policy or all
    ///
    /// With commas between. policy is each attempt's main model. [default: policy for trainers'
    /// formats, else all]
    #[arg(long, value_name = "MODEL,...")]
    model: Option<ModelFilter>,
    /// Rows that train a shared sampled token: once, keep
    ///
    /// once: the first row. keep: all of them.
    #[arg(long, value_name = "RULE", default_value = "once", value_parser = shared)]
    shared: SharedTokens,
    /// A folder of scores to join; repeatable
    ///
    /// `rolltape score` makes it. Formats of trainers take the first that has scores of a row.
    #[arg(long, value_name = "DIR")]
    scores: Vec<PathBuf>,
    /// Model folder, or its tokenizer.json, that makes missing ids
    ///
    /// Its chat template and tokenizer make ids where no server reported any.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
}

impl ExportRows {
    /// Sets these options in the exporter's.
    ///
    /// # Errors
    /// [`Failure`] if the tokenizer cannot be read.
    pub(crate) fn fill(self, options: Options) -> Result<Options, Failure> {
        Ok(Options {
            min_reward: self.min_reward,
            no_infrastructure_failed: self.no_infrastructure_failed,
            since: self.since,
            until: self.until,
            kinds: self.kind.into_iter().collect(),
            models: self.model,
            shared: self.shared,
            scores: self.scores,
            retokenizer: retokenizer(self.tokenizer.as_deref())?,
            ..options
        })
    }
}

fn kind(word: &str) -> Result<TrajectoryKind, String> {
    TrajectoryKind::from_word(word).ok_or_else(|| {
        format!("the kinds are {}", TrajectoryKind::ALL.map(TrajectoryKind::as_str).join(", "))
    })
}

fn shared(word: &str) -> Result<SharedTokens, String> {
    [SharedTokens::Once, SharedTokens::Keep]
        .into_iter()
        .find(|shared| shared.as_str() == word)
        .ok_or_else(|| "the rules are once and keep".to_owned())
}

fn retokenizer(path: Option<&Path>) -> Result<Option<Arc<Retokenizer>>, Failure> {
    let Some(folder) = path.map(tokenizer_folder) else { return Ok(None) };
    match Retokenizer::load(&folder) {
        Ok(retokenizer) => Ok(Some(Arc::new(retokenizer))),
        Err(error) => {
            Err(Failure::of(&error)
                .hint("give --tokenizer the folder that the model was served from"))
        }
    }
}
