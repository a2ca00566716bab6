//! The engine of `--model`, inside the server's process.

use std::net::SocketAddr;
use std::path::Path;

use engine::{Access, Engine, EngineOptions};
use proxy::Upstream;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::listen::{bind, open};
use super::stopped;
use crate::exit::{Failure, MODEL_FOLDER};
use crate::options::address::reachable;
use crate::options::secret_file;
use crate::terminal;

/// An address at which nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9";

/// The server that answers the proxy: an upstream of the user's, or an engine of this process.
pub(super) struct StartedBackend {
    pub(super) upstream: Upstream,
    /// The upstream's URL, or the name of the engine's model.
    pub(super) name: String,
    /// The address of the engine's listener.
    pub(super) engine: Option<SocketAddr>,
    /// The key that opens the engine for this process alone.
    pub(super) key: Option<String>,
}

impl StartedBackend {
    /// No backend: a recording answers every call. Nobody asks the address.
    pub(super) fn none() -> Result<Self, Failure> {
        let upstream: Upstream =
            NOWHERE.parse().map_err(|e: proxy::InvalidUpstream| Failure::of(&e))?;
        Ok(Self::of_user(upstream, "no upstream".to_owned()))
    }

    /// The user's upstreams, of which this is the first.
    pub(super) fn of_user(upstream: Upstream, name: String) -> Self {
        Self { name, upstream, engine: None, key: None }
    }
}

/// A loaded model with a bound socket, before it is served.
pub(super) struct LoadedEngine {
    socket: TcpSocket,
    engine: Engine,
}

impl LoadedEngine {
    /// Binds `address` and loads the model.
    pub(super) async fn load(
        model: &Path,
        options: EngineOptions,
        address: SocketAddr,
    ) -> Result<Self, Failure> {
        // An address that is taken is reported before the model is read, which takes long.
        let socket = bind(address, "--engine-listen")?;
        let engine = load(model, options).await?;
        engine.description().into_iter().for_each(terminal::message);
        Ok(Self { socket, engine })
    }

    /// Serves the model in a task of `tasks`, until `stop` is true. Only callers with `token` or
    /// with a key that nobody else knows are answered.
    pub(super) fn serve(
        self,
        token: Option<String>,
        stop: watch::Receiver<bool>,
        tasks: &mut JoinSet<std::io::Result<()>>,
    ) -> Result<StartedBackend, Failure> {
        let name = self.engine.model_name().to_owned();
        let listener = open(self.socket)?;
        let address = listener.local_addr()?;
        let upstream = format!("http://{}", reachable(address))
            .parse()
            .map_err(|e: proxy::InvalidUpstream| Failure::of(&e))?;
        let key = secret_file::random()?;
        let access = Access::with_tokens(token.iter().chain([&key]));
        tasks.spawn(engine::serve(listener, self.engine, access, stopped(stop)));

        Ok(StartedBackend { upstream, name, engine: Some(address), key: Some(key) })
    }
}

/// Loads a model folder, on a thread that may block.
pub(crate) async fn load(model: &Path, options: EngineOptions) -> Result<Engine, Failure> {
    let folder = model.to_owned();
    engine::refuse_gguf(&folder)?;
    if !folder.is_dir() {
        return Err(Failure::new(format!("there is no model folder at `{}`", folder.display()))
            .hint(MODEL_FOLDER));
    }
    tokio::task::spawn_blocking(move || Engine::load(&folder, options))
        .await
        .map_err(|e| Failure::of(&e))?
        .map_err(Into::into)
}
