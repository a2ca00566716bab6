//! `rolltape score`: recorded ids are scored under another model.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exporter::{ScoreFolder, ScorePath, ScoreSet, Scored, ScoredRow, read_paths, says};
use serde_json::json;
use store::Snapshot;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use wire::TokenScore;

use crate::exit::{CommandResult, Failure};
use crate::options::device::DeviceArgs;
use crate::options::episodes::SelectionArgs;
use crate::scoring::ScoredWith;
use crate::scoring::scorer::{Scorer, ScorerWeights};
use crate::{print, terminal};

/// Time after which scores are written, if there are too few for a file.
const WRITE_AFTER: Duration = Duration::from_secs(30);
/// Rows of another tokenizer after which none of this one is expected.
const FOREIGN_MAX: u64 = 4;
/// Spans of a row whose texts are compared with what the server reads in their ids.
const TOLD_MAX: usize = 3;
/// Rows of an attempt whose scores are kept for the rows that begin as they do.
const KNOWN_MAX: usize = 4;
/// Longest name of scores, in bytes.
const NAME_MAX: usize = 64;

/// Score recorded tokens under another model, such as a teacher
///
/// A server (vLLM, SGLang, rolltape) or a model folder is asked for the logprobs of each
/// trajectory, which files beside exports keep. Called again, it goes on where it stopped.
/// `rolltape export --scores DIR` joins the scores with rows.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scores")]
pub(crate) struct Args {
    /// A server to score with, or a model folder
    #[arg(long, value_name = "URL|DIR")]
    with: String,
    /// Name of the scores: letters, digits and _
    #[arg(long = "as", value_name = "NAME", value_parser = name)]
    name: String,
    /// Likeliest ids to keep beside each token
    #[arg(long, value_name = "K", default_value_t = 0)]
    top: usize,
    /// Folder for the scores [default: scores/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Model or adapter of the server [default: its first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Label of its weights, to be kept with the scores
    #[arg(id = "of_version", long = "version", value_name = "LABEL")]
    version: Option<String>,
    /// Variable that holds the server's API key
    #[arg(long, value_name = "NAME")]
    with_key_env: Option<String>,
    /// Trajectories that the server scores at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    at_once: u16,
    /// Print the report as one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    filter: SelectionArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Scores what is not scored yet. A signal ends it, and what was scored is kept.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let location = args.filter.store.read_from().await?;
    let mut snapshot = Snapshot::open_here(location).await?;
    let (scorer, model) = scorer(&args).await?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("scores").join(&args.name));
    let set = ScoreSet {
        name: args.name.clone(),
        model,
        version: args.version.clone().unwrap_or_default(),
        top: args.top,
    };
    let folder = ScoreFolder::begin(&out, set).map_err(|error| {
        Failure::of(&error).hint("give another --out, or the options of the scores that are there")
    })?;

    let mut run = ScoreRun {
        scorer: Arc::new(scorer),
        folder,
        waiting: VecDeque::new(),
        at_once: args.at_once.into(),
        written: Instant::now(),
        counts: ScoreCounts::default(),
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let ended = {
        let mut work: Pin<Box<dyn Future<Output = Result<(), Failure>>>> =
            Box::pin(run.score_all(&mut snapshot, &args));
        tokio::select! {
            ended = terminal::waiting("scoring", &mut work) => ended,
            _ = tokio::signal::ctrl_c() => Err(interrupted()),
            _ = terminate.recv() => Err(interrupted()),
        }
    };
    // What was scored is kept, however it ended.
    run.folder.flush().map_err(|error| Failure::of(&error))?;
    ended?;
    run.counts.report(&run.folder, &out, args.json)
}

fn interrupted() -> Failure {
    Failure::new("interrupted; what was scored is kept")
        .hint("the same command goes on where this one stopped")
}

/// The server, or an engine with the folder, and the name of its model.
async fn scorer(args: &Args) -> Result<(Scorer, String), Failure> {
    let options = args.device.apply(::engine::EngineOptions::default());
    let options = ::engine::EngineOptions { max_logprobs: args.top, ..options };
    let (key, weights) = (args.with_key_env.as_deref(), ScorerWeights::default());
    let mut scorer = ScoredWith::of(&args.with).scorer(key, options, weights).await?;
    scorer.ask_for(args.top);

    let served = exporter::ScoringServer::models(&scorer);
    let model = args.model.clone().or_else(|| served.first().cloned()).unwrap_or_default();
    if !served.contains(&model) {
        return Err(Failure::new(format!("the server has no model `{model}`"))
            .hint(format!("it has {}", served.join(", "))));
    }
    // A server that does not tell as many ids refuses every row, so it is asked once before.
    if let Scored::Refused(why) = scorer.scores(&model, &[0, 0], 0).await? {
        return Err(Failure::new(format!("the server scores nothing: {why}"))
            .hint("vLLM tells 20 ids beside each token unless it runs with --max-logprobs"));
    }
    Ok((scorer, model))
}

/// The numbers of rows, by what became of them.
#[derive(Debug, Default)]
struct ScoreCounts {
    scored: u64,
    tokens: u64,
    /// Tokens at the beginning of rows whose scores another row had.
    shared: u64,
    held: u64,
    foreign: u64,
    refused: u64,
    /// The server's words on the first row that it refused.
    why: Option<String>,
}

/// A server's answer about a path.
enum ScoreOutcome {
    /// A row, its tokens, and how many of them an earlier row had.
    Row(Box<ScoredRow>, usize, usize),
    Foreign,
    Refused(String),
}

/// Scores that are being made.
struct ScoreRun {
    scorer: Arc<Scorer>,
    folder: ScoreFolder,
    /// Rows that are asked for, in order: those of an attempt together, if the server does not
    /// compute again what they share.
    waiting: VecDeque<JoinHandle<Result<Vec<ScoreOutcome>, Failure>>>,
    at_once: usize,
    /// The last time at which scores were written.
    written: Instant,
    counts: ScoreCounts,
}

impl ScoreRun {
    async fn score_all(&mut self, snapshot: &mut Snapshot, args: &Args) -> Result<(), Failure> {
        for record in snapshot.episodes(&args.filter.selection()).await? {
            let paths = read_paths(snapshot, record).await?.unwrap_or_default();
            let count = paths.len();
            let is_new =
                |path: &ScorePath| !self.folder.holds(&path.trajectory_id, &path.ids_hash());
            let mut paths: Vec<ScorePath> = paths.into_iter().filter(is_new).collect();
            self.counts.held += (count - paths.len()) as u64;

            let together = if self.scorer.takes_known() { paths.len() } else { 1 };
            while !paths.is_empty() {
                let rest = paths.split_off(together);
                self.ask(std::mem::replace(&mut paths, rest));
                if self.waiting.len() >= self.at_once {
                    self.take_next().await?;
                }
            }
        }
        while !self.waiting.is_empty() {
            self.take_next().await?;
        }
        Ok(())
    }

    fn ask(&mut self, paths: Vec<ScorePath>) {
        let (scorer, set) = (Arc::clone(&self.scorer), self.folder.set().clone());
        self.waiting.push_back(tokio::spawn(async move { outcomes(&scorer, &set, &paths).await }));
    }

    /// Takes the next rows, which are kept from then on.
    async fn take_next(&mut self) -> Result<(), Failure> {
        let Some(next) = self.waiting.front_mut() else { return Ok(()) };
        let outcomes = next.await.map_err(|error| Failure::of(&error))?;
        self.waiting.pop_front();
        for outcome in outcomes? {
            self.take(outcome)?;
        }

        let is_other = self.counts.scored == 0 && self.folder.rows() == 0;
        if is_other && self.counts.foreign >= FOREIGN_MAX {
            return Err(other_tokenizer());
        }

        if self.written.elapsed() >= WRITE_AFTER {
            self.folder.flush().map_err(|error| Failure::of(&error))?;
            self.written = Instant::now();
        }
        Ok(())
    }
}

impl ScoreRun {
    fn take(&mut self, outcome: ScoreOutcome) -> Result<(), Failure> {
        match outcome {
            ScoreOutcome::Row(row, tokens, shared) => {
                self.counts.scored += 1;
                self.counts.tokens += tokens as u64;
                self.counts.shared += shared as u64;
                self.folder.add(*row).map_err(|error| Failure::of(&error))?;
            }
            ScoreOutcome::Foreign => self.counts.foreign += 1,
            ScoreOutcome::Refused(why) => {
                self.counts.refused += 1;
                self.counts.why.get_or_insert(why);
            }
        }
        Ok(())
    }
}

/// The scores of the rows of an attempt that were scored last, with their ids.
#[derive(Default)]
struct KnownScores(VecDeque<(Vec<u32>, Vec<Option<TokenScore>>)>);

impl KnownScores {
    /// The scores of the longest beginning of `ids` that is known.
    fn of(&self, ids: &[u32]) -> &[Option<TokenScore>] {
        let shared = |known: &[u32]| known.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let of_each = self.0.iter().map(|(known, scores)| &scores[..shared(known)]);
        of_each.max_by_key(|scores| scores.len()).unwrap_or_default()
    }

    fn add(&mut self, ids: &[u32], scores: Vec<Option<TokenScore>>) {
        self.0.truncate(KNOWN_MAX - 1);
        self.0.push_front((ids.to_vec(), scores));
    }
}

/// Has paths of one attempt scored, one after the other.
async fn outcomes(
    scorer: &Scorer,
    set: &ScoreSet,
    paths: &[ScorePath],
) -> Result<Vec<ScoreOutcome>, Failure> {
    let (mut known, mut outcomes) = (KnownScores::default(), Vec::with_capacity(paths.len()));
    for path in paths {
        outcomes.push(outcome(scorer, set, path, &mut known).await?);
    }
    Ok(outcomes)
}

fn other_tokenizer() -> Failure {
    Failure::new("the recorded ids say another text by the server's tokenizer than agents received")
        .hint("score with a model of the same tokenizer")
}

/// Has a path scored, unless its ids are those of another tokenizer.
async fn outcome(
    scorer: &Scorer,
    set: &ScoreSet,
    path: &ScorePath,
    known: &mut KnownScores,
) -> Result<ScoreOutcome, Failure> {
    let (mut told, mut same) = (0, 0);
    for (ids, texts) in path.told().take(TOLD_MAX) {
        let Some(text) = scorer.text(ids).await else { continue };
        told += 1;
        same += usize::from(texts.iter().any(|received| says(&text, received)));
    }
    if told > 0 && same == 0 {
        return Ok(ScoreOutcome::Foreign);
    }

    let shared = known.of(&path.ids);
    let mut scores = match scorer.scores(&set.model, &path.ids, shared.len()).await? {
        Scored::Refused(why) => return Ok(ScoreOutcome::Refused(why)),
        Scored::Scores(scores) => scores,
    };
    let count = shared.len();
    scores[..count].clone_from_slice(shared);
    let Some(row) = ScoredRow::new(set, path, &scores) else {
        return Ok(ScoreOutcome::Refused("a token has no score".to_owned()));
    };
    if scorer.takes_known() {
        known.add(&path.ids, scores);
    }
    Ok(ScoreOutcome::Row(Box::new(row), path.ids.len(), count))
}

impl ScoreCounts {
    fn report(&self, folder: &ScoreFolder, out: &std::path::Path, as_json: bool) -> CommandResult {
        let Self { scored, tokens, shared, held, foreign, refused, why } = self;
        if scored + held == 0 {
            return Err(match (foreign, why) {
                (1.., _) => other_tokenizer(),
                (_, Some(why)) => Failure::new(format!("the server scores nothing: {why}")),
                _ => Failure::new("no sampled token with an id is recorded")
                    .hint("`rolltape doctor --upstream URL` says what the server reports"),
            });
        }
        if as_json {
            let document = json!({
                "name": folder.set().name,
                "model": folder.set().model,
                "rows": scored,
                "tokens": tokens,
                "shared": shared,
                "held": held,
                "foreign": foreign,
                "refused": refused,
                "folder": out,
            });
            print::line(&document.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }

        let rows = print::count(*scored, "row");
        print::line(&format!("{rows} scored by `{}`, {tokens} tokens", folder.set().model))?;
        if *shared > 0 {
            print::line(&format!("  {shared} of them at the beginning of another row"))?;
        }
        if *held > 0 {
            print::line(&format!("  {} scored before", print::count(*held, "row")))?;
        }
        if *foreign > 0 {
            print::line(&format!("  {} of another tokenizer", print::count(*foreign, "row")))?;
        }
        if let Some(why) = why {
            print::line(&format!("  {} refused: {why}", print::count(*refused, "row")))?;
        }
        print::line(&out.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A name that can stand in names of columns.
fn name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(is_plain) {
        return Err("is not made of letters, digits and _".to_owned());
    }
    match text.ends_with("_top") {
        true => Err("ends in _top, which columns of its own end in".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_that_is_known_is_not_asked_for_again() {
        let scores = |count: usize, of: f32| {
            let score = |at| (at > 0).then(|| TokenScore { logprob: of, top: Vec::new() });
            (0..count).map(score).collect::<Vec<_>>()
        };
        let mut known = KnownScores::default();
        assert_eq!(known.of(&[1, 2]), []);
        known.add(&[1, 2, 3, 4], scores(4, -1.0));
        known.add(&[1, 2, 9], scores(3, -2.0));
        assert_eq!(known.of(&[1, 2, 3, 5]), &scores(4, -1.0)[..3]);
        assert_eq!(known.of(&[1, 2, 9, 9]), scores(3, -2.0));
        assert_eq!(known.of(&[8]), []);
        for other in 10..10 + KNOWN_MAX as u32 {
            known.add(&[other], scores(1, 0.0));
        }
        assert_eq!(known.of(&[1, 2, 3]), [], "few rows are kept");
    }

    #[test]
    fn a_name_can_stand_in_names_of_columns() {
        assert_eq!(name("big_32b"), Ok("big_32b".to_owned()));
        for refused in ["", "a b", "a-b", "a_top", &"a".repeat(65)] {
            assert!(name(refused).is_err(), "{refused}");
        }
    }
}
