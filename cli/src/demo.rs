//! `rolltape demo`: plays, records and exports a small game with the real parts.
//!
//! The engine serves the tiny model, the proxy records in front of it, and a small agent plays a
//! guessing game over HTTP: groups of episodes, several at a time, rewarded and exported.

mod agent;
mod game;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use exporter::{Options, Report};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use store::Snapshot;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;

use self::agent::{GameEpisode, PlayedEpisode};
use crate::exit::{CommandResult, Failure};
use crate::http::Http;
use crate::options::proxy::ProxyArgs;
use crate::print;
use crate::server::{BackendArgs, RunningServer, ServerOptions};

/// The files of the tiny model. They are part of the binary, so that the demo needs no other file.
const MODEL: [(&str, &[u8]); 6] = [
    ("config.json", include_bytes!("../../engine/models/tiny/config.json")),
    ("generation_config.json", include_bytes!("../../engine/models/tiny/generation_config.json")),
    ("model.safetensors", include_bytes!("../../engine/models/tiny/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../engine/models/tiny/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../engine/models/tiny/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../engine/models/tiny/chat_template.jinja")),
];

/// Play, record and export a small game
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Game")]
pub(crate) struct Args {
    /// Folder of the store and the export
    #[arg(long, value_name = "DIR", default_value = "rolltape-demo")]
    out: PathBuf,
    /// Number of groups
    ///
    /// The episodes of a group share a secret number.
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    groups: u32,
    /// Episodes per group
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    episodes: u32,
    /// Episodes played at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    at_once: u32,
}

/// Plays the demo.
pub(crate) async fn run(args: Args) -> CommandResult {
    let model = unpack(&args.out)?;
    let store = args.out.join("rolltape.db");
    let running = RunningServer::start(server_options(model.path(), &store)).await?;
    let id = Uuid::now_v7().as_simple().to_string();
    // The start of a time-ordered id barely changes; its end tells two runs apart.
    let run_id = &id[id.len() - 6..];

    let started = Instant::now();
    let played = play_all(&args, run_id, &running).await?;
    let seconds = started.elapsed().as_secs_f64();
    running.stop(std::future::pending()).await?;

    let report = export(&store, &args.out).await?;
    print_groups(&played, seconds)?;
    print_next_steps(&played, &store, &report)?;
    Ok(ExitCode::SUCCESS)
}

fn unpack(out: &Path) -> Result<tempfile::TempDir, Failure> {
    DirBuilder::new().recursive(true).mode(0o700).create(out).map_err(|error| {
        Failure::new(format!("cannot create `{}`: {error}", out.display()))
            .hint("give a writable folder with --out")
    })?;
    // The folder's name becomes the name of the model.
    let model = tempfile::Builder::new().prefix("rolltape-model-").tempdir()?;
    std::fs::create_dir(model.path().join("tiny"))?;
    for (name, bytes) in MODEL {
        std::fs::write(model.path().join("tiny").join(name), bytes)?;
    }
    Ok(model)
}

fn server_options(model: &Path, store: &Path) -> ServerOptions {
    let backend = BackendArgs { model: Some(model.join("tiny")), ..BackendArgs::default() };
    ServerOptions::private(backend, ProxyArgs::default(), store.into())
}

/// Plays all episodes of all groups, some at once. Returns them in the order of their ids.
async fn play_all(
    args: &Args,
    run_id: &str,
    running: &RunningServer,
) -> Result<Vec<PlayedEpisode>, Failure> {
    let bar = progress_bar(u64::from(args.groups) * u64::from(args.episodes))?;
    let http = Http::new();
    let permits = Arc::new(Semaphore::new(args.at_once as usize));

    let mut games = JoinSet::new();
    for group in 0..args.groups {
        for number in 0..args.episodes {
            let episode = GameEpisode {
                id: format!("demo-{run_id}-g{group}-e{number}"),
                group: format!("demo-{run_id}-g{group}"),
                secret: i64::from(group) % game::HIGH + 1,
                proxy: running.agents_url(),
            };
            let control = ControlAddress {
                url: running.control_url(),
                bearer: running.control_bearer().unwrap_or_default(),
            };
            let (http, permits, bar) = (http.clone(), Arc::clone(&permits), bar.clone());
            games.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let played = agent::play(&http, episode).await?;
                reward_and_close(&http, &control, &played).await?;
                bar.inc(1);
                Ok::<_, Failure>(played)
            });
        }
    }

    let mut played = Vec::new();
    while let Some(game) = games.join_next().await {
        played.push(game.map_err(|e| Failure::of(&e))??);
    }
    bar.finish_and_clear();
    played.sort_by(|a, b| a.episode.id.cmp(&b.episode.id));
    Ok(played)
}

fn progress_bar(length: u64) -> Result<ProgressBar, Failure> {
    let style = ProgressStyle::with_template("playing {bar:32} {pos}/{len} episodes {elapsed}")
        .map_err(|e| Failure::of(&e))?;
    Ok(ProgressBar::new(length).with_style(style))
}

/// The control listener of the demo's server.
struct ControlAddress {
    url: String,
    /// The `authorization` of requests.
    bearer: String,
}

/// Rewards and closes an episode over the control listener, as a training harness does.
async fn reward_and_close(
    http: &Http,
    control: &ControlAddress,
    played: &PlayedEpisode,
) -> Result<(), Failure> {
    let page = format!("{}/episodes/{}", control.url, played.episode.id);
    let requests = [
        (format!("{page}/rewards"), json!({ "value": played.reward, "source": "demo" })),
        (format!("{page}/close"), json!({ "status": "completed" })),
    ];

    let headers = [("authorization", control.bearer.as_str())];
    for (url, body) in requests {
        let (status, reply) = http.json(Method::POST, &url, &headers, &body).await?;
        if status != 200 {
            return Err(Failure::new(format!("{url} answered {status}: {reply}")));
        }
    }
    Ok(())
}

async fn export(store: &Path, out: &Path) -> Result<Report, Failure> {
    let snapshot = Snapshot::open(store).await?;
    let options = Options { out: out.join("data").into(), ..Options::default() };
    exporter::export(snapshot, &options).await.map_err(|e| crate::export::failure(&e))
}

/// Prints a table of the groups and a line of totals.
fn print_groups(played: &[PlayedEpisode], seconds: f64) -> Result<(), Failure> {
    let head = ["group", "secret", "episodes", "found", "mean reward", "std"];
    let rows: Vec<_> =
        played.chunk_by(|a, b| a.episode.group == b.episode.group).map(group_row).collect();
    print::table(&head, &rows)?;

    let calls: u64 = played.iter().map(|p| p.calls).sum();
    let found = played.iter().filter(|p| p.found).count();
    print::line("")?;
    print::line(&format!(
        "{found} of {} found it; {calls} calls in {seconds:.1} s, {:.0} calls/s",
        print::count(played.len() as u64, "episode"),
        calls as f64 / seconds
    ))
}

fn group_row(group: &[PlayedEpisode]) -> Vec<String> {
    let episode = &group[0].episode;
    let count = group.len() as f64;
    let mean = group.iter().map(|p| p.reward).sum::<f64>() / count;
    let variance = group.iter().map(|p| (p.reward - mean).powi(2)).sum::<f64>() / count;

    vec![
        episode.group.clone(),
        episode.secret.to_string(),
        group.len().to_string(),
        group.iter().filter(|p| p.found).count().to_string(),
        format!("{mean:.3}"),
        format!("{:.3}", variance.sqrt()),
    ]
}

/// Prints where the files are and which command to try next.
fn print_next_steps(
    played: &[PlayedEpisode],
    store: &Path,
    report: &Report,
) -> Result<(), Failure> {
    let store = store.display();
    print::line(&format!("store   {store}"))?;
    for file in report.files.iter().take(1) {
        let rows = print::count(report.rows, "row");
        let trained = report.trained_tokens;
        print::line(&format!("export  {} ({rows}, {trained} trained tokens)", file.display()))?;
    }
    let command = std::env::args().next().unwrap_or_else(|| "rolltape".to_owned());
    let longest = played.iter().max_by_key(|p| p.calls).map_or("EPISODE", |p| &p.episode.id);
    print::line(&format!("next    {command} show {longest} --store {store}"))?;
    print::line(&format!("page    {command} view {longest} --store {store}"))
}

/// The tools that the game offers.
fn tools() -> Value {
    json!([{ "type": "function", "function": {
        "name": "guess",
        "parameters": {
            "type": "object",
            "properties": { "n": { "type": "integer" } },
            "required": ["n"],
        },
    }}])
}
