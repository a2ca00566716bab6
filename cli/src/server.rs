//! The server of `rolltape serve` in one process: the engine, if there is a model, and the proxy
//! with its two listeners.

pub(crate) mod changes;
pub(crate) mod engine;
pub(crate) mod listen;
mod otlp;
pub(crate) mod passed;
pub(crate) mod signals;
mod upstreams;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::engine::EngineOptions;
use clap::ValueEnum;
use control::Settings;
use episode::{AttemptId, InvalidId, Replay, ReplayMode};
use http::server::endpoint::Endpoint;
use proxy::{Config, EngineSpec, Proxy, Recorder, Upstream};
use store::{Durability, Location, Store, Writer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use viewer::{TokenTexts, Viewer};
use wire::IgnoreRules;

use self::engine::{LoadedEngine, StartedBackend};
use self::listen::BoundSocket;
use self::listen::socket_file::SocketFile;
use self::otlp::OtlpExport;
use self::passed::PassedSockets;
use self::upstreams::Upstreams;
use crate::exit::Failure;
use crate::options::address::ListenAddress;
use crate::options::control::FoundToken;
use crate::options::engine::EngineArgs;
use crate::options::parse::{AttemptName, attempt_name, engine_spec};
use crate::options::proxy::ProxyArgs;
use crate::options::store::{kept_audit, text_index};
use crate::options::tls::ControlTlsArgs;
use crate::options::tokenizer::tokenizer_file;

/// The mode of a socket that only its user opens.
pub(crate) const OWN_SOCKET_MODE: u32 = 0o600;

/// The backend: upstreams or a model.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Backend")]
#[group(required = true, multiple = true)]
pub(crate) struct BackendArgs {
    /// Base URL of a server to record; repeatable
    ///
    /// As its own clients have it: http://127.0.0.1:8000, https://host/api/v4. With several, words
    /// after an address are its settings:
    /// 'http://a:8000 name=a weight=2 calls=64 dialect=vllm'.
    #[arg(long, value_name = "URL", value_delimiter = ',', env = "ROLLTAPE_UPSTREAM")]
    #[arg(value_parser = engine_spec, conflicts_with = "model")]
    pub(crate) upstream: Vec<EngineSpec>,
    /// Hugging Face model folder for the engine in this process
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// File with an --upstream on each line
    ///
    /// It is read again when it changes.
    #[arg(long, value_name = "FILE", conflicts_with = "model", env = "ROLLTAPE_UPSTREAMS_FILE")]
    pub(crate) upstreams_file: Option<PathBuf>,
    /// Recorded episode whose replies are given again: ID or ID/ATTEMPT
    ///
    /// To every episode that was not announced with a recording of its own. Without a server or a
    /// model, no call goes anywhere else.
    #[arg(long, value_name = "EPISODE", value_parser = attempt_name, env = "ROLLTAPE_REPLAY")]
    pub(crate) replay: Option<AttemptName>,
    /// Rules for what does not matter in a request under --replay; repeatable
    ///
    /// clocks, ids, paths, numbers, /FIELD/FIELD with * for any one, or re:PATTERN.
    #[arg(long, value_name = "RULE", requires = "replay", env = "ROLLTAPE_REPLAY_IGNORE")]
    #[arg(value_delimiter = ',')]
    pub(crate) replay_ignore: Vec<String>,
}

impl BackendArgs {
    /// True if nobody but a recording answers calls.
    fn is_replay_alone(&self) -> bool {
        self.upstream.is_empty() && self.model.is_none() && self.upstreams_file.is_none()
    }

    /// The recording that answers the calls of episodes without one of their own.
    ///
    /// # Errors
    /// [`Failure`] if a rule cannot be read.
    fn replay(&self) -> Result<Option<Replay>, Failure> {
        let Some(AttemptName { id, attempt }) = &self.replay else { return Ok(None) };
        IgnoreRules::read(&self.replay_ignore).map_err(|error| Failure::of(&error))?;
        let episode = id.parse().map_err(|error: InvalidId| Failure::of(&error))?;
        Ok(Some(Replay {
            source: AttemptId { episode, attempt: attempt.unwrap_or(0) },
            until: None,
            mode: ReplayMode::Strict,
            ignore: self.replay_ignore.clone(),
            keeps_time: false,
        }))
    }
}

/// A value of `--durability`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum DurabilityName {
    /// Loss of power
    #[default]
    Power,
    /// Death of the process
    Process,
    /// Nothing but a clean stop: no call waits, and episodes that may lack a call are marked
    Relaxed,
}

impl From<DurabilityName> for Durability {
    fn from(name: DurabilityName) -> Self {
        match name {
            DurabilityName::Power => Self::Power,
            DurabilityName::Process => Self::Process,
            DurabilityName::Relaxed => Self::Relaxed,
        }
    }
}

/// Everything that is needed to start a server.
#[derive(Debug)]
pub(crate) struct ServerOptions {
    pub(crate) backend: BackendArgs,
    pub(crate) proxy: ProxyArgs,
    pub(crate) store: Location,
    pub(crate) durability: DurabilityName,
    /// Address of the data listener.
    pub(crate) listen: ListenAddress,
    /// Mode of its file, if it is a socket in the file system.
    pub(crate) socket_mode: u32,
    /// Address of the control listener.
    pub(crate) control: ListenAddress,
    /// Its TLS.
    pub(crate) control_tls: ControlTlsArgs,
    /// Settings of the engine, if the backend is a model.
    pub(crate) engine: EngineArgs,
    /// Address of the engine's listener, if the backend is a model.
    pub(crate) engine_listen: SocketAddr,
    /// True if only this process calls the control listener.
    pub(crate) is_private: bool,
    /// Sockets in place of the first two addresses.
    pub(crate) passed: PassedSockets,
    /// File descriptors that the process may have.
    pub(crate) descriptors_max: Option<usize>,
}

impl ServerOptions {
    /// The configuration of a proxy in front of an upstream.
    fn proxy_config(&self, upstream: Upstream, has_engine: bool) -> Result<Config, Failure> {
        let mut config = self.proxy.config(upstream, has_engine, &self.store)?;
        config.descriptors_max = self.descriptors_max;
        Ok(config)
    }

    /// The settings of the control listener, beside those of the proxy.
    fn control_settings(
        &self,
        proxy: &Config,
        viewer: Viewer,
        token: Option<String>,
    ) -> Result<Settings, Failure> {
        let mut settings = Settings {
            token,
            hosts: self.proxy.control.hosts(),
            reward_ranges: self.proxy.control.ranges.all.clone(),
            head_wait: proxy.head_wait,
            body_wait: proxy.body_wait,
            idle_wait: proxy.idle_wait,
            descriptors_max: self.descriptors_max,
            ..Settings::new(viewer)
        };
        self.control_tls.apply(&mut settings)?;
        Ok(settings)
    }

    /// A server for this process alone: free ports on loopback, the engine's defaults, and the
    /// safest durability.
    pub(crate) fn private(backend: BackendArgs, proxy: ProxyArgs, store: Location) -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            backend,
            proxy,
            store,
            durability: DurabilityName::Power,
            listen: free.into(),
            socket_mode: OWN_SOCKET_MODE,
            control: free.into(),
            control_tls: ControlTlsArgs::default(),
            engine: EngineArgs::default(),
            engine_listen: free,
            is_private: true,
            passed: PassedSockets::default(),
            descriptors_max: signals::descriptors(),
        }
    }
}

impl ServerOptions {
    /// The token of the control listener, which is made if it is missing.
    fn token(&self) -> Result<Option<FoundToken>, Failure> {
        match self.is_private {
            true => self.proxy.control.of_private_server(),
            false => self.proxy.control.of_server(&self.store),
        }
    }

    /// The tokenizer of the model, if it is at hand.
    pub(crate) fn tokenizer(&self) -> Option<PathBuf> {
        let of_model = self.backend.model.as_deref().map(tokenizer_file);
        of_model.or_else(|| self.proxy.upstream.tokenizer())
    }

    /// The viewer of the store, with the tokenizer of the model if it is at hand.
    fn viewer(&self) -> Viewer {
        Viewer::new(self.store.clone(), self.tokenizer().as_deref().map(TokenTexts::later))
            .with_index(text_index(&self.store))
            .with_audit(kept_audit(&self.store))
    }
}

/// Loads the model of a server, whose sockets are bound already.
async fn load_engine(model: &Path, options: &ServerOptions) -> Result<LoadedEngine, Failure> {
    let upstream_args = &options.proxy.upstream;
    let logprobs_mode = upstream_args.tokens.logprobs_mode.map(Into::into).unwrap_or_default();
    let allow_priority = options.proxy.agents.allow_priority;
    let settings = EngineOptions { logprobs_mode, allow_priority, ..options.engine.options() };
    LoadedEngine::load(model, settings, options.engine_listen).await
}

/// Connections to a PostgreSQL server that the readers of the feed and of the page share.
const READER_CONNECTIONS_MAX: usize = 8;

/// A running server.
#[derive(Debug)]
pub(crate) struct RunningServer {
    /// Address of the data listener.
    pub(crate) data: ListenAddress,
    /// Address of the control listener.
    pub(crate) control: ListenAddress,
    /// Address of the engine, if the backend is a model.
    pub(crate) engine: Option<SocketAddr>,
    /// The upstream's URL, or the model's name.
    pub(crate) backend: String,
    /// Scheme of the data listener: http or https.
    pub(crate) scheme: &'static str,
    /// Scheme of the control listener.
    pub(crate) control_scheme: &'static str,
    /// The token of the control listener; `None` if it is open.
    pub(crate) token: Option<FoundToken>,
    /// Longest wait for calls in flight at a stop.
    pub(crate) drain_wait: Duration,
    /// Weak, because a proxy that is held keeps the store open.
    proxy: Weak<Proxy>,
    /// Reads the recording for people.
    pub(crate) viewer: Viewer,
    /// Sends spans, metrics and log records, if there is a collector.
    otlp: Option<OtlpExport>,
    /// Stops the data listener.
    stop_data: watch::Sender<bool>,
    /// Stops the others, which calls in flight and whoever watches them still need.
    stop_others: watch::Sender<bool>,
    data_tasks: JoinSet<()>,
    control_tasks: JoinSet<()>,
    engine_tasks: JoinSet<std::io::Result<()>>,
    writer: Writer,
    /// The files of sockets, which go with the server.
    _files: [Option<SocketFile>; 2],
}

impl RunningServer {
    /// Checks everything, then starts.
    pub(crate) async fn start(mut options: ServerOptions) -> Result<Self, Failure> {
        options.store = options.store.with_readers(READER_CONNECTIONS_MAX);
        // An address that is taken is reported before a model is loaded.
        let PassedSockets { data, control } = std::mem::take(&mut options.passed);
        let (mode, own) = (options.socket_mode, OWN_SOCKET_MODE);
        let data_socket = BoundSocket::take(data, &options.listen, mode, "--listen")?;
        let control_socket = BoundSocket::take(control, &options.control, own, "--control")?;
        let (stop_data, data_stop) = watch::channel(false);
        let (stop_others, others_stop) = watch::channel(false);

        let loaded = match &options.backend.model {
            Some(model) => Some(load_engine(model, &options).await?),
            None => None,
        };

        // After the engine: a model that does not load must not leave an empty store behind.
        let (store, writer) = Store::open(&options.store, options.durability.into()).await?;
        // After the store: whoever holds it is the only one to make the token beside it.
        let token = options.token()?;
        let control_token = token.as_ref().map(|found| found.token.clone());
        let mut engine_tasks = JoinSet::new();
        let upstreams = Upstreams::read(&options.backend)?;
        let started = match loaded {
            None => upstreams.backend()?,
            Some(loaded) => {
                let stop = others_stop.clone();
                loaded.serve(control_token.clone(), stop, &mut engine_tasks)?
            }
        };

        let StartedBackend { upstream, name, engine, key } = started;
        let viewer = options.viewer();
        let mut config = options.proxy_config(upstream, engine.is_some())?;
        upstreams.set(&mut config)?;
        let mut settings = options.control_settings(&config, viewer.clone(), control_token)?;
        config.upstream_key = key.or(config.upstream_key);
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let drain_wait = config.drain_wait;
        let proxy = Arc::new(Proxy::start(config, store).await.map_err(|e| Failure::of(&e))?);
        let otlp = OtlpExport::start(&options, &mut settings).await?;

        // The ports open last: until here nothing could have been served.
        let (data, control) = (data_socket.open()?, control_socket.open()?);
        let agents = proxy::serve_data(Arc::clone(&proxy), data.endpoint, stopped(data_stop));
        let data_tasks = JoinSet::from_iter([agents]);
        let mut control_tasks = serve_control(&proxy, settings, control.endpoint, &others_stop);
        upstreams.serve(&proxy, &mut control_tasks, stopped(others_stop)).await?;

        Ok(Self {
            data: data.address,
            control: control.address,
            engine,
            backend: name,
            scheme,
            control_scheme: options.control_tls.scheme(),
            token,
            drain_wait,
            proxy: Arc::downgrade(&proxy),
            viewer,
            otlp,
            stop_data,
            stop_others,
            data_tasks,
            control_tasks,
            engine_tasks,
            writer,
            _files: [data.file, control.file],
        })
    }

    /// The address by which agents on this machine reach the data listener, without a path.
    pub(crate) fn agents_url(&self) -> String {
        self.data.clone().reachable().url(self.scheme)
    }

    /// The address by which this process reaches the control listener, without a path.
    pub(crate) fn control_url(&self) -> String {
        self.control.clone().reachable().url(self.control_scheme)
    }

    /// The `authorization` of requests to the control listener.
    pub(crate) fn control_bearer(&self) -> Option<String> {
        self.token.as_ref().map(FoundToken::bearer)
    }

    /// The number of agents' calls that have not ended.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.proxy.upgrade().map_or(0, |proxy| proxy.calls_in_flight())
    }

    /// Waits for calls in flight, unless `hurry` resolves first, and stops everything. All records
    /// are on disk afterwards.
    pub(crate) async fn stop(mut self, hurry: impl Future<Output = ()>) -> Result<(), Failure> {
        self.stop_data.send_replace(true);
        // Meanwhile the engine answers calls in flight, and `/ready` says that they are awaited.
        let drained = async {
            while self.data_tasks.join_next().await.is_some() {}
            if let Some(otlp) = &mut self.otlp {
                otlp.finish_metrics().await;
            }
            self.stop_others.send_replace(true);
            while self.control_tasks.join_next().await.is_some() {}
        };
        let hurried = tokio::select! {
            () = drained => false,
            () = hurry => true,
        };

        if hurried {
            // Calls in flight end as if their agents had left, and are recorded as such.
            self.data_tasks.shutdown().await;
            self.control_tasks.shutdown().await;
            self.engine_tasks.shutdown().await;
            self.stop_others.send_replace(true);
        }
        self.writer.finish().await;
        if let Some(otlp) = self.otlp {
            otlp.finish().await;
        }
        while let Some(ended) = self.engine_tasks.join_next().await {
            ended.map_err(|e| Failure::of(&e))??;
        }
        Ok(())
    }
}

/// Serves the control listener, and watches the upstreams.
fn serve_control(
    proxy: &Arc<Proxy>,
    settings: Settings,
    listener: Endpoint,
    stop: &watch::Receiver<bool>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(proxy::watch_upstream(Arc::clone(proxy), stopped(stop.clone())));
    let recorder = Recorder::new(Arc::clone(proxy));
    tasks.spawn(control::serve_control(recorder, settings, listener, stopped(stop.clone())));
    tasks
}

/// Resolves when the server is to stop.
async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender was dropped, which is a stop, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
