//! The server of `rolltape serve` in one process: the engine, if there is a model, and the proxy
//! with its two listeners.

pub(crate) mod engine;
mod feed_rows;
pub(crate) mod listen;
pub(crate) mod signals;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::engine::EngineOptions;
use clap::ValueEnum;
use proxy::{Proxy, Upstream};
use store::{Durability, Location, Store, Writer};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::feed_rows::ExportedRows;
use self::listen::{bind, open, reachable};
use crate::exit::Failure;
use crate::options::engine::EngineArgs;
use crate::options::proxy::ProxyArgs;

/// The backend: one of the two is required.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct BackendArgs {
    /// An OpenAI-compatible server, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL", env = "ROLLTAPE_UPSTREAM")]
    pub(crate) upstream: Option<Upstream>,
    /// A Hugging Face model folder, served by the engine inside this process
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    pub(crate) model: Option<PathBuf>,
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
    pub(crate) listen: SocketAddr,
    /// Address of the control listener.
    pub(crate) control: SocketAddr,
    /// Settings of the engine, if the backend is a model.
    pub(crate) engine: EngineArgs,
    /// Address of the engine's listener, if the backend is a model.
    pub(crate) engine_listen: SocketAddr,
}

impl ServerOptions {
    /// A server for this process alone: free ports on loopback, the engine's defaults, and the
    /// safest durability.
    pub(crate) fn private(backend: BackendArgs, proxy: ProxyArgs, store: Location) -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            backend,
            proxy,
            store,
            durability: DurabilityName::Power,
            listen: free,
            control: free,
            engine: EngineArgs::default(),
            engine_listen: free,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct RunningServer {
    /// Address of the data listener.
    pub(crate) data: SocketAddr,
    /// Address of the control listener.
    pub(crate) control: SocketAddr,
    /// Address of the engine, if the backend is a model.
    pub(crate) engine: Option<SocketAddr>,
    /// The upstream's URL, or the model's name.
    pub(crate) backend: String,
    /// Scheme of the data listener: http or https.
    pub(crate) scheme: &'static str,
    /// Longest wait for calls in flight at a stop.
    pub(crate) drain_wait: Duration,
    /// Weak, because a proxy that is held keeps the store open.
    proxy: Weak<Proxy>,
    stop: watch::Sender<bool>,
    proxy_tasks: JoinSet<()>,
    engine_tasks: JoinSet<std::io::Result<()>>,
    writer: Writer,
}

impl RunningServer {
    /// Checks everything, then starts.
    pub(crate) async fn start(options: ServerOptions) -> Result<Self, Failure> {
        // An address that is taken is reported before a model is loaded.
        let data_socket = bind(options.listen, "--listen")?;
        let control_socket = bind(options.control, "--control")?;
        let (stop, stop_requested) = watch::channel(false);

        let mut engine_tasks = JoinSet::new();
        let upstream_args = &options.proxy.upstream;
        let (upstream, backend, engine) = match (&options.backend.upstream, &options.backend.model)
        {
            (Some(upstream), _) => (upstream.clone(), upstream.to_string(), None),
            (None, Some(model)) => {
                let logprobs_mode = upstream_args.logprobs_mode.map(Into::into).unwrap_or_default();
                let settings = EngineOptions { logprobs_mode, ..options.engine.options() };
                let address = options.engine_listen;
                let stop = stop_requested.clone();
                let started =
                    engine::start(model, settings, address, stop, &mut engine_tasks).await?;
                (started.upstream, started.model_name, Some(started.address))
            }
            (None, None) => return Err(Failure::new("neither --upstream nor --model was given")),
        };

        // After the engine: a model that does not load must not leave an empty store behind.
        let (store, writer) = Store::open(&options.store, options.durability.into()).await?;
        let mut config = options.proxy.config(upstream, engine.is_some())?;
        config.rows = Some(Arc::new(ExportedRows));
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let drain_wait = config.drain_wait;
        let proxy = Arc::new(Proxy::start(config, store).await.map_err(|e| Failure::of(&e))?);
        let weak_proxy = Arc::downgrade(&proxy);

        // The ports open last: until here nothing could have been served.
        let (data_listener, control_listener) = (open(data_socket)?, open(control_socket)?);
        let (data, control) = (data_listener.local_addr()?, control_listener.local_addr()?);
        let mut proxy_tasks = JoinSet::new();
        let data_stop = stopped(stop_requested.clone());
        proxy_tasks.spawn(proxy::serve_data(Arc::clone(&proxy), data_listener, data_stop));
        proxy_tasks.spawn(proxy::serve_control(proxy, control_listener, stopped(stop_requested)));

        Ok(Self {
            data,
            control,
            engine,
            backend,
            scheme,
            drain_wait,
            proxy: weak_proxy,
            stop,
            proxy_tasks,
            engine_tasks,
            writer,
        })
    }

    /// The URL by which agents on this machine reach the data listener, without a path.
    pub(crate) fn agents_url(&self) -> String {
        format!("{}://{}", self.scheme, reachable(self.data))
    }

    /// The number of agents' calls that have not ended.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.proxy.upgrade().map_or(0, |proxy| proxy.calls_in_flight())
    }

    /// Waits for calls in flight, unless `hurry` resolves first, and stops everything. All records
    /// are on disk afterwards.
    pub(crate) async fn stop(mut self, hurry: impl Future<Output = ()>) -> Result<(), Failure> {
        self.stop.send_replace(true);
        let drained = async { while self.proxy_tasks.join_next().await.is_some() {} };
        let hurried = tokio::select! {
            () = drained => false,
            () = hurry => true,
        };

        if hurried {
            // Calls in flight end as if their agents had left, and are recorded as such.
            self.proxy_tasks.shutdown().await;
            self.engine_tasks.shutdown().await;
        }
        self.writer.finish().await;
        while let Some(ended) = self.engine_tasks.join_next().await {
            ended.map_err(|e| Failure::of(&e))??;
        }
        Ok(())
    }
}

/// Resolves when the server is to stop.
async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender was dropped, which is a stop, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
