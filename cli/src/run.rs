//! `rolltape run`: one episode around one process.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use episode::{EpisodeId, GroupId, TaskId};
use hyper::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::Upstream;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use crate::at::At;
use crate::engine_options::EngineArgs;
use crate::exit::{self, Done, Failure};
use crate::http::{self, Http};
use crate::manner::Manner;
use crate::print::count;
use crate::server::{DurabilityName, Plan, Running, Source};

/// Run a command as one episode
///
/// The command finds rolltape in OPENAI_BASE_URL and ANTHROPIC_BASE_URL, with the episode in the
/// path. It runs against a rolltape that serves already, or, with --upstream or --model, against
/// one that lives as long as the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The episode; made up if not given
    #[arg(long, value_name = "ID")]
    episode: Option<EpisodeId>,
    /// Which run of the episode
    #[arg(long, default_value_t = 0)]
    attempt: u32,
    /// The group whose rewards are compared
    #[arg(long, value_name = "ID")]
    group: Option<GroupId>,
    /// What the episode is asked to do
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
    /// Where agents call a rolltape that serves already
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        env = "ROLLTAPE_PROXY"
    )]
    proxy: String,
    /// Its control listener
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8081",
        env = "ROLLTAPE_CONTROL_URL"
    )]
    control: String,
    /// Serve from here, in front of this OpenAI-compatible server
    #[arg(long, value_name = "URL", conflicts_with = "model")]
    upstream: Option<Upstream>,
    /// Serve from here, with this Hugging Face model folder
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    manner: Manner,
    #[command(flatten)]
    at: At,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Where the episode's calls and statements go.
struct Place {
    proxy: String,
    control: String,
    episode: EpisodeId,
    attempt: u32,
    http: Http,
    /// The control listener's token.
    token: Option<String>,
}

/// Runs, closes the episode, says what was recorded, and ends as the command ended.
pub(crate) async fn run(args: Args) -> Done {
    let serving = serve_here(&args).await?;
    let place = Place::new(&args, serving.as_ref())?;
    place.announce(&args).await?;
    let signals = Signals::new()?;
    let ended = match place.spawn(&args) {
        Ok(child) => Ok(signals.attend(child).await?),
        Err(error) => Err(error),
    };
    let status = if ended.as_ref().is_ok_and(ExitStatus::success) { "completed" } else { "failed" };
    let summary = place.close(status).await;
    if let Some(serving) = serving {
        serving.stop(std::future::pending()).await?;
    }
    let summary = summary?;
    match ended {
        Ok(ended) => {
            report(&place.episode, &summary);
            Ok(code(ended))
        }
        Err(error) => {
            let _ = Failure::new(format!("cannot run `{}`: {error}", args.command[0])).report();
            Ok(exit::not_run(&error))
        }
    }
}

async fn serve_here(args: &Args) -> Result<Option<Running>, Failure> {
    if args.upstream.is_none() && args.model.is_none() {
        return Ok(None);
    }
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let plan = Plan {
        source: Source { upstream: args.upstream.clone(), model: args.model.clone() },
        manner: args.manner.clone(),
        engine: EngineArgs::default(),
        store: args.at.store.clone(),
        durability: DurabilityName::Power,
        listen: free,
        control: free,
        engine_listen: free,
    };
    Running::start(plan).await.map(Some)
}

impl Place {
    fn new(args: &Args, serving: Option<&Running>) -> Result<Self, Failure> {
        let made_up = || format!("run-{}", Uuid::now_v7().as_simple()).parse();
        let episode = args.episode.clone().map_or_else(made_up, Ok);
        let (proxy, control) = match serving {
            Some(here) => (here.agents_url(), format!("http://{}", here.control)),
            None => (http::base(&args.proxy), http::base(&args.control)),
        };
        Ok(Self {
            proxy,
            control,
            episode: episode.map_err(|e| Failure::of(&e))?,
            attempt: args.attempt,
            http: Http::new(),
            token: args.manner.token.read()?,
        })
    }

    /// Makes group and task known: the path that the agent is given carries neither.
    async fn announce(&self, args: &Args) -> Result<(), Failure> {
        let body = json!({
            "episode_id": self.episode.as_str(),
            "attempt": self.attempt,
            "group_id": args.group.as_ref().map(GroupId::as_str),
            "task_id": args.task.as_ref().map(TaskId::as_str),
        });
        self.tell(Method::POST, "/episodes", &body).await.map(|_| ())
    }

    async fn close(&self, status: &str) -> Result<Value, Failure> {
        let page = format!("/episodes/{}", self.episode);
        let query = format!("?attempt={}", self.attempt);
        let body = json!({ "status": status });
        self.tell(Method::POST, &format!("{page}/close{query}"), &body).await?;
        self.tell(Method::GET, &format!("{page}{query}"), &Value::Null).await
    }

    async fn tell(&self, method: Method, page: &str, body: &Value) -> Result<Value, Failure> {
        let url = format!("{}{page}", self.control);
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let bearer = bearer.as_deref().map(|bearer| ("authorization", bearer));
        let headers: Vec<_> = bearer.into_iter().collect();
        let answer = self.http.json(method, &url, &headers, body).await;
        let (status, reply) = answer.map_err(|failure| {
            failure.hint(
                "start `rolltape serve` first, or give --upstream URL or --model DIR to serve \
                 from here",
            )
        })?;
        if status == 200 {
            return Ok(reply);
        }
        let message = reply["error"]["message"].as_str().unwrap_or("no reason was given");
        let failure = Failure::new(format!("{url} answered {status}: {message}"));
        Err(match status {
            409 => failure.hint("a closed episode needs another --attempt"),
            _ => http::hinted(failure, status),
        })
    }

    fn spawn(&self, args: &Args) -> std::io::Result<Child> {
        let (program, arguments) = args.command.split_first().expect("clap requires one");
        let attempt = match self.attempt {
            0 => String::new(),
            attempt => format!("/a/{attempt}"),
        };
        let root = format!("{}/e/{}{attempt}", self.proxy, self.episode);
        let mut child = Command::new(program);
        child.args(arguments).kill_on_drop(true);
        // With them it could give itself rewards, or call the upstream past the recorder.
        let secrets = args.manner.secret_variables();
        for name in &secrets {
            child.env_remove(name);
        }
        for name in ["OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"] {
            child.env(name, format!("{root}/v1"));
        }
        child.env("ANTHROPIC_BASE_URL", &root);
        // A key of the user's own may be what the upstream wants to see.
        for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOSTED_VLLM_API_KEY"] {
            if std::env::var_os(name).is_none() || secrets.contains(&name) {
                child.env(name, "rolltape");
            }
        }
        // Its nonce in the system prompt would make every request a new history.
        child.env("CLAUDE_CODE_ATTRIBUTION_HEADER", "0");
        child.env("ROLLTAPE_EPISODE", self.episode.as_str());
        child.env("ROLLTAPE_ATTEMPT", self.attempt.to_string());
        child.spawn()
    }
}

/// The signals that are meant for the command. Taken over before it starts, so that none is lost
/// in between and leaves it an orphan.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the command and passes the signals on.
    async fn attend(mut self, mut child: Child) -> Result<ExitStatus, Failure> {
        // A terminal sends its interrupt to the command as well; it must not get two.
        let shared = std::io::stdin().is_terminal();
        loop {
            let received = tokio::select! {
                ended = child.wait() => return Ok(ended?),
                _ = self.terminate.recv() => Some(Signal::SIGTERM),
                _ = self.hang_up.recv() => Some(Signal::SIGHUP),
                _ = self.interrupt.recv() => (!shared).then_some(Signal::SIGINT),
            };
            let pid = child.id().and_then(|id| i32::try_from(id).ok());
            if let (Some(signal), Some(pid)) = (received, pid)
                && let Err(error) = kill(Pid::from_raw(pid), signal)
            {
                tracing::warn!(%error, %signal, "a signal was not passed on");
            }
        }
    }
}

fn report(episode: &EpisodeId, summary: &Value) {
    let number = |name: &str| summary[name].as_u64().unwrap_or(0);
    let mut line = format!(
        "recorded {episode}: {}, {} with token ids, {} prompt + {} sampled tokens",
        count(number("calls"), "call"),
        number("with_ids"),
        number("prompt_tokens"),
        number("completion_tokens")
    );
    if number("incomplete") > 0 {
        line += &format!(", {} incomplete", number("incomplete"));
    }
    eprintln!("{line}");
}

/// The command's own code, or 128 and the signal that ended it.
fn code(ended: ExitStatus) -> ExitCode {
    let code = ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
