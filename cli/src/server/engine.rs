//! The engine of `--model`, inside the server's process.

use std::net::SocketAddr;
use std::path::Path;

use engine::{Engine, EngineOptions};
use proxy::Upstream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::listen::{bind, open, reachable};
use super::stopped;
use crate::exit::{Failure, MODEL_FOLDER};

/// An engine that listens, as the proxy's upstream.
pub(super) struct StartedEngine {
    pub(super) upstream: Upstream,
    pub(super) model_name: String,
    pub(super) address: SocketAddr,
}

/// Loads the model and serves it at `address` in a task of `tasks`, until `stop` is true.
pub(super) async fn start(
    model: &Path,
    options: EngineOptions,
    address: SocketAddr,
    stop: watch::Receiver<bool>,
    tasks: &mut JoinSet<std::io::Result<()>>,
) -> Result<StartedEngine, Failure> {
    // An address that is taken is reported before the model is read, which takes long.
    let socket = bind(address, "--engine-listen")?;
    let loaded = load(model, options).await?;
    eprintln!("{}", loaded.device());
    let model_name = loaded.model_name().to_owned();

    let listener = open(socket)?;
    let address = listener.local_addr()?;
    let upstream = format!("http://{}", reachable(address))
        .parse()
        .map_err(|e: proxy::InvalidUpstream| Failure::of(&e))?;
    tasks.spawn(engine::serve(listener, loaded, stopped(stop)));

    Ok(StartedEngine { upstream, model_name, address })
}

/// Loads a model folder, on a thread that may block.
pub(crate) async fn load(model: &Path, options: EngineOptions) -> Result<Engine, Failure> {
    let folder = model.to_owned();
    if !folder.is_dir() {
        return Err(Failure::new(format!("there is no model folder at `{}`", folder.display()))
            .hint(MODEL_FOLDER));
    }
    tokio::task::spawn_blocking(move || Engine::load(&folder, options))
        .await
        .map_err(|e| Failure::of(&e))?
        .map_err(Into::into)
}
