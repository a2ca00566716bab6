//! `rolltape demo`: the main job on a small scale, with every part real.
//!
//! The engine serves the tiny model, the proxy records in front of it, and a small agent plays a
//! guessing game over HTTP: groups of episodes, several at a time, rewarded and exported.

mod agent;
mod game;

use std::net::{Ipv4Addr, SocketAddr};
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

use crate::engine_options::EngineArgs;
use crate::exit::{Done, Failure};
use crate::http::Http;
use crate::manner::Manner;
use crate::print;
use crate::server::{DurabilityName, Plan, Running, Source};

use self::agent::{Episode, Played};

/// The files of the tiny model, part of the binary so that the demo needs nothing beside it.
const MODEL: [(&str, &[u8]); 6] = [
    ("config.json", include_bytes!("../../engine/models/tiny/config.json")),
    ("generation_config.json", include_bytes!("../../engine/models/tiny/generation_config.json")),
    ("model.safetensors", include_bytes!("../../engine/models/tiny/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../engine/models/tiny/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../engine/models/tiny/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../engine/models/tiny/chat_template.jinja")),
];

/// Play, record and export a small game, from nothing
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the store and the export go
    #[arg(long, value_name = "DIR", default_value = "rolltape-demo")]
    out: PathBuf,
    /// Groups; the episodes of a group share a secret number
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    groups: u32,
    /// Episodes of each group
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    episodes: u32,
    /// Episodes played at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    at_once: u32,
}

/// Plays the demo.
pub(crate) async fn run(args: Args) -> Done {
    let model = unpack(&args.out)?;
    let store = args.out.join("rolltape.db");
    let running = Running::start(plan(model.path(), &store)).await?;
    let name = Uuid::now_v7().as_simple().to_string();
    // The front of a time-ordered id barely changes; its end is what tells two runs apart.
    let run = &name[name.len() - 6..];
    let started = Instant::now();
    let played = play_all(&args, run, &running).await?;
    let seconds = started.elapsed().as_secs_f64();
    running.stop(std::future::pending()).await?;
    let report = export(&store, &args.out).await?;
    tell(&played, seconds)?;
    next(&played, &store, &report)?;
    Ok(ExitCode::SUCCESS)
}

fn unpack(out: &Path) -> Result<tempfile::TempDir, Failure> {
    std::fs::create_dir_all(out).map_err(|error| {
        Failure::new(format!("cannot make `{}`: {error}", out.display()))
            .hint("give a folder that can be written with --out")
    })?;
    // The folder's name becomes the model's.
    let model = tempfile::Builder::new().prefix("rolltape-model-").tempdir()?;
    std::fs::create_dir(model.path().join("tiny"))?;
    for (name, bytes) in MODEL {
        std::fs::write(model.path().join("tiny").join(name), bytes)?;
    }
    Ok(model)
}

fn plan(model: &Path, store: &Path) -> Plan {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Plan {
        source: Source { upstream: None, model: Some(model.join("tiny")) },
        manner: Manner::default(),
        engine: EngineArgs::default(),
        store: store.into(),
        durability: DurabilityName::Power,
        listen: free,
        control: free,
        engine_listen: free,
    }
}

async fn play_all(args: &Args, run: &str, running: &Running) -> Result<Vec<Played>, Failure> {
    let bar = ProgressBar::new(u64::from(args.groups) * u64::from(args.episodes));
    let style = ProgressStyle::with_template("playing {bar:32} {pos}/{len} episodes {elapsed}")
        .map_err(|e| Failure::of(&e))?;
    bar.set_style(style);
    let http = Http::new();
    let places = Arc::new(Semaphore::new(args.at_once as usize));
    let mut games = JoinSet::new();
    for group in 0..args.groups {
        for number in 0..args.episodes {
            let episode = Episode {
                id: format!("demo-{run}-g{group}-e{number}"),
                group: format!("demo-{run}-g{group}"),
                secret: i64::from(group) % game::HIGH + 1,
                proxy: format!("http://{}", running.data),
            };
            let control = format!("http://{}", running.control);
            let (http, places, bar) = (http.clone(), Arc::clone(&places), bar.clone());
            games.spawn(async move {
                let _place = places.acquire_owned().await;
                let played = agent::play(&http, episode).await?;
                settle(&http, &control, &played).await?;
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

/// Rewards and closes an episode over the control listener, as a harness does.
async fn settle(http: &Http, control: &str, played: &Played) -> Result<(), Failure> {
    let page = format!("{control}/episodes/{}", played.episode.id);
    let reward = json!({ "value": played.reward, "source": "demo" });
    for (page, body) in [
        (format!("{page}/rewards"), reward),
        (format!("{page}/close"), json!({ "status": "completed" })),
    ] {
        let (status, reply) = http.json(Method::POST, &page, &[], &body).await?;
        if status != 200 {
            return Err(Failure::new(format!("{page} answered {status}: {reply}")));
        }
    }
    Ok(())
}

async fn export(store: &Path, out: &Path) -> Result<Report, Failure> {
    let snapshot = Snapshot::open(store).await?;
    let options = Options { out: out.join("data").into(), ..Options::default() };
    exporter::export(snapshot, &options).await.map_err(|e| crate::export::failure(&e))
}

/// The groups, then one line on all of it.
fn tell(played: &[Played], seconds: f64) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for group in played.chunk_by(|a, b| a.episode.group == b.episode.group) {
        let rewards: Vec<f64> = group.iter().map(|p| p.reward).collect();
        let found = group.iter().filter(|p| p.found).count();
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        let spread = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / rewards.len() as f64;
        rows.push(vec![
            group[0].episode.group.clone(),
            group[0].episode.secret.to_string(),
            group.len().to_string(),
            found.to_string(),
            format!("{mean:.3}"),
            format!("{:.3}", spread.sqrt()),
        ]);
    }
    let head = ["group", "secret", "episodes", "found", "mean reward", "std"];
    print::table(&head, &rows)?;
    let calls: u64 = played.iter().map(|p| p.calls).sum();
    let found = played.iter().filter(|p| p.found).count();
    print::line(&format!(
        "\n{found} of {} found it; {calls} calls in {seconds:.1} s, {:.0} calls/s",
        print::count(played.len() as u64, "episode"),
        calls as f64 / seconds
    ))
}

/// Where everything is, and what to try.
fn next(played: &[Played], store: &Path, report: &Report) -> Result<(), Failure> {
    let store = store.display();
    print::line(&format!("store   {store}"))?;
    for file in report.files.iter().take(1) {
        let rows = print::count(report.rows, "row");
        let trained = report.trained_tokens;
        print::line(&format!("export  {} ({rows}, {trained} trained tokens)", file.display()))?;
    }
    let command = std::env::args().next().unwrap_or_else(|| "rolltape".to_owned());
    let longest = played.iter().max_by_key(|p| p.calls).map_or("EPISODE", |p| &p.episode.id);
    print::line(&format!("next    {command} show {longest} --store {store}"))
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
