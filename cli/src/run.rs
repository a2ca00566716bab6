//! `rolltape run`: runs a command as one episode.

mod agents;
mod bridge;
mod client;
mod environment;
pub(crate) mod fork;
mod harbor;
mod names;
mod recorder;
pub(crate) mod replay;

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use episode::{EpisodeId, GroupId, TaskId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::{EngineSpec, Upstream};
use serde_json::{Map, Value};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use self::agents::KnownAgent;
use self::client::EpisodeClient;
use self::environment::EnvironmentArgs;
use self::recorder::RecorderClient;
use crate::exit::{self, CommandResult, Failure};
use crate::options::control::ControlCa;
use crate::options::parse::{label, upstream};
use crate::options::proxy::ProxyArgs;
use crate::options::store::StoreArgs;
use crate::print::count;
use crate::reading::page_address;
use crate::server::{BackendArgs, RunningServer, ServerOptions};
use crate::terminal;

/// The control listener of a server that was told nothing.
const CONTROL: &str = "http://127.0.0.1:8081";

/// Run a command as one episode
///
/// The command's environment gets OPENAI_BASE_URL and ANTHROPIC_BASE_URL, which point to rolltape
/// and have the episode in their path. An agent of --list-agents gets what it reads in place of
/// them. The command runs against a running `rolltape serve`. With --upstream or --model, `run`
/// starts a server of its own, which lives as long as the command.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    episode: EpisodeArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    environment: EnvironmentArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    proxy: ProxyArgs,
    /// Record each trial of a `harbor run` as an episode
    ///
    /// Harbor gets a plugin, by which each trial calls an address of its own. The recorded ids go
    /// into the trial's result.json, and the rewards of its verifier to the episode.
    #[arg(
        long,
        requires = "command",
        conflicts_with_all = ["id", "attempt", "group", "task"],
        help_heading = "Episode"
    )]
    harbor: bool,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "list_agents",
        value_name = "COMMAND",
        help_heading = None::<&str>
    )]
    command: Vec<String>,
}

/// The episode of the command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Episode")]
struct EpisodeArgs {
    /// The episode [default: a new name, such as claude-amber-otter-k3mx]
    #[arg(long = "episode", value_name = "ID")]
    id: Option<EpisodeId>,
    /// Attempt of the episode, or `next`
    ///
    /// The next is the first that is not recorded.
    #[arg(long, value_name = "N", default_value = "0", value_parser = attempt_choice)]
    attempt: AttemptChoice,
    /// Group of episodes whose rewards are compared
    #[arg(long, value_name = "ID")]
    group: Option<GroupId>,
    /// Task that the episode is to solve
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
    /// Label of the episode; repeatable
    ///
    /// Such as owner=ann, by which lists can be filtered.
    #[arg(long, value_name = "NAME=VALUE", value_parser = label, env = "ROLLTAPE_LABEL")]
    label: Vec<(String, String)>,
}

/// The attempt that is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptChoice {
    Number(u32),
    /// The first that is not recorded.
    Next,
}

fn attempt_choice(text: &str) -> Result<AttemptChoice, String> {
    match text {
        "next" => Ok(AttemptChoice::Next),
        text => text.parse().map(AttemptChoice::Number).map_err(|_| {
            "give the number of an attempt, or `next` for the first that is not recorded".to_owned()
        }),
    }
}

impl EpisodeArgs {
    /// The labels, as the control listener takes them.
    fn labels(&self) -> Map<String, Value> {
        let labels = self.label.iter();
        labels.map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
    }
}

/// The server that records: a running one, or one of the command's own.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Data listener of a running `rolltape serve`
    ///
    /// A URL, or unix:PATH. Then a port of loopback leads there while the command runs.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        env = "ROLLTAPE_PROXY"
    )]
    proxy: String,
    /// Control listener of that server
    ///
    /// A URL, or unix:PATH.
    #[arg(
        long,
        value_name = "URL",
        default_value = CONTROL,
        env = "ROLLTAPE_CONTROL_URL"
    )]
    control: String,
    /// Start a server that records this upstream
    ///
    /// The upstream is OpenAI-compatible. The server ends with the command.
    #[arg(long, value_name = "URL", value_parser = upstream, conflicts_with = "model")]
    upstream: Option<Upstream>,
    /// Start a server with this Hugging Face model folder
    ///
    /// The server ends with the command.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    ca: ControlCa,
}

/// Runs the command, closes the episode, prints what was recorded, and returns the command's code.
///
/// A command that ends well and made no call has failed: what it said to a model, if anything, was
/// not recorded.
pub(crate) async fn run(args: Args) -> CommandResult {
    if args.environment.list_agents {
        agents::print_list()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.harbor {
        return harbor::run(args).await;
    }
    prepare(&args)?;
    let server = asked_server(&args).await?;
    let ran = run_once(&args, server.as_ref(), None).await;
    let has_own_server = server.is_some();
    if let Some(server) = server {
        // The store is complete even if the episode could not be closed.
        server.stop(std::future::pending()).await?;
    }

    let RanEpisode { episode, ended, recorded, .. } = ran?;
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => return Ok(not_run(&args, &error)),
    };
    let page = in_browser(&args, &episode, has_own_server);
    print_summary(&episode.id, &recorded, &where_to_read(&args, has_own_server), &page);
    if number(&recorded, "calls") > 0 {
        return Ok(exit_code(ended));
    }
    let code = told_silent(KnownAgent::of(&args.command)?).report();
    Ok(if ended.success() { code } else { exit_code(ended) })
}

/// Checks the command and its environment, before anything is started.
fn prepare(args: &Args) -> Result<(), Failure> {
    if args.harbor {
        return Err(Failure::new("`--harbor` is an option of `rolltape run`"));
    }
    KnownAgent::of(&args.command)?;
    args.environment.check(&args.proxy.secret_variables())?;
    hide_memory();
    Ok(())
}

/// An episode whose command has ended.
struct RanEpisode {
    episode: EpisodeClient,
    /// The end of the command, or why it was not started.
    ended: std::io::Result<ExitStatus>,
    /// True if this process was asked to stop while the command ran.
    is_stopped: bool,
    /// The progress of its replay; null if no recording answered its calls.
    replay: Value,
    /// The counts of what was recorded.
    recorded: Value,
}

/// Runs the command once, as one episode. `replay` is the recording that answers its calls, as the
/// control listener takes it.
async fn run_once(
    args: &Args,
    server: Option<&RunningServer>,
    replay: Option<&Value>,
) -> Result<RanEpisode, Failure> {
    let agent = KnownAgent::of(&args.command)?;
    let mut recorder = RecorderClient::new(args, server)?;
    let bridge = match server {
        Some(_) => None,
        None => recorder.bridge(args).await?,
    };
    let mut episode = EpisodeClient::new(args, recorder)?;
    episode.take_free_name(args).await?;
    episode.announce(args, replay).await?;
    if args.proxy.agents.require_key {
        episode.mint_key().await?;
    }

    let passed = args.environment.passed(std::env::vars_os(), &args.proxy.secret_variables());
    let setup = episode.set_up(agent, &args.command, &passed).await?;

    // Before the command starts, so that no signal is lost in between and leaves it an orphan.
    let signals = ForwardedSignals::new()?;
    let (ended, is_stopped) = match episode.spawn(args, passed, &setup) {
        Ok(child) => {
            let (ended, is_stopped) = signals.wait_for(child).await?;
            (Ok(ended), is_stopped)
        }
        Err(error) => (Err(error), false),
    };

    drop((bridge, setup));
    let replay = match replay {
        Some(_) => episode.replay_state().await.unwrap_or_default(),
        None => Value::Null,
    };
    let succeeded = ended.as_ref().is_ok_and(ExitStatus::success);
    let recorded = episode.close(if succeeded { "completed" } else { "failed" }).await?;
    Ok(RanEpisode { episode, ended, is_stopped, replay, recorded })
}

/// Starts a server if `--upstream` or `--model` asks for one.
async fn asked_server(args: &Args) -> Result<Option<RunningServer>, Failure> {
    match args.server.upstream.is_some() || args.server.model.is_some() {
        true => start_own_server(args).await.map(Some),
        false => Ok(None),
    }
}

/// Starts a server for the command alone.
async fn start_own_server(args: &Args) -> Result<RunningServer, Failure> {
    let backend = BackendArgs {
        upstream: args.server.upstream.clone().map(EngineSpec::from).into_iter().collect(),
        model: args.server.model.clone(),
        ..BackendArgs::default()
    };
    let store = args.store.location.clone();
    RunningServer::start(ServerOptions::private(backend, args.proxy.clone(), store)).await
}

/// Tells that the command could not be started.
fn not_run(args: &Args, error: &std::io::Error) -> ExitCode {
    let _ = Failure::new(format!("cannot run `{}`: {error}", args.command[0])).report();
    exit::not_run(error)
}

/// Keeps the environment and the memory of this process from its command, which could read both in
/// `/proc`. It is no wall against an administrator, or for other processes of this user.
fn hide_memory() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "the command may read the environment of rolltape");
    }
}

/// The signals that are forwarded to the command.
struct ForwardedSignals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl ForwardedSignals {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the command and forwards signals to it. Returns true if there was one.
    async fn wait_for(mut self, mut child: Child) -> Result<(ExitStatus, bool), Failure> {
        // A terminal sends its interrupt to the command as well; it must not get two.
        let on_terminal = std::io::stdin().is_terminal();
        let mut is_stopped = false;

        loop {
            let received = tokio::select! {
                ended = child.wait() => return Ok((ended?, is_stopped)),
                _ = self.terminate.recv() => Some(Signal::SIGTERM),
                _ = self.hang_up.recv() => Some(Signal::SIGHUP),
                _ = self.interrupt.recv() => (!on_terminal).then_some(Signal::SIGINT),
            };
            is_stopped = true;
            let pid = child.id().and_then(|id| i32::try_from(id).ok());
            if let (Some(signal), Some(pid)) = (received, pid)
                && let Err(error) = kill(Pid::from_raw(pid), signal)
            {
                tracing::warn!(%error, %signal, "a signal could not be forwarded");
            }
        }
    }
}

/// The option of `rolltape show` that leads to the recording.
fn where_to_read(args: &Args, has_own_server: bool) -> String {
    match has_own_server {
        true => format!("--store {}", args.store.location),
        false => format!("--control {}", args.server.control),
    }
}

/// What opens the recording in a browser. A server of the command's own has ended.
fn in_browser(args: &Args, episode: &EpisodeClient, has_own_server: bool) -> String {
    let EpisodeClient { id, attempt, recorder, .. } = episode;
    match has_own_server {
        true => format!("rolltape view {id}/{attempt} --store {}", args.store.location),
        false => page_address(&recorder.control, id.as_str(), *attempt),
    }
}

fn print_summary(episode: &EpisodeId, summary: &Value, place: &str, page: &str) {
    let mut line = format!(
        "recorded {episode}: {}, {} with token ids, {} prompt + {} sampled tokens",
        count(number(summary, "calls"), "call"),
        number(summary, "with_ids"),
        number(summary, "prompt_tokens"),
        number(summary, "completion_tokens")
    );
    for kind in ["incomplete", "refused"] {
        let calls = number(summary, kind);
        if calls > 0 {
            line += &format!(", {calls} {kind}");
        }
    }
    line += &format!("; read it: rolltape show {episode} {place}, or in a browser: {page}");
    terminal::remark(&line);
}

/// The failure of a command that made no call: the likely cause, and the way out.
fn told_silent(agent: Option<&KnownAgent>) -> Failure {
    let silent = "the command called no model through rolltape";
    match agent {
        Some(agent) => {
            Failure::new(format!("{silent}, though {} was told to", agent.name)).hint(format!(
                "It was told by {}. A setting of its own may be stronger, such as a provider or a \
                 login in its files",
                agent.told
            ))
        }
        None => Failure::new(format!(
            "{silent}. If it should have, it reads its base URL from elsewhere than \
             OPENAI_BASE_URL and ANTHROPIC_BASE_URL, such as an option or a file of its own"
        ))
        .hint(
            "Hand the variable on, as in: rolltape run -- sh -c 'COMMAND --base-url \
             \"$OPENAI_BASE_URL\"'\n`rolltape run --list-agents` names those that need no more \
             than their command",
        ),
    }
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or(0)
}

/// The command's own code, or 128 plus the signal that ended it.
fn exit_code(ended: ExitStatus) -> ExitCode {
    let code = ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
