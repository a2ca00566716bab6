//! The HTTP server in front of the engine thread.
//!
//! A call passes these rooms:
//! - `access`: who is answered.
//! - `routes`: the table of all routes, by which a call finds its handler. It alone imports
//!   handlers.
//! - `http`: calls, replies, errors, JSON fields and server-sent events, without the engine.
//! - `chat`, `completions`, `generate`, `translation`, `sglang`: handlers that sample. They read
//!   their fields and what `generation` reads for all of them, and submit their choices.
//! - `engine_client`: the bounded queue to the engine thread. The outputs come back as one reply or
//!   as events.
//! - `trainer`, `lora`: handlers of weights, pauses and adapters.
//! - `prefix`: the sampled replies of chats, which later prompts start with.
//!
//! `state` holds what all connections share.

mod access;
mod batch;
mod chat;
mod completions;
mod cors;
mod engine_client;
mod generate;
mod generation;
mod http;
mod lora;
mod metrics;
mod models;
mod openapi;
mod prefix;
mod render;
mod responses;
mod route;
mod routes;
mod sglang;
mod state;
mod status;
mod tokenize;
mod trainer;
mod translation;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::Engine;
use crate::bounds::{CONNECTIONS_MAX, HEAD_WAIT, STOP_WAIT, STREAMS_MAX};
pub use access::Access;
use state::ServerState;

/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the engine on `listener` to the callers of `access` until `shutdown` completes. Replies
/// under way then have five seconds to finish.
///
/// # Errors
/// The engine thread could not be started.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    access: Access,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Engine { core, info: card, stats, status: board, updates, .. } = engine;
    let (state, receiver) = ServerState::new(card, board, stats, updates, access);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || core.run_to_end(receiver))?;
    accept(&listener, Arc::new(state), shutdown).await;

    // The state and with it the last sender is gone, so the thread ends after its current step.
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if panicked(&joined) {
        tracing::error!("the engine thread panicked");
    }
    Ok(())
}

/// True if the thread panicked. A runtime that ends first cancels the wait, which says nothing of
/// the thread.
fn panicked(joined: &Result<std::thread::Result<()>, JoinError>) -> bool {
    match joined {
        Ok(thread) => thread.is_err(),
        Err(wait) => wait.is_panic(),
    }
}

/// Accepts connections until `shutdown` completes, then waits for the replies under way.
async fn accept(
    listener: &TcpListener,
    state: Arc<ServerState>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = std::pin::pin!(shutdown);
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();

    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        let accepted = tokio::select! {
            accepted = listener.accept(), if has_room => accepted,
            // Ended connections are removed, so that the set holds live ones only.
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(serve_connection(stream, Arc::clone(&state), stopping.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    // A call that waits for a trainer would hold the shutdown up: the trainer may never come.
    state.updates.waits.stop();
    // So would a reply that nobody waits for.
    state.responses.stop();
    drop(state);
    stop.send_replace(true);

    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_WAIT, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves one connection of HTTP/1.1 or HTTP/2 until it ends. Once `stopping` is true, it ends with
/// its current replies.
async fn serve_connection(
    stream: TcpStream,
    state: Arc<ServerState>,
    mut stopping: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let is_http2 = tokio::select! {
        speaks = tokio::time::timeout(HEAD_WAIT, speaks_http2(&stream)) => speaks,
        () = async { drop(stopping.wait_for(|stop| *stop).await) } => return,
    };
    let Ok(Ok(is_http2)) = is_http2 else { return };

    let service = service_fn(move |request| routes::answer(Arc::clone(&state), request));
    let mut http = auto::Builder::new(TokioExecutor::new());
    http = if is_http2 { http.http2_only() } else { http.http1_only() };
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(HEAD_WAIT)
        .keep_alive_timeout(HEAD_WAIT);
    let connection = http.serve_connection(TokioIo::new(stream), service);

    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        // The guard of the watched value must not be held while the connection ends.
        () = async { drop(stopping.wait_for(|stop| *stop).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Returns true if a connection begins as HTTP/2 does.
async fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut begin = [0; PREFACE.len()];
    loop {
        let len = stream.peek(&mut begin).await?;
        if len == 0 || !PREFACE.starts_with(&begin[..len]) {
            return Ok(false);
        }
        if len == PREFACE.len() {
            return Ok(true);
        }
        // The rest is on its way; a peek does not wait for it.
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

#[cfg(test)]
mod joined {
    use super::*;

    /// What a runtime that ends first leaves of a wait that has not begun.
    #[test]
    fn a_wait_that_was_given_up_is_no_panic_of_the_engine() {
        let waited = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let given_up = waited.spawn(std::future::pending::<std::thread::Result<()>>());
        given_up.abort();
        let given_up = waited.block_on(given_up);
        assert!(given_up.as_ref().is_err_and(JoinError::is_cancelled));
        assert!(!panicked(&given_up));
        assert!(!panicked(&Ok(Ok(()))));
        assert!(panicked(&Ok(Err(Box::new("a panic")))));
    }
}

#[cfg(test)]
mod tests;
