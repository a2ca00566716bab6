//! The whole server in one process: the engine if there is a model, the proxy, its listeners.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use clap::ValueEnum;
use engine::{Engine, EngineOptions};
use proxy::{Proxy, Upstream};
use store::{Durability, Location, Store, Writer};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::engine_options::EngineArgs;
use crate::exit::{Failure, MODEL_FOLDER};
use crate::manner::Manner;

/// Where tokens come from: give one of the two.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Source {
    /// An OpenAI-compatible server, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL", env = "ROLLTAPE_UPSTREAM")]
    pub(crate) upstream: Option<Upstream>,
    /// A Hugging Face model folder, served by the engine inside this process
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_MODEL")]
    pub(crate) model: Option<PathBuf>,
}

/// What a commit survives.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum DurabilityName {
    /// Loss of power
    #[default]
    Power,
    /// The death of the process
    Process,
    /// A clean stop only: nothing is waited for, and episodes that may lack a call are marked
    Relaxed,
}

/// Everything that is needed to start.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Source,
    pub(crate) manner: Manner,
    /// How the engine runs, if there is one.
    pub(crate) engine: EngineArgs,
    /// Where the engine listens, if there is one.
    pub(crate) engine_listen: SocketAddr,
    pub(crate) store: Location,
    pub(crate) durability: DurabilityName,
    pub(crate) listen: SocketAddr,
    pub(crate) control: SocketAddr,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) data: SocketAddr,
    pub(crate) control: SocketAddr,
    /// What is in front of: a URL, or the model's name.
    pub(crate) backend: String,
    /// Where the engine listens, if there is one.
    pub(crate) engine_at: Option<SocketAddr>,
    /// What agents speak: http or https.
    pub(crate) scheme: &'static str,
    /// How long calls in flight are waited for at the end.
    pub(crate) drain_wait: Duration,
    /// Not held: what holds it keeps the store open.
    recorder: Weak<Proxy>,
    stop: watch::Sender<bool>,
    proxy: JoinSet<()>,
    engine: JoinSet<std::io::Result<()>>,
    writer: Writer,
}

impl Running {
    /// Checks everything, then starts.
    pub(crate) async fn start(plan: Plan) -> Result<Self, Failure> {
        let data = bind(plan.listen, "--listen")?;
        let control = bind(plan.control, "--control")?;
        let (stop, stopped) = watch::channel(false);
        let mut engine = JoinSet::new();
        let (upstream, backend, engine_at) = match (&plan.source.upstream, &plan.source.model) {
            (Some(upstream), _) => (upstream.clone(), upstream.to_string(), None),
            (None, Some(model)) => {
                let begun = start_engine(model, &plan, stopped.clone(), &mut engine).await?;
                (begun.upstream, begun.name, Some(begun.address))
            }
            (None, None) => return Err(Failure::new("neither --upstream nor --model was given")),
        };
        let durability = match plan.durability {
            DurabilityName::Power => Durability::Power,
            DurabilityName::Process => Durability::Process,
            DurabilityName::Relaxed => Durability::Relaxed,
        };
        let (store, writer) = Store::open(&plan.store, durability).await?;
        let own_engine = plan.source.model.is_some();
        let config = plan.manner.config(upstream, own_engine)?;
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let drain_wait = config.drain_wait;
        let proxy = Arc::new(Proxy::start(config, store).await.map_err(|e| Failure::of(&e))?);
        let recorder = Arc::downgrade(&proxy);
        let (data_door, control_door) = (open(data)?, open(control)?);
        let (data, control) = (data_door.local_addr()?, control_door.local_addr()?);
        let mut listeners = JoinSet::new();
        listeners.spawn(proxy::serve_data(Arc::clone(&proxy), data_door, when(stopped.clone())));
        listeners.spawn(proxy::serve_control(proxy, control_door, when(stopped)));
        Ok(Self {
            data,
            control,
            backend,
            engine_at,
            scheme,
            drain_wait,
            recorder,
            stop,
            proxy: listeners,
            engine,
            writer,
        })
    }

    /// Where agents of this machine reach it, without a path.
    pub(crate) fn agents_url(&self) -> String {
        format!("{}://{}", self.scheme, reachable(self.data))
    }

    /// Calls of agents that have not ended.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.recorder.upgrade().map_or(0, |proxy| proxy.calls_in_flight())
    }

    /// Lets calls in flight end, unless `hurry` comes first, then stops everything; all records
    /// are on disk afterwards.
    pub(crate) async fn stop(mut self, hurry: impl Future<Output = ()>) -> Result<(), Failure> {
        self.stop.send_replace(true);
        let drained = async { while self.proxy.join_next().await.is_some() {} };
        let hurried = tokio::select! {
            () = drained => false,
            () = hurry => true,
        };
        if hurried {
            // What is in flight ends as if its agent had left, and is recorded so.
            self.proxy.shutdown().await;
            self.engine.shutdown().await;
        }
        self.writer.finish().await;
        while let Some(ended) = self.engine.join_next().await {
            ended.map_err(|e| Failure::of(&e))??;
        }
        Ok(())
    }
}

/// Calls that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Takes an address, or says which option to change. The port opens when [`TcpSocket::listen`] is
/// called: nobody can reach what cannot be served in the end.
pub(crate) fn bind(address: SocketAddr, option: &str) -> Result<TcpSocket, Failure> {
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Connections that end slowly do not keep a new server from their old address.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    bound().map_err(|error: std::io::Error| {
        let hint = format!("give another address with {option}, or stop what listens there");
        Failure::new(format!("cannot listen on {address}: {error}")).hint(hint)
    })
}

/// Opens the port of an address that was taken.
pub(crate) fn open(socket: TcpSocket) -> Result<TcpListener, Failure> {
    Ok(socket.listen(BACKLOG)?)
}

/// Loads a model folder without holding up the runtime.
pub(crate) async fn load(model: &Path, options: EngineOptions) -> Result<Engine, Failure> {
    let folder = model.to_owned();
    if !folder.is_dir() {
        return Err(Failure::new(format!("there is no model folder at `{}`", folder.display()))
            .hint(MODEL_FOLDER));
    }
    let loaded = tokio::task::spawn_blocking(move || Engine::load(&folder, options)).await;
    Ok(loaded.map_err(|e| Failure::of(&e))??)
}

/// An engine that serves.
struct Begun {
    upstream: Upstream,
    /// Of its model.
    name: String,
    address: SocketAddr,
}

async fn start_engine(
    model: &Path,
    plan: &Plan,
    stopped: watch::Receiver<bool>,
    engine: &mut JoinSet<std::io::Result<()>>,
) -> Result<Begun, Failure> {
    let socket = bind(plan.engine_listen, "--engine-listen")?;
    let logprobs_mode = plan.manner.speech.logprobs_mode.map_or_else(Default::default, Into::into);
    let options = EngineOptions { logprobs_mode, ..plan.engine.options() };
    let loaded = load(model, options).await?;
    eprintln!("{}", loaded.device());
    let name = loaded.model_name().to_owned();
    let listener = open(socket)?;
    let address = listener.local_addr()?;
    let upstream = format!("http://{}", reachable(address)).parse();
    let upstream = upstream.map_err(|e: proxy::BadUpstream| Failure::of(&e))?;
    engine.spawn(engine::serve(listener, loaded, when(stopped)));
    Ok(Begun { upstream, name, address })
}

/// The address by which this machine reaches a listener of its own.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

async fn when(mut stopped: watch::Receiver<bool>) {
    // An error means that the starter is gone: that is a stop, too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The signals that ask a server to end. Made before anything listens: whoever gets an answer can
/// count on a clean end.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Takes the signals over from the system's own, abrupt way.
    pub(crate) fn new() -> Result<Self, Failure> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves when the user or the system asks the process to end.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn an_engine_that_listens_everywhere_is_reached_on_loopback() {
        let reached = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reached("[::]:80"), "[::1]:80");
        assert_eq!(reached("10.0.0.7:80"), "10.0.0.7:80");
    }

    #[tokio::test]
    async fn a_port_that_was_taken_opens_later_and_is_nobody_else_s() {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--listen").unwrap();
        let address = socket.local_addr().unwrap();
        assert!(TcpStream::connect(address).is_err());
        let listener = open(socket).unwrap();
        assert!(TcpStream::connect(address).is_ok());
        let error = format!("{:?}", bind(address, "--listen").unwrap_err());
        assert!(error.contains(&format!("cannot listen on {address}")), "{error}");
        drop(listener);
    }
}
