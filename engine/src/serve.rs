//! HTTP in front of the engine thread.
//!
//! The walk of a call: `routes` reads the body, `chat` or `completions` parse it, `submit` queues
//! its choices, and the outputs come back as one reply or, through `sse`, as frames.

mod adapters;
mod chat;
mod chat_prompt;
mod chat_stream;
mod choice;
mod completions;
mod completions_stream;
mod encode;
mod error;
mod fields;
mod form;
mod generate;
mod logprobs;
mod metrics;
mod models;
mod prefix;
mod request;
mod rl;
mod routes;
mod sampling;
mod sglang;
mod speech;
mod sse;
mod submit;
#[cfg(test)]
mod tests;
mod tokenize;
mod tool_choice;
mod usage;
mod wires;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::Engine;
use submit::{Gate, State};

/// How long replies under way may take to finish once the server was told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// How long to wait after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the engine on `listener` until `shutdown` completes; replies under way then have five
/// seconds to finish.
///
/// # Errors
/// The engine thread could not be started.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Engine { core, card, stats, board, updates, .. } = engine;
    let (gate, inbox) = Gate::new(card.max_queue, board);
    let thread = std::thread::Builder::new().name("engine".into());
    let thread = thread.spawn(move || core.work_off(inbox))?;
    accept(&listener, Arc::new(State::new(card, gate, stats, updates)), shutdown).await;
    // The last sender is gone, so the thread ends with the step that it is in.
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if panicked(&joined) {
        tracing::error!("the engine thread panicked");
    }
    Ok(())
}

/// Whether the thread itself failed. A runtime that ends first gives the wait up, which says
/// nothing of the thread.
fn panicked(joined: &Result<std::thread::Result<()>, JoinError>) -> bool {
    match joined {
        Ok(thread) => thread.is_err(),
        Err(wait) => wait.is_panic(),
    }
}

async fn accept(listener: &TcpListener, state: Arc<State>, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Ended connections are collected, so that the set holds live ones only.
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, Arc::clone(&state), stopping.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // New weights are of no use any more, and their trainer may never come.
    state.updates.waits.stop();
    drop(state);
    stop.send_replace(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn connection(stream: TcpStream, state: Arc<State>, mut stopping: watch::Receiver<bool>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let service = service_fn(move |request| routes::answer(Arc::clone(&state), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
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
