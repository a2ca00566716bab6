//! A port of loopback that leads to a socket in the file system. An agent's SDK takes a URL, and no
//! URL names such a socket.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::exit::Failure;

/// Connections of the command at a time. A further one waits until another has ended.
const CONNECTIONS_MAX: usize = 1024;

/// A running bridge. It ends with this value.
#[derive(Debug)]
pub(super) struct Bridge {
    /// The URL of the port.
    pub(super) url: String,
    task: JoinHandle<()>,
}

impl Bridge {
    /// Opens a free port that leads to the socket at `path`.
    ///
    /// # Errors
    /// [`Failure`] if nobody listens at `path`, or if no port is free.
    pub(super) async fn start(path: &Path) -> Result<Self, Failure> {
        UnixStream::connect(path).await.map_err(|error| {
            Failure::new(format!("no answer at unix:{}: {error}", path.display()))
                .hint("--proxy takes what --listen of a running `rolltape serve` says")
        })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        Ok(Self { url, task: tokio::spawn(accept(listener, path.to_owned())) })
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, path: PathBuf) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((agent, _)) = listener.accept().await else { continue };
        let path = path.clone();
        tokio::spawn(async move {
            if let Err(error) = join(agent, &path).await {
                tracing::debug!(%error, "a connection of the command ended early");
            }
            drop(permit);
        });
    }
}

async fn join(mut agent: TcpStream, path: &Path) -> io::Result<()> {
    agent.set_nodelay(true)?;
    let mut server = UnixStream::connect(path).await?;
    let (mut from_agent, mut to_agent) = agent.split();
    let (mut from_server, mut to_server) = server.split();

    let ask = async {
        match copy(&mut from_agent, &mut to_server).await {
            Ok(_) => to_server.shutdown().await?,
            // The server took no more of the request. Its answer may be on the way.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error),
        }
        std::future::pending().await
    };
    let answer = async {
        copy(&mut from_server, &mut to_agent).await?;
        to_agent.shutdown().await
    };
    tokio::select! {
        ended = answer => ended,
        failed = ask => failed,
    }
}
