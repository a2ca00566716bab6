//! `rolltape run`: runs a command as one episode.

mod bridge;
mod environment;

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use episode::{EpisodeId, GroupId, TaskId};
use hyper::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::{EngineSpec, Upstream};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use self::bridge::Bridge;
use self::environment::EnvironmentArgs;
use crate::exit::{self, CommandResult, Failure};
use crate::http::{self, Http};
use crate::options::address::UNIX;
use crate::options::proxy::ProxyArgs;
use crate::options::store::StoreArgs;
use crate::print::count;
use crate::reading::page_address;
use crate::server::{BackendArgs, RunningServer, ServerOptions};
use crate::terminal;

/// Run a command as one episode
///
/// The command's environment gets OPENAI_BASE_URL and ANTHROPIC_BASE_URL, which point to rolltape
/// and have the episode in their path. The command runs against a running `rolltape serve`. With
/// --upstream or --model, `run` starts a server of its own, which lives as long as the command.
#[derive(Debug, clap::Args)]
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
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None::<&str>)]
    command: Vec<String>,
}

/// The episode of the command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Episode")]
struct EpisodeArgs {
    /// The episode [default: a new, unique id]
    #[arg(long = "episode", value_name = "ID")]
    id: Option<EpisodeId>,
    /// Attempt of the episode
    #[arg(long, value_name = "N", default_value_t = 0)]
    attempt: u32,
    /// Group of episodes whose rewards are compared
    #[arg(long, value_name = "ID")]
    group: Option<GroupId>,
    /// Task that the episode is to solve
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
}

/// The server that records: a running one, or one of the command's own.
#[derive(Debug, clap::Args)]
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
        default_value = "http://127.0.0.1:8081",
        env = "ROLLTAPE_CONTROL_URL"
    )]
    control: String,
    /// Start a server that records this upstream
    ///
    /// The upstream is OpenAI-compatible. The server ends with the command.
    #[arg(long, value_name = "URL", conflicts_with = "model")]
    upstream: Option<Upstream>,
    /// Start a server with this Hugging Face model folder
    ///
    /// The server ends with the command.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

/// Runs the command, closes the episode, prints what was recorded, and returns the command's code.
pub(crate) async fn run(args: Args) -> CommandResult {
    args.environment.check(&args.proxy.secret_variables())?;
    hide_memory();
    let server = start_own_server(&args).await?;
    let mut episode = EpisodeClient::new(&args, server.as_ref())?;
    let bridge = match (&server, args.server.proxy.strip_prefix(UNIX)) {
        (None, Some(path)) => Some(Bridge::start(path.as_ref()).await?),
        _ => None,
    };
    if let Some(bridge) = &bridge {
        episode.proxy.clone_from(&bridge.url);
    }
    episode.announce(&args).await?;
    if args.proxy.agents.require_key {
        episode.mint_key().await?;
    }

    // Before the command starts, so that no signal is lost in between and leaves it an orphan.
    let signals = ForwardedSignals::new()?;
    let ended = match episode.spawn(&args) {
        Ok(child) => Ok(signals.wait_for(child).await?),
        Err(error) => Err(error),
    };

    drop(bridge);
    let has_own_server = server.is_some();
    let succeeded = ended.as_ref().is_ok_and(ExitStatus::success);
    let summary = episode.close(if succeeded { "completed" } else { "failed" }).await;
    if let Some(server) = server {
        // The store is complete even if the episode could not be closed.
        server.stop(std::future::pending()).await?;
    }

    let recorded = summary?;
    match ended {
        Ok(ended) => {
            let page = in_browser(&args, &episode, has_own_server);
            print_summary(&episode.id, &recorded, &where_to_read(&args, has_own_server), &page);
            if number(&recorded, "calls") == 0 {
                terminal::message(SILENT_HINT);
            }
            Ok(exit_code(ended))
        }
        Err(error) => {
            let _ = Failure::new(format!("cannot run `{}`: {error}", args.command[0])).report();
            Ok(exit::not_run(&error))
        }
    }
}

/// Starts a server if `--upstream` or `--model` asks for one.
async fn start_own_server(args: &Args) -> Result<Option<RunningServer>, Failure> {
    if args.server.upstream.is_none() && args.server.model.is_none() {
        return Ok(None);
    }
    let backend = BackendArgs {
        upstream: args.server.upstream.clone().map(EngineSpec::from).into_iter().collect(),
        model: args.server.model.clone(),
        ..BackendArgs::default()
    };
    let store = args.store.location.clone();
    let options = ServerOptions::private(backend, args.proxy.clone(), store);
    RunningServer::start(options).await.map(Some)
}

/// Keeps the environment and the memory of this process from its command, which could read both in
/// `/proc`. It is no wall against an administrator, or for other processes of this user.
fn hide_memory() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "the command may read the environment of rolltape");
    }
}

/// One episode, and the server that records it.
struct EpisodeClient {
    id: EpisodeId,
    attempt: u32,
    /// URL of the data listener.
    proxy: String,
    /// URL of the control listener.
    control: String,
    http: Http,
    /// The control listener's `authorization`.
    bearer: Option<String>,
    /// The command's own API key, if it needs one.
    key: Option<String>,
}

impl EpisodeClient {
    fn new(args: &Args, own_server: Option<&RunningServer>) -> Result<Self, Failure> {
        let id = match &args.episode.id {
            Some(id) => id.clone(),
            None => format!("run-{}", Uuid::now_v7().as_simple())
                .parse()
                .map_err(|e: episode::InvalidId| Failure::of(&e))?,
        };
        let (proxy, control) = match own_server {
            Some(server) => (server.agents_url(), server.control_url()),
            None => (http::base_url(&args.server.proxy), http::base_url(&args.server.control)),
        };
        let bearer = match own_server {
            Some(server) => server.control_bearer(),
            None => args.proxy.control.token.of_client(&args.store.location)?,
        };

        Ok(Self {
            id,
            attempt: args.episode.attempt,
            proxy,
            control,
            http: Http::new(),
            bearer,
            key: None,
        })
    }

    /// Announces group and task, which the path that the agent gets cannot carry.
    async fn announce(&self, args: &Args) -> Result<(), Failure> {
        let body = json!({
            "episode_id": self.id.as_str(),
            "attempt": self.attempt,
            "group_id": args.episode.group.as_ref().map(GroupId::as_str),
            "task_id": args.episode.task.as_ref().map(TaskId::as_str),
        });
        self.request(Method::POST, "/episodes", &body).await.map(|_| ())
    }

    /// Makes an API key for the command.
    async fn mint_key(&mut self) -> Result<(), Failure> {
        let page = format!("/episodes/{}/key?attempt={}", self.id, self.attempt);
        let minted = self.request(Method::POST, &page, &json!({})).await?;
        self.key = minted["api_key"].as_str().map(str::to_owned);
        Ok(())
    }

    /// Closes the episode and returns its summary.
    async fn close(&self, status: &str) -> Result<Value, Failure> {
        let page = format!("/episodes/{}", self.id);
        let query = format!("?attempt={}", self.attempt);
        let body = json!({ "status": status });

        self.request(Method::POST, &format!("{page}/close{query}"), &body).await?;
        self.request(Method::GET, &format!("{page}{query}"), &Value::Null).await
    }

    /// Sends a request to the control listener.
    async fn request(&self, method: Method, page: &str, body: &Value) -> Result<Value, Failure> {
        let url = format!("{}{page}", self.control);
        let headers: Vec<_> =
            self.bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let answer = self.http.json(method, &url, &headers, body).await;
        let (status, reply) = answer.map_err(|failure| {
            failure.hint(
                "start `rolltape serve` first, or give --upstream URL or --model DIR to start a \
                 server for this command",
            )
        })?;
        if status == 200 {
            return Ok(reply);
        }

        let message = reply["error"]["message"].as_str().unwrap_or("no reason was given");
        let failure = Failure::new(format!("{url} answered {status}: {message}"));
        Err(match status {
            409 => failure.hint("the episode is closed; give another --attempt"),
            _ => http::with_hint(failure, status),
        })
    }

    /// Starts the command with the episode in its environment.
    fn spawn(&self, args: &Args) -> std::io::Result<Child> {
        let (program, arguments) = args.command.split_first().expect("clap requires one");
        let attempt = match self.attempt {
            0 => String::new(),
            attempt => format!("/a/{attempt}"),
        };
        let root = format!("{}/e/{}{attempt}", self.proxy, self.id);
        let mut child = Command::new(program);
        child.args(arguments).kill_on_drop(true);

        // With the secrets an agent could reward itself, or call the upstream unrecorded.
        let secrets = args.proxy.secret_variables();
        let passed = args.environment.passed(std::env::vars_os(), &secrets);
        let has = |name: &str| passed.iter().any(|(passed, _)| passed == name);
        let keys = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOSTED_VLLM_API_KEY"];
        let missing_keys = keys.into_iter().filter(|name| !has(name)).collect::<Vec<_>>();
        child.env_clear().envs(passed);

        for name in ["OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"] {
            child.env(name, format!("{root}/v1"));
        }
        child.env("ANTHROPIC_BASE_URL", &root);
        // The user's own key stays: the upstream may require it.
        for name in missing_keys {
            child.env(name, "rolltape");
        }
        if let Some(key) = &self.key {
            child.envs(keys.map(|name| (name, key)));
        }

        // Claude Code's header puts a nonce into the system prompt: every request would be a new
        // history.
        child.env("CLAUDE_CODE_ATTRIBUTION_HEADER", "0");
        child.env("ROLLTAPE_EPISODE", self.id.as_str());
        child.env("ROLLTAPE_ATTEMPT", self.attempt.to_string());
        child.spawn()
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

    /// Waits for the command and forwards signals to it.
    async fn wait_for(mut self, mut child: Child) -> Result<ExitStatus, Failure> {
        // A terminal sends its interrupt to the command as well; it must not get two.
        let on_terminal = std::io::stdin().is_terminal();

        loop {
            let received = tokio::select! {
                ended = child.wait() => return Ok(ended?),
                _ = self.terminate.recv() => Some(Signal::SIGTERM),
                _ = self.hang_up.recv() => Some(Signal::SIGHUP),
                _ = self.interrupt.recv() => (!on_terminal).then_some(Signal::SIGINT),
            };
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
    let EpisodeClient { id, attempt, control, .. } = episode;
    match has_own_server {
        true => format!("rolltape view {id}/{attempt} --store {}", args.store.location),
        false => page_address(control, id.as_str(), *attempt),
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
    terminal::message(&line);
}

/// The likely causes of a command that made no call, and the way out.
const SILENT_HINT: &str = "\
    the command called no model through rolltape. If it should have, it reads its base URL from \
    elsewhere than OPENAI_BASE_URL and ANTHROPIC_BASE_URL, such as an option or a file of its own.
Hand the variable on, as in: rolltape run -- sh -c 'COMMAND --base-url \"$OPENAI_BASE_URL\"'";

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or(0)
}

/// The command's own code, or 128 plus the signal that ended it.
fn exit_code(ended: ExitStatus) -> ExitCode {
    let code = ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
